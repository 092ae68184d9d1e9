//! Lets every call of a script fail, every fsync lose its pages and every allocation be refused.
//!
//! The script is 200 operations in segments. Each segment starts from a cleanly closed store, is run
//! once to count its calls, and then again for each way in which each of them can fail. After a
//! failure the store must be in the state before or after the operation, usable or poisoned, and
//! nothing may be reported durable that is not. A failure prints the run; runs need no seed.

const std = @import("std");
const builtin = @import("builtin");
const options = @import("test_options");
const zrecord = @import("zrecord");
const model = @import("model.zig");
const sim = @import("sim_files.zig");
const trial_zig = @import("trial.zig");

const Disk = sim.Disk;
const Id = model.Id;
const Error = trial_zig.Error;
const format = zrecord.format;
const print = std.debug.print;
const io = std.Io.Threaded.global_single_threaded.io();

const segment_count = 20;
const segment_steps = 10;

/// Counts what is allocated, and refuses one allocation on request.
const Memory = struct {
    live: usize = 0,
    count: u64 = 0,
    refused: ?u64 = null,
    refusals: u64 = 0,

    fn allocator(self: *Memory) std.mem.Allocator {
        return .{ .ptr = self, .vtable = &.{ .alloc = alloc, .resize = resize, .remap = remap, .free = free } };
    }

    fn alloc(context: *anyopaque, size: usize, alignment: std.mem.Alignment, address: usize) ?[*]u8 {
        const self: *Memory = @ptrCast(@alignCast(context));
        defer self.count += 1;
        if (self.refused == self.count) {
            self.refusals += 1;
            return null;
        }
        const memory = std.heap.smp_allocator.rawAlloc(size, alignment, address) orelse return null;
        self.live += size;
        return memory;
    }

    // Growing in place would hide allocations from the count.
    fn resize(_: *anyopaque, _: []u8, _: std.mem.Alignment, _: usize, _: usize) bool {
        return false;
    }

    fn remap(_: *anyopaque, _: []u8, _: std.mem.Alignment, _: usize, _: usize) ?[*]u8 {
        return null;
    }

    fn free(context: *anyopaque, memory: []u8, alignment: std.mem.Alignment, address: usize) void {
        const self: *Memory = @ptrCast(@alignCast(context));
        self.live -= memory.len;
        std.heap.smp_allocator.rawFree(memory, alignment, address);
    }
};

const Step = enum { append, append_parts, abort, sync, delete, compact, read };

/// A script under way on one disk.
fn Run(comptime kind: format.Kind) type {
    return struct {
        memory: Memory = .{},
        disk: *Disk,
        trial: ?*Trial = null,
        truth: model.Model = .{},
        next_id: Id,
        /// States that a power cut may go back to.
        allowed: std.ArrayList(u64) = .empty,
        /// The state after the step in flight.
        coming: ?u64 = null,
        /// What was done, for reports.
        doing: []const u8 = "open",

        const Self = @This();
        const Trial = trial_zig.Trial(trial_zig.tiny, kind);
        const gpa = std.heap.smp_allocator;

        fn init(disk: *Disk, ids: []const Id, next_id: Id) !Self {
            var self: Self = .{ .disk = disk, .next_id = next_id };
            try self.truth.append(gpa, ids);
            try self.settle();
            return self;
        }

        fn deinit(self: *Self) void {
            self.truth.deinit(gpa);
            self.allowed.deinit(gpa);
        }

        fn settle(self: *Self) !void {
            self.allowed.clearRetainingCapacity();
            try self.allowed.append(gpa, self.truth.state());
        }

        /// Opens, runs the segment, closes.
        fn all(self: *Self, segment: u64) Error!void {
            self.doing = "open";
            self.trial = try Trial.open(self.memory.allocator(), self.disk);
            for (0..segment_steps) |position| try self.perform(segment, position);
            self.doing = "close";
            const trial = self.trial.?;
            self.trial = null;
            try trial.close();
            try self.settle();
        }

        fn perform(self: *Self, segment: u64, position: u64) Error!void {
            var prng: std.Random.DefaultPrng = .init(segment * 1000 + position);
            const random = prng.random();
            const step = ([_]Step{ .append, .append, .append_parts, .abort, .sync, .sync, .delete, .delete, .compact, .read })[random.uintLessThan(usize, 10)];
            self.doing = @tagName(step);
            self.coming = null;
            const trial = self.trial.?;
            switch (step) {
                .append, .append_parts, .abort => {
                    var ids: [6]Id = undefined;
                    const count = random.intRangeAtMost(usize, 1, ids.len);
                    for (ids[0..count]) |*id| {
                        id.* = self.next_id;
                        self.next_id += 1;
                    }
                    const parts: usize = if (step == .append) 1 else 2;
                    if (step == .abort) return trial.abort(ids[0..count], parts);
                    const length = self.truth.ids.items.len;
                    try self.truth.append(gpa, ids[0..count]);
                    self.coming = self.truth.state();
                    self.truth.ids.items.len = length;
                    try trial.append(ids[0..count], parts);
                    self.truth.ids.items.len = length + count;
                    try self.allowed.append(gpa, self.truth.state());
                },
                .sync => {
                    try trial.sync();
                    try self.settle();
                },
                .delete => {
                    const length = self.truth.ids.items.len;
                    if (length < 4) return;
                    const first = random.intRangeAtMost(u64, 2, length - 1);
                    const indices = [_]u64{ first, first / 2 };
                    var after: model.Model = .{ .ids = try self.truth.ids.clone(gpa) };
                    defer after.deinit(gpa);
                    after.delete(&indices);
                    self.coming = after.state();
                    try trial.delete(&indices);
                    self.truth.delete(&indices);
                    try self.settle();
                },
                .compact => {
                    try trial.compact();
                    if (!trial.hasUnsynced()) try self.settle();
                },
                .read => {
                    const ids = try trial.readAll(self.memory.allocator());
                    defer self.memory.allocator().free(ids);
                    if (!std.mem.eql(Id, ids, self.truth.ids.items)) return error.CorruptRecord;
                },
            }
            self.coming = null;
        }

        fn isAllowed(self: *Self, state: u64) bool {
            if (state == self.truth.state() or (self.coming != null and state == self.coming.?)) return true;
            return std.mem.indexOfScalar(u64, self.allowed.items, state) != null;
        }

        fn stateOf(trial: *Trial) Error!u64 {
            const ids = try trial.readAll(gpa);
            defer gpa.free(ids);
            return model.digest(ids);
        }

        // After a failure.

        const Failure = error{ WrongState, FalselyDurable, Unusable, Unopenable, Silent, Leak };

        /// `lost_pages`: reading may find what an fsync took from the cache.
        fn examine(self: *Self, lost_pages: bool) (Failure || Error)!void {
            self.disk.fault = null;
            self.memory.refused = null;
            if (self.trial) |trial| {
                self.trial = null;
                self.examineHandle(trial, lost_pages) catch |err| {
                    trial.abandon();
                    return err;
                };
            }
            if (self.disk.handles_open != 0 or self.disk.folders_open != 0 or self.memory.live != 0) return error.Leak;
            // Cut now: what was acknowledged as durable is there.
            for ([_]bool{ false, true }) |everything| try self.examineCut(everything);
            try self.examineReopened();
        }

        /// The handle shows the state before or after, and goes on or refuses to write. Closes it.
        /// Where pages went back to what is on the medium, a poisoned handle may see entries of former
        /// records there.
        fn examineHandle(self: *Self, trial: *Trial, lost_pages: bool) (Failure || Error)!void {
            const state: ?u64 = stateOf(trial) catch |err| if (lost_pages and (err == error.CorruptRecord or err == error.CorruptStore)) null else return err;
            if (state) |found| {
                if (found == self.coming) {
                    // What failed was done all the same.
                    self.truth.ids.clearRetainingCapacity();
                    const ids = try trial.readAll(gpa);
                    defer gpa.free(ids);
                    try self.truth.append(gpa, ids);
                    try self.allowed.append(gpa, found);
                } else if (found != self.truth.state() and !lost_pages) return error.WrongState;
            }
            const added = [_]Id{ self.next_id, self.next_id + 1 };
            if (trial.append(&added, 1)) |_| {
                try self.truth.append(gpa, &added);
                try self.allowed.append(gpa, self.truth.state());
                try trial.sync();
                try self.settle();
                if (try stateOf(trial) != self.truth.state()) return error.WrongState;
            } else |err| {
                if (err != error.Failed) return error.Unusable;
                // Poisoned: nothing is ever reported durable again.
                if (trial.sync()) |_| return error.FalselyDurable else |again| if (again != error.Failed) return error.Unusable;
                if (trial.delete(&.{0})) |_| return error.FalselyDurable else |again| if (again != error.Failed) return error.Unusable;
                if (trial.compact()) |_| return error.FalselyDurable else |again| if (again != error.Failed) return error.Unusable;
                const unsynced = trial.hasUnsynced();
                if (trial.close()) |_| {
                    if (unsynced) return error.FalselyDurable;
                } else |_| {}
                return;
            }
            try trial.close();
            try self.settle();
        }

        fn examineCut(self: *Self, everything: bool) (Failure || Error)!void {
            const kept = try gpa.alloc(bool, self.disk.updateCount());
            defer gpa.free(kept);
            @memset(kept, everything);
            var image = self.disk.image(gpa, kept, .strict);
            defer image.deinit();
            const trial = Trial.open(gpa, &image) catch return error.Unopenable;
            defer trial.abandon();
            if (!self.isAllowed(try stateOf(trial))) return error.FalselyDurable;
        }

        /// The store opens again under the same start of the machine. What a success then claims to be
        /// durable survives the worst power cut.
        fn examineReopened(self: *Self) (Failure || Error)!void {
            for ([_]bool{ false, true }) |with_append| {
                var disk = self.disk.killed(gpa);
                defer disk.deinit();
                const trial = Trial.open(gpa, &disk) catch return error.Unopenable;
                const ids = trial.readAll(gpa) catch |err| {
                    trial.abandon();
                    return err;
                };
                defer gpa.free(ids);
                var expected: model.Model = .{};
                defer expected.deinit(gpa);
                try expected.append(gpa, ids);
                if (!self.isAllowed(expected.state())) {
                    trial.abandon();
                    return error.WrongState;
                }
                const added = [_]Id{ self.next_id + 10, self.next_id + 11 };
                if (with_append) {
                    trial.append(&added, 1) catch |err| {
                        trial.abandon();
                        return err;
                    };
                    try expected.append(gpa, &added);
                }
                try trial.close();
                const kept = try gpa.alloc(bool, disk.updateCount());
                defer gpa.free(kept);
                @memset(kept, false);
                var image = disk.image(gpa, kept, .strict);
                defer image.deinit();
                const after = Trial.open(gpa, &image) catch return error.Unopenable;
                defer after.abandon();
                if (try stateOf(after) != expected.state()) return error.FalselyDurable;
            }
        }
    };
}

/// The store at the start of each segment, and the calls that the segment makes.
fn Bases(comptime kind: format.Kind) type {
    return struct {
        disks: [segment_count]Disk = undefined,
        ids: [segment_count][]Id = undefined,
        next_ids: [segment_count]Id = undefined,
        calls: [segment_count]std.ArrayList(sim.Call) = @splat(.empty),
        allocations: [segment_count]u64 = undefined,

        const Self = @This();
        const gpa = std.heap.smp_allocator;

        fn init(self: *Self, codec: format.Codec, page_size: u32) !void {
            self.* = .{};
            var disk: Disk = .init(gpa);
            disk.page_size = page_size;
            try (try Run(kind).Trial.create(gpa, &disk, codec)).close();
            var ids: []Id = &.{};
            var next_id: Id = 1;
            for (0..segment_count) |segment| {
                disk.flush();
                self.disks[segment] = disk.killed(gpa);
                self.ids[segment] = try gpa.dupe(Id, ids);
                self.next_ids[segment] = next_id;
                disk.call_log = &self.calls[segment];
                var run: Run(kind) = try .init(&disk, ids, next_id);
                defer run.deinit();
                try run.all(segment);
                disk.call_log = null;
                self.allocations[segment] = run.memory.count;
                if (run.memory.live != 0) return error.Leak;
                gpa.free(ids);
                ids = try gpa.dupe(Id, run.truth.ids.items);
                next_id = run.next_id;
            }
            gpa.free(ids);
            disk.deinit();
        }

        fn deinit(self: *Self) void {
            for (&self.disks, self.ids, &self.calls) |*disk, ids, *calls| {
                disk.deinit();
                gpa.free(ids);
                calls.deinit(gpa);
            }
        }
    };
}

const Tally = struct {
    runs: u64 = 0,
    sites: u64 = 0,
    struck: u64 = 0,
    errors: u64 = 0,
    failed: u64 = 0,

    fn add(tally: *Tally, more: Tally) void {
        inline for (.{ "runs", "sites", "struck", "errors", "failed" }) |name| @field(tally, name) += @field(more, name);
    }
};

/// One run of a segment in which something fails.
fn attempt(
    comptime kind: format.Kind,
    bases: *Bases(kind),
    segment: usize,
    fault: ?sim.Fault,
    refused: ?u64,
    tally: *Tally,
) !void {
    const gpa = std.heap.smp_allocator;
    var disk = bases.disks[segment].killed(gpa);
    defer disk.deinit();
    disk.fault = fault;
    var run: Run(kind) = try .init(&disk, bases.ids[segment], bases.next_ids[segment]);
    defer run.deinit();
    run.memory.refused = refused;
    tally.runs += 1;
    const result = run.all(segment);
    const hits = if (disk.fault) |struck| struck.hits else run.memory.refusals;
    tally.struck += @intFromBool(hits > 0);
    var verdict: anyerror!void = {};
    if (result) |_| {
        verdict = run.examine(false);
    } else |err| {
        tally.errors += 1;
        verdict = if (isExpected(err, fault, hits)) run.examine(fault != null and fault.?.sync_loss == .reverted) else error.Unexpected;
    }
    verdict catch |err| {
        tally.failed += 1;
        if (run.trial) |trial| trial.abandon();
        if (zrecord.limits.mistake_made != .none) return;
        print("FAILED: {t}, segment {d}, {s} {s}, then {t}; fault {any}, refused allocation {any}\n", .{
            kind, segment, run.doing, if (result) |_| "succeeded" else |failure| @errorName(failure), err, fault, refused,
        });
    };
}

fn isExpected(err: Error, fault: ?sim.Fault, hits: u64) bool {
    if (hits == 0) return false;
    const struck = fault orelse return err == error.OutOfMemory;
    return switch (struck.kind) {
        .io, .again => err == error.System or err == error.Failed,
        .no_space, .quota => err == error.NoSpace or err == error.Failed,
        // One interruption is repeated; without an end it is an error.
        .interrupted => struck.for_good and (err == error.System or err == error.Failed),
        .short_by_one, .short_by_half => false,
        // An end of file where there should be bytes, or a write that takes none.
        .zero => true,
    };
}

/// Of the sites of a script, every nth is taken: all in the first, fewer in its variations and in Debug.
fn strideOf(is_first: bool) u64 {
    const variation: u64 = if (is_first or options.scale > 1) 1 else 5;
    return variation * if (builtin.mode == .Debug) 11 else 1;
}

const failures_max = 10;

/// Which runs a sweep makes of one segment.
const What = enum { calls, syncs, allocations };

/// Runs all segments, on two threads.
fn Sweep(comptime kind: format.Kind, comptime what: What) type {
    return struct {
        bases: *Bases(kind),
        stride: u64,
        mistake: zrecord.limits.Mistake,
        next: std.atomic.Value(usize) = .init(0),
        mutex: std.Io.Mutex = .init,
        tally: *Tally,
        failure: ?anyerror = null,

        const Self = @This();

        fn all(codec: format.Codec, page_size: u32, stride: u64, tally: *Tally) !void {
            var bases: Bases(kind) = undefined;
            try bases.init(codec, page_size);
            defer bases.deinit();
            // A mistake belongs to its thread.
            var self: Self = .{ .bases = &bases, .stride = stride, .mistake = zrecord.limits.mistake_made, .tally = tally };
            var threads: [2]std.Thread = undefined;
            for (&threads) |*thread| thread.* = try .spawn(.{}, work, .{&self});
            for (threads) |thread| thread.join();
            if (self.failure) |err| return err;
        }

        fn work(self: *Self) void {
            zrecord.limits.mistake_made = self.mistake;
            while (true) {
                const segment = self.next.fetchAdd(1, .monotonic);
                if (segment >= segment_count) return;
                var tally: Tally = .{};
                self.sweep(segment, &tally) catch |err| {
                    self.failure = err;
                };
                self.mutex.lockUncancelable(io);
                defer self.mutex.unlock(io);
                self.tally.add(tally);
                if (self.tally.failed >= failures_max) return;
            }
        }

        fn sweep(self: *Self, segment: usize, tally: *Tally) !void {
            var number: u64 = 0;
            switch (what) {
                .calls => for (self.bases.calls[segment].items) |call| {
                    defer number += 1;
                    if (number % self.stride == 0) try self.failCall(segment, number, call, tally);
                },
                .syncs => for ([_]sim.Call{ .sync, .sync_directory }) |call| {
                    number = 0;
                    for (self.bases.calls[segment].items) |made| {
                        if (made != call) continue;
                        defer number += 1;
                        if (number % self.stride == 0) try self.failSync(segment, number, call, tally);
                    }
                },
                .allocations => while (number < self.bases.allocations[segment]) : (number += self.stride) {
                    tally.sites += 1;
                    try attempt(kind, self.bases, segment, null, number, tally);
                },
            }
        }

        fn failCall(self: *Self, segment: usize, number: u64, call: sim.Call, tally: *Tally) !void {
            tally.sites += 1;
            const moves = call == .read or call == .write;
            for (std.enums.values(sim.FaultKind)) |fault_kind| {
                switch (fault_kind) {
                    .short_by_one, .short_by_half, .zero => if (!moves) continue,
                    .interrupted => if (!moves and call != .sync and call != .sync_directory) continue,
                    else => {},
                }
                for ([_]bool{ false, true }) |for_good| {
                    if (tally.failed >= failures_max) return;
                    try attempt(kind, self.bases, segment, .{ .call = number, .kind = fault_kind, .for_good = for_good }, null, tally);
                }
            }
        }

        fn failSync(self: *Self, segment: usize, number: u64, call: sim.Call, tally: *Tally) !void {
            tally.sites += 1;
            for (std.enums.values(sim.SyncLoss)) |loss| {
                if (call == .sync_directory and loss != .kept) continue;
                for ([_]bool{ false, true }) |for_good| {
                    if (tally.failed >= failures_max) return;
                    const fault: sim.Fault = .{ .call = number, .only = call, .kind = .io, .for_good = for_good, .sync_loss = loss };
                    try attempt(kind, self.bases, segment, fault, null, tally);
                }
            }
        }
    };
}

test "every call fails in every way" {
    var tally: Tally = .{};
    try Sweep(.dense, .calls).all(.raw, 512, strideOf(true), &tally);
    try Sweep(.ragged, .calls).all(.zstd, 512, strideOf(false), &tally);
    try close("calls", tally);
}

test "every fsync fails and keeps, drops or reverts its pages" {
    var tally: Tally = .{};
    for ([_]u32{ 4096, 512, 64 }) |page_size| {
        try Sweep(.dense, .syncs).all(.raw, page_size, strideOf(page_size == 512), &tally);
        try Sweep(.ragged, .syncs).all(.raw, page_size, strideOf(page_size == 512), &tally);
    }
    try close("fsyncs", tally);
}

test "a failed fsync that is forgotten is noticed" {
    for ([_]zrecord.limits.Mistake{ .failed_sync_retried, .poison_keeps_boot_id }) |mistake| {
        zrecord.limits.mistake_made = mistake;
        defer zrecord.limits.mistake_made = .none;
        var tally: Tally = .{};
        try Sweep(.dense, .syncs).all(.raw, 512, 1, &tally);
        print("{t}: caught in {d} of {d} runs\n", .{ mistake, tally.failed, tally.runs });
        if (tally.failed == 0) return error.MistakeMissed;
    }
}

test "every allocation is refused" {
    var tally: Tally = .{};
    for ([_]format.Codec{ .raw, .zstd, .zstd_dict }) |codec| {
        try Sweep(.dense, .allocations).all(codec, 512, strideOf(true), &tally);
        try Sweep(.ragged, .allocations).all(codec, 512, strideOf(true), &tally);
    }
    try close("allocations", tally);
}

fn close(title: []const u8, tally: Tally) !void {
    print("{s}: {d} sites, {d} runs, {d} struck, {d} errors raised\n", .{ title, tally.sites, tally.runs, tally.struck, tally.errors });
    print("{s}: {d} passed, {d} failed\n", .{ title, tally.runs - tally.failed, tally.failed });
    if (tally.failed > 0) return error.Violations;
}
