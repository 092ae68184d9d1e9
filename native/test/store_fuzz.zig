//! Random operations on a store and on the model of it, with one writer and several readers on the
//! same disk, until they differ.
//!
//!     zig build fuzz [-Dscale=N] [-Dseed=N]
//!
//! A failing round prints its number; `-Dscale=0 -Dseed=NUMBER` runs that round alone.

const std = @import("std");
const builtin = @import("builtin");
const options = @import("test_options");
const zrecord = @import("zrecord");
const model = @import("model.zig");
const sim = @import("sim_files.zig");
const trial_zig = @import("trial.zig");

const Disk = sim.Disk;
const Id = model.Id;
const format = zrecord.format;
const print = std.debug.print;

const rounds: u64 = if (builtin.mode == .Debug) 40 else 2_000;
const round_operations = 250;
const readers_max = 3;
const length_max = 60;

const Operation = enum {
    append,
    abort,
    sync,
    delete,
    compact,
    cancelled_compact,
    gather,
    bad_gather,
    verify,
    stats,
    will_need,
    close,
    kill,
    second_writer,
    open_reader,
    close_reader,
    refresh,
};

fn Round(comptime kind: format.Kind) type {
    return struct {
        gpa: std.mem.Allocator,
        random: std.Random,
        disk: *Disk,
        trial: *Trial,
        truth: model.Model = .{},
        readers: [readers_max]?Reader = @splat(null),
        next_id: Id = 1,
        /// The canary: a model that keeps the order on deletion must be found out.
        keeps_order: bool = false,

        const Self = @This();
        const Trial = trial_zig.Trial(trial_zig.tiny, kind);
        const Reader = struct { trial: *Trial, ids: []Id };

        fn run(self: *Self, operations: *u64, last: *Operation) !void {
            for (0..round_operations) |_| {
                const operation = self.random.enumValue(Operation);
                last.* = operation;
                operations.* += 1;
                try self.perform(operation);
                try self.compare(self.trial, self.truth.ids.items);
            }
            for (&self.readers) |*reader| self.dismiss(reader);
            try self.trial.close();
            self.trial = try Trial.open(self.gpa, self.disk);
            try self.compare(self.trial, self.truth.ids.items);
        }

        fn finish(self: *Self) void {
            for (&self.readers) |*reader| self.dismiss(reader);
            self.trial.abandon();
            self.truth.deinit(self.gpa);
        }

        fn perform(self: *Self, operation: Operation) !void {
            const random = self.random;
            switch (operation) {
                .append => {
                    if (self.truth.ids.items.len >= length_max) return;
                    var ids: [20]Id = undefined;
                    const added = self.fresh(&ids);
                    try self.trial.append(added, random.intRangeAtMost(usize, 1, 3));
                    try self.truth.append(self.gpa, added);
                },
                .abort => {
                    var ids: [20]Id = undefined;
                    try self.trial.abort(self.fresh(&ids), random.intRangeAtMost(usize, 1, 3));
                },
                .sync => try self.trial.sync(),
                .delete => try self.delete(),
                .compact => self.trial.compact() catch |err| try self.expectBusy(err),
                .cancelled_compact => {
                    var fault: zrecord.status.Fault = .{};
                    self.trial.store.compact(Impatient{ .left = random.uintLessThan(u32, 4) }, &fault) catch |err| {
                        if (err != error.Cancelled) try self.expectBusy(err);
                    };
                },
                .gather => try self.gather(self.trial, self.truth.ids.items),
                .bad_gather => try self.badGather(),
                .verify => {
                    var fault: zrecord.status.Fault = .{};
                    var observer: Observer = .{};
                    const report = try self.trial.store.verify(&observer, &fault);
                    if (report.damaged != 0 or report.table_damaged) return error.Damage;
                    if (report.records != self.truth.ids.items.len) return error.WrongCount;
                },
                .stats => {
                    const stats = try self.trial.store.stats();
                    if (stats.records != self.truth.ids.items.len) return error.WrongCount;
                    if (stats.live_bytes > stats.chunk_bytes) return error.WrongBytes;
                },
                .will_need => try self.trial.store.willNeed(@as([]const u64, &.{ 0, 5, 1 << 40 })),
                .close => {
                    try self.trial.close();
                    self.trial = try Trial.open(self.gpa, self.disk);
                },
                .kill => {
                    self.trial.abandon();
                    self.trial = try Trial.open(self.gpa, self.disk);
                },
                .second_writer => if (Trial.open(self.gpa, self.disk)) |second| {
                    second.abandon();
                    return error.TwoWriters;
                } else |err| if (err != error.BusyWriter) return err,
                .open_reader => {
                    const reader = self.anyReader();
                    self.dismiss(reader);
                    const events = self.disk.event_count;
                    const trial = try Trial.openReader(self.gpa, self.disk);
                    errdefer trial.abandon();
                    // A reader sees what was appended, synced or not.
                    try self.compare(trial, self.truth.ids.items);
                    if (self.disk.event_count != events) return error.ReaderWrote;
                    reader.* = .{ .trial = trial, .ids = try self.gpa.dupe(Id, self.truth.ids.items) };
                },
                .close_reader => self.dismiss(self.anyReader()),
                .refresh => if (self.anyReader().*) |*reader| {
                    // Until it asks, a reader sees what it opened.
                    try self.gather(reader.trial, reader.ids);
                    const length = try reader.trial.store.refresh(&reader.trial.fault);
                    if (length != self.truth.ids.items.len) return error.WrongCount;
                    self.gpa.free(reader.ids);
                    reader.ids = &.{};
                    reader.ids = try self.gpa.dupe(Id, self.truth.ids.items);
                    try self.compare(reader.trial, reader.ids);
                },
            }
        }

        fn fresh(self: *Self, buffer: *[20]Id) []const Id {
            const count = self.random.intRangeAtMost(usize, 1, buffer.len);
            for (buffer[0..count]) |*id| {
                id.* = self.next_id;
                self.next_id += 1;
            }
            return buffer[0..count];
        }

        fn anyReader(self: *Self) *?Reader {
            return &self.readers[self.random.uintLessThan(usize, readers_max)];
        }

        fn dismiss(self: *Self, slot: *?Reader) void {
            if (slot.*) |reader| {
                reader.trial.abandon();
                self.gpa.free(reader.ids);
            }
            slot.* = null;
        }

        fn isShared(self: *Self) bool {
            for (self.readers) |reader| if (reader != null) return true;
            return false;
        }

        /// Records move only when no reader is there.
        fn expectBusy(self: *Self, err: anyerror) !void {
            if (err != error.BusyReaders or !self.isShared()) return err;
        }

        /// Any indices, in any order, some twice, some from the end.
        fn delete(self: *Self) !void {
            const length = self.truth.ids.items.len;
            if (length == 0) return;
            var given: [12]i64 = undefined;
            const count = self.random.intRangeAtMost(usize, 1, given.len);
            var doomed: std.StaticBitSet(2 * length_max) = .initEmpty();
            for (given[0..count]) |*index| {
                const chosen = self.random.uintLessThan(usize, length);
                doomed.set(chosen);
                index.* = @intCast(chosen);
                if (self.random.boolean()) index.* -= @intCast(length);
            }
            const deleted = self.trial.store.delete(@as([]const i64, given[0..count]), &self.trial.fault) catch |err|
                return self.expectBusy(err);
            if (self.isShared()) return error.ReadersIgnored;
            if (deleted != doomed.count()) return error.WrongCount;
            var descending: [12]u64 = undefined;
            var left = doomed.count();
            var iterator = doomed.iterator(.{ .direction = .reverse });
            const indices = descending[0..left];
            left = 0;
            while (iterator.next()) |index| : (left += 1) indices[left] = index;
            if (self.keeps_order) {
                for (indices) |index| _ = self.truth.ids.orderedRemove(@intCast(index));
            } else {
                self.truth.delete(indices);
            }
        }

        fn gather(self: *Self, trial: *Trial, expected: []const Id) !void {
            if (expected.len == 0) return;
            var indices: [50]u64 = undefined;
            const count = self.random.uintAtMost(usize, indices.len);
            for (indices[0..count]) |*index| index.* = self.random.uintLessThan(usize, expected.len);
            const ids = try trial.read(self.gpa, indices[0..count]);
            defer self.gpa.free(ids);
            for (ids, indices[0..count]) |id, index| if (id != expected[@intCast(index)]) return error.WrongRecord;
        }

        fn badGather(self: *Self) !void {
            const beyond = self.truth.ids.items.len + self.random.uintLessThan(usize, 3);
            if (self.trial.read(self.gpa, &.{beyond})) |ids| {
                self.gpa.free(ids);
                return error.IndexAccepted;
            } else |err| if (err != error.IndexOutOfRange) return err;
        }

        fn compare(self: *Self, trial: *Trial, expected: []const Id) !void {
            const ids = try trial.readAll(self.gpa);
            defer self.gpa.free(ids);
            if (!std.mem.eql(Id, ids, expected)) return error.WrongRecords;
        }

        const Impatient = struct {
            left: u32,

            pub fn step(self: Impatient, _: u64, _: u64) bool {
                return self.left > 2;
            }
        };

        const Observer = struct {
            pub fn step(_: *Observer, _: u64, _: u64) bool {
                return true;
            }

            pub fn found(_: *Observer, _: anyerror, _: zrecord.status.Fault) bool {
                return true;
            }
        };
    };
}

/// Round `number` on a disk of its own. Leaks fail it too.
fn runRound(comptime kind: format.Kind, number: u64, keeps_order: bool, operations: *u64, last: *Operation) !void {
    var debug: std.heap.DebugAllocator(.{}) = .init;
    const gpa = if (builtin.mode == .Debug) debug.allocator() else std.heap.smp_allocator;
    defer if (builtin.mode == .Debug and debug.deinit() == .leak) @panic("leak");
    var prng: std.Random.DefaultPrng = .init(number);
    const random = prng.random();
    var disk: Disk = .init(gpa);
    defer disk.deinit();
    disk.tracking = false;
    disk.mappable = random.boolean();
    const codec = random.enumValue(format.Codec);
    var round: Round(kind) = .{
        .gpa = gpa,
        .random = random,
        .disk = &disk,
        .trial = try .create(gpa, &disk, codec),
        .keeps_order = keeps_order,
    };
    const result = round.run(operations, last);
    round.finish();
    try result;
    if (disk.handles_open != 0 or disk.folders_open != 0) return error.FilesLeftOpen;
}

fn runAny(number: u64, keeps_order: bool, operations: *u64, last: *Operation) !void {
    if (number % 2 == 0) return runRound(.dense, number, keeps_order, operations, last);
    return runRound(.ragged, number, keeps_order, operations, last);
}

test "random operations agree with the model" {
    const count = if (options.scale == 0) 1 else rounds * options.scale;
    var operations: u64 = 0;
    var failed: u64 = 0;
    for (options.seed..options.seed + count) |number| {
        var last: Operation = .append;
        runAny(number, false, &operations, &last) catch |err| {
            failed += 1;
            print("FAILED: round {d}, {t}: {t}\n  replay: zig build fuzz -Dscale=0 -Dseed={d} -Dtest-filter=random\n", .{ number, last, err, number });
            if (failed >= 5) break;
        };
    }
    print("store fuzz: {d} rounds, {d} operations\nstore fuzz: {d} passed, {d} failed\n", .{ count, operations, count - failed, failed });
    if (failed > 0) return error.Violations;
}

test "canary: a model that is wrong is found out" {
    var operations: u64 = 0;
    var last: Operation = .append;
    for (1..20) |number| {
        runAny(number, true, &operations, &last) catch |err| {
            if (err != error.WrongRecords) return err;
            print("canary: caught after {d} operations\n", .{operations});
            return;
        };
    }
    return error.CanaryMissed;
}
