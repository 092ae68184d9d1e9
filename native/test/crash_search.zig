//! Runs scripts of operations on a store and opens every crash image on the way. What is found must
//! be a state that the promises allow: after a kill the last acknowledged one, after a power cut the
//! last synced one or a later whole append; or the operation in flight as a whole.

const std = @import("std");
const zrecord = @import("zrecord");
const sim = @import("sim_files.zig");
const model_zig = @import("model.zig");
const trial_zig = @import("trial.zig");

const format = zrecord.format;
const Disk = sim.Disk;
const Id = model_zig.Id;
const Model = model_zig.Model;

pub const Operation = enum {
    append,
    append_parts,
    abort,
    sync,
    /// An append of another thread returns while sync runs.
    sync_append,
    delete,
    compact,
    /// The process is killed at rest and comes back.
    reopen,
    /// A clean close and a new open.
    close,
    /// The process is killed within an operation; life goes on with what it left.
    kill,
    /// The power is cut; life goes on from one of the possible states.
    power,
};

pub const Counts = struct {
    scripts: u64 = 0,
    boundaries: u64 = 0,
    states: u64 = 0,
    distinct: u64 = 0,
    kills: u64 = 0,
    during_recovery: u64 = 0,
    lives: u64 = 0,
    readers: u64 = 0,
    readers_beside: u64 = 0,
    lost_slots: u64 = 0,

    pub fn add(total: *Counts, more: Counts) void {
        inline for (std.meta.fields(Counts)) |field| @field(total, field.name) += @field(more, field.name);
    }

    pub fn print(counts: Counts, title: []const u8) void {
        std.debug.print("{s}:", .{title});
        inline for (std.meta.fields(Counts)) |field| std.debug.print(" {d} {s}", .{ @field(counts, field.name), field.name });
        std.debug.print("\n", .{});
    }
};

pub const Script = struct {
    seed: u64,
    operations: []const Operation,
    page_size: u32 = 4096,
    names: Disk.Names = .strict,
    codec: format.Codec = .raw,
    /// Whether the medium maps files.
    mappable: bool = false,
    checksums: zrecord.engine.Checksums = .always,
};

/// Crash images that were opened, and the state that was found in each. Shared by scripts, so that
/// no state is opened twice.
pub const Seen = std.AutoHashMapUnmanaged(u64, u64);

/// Subsets of up to this many updates are all tried.
const exhaustive_max = 10;

pub fn Search(comptime Trial: type) type {
    return struct {
        gpa: std.mem.Allocator,
        script: Script,
        seen: *Seen,
        counts: Counts = .{},
        /// All subsets up to 2^this, else this many samples beside singles and complements.
        subset_bits: u6 = exhaustive_max,
        prng: std.Random.DefaultPrng,
        arena: std.heap.ArenaAllocator,
        inner_arena: std.heap.ArenaAllocator,
        disk: *Disk,
        trial: ?*Trial = null,
        truth: Model = .{},
        next_id: Id = 1,
        /// States that a power cut may go back to, as digests; the last is what a kill must keep.
        allowed: std.ArrayList(u64) = .empty,
        /// The state after the operation in flight.
        coming: ?u64 = null,
        /// What killed the script, in words.
        violation: ?[]const u8 = null,
        violation_buffer: [256]u8 = undefined,
        fault: zrecord.status.Fault = .{},
        /// Counts down to the event at which the disk is kept as a kill would leave it.
        kill_after: ?u64 = null,
        left_by_kill: ?Disk = null,
        /// States that the disk left by a kill may come back in, and go back to in a later power cut.
        reachable_after_kill: [2]u64 = undefined,
        allowed_after_kill: std.ArrayList(u64) = .empty,
        /// A recovery is under way that may choose among `allowed`: until it ends a kill may, too.
        undecided: bool = false,

        const Self = @This();

        pub fn init(gpa: std.mem.Allocator, seen: *Seen, script: Script) Self {
            return .{
                .gpa = gpa,
                .script = script,
                .seen = seen,
                .prng = .init(script.seed),
                .arena = .init(gpa),
                .inner_arena = .init(gpa),
                .disk = undefined,
            };
        }

        pub fn deinit(self: *Self) void {
            self.truth.deinit(self.gpa);
            self.allowed.deinit(self.gpa);
            self.allowed_after_kill.deinit(self.gpa);
            self.arena.deinit();
            self.inner_arena.deinit();
        }

        /// False: a violation was found; it stands in `violation`.
        pub fn run(self: *Self) !bool {
            self.disk = try self.gpa.create(Disk);
            self.disk.* = .init(self.gpa);
            self.disk.page_size = self.script.page_size;
            self.disk.mappable = self.script.mappable;
            defer {
                if (self.trial) |trial| trial.abandon();
                self.disk.deinit();
                self.gpa.destroy(self.disk);
                if (self.left_by_kill) |*left| left.deinit();
                self.left_by_kill = null;
            }
            self.runOperations() catch |err| {
                if (err == error.OutOfMemory) return err;
                if (self.violation == null) self.violate("the store failed: {t}", .{err});
            };
            self.counts.scripts += 1;
            return self.violation == null;
        }

        fn runOperations(self: *Self) !void {
            self.trial = try Trial.create(self.gpa, self.disk, self.script.codec);
            self.disk.flush();
            try self.settle();
            self.watch();
            for (self.script.operations) |operation| {
                try self.perform(operation);
                self.coming = null;
                if (self.violation != null) return;
                try self.compareLive();
            }
            self.disk.hook = null;
            try self.trial.?.close();
            self.trial = null;
        }

        fn perform(self: *Self, operation: Operation) anyerror!void {
            switch (operation) {
                .append => try self.append(1),
                .append_parts => try self.append(2),
                .abort => {
                    var ids: [8]Id = undefined;
                    try self.trial.?.abort(self.fresh(&ids), 2);
                },
                .sync => {
                    try self.trial.?.sync();
                    try self.settle();
                },
                .sync_append => try self.syncAppend(),
                .delete => try self.delete(),
                .compact => {
                    try self.trial.?.compact();
                    // With nothing to give back it is not a sync.
                    if (!self.trial.?.hasUnsynced()) try self.settle();
                },
                .reopen => try self.continueOn(self.disk.killed(self.gpa)),
                .close => {
                    try self.trial.?.close();
                    self.trial = null;
                    try self.settle();
                    self.trial = try Trial.open(self.gpa, self.disk);
                },
                .kill => try self.kill(),
                .power => try self.power(),
            }
        }

        // Operations.

        fn fresh(self: *Self, buffer: *[8]Id) []const Id {
            const count = self.prng.random().intRangeAtMost(usize, 1, 5);
            for (buffer[0..count]) |*id| {
                id.* = self.next_id;
                self.next_id += 1;
            }
            return buffer[0..count];
        }

        fn append(self: *Self, parts: usize) !void {
            var buffer: [8]Id = undefined;
            const ids = self.fresh(&buffer);
            var after: Model = .{ .ids = try self.truth.ids.clone(self.gpa) };
            defer after.deinit(self.gpa);
            try after.append(self.gpa, ids);
            self.coming = after.state();
            try self.trial.?.append(ids, parts);
            try self.truth.append(self.gpa, ids);
            try self.allowed.append(self.gpa, self.truth.state());
        }

        fn delete(self: *Self) !void {
            const length = self.truth.ids.items.len;
            if (length == 0) return;
            const random = self.prng.random();
            var indices: [4]u64 = undefined;
            var count: usize = 0;
            // Descending, each once.
            var below = length;
            const wanted = random.intRangeAtMost(usize, 1, @min(indices.len, length));
            while (count < wanted and below > 0) : (count += 1) {
                below = random.uintLessThan(usize, below);
                indices[count] = below;
            }
            var after: Model = .{ .ids = try self.truth.ids.clone(self.gpa) };
            defer after.deinit(self.gpa);
            after.delete(indices[0..count]);
            self.coming = after.state();
            try self.trial.?.delete(indices[0..count]);
            self.truth.delete(indices[0..count]);
            try self.settle();
        }

        fn syncAppend(self: *Self) !void {
            const before = self.truth.state();
            var intruder: Intruder = .{ .search = self };
            self.disk.hook = .{ .context = &intruder, .call = Intruder.intrude };
            const synced = self.trial.?.sync();
            self.watch();
            if (intruder.failure) |err| return err;
            try synced;
            self.allowed.clearRetainingCapacity();
            try self.allowed.append(self.gpa, before);
            if (intruder.done) try self.allowed.append(self.gpa, self.truth.state());
        }

        /// Appends at the first fsync, where sync does not exclude it.
        const Intruder = struct {
            search: *Self,
            done: bool = false,
            failure: ?anyerror = null,

            fn intrude(context: *anyopaque, disk: *Disk, event: sim.Event) void {
                const self: *Intruder = @ptrCast(@alignCast(context));
                if (event.call == .sync and !self.done) {
                    self.done = true;
                    self.search.watch();
                    self.search.append(1) catch |err| {
                        self.failure = err;
                    };
                    self.search.coming = null;
                    disk.hook = .{ .context = self, .call = intrude };
                }
                self.search.crash(disk);
            }
        };

        fn kill(self: *Self) !void {
            const random = self.prng.random();
            const operation = ([_]Operation{ .append, .sync, .delete, .compact })[random.uintLessThan(usize, 4)];
            self.kill_after = random.uintLessThan(u64, 16);
            try self.perform(operation);
            self.coming = null;
            self.kill_after = null;
            if (self.violation != null) return;
            const left = self.left_by_kill orelse {
                // The operation was over before.
                return self.continueOn(self.disk.killed(self.gpa));
            };
            self.left_by_kill = null;
            std.mem.swap(std.ArrayList(u64), &self.allowed, &self.allowed_after_kill);
            self.undecided = true;
            defer self.undecided = false;
            try self.continueOn(left);
            const found = self.truth.state();
            if (std.mem.indexOfScalar(u64, &self.reachable_after_kill, found) == null) {
                return self.violate("kill within {t}: the store came back in a state that is not allowed", .{operation});
            }
            // A recovery with nothing to recover makes nothing durable.
            try self.allowed.append(self.gpa, found);
        }

        fn power(self: *Self) !void {
            const random = self.prng.random();
            const kept = try self.gpa.alloc(bool, self.disk.updateCount());
            defer self.gpa.free(kept);
            const mode = random.uintLessThan(u8, 4);
            for (kept) |*keep| keep.* = switch (mode) {
                0 => false,
                1 => random.uintLessThan(u8, 8) != 0,
                else => random.boolean(),
            };
            self.undecided = true;
            defer self.undecided = false;
            try self.continueOn(self.disk.image(self.gpa, kept, self.script.names));
            if (std.mem.indexOfScalar(u64, self.allowed.items, self.truth.state()) == null) {
                return self.violate("power cut: the store came back in a state that is not allowed", .{});
            }
            try self.settle();
        }

        /// The process is gone; a new one opens what lies on `disk`.
        fn continueOn(self: *Self, disk: Disk) !void {
            self.trial.?.abandon();
            self.trial = null;
            self.disk.deinit();
            self.disk.* = disk;
            self.watch();
            self.trial = try Trial.open(self.gpa, self.disk);
            const ids = try self.trial.?.readAll(self.gpa);
            defer self.gpa.free(ids);
            self.truth.ids.clearRetainingCapacity();
            try self.truth.append(self.gpa, ids);
        }

        fn settle(self: *Self) !void {
            self.allowed.clearRetainingCapacity();
            try self.allowed.append(self.gpa, self.truth.state());
        }

        fn compareLive(self: *Self) !void {
            const ids = try self.trial.?.readAll(self.gpa);
            defer self.gpa.free(ids);
            if (!std.mem.eql(Id, ids, self.truth.ids.items)) self.violate("the live store differs from the model", .{});
        }

        // Crashes.

        fn watch(self: *Self) void {
            self.disk.hook = .{ .context = self, .call = happened };
        }

        fn happened(context: *anyopaque, disk: *Disk, _: sim.Event) void {
            const self: *Self = @ptrCast(@alignCast(context));
            self.crash(disk);
        }

        fn crash(self: *Self, disk: *Disk) void {
            if (self.violation != null) return;
            const hook = disk.hook;
            disk.hook = null;
            defer disk.hook = hook;
            self.counts.boundaries += 1;
            if (self.kill_after) |left| {
                if (left == 0 and self.left_by_kill == null) {
                    self.left_by_kill = disk.killed(self.gpa);
                    const now = self.truth.state();
                    self.reachable_after_kill = .{ now, self.coming orelse now };
                    self.allowed_after_kill.clearRetainingCapacity();
                    self.allowed_after_kill.appendSlice(self.gpa, self.allowed.items) catch @panic("out of memory");
                    self.allowed_after_kill.appendSlice(self.gpa, &self.reachable_after_kill) catch @panic("out of memory");
                }
                self.kill_after = left -| 1;
            }
            self.readBeside(disk);
            self.cutPower(disk) catch |err| self.violate("the search failed: {t}", .{err});
            if (self.violation != null) return;
            _ = self.arena.reset(.retain_capacity);
            var killed = disk.killed(self.arena.allocator());
            self.counts.kills += 1;
            self.check(&killed, .kill);
            if (self.violation != null) return;
            _ = self.arena.reset(.retain_capacity);
            killed = disk.killed(self.arena.allocator());
            self.loseSlot(&killed);
        }

        /// A reader that opens beside the live writer, in the middle of what it does, sees the state
        /// before or after, or is told to wait.
        fn readBeside(self: *Self, disk: *Disk) void {
            const trial = Trial.openReader(self.gpa, disk) catch |err| {
                // Only what moves records keeps readers out.
                if (err != error.BusyMaintenance) self.violate("a reader beside the writer: {t}", .{err});
                return;
            };
            defer trial.abandon();
            self.counts.readers_beside += 1;
            const ids = trial.readAll(self.gpa) catch |err| return self.violate("a reader beside the writer: {t}", .{err});
            defer self.gpa.free(ids);
            if (!self.isAllowed(model_zig.digest(ids), .kill)) self.violate("a reader beside the writer: a state that is not allowed", .{});
        }

        fn cutPower(self: *Self, disk: *Disk) !void {
            const count = disk.updateCount();
            const kept = try self.gpa.alloc(bool, count);
            defer self.gpa.free(kept);
            if (count <= self.subset_bits) {
                for (0..@as(usize, 1) << @intCast(count)) |bits| {
                    for (kept, 0..) |*keep, position| keep.* = bits >> @intCast(position) & 1 != 0;
                    self.cut(disk, kept);
                }
                return;
            }
            const random = self.prng.random();
            for ([_]bool{ false, true }) |most| {
                @memset(kept, most);
                self.cut(disk, kept);
                for (kept) |*keep| {
                    keep.* = !most;
                    self.cut(disk, kept);
                    keep.* = most;
                }
            }
            for (0..@as(usize, 1) << (self.subset_bits -| 4)) |_| {
                const share = random.int(u8);
                for (kept) |*keep| keep.* = random.int(u8) <= share;
                self.cut(disk, kept);
            }
        }

        fn cut(self: *Self, disk: *Disk, kept: []const bool) void {
            if (self.violation != null) return;
            _ = self.arena.reset(.retain_capacity);
            var image = disk.image(self.arena.allocator(), kept, self.script.names);
            self.check(&image, .cut);
        }

        const What = enum { kill, cut };

        fn isAllowed(self: *Self, state: u64, what: What) bool {
            if (self.coming != null and state == self.coming.?) return true;
            const allowed = self.allowed.items;
            return switch (if (self.undecided) .cut else what) {
                .kill => state == self.truth.state(),
                .cut => std.mem.indexOfScalar(u64, allowed, state) != null,
            };
        }

        /// Whether the machine start that wrote the lazy slot is the one that now reads it: with the
        /// content this decides what is found.
        fn isOfThisBoot(image: *Disk) bool {
            const meta = image.content(.meta) orelse return false;
            const at = format.lazy_slot_offset + @offsetOf(format.Slot, "boot_id");
            return meta.len >= at + 16 and std.mem.eql(u8, meta[at..][0..16], &image.boot_id);
        }

        fn check(self: *Self, image: *Disk, what: What) void {
            self.counts.states += 1;
            const key = image.fingerprint() *% 2 +% @intFromBool(isOfThisBoot(image));
            if (self.seen.get(key)) |state| {
                if (!self.isAllowed(state, what)) self.violate("{t}: a state that is not allowed", .{what});
                return;
            }
            self.counts.distinct += 1;
            const random = self.prng.random();
            const dice = random.uintLessThan(u8, 64);
            if (dice == 0) {
                self.readOnly(image, what);
                if (self.violation != null) return;
            }
            var again: Again = .{ .search = self, .what = what };
            const nested = dice == 1 or dice == 2;
            if (nested) image.hook = .{ .context = &again, .call = Again.cutAgain };
            image.tracking = nested or dice == 3;
            const state = self.stateOf(image, dice == 3) catch |err|
                return self.violate("{t}: {t}", .{ what, err });
            if (self.violation != null) return;
            if (!self.isAllowed(state, what)) return self.violate("{t}: a state that is not allowed", .{what});
            self.seen.put(self.gpa, key, state) catch @panic("out of memory");
        }

        /// Opens the image for writing and reads everything.
        fn stateOf(self: *Self, image: *Disk, life_goes_on: bool) !u64 {
            const arena = self.arena.allocator();
            const trial = try Trial.open(arena, image);
            const ids = try trial.readAll(arena);
            const state = model_zig.digest(ids);
            if (life_goes_on) try self.live(image, trial, ids);
            if (image.hook == null) trial.abandon();
            return state;
        }

        /// A store that came back takes appends and keeps them.
        fn live(self: *Self, image: *Disk, trial: *Trial, ids: []const Id) !void {
            const arena = self.arena.allocator();
            self.counts.lives += 1;
            const added = [_]Id{ self.next_id + 1000, self.next_id + 1001, self.next_id + 1002 };
            try trial.append(&added, 1);
            try trial.sync();
            const nothing = try arena.alloc(bool, image.updateCount());
            @memset(nothing, false);
            var later = image.image(arena, nothing, self.script.names);
            later.tracking = false;
            const reopened = try Trial.open(arena, &later);
            defer reopened.abandon();
            const found = try reopened.readAll(arena);
            if (found.len != ids.len + added.len or !std.mem.eql(Id, found[0..ids.len], ids) or
                !std.mem.eql(Id, found[ids.len..], &added)) return error.LostAfterRecovery;
        }

        /// A reader finds an allowed state as well, and writes nothing.
        fn readOnly(self: *Self, image: *Disk, what: What) void {
            self.counts.readers += 1;
            const arena = self.arena.allocator();
            const events = image.event_count;
            const trial = Trial.openReader(arena, image) catch |err|
                return self.violate("{t}, read only: {t}", .{ what, err });
            defer trial.abandon();
            const ids = trial.readAll(arena) catch |err| return self.violate("{t}, read only: {t}", .{ what, err });
            if (!self.isAllowed(model_zig.digest(ids), what)) self.violate("{t}, read only: a state that is not allowed", .{what});
            if (image.event_count != events) self.violate("{t}: a reader changed the disk", .{what});
        }

        /// Cuts the recovery of an image as well.
        const Again = struct {
            search: *Self,
            what: What,

            fn cutAgain(context: *anyopaque, disk: *Disk, _: sim.Event) void {
                const self: *Again = @ptrCast(@alignCast(context));
                const search = self.search;
                if (search.violation != null) return;
                const hook = disk.hook;
                disk.hook = null;
                defer disk.hook = hook;
                const random = search.prng.random();
                for (0..6) |round| {
                    _ = search.inner_arena.reset(.retain_capacity);
                    const arena = search.inner_arena.allocator();
                    const kept = arena.alloc(bool, disk.updateCount()) catch @panic("out of memory");
                    for (kept) |*keep| keep.* = if (round == 0) false else random.boolean();
                    var image = if (round == 1) disk.killed(arena) else disk.image(arena, kept, search.script.names);
                    image.tracking = false;
                    search.counts.during_recovery += 1;
                    // A kill after a kill loses nothing; any power cut may.
                    const what: What = if (round == 1) self.what else .cut;
                    const trial = Trial.open(arena, &image) catch |err|
                        return search.violate("recovery after {t}, cut: {t}", .{ self.what, err });
                    const ids = trial.readAll(arena) catch |err|
                        return search.violate("recovery after {t}, cut: {t}", .{ self.what, err });
                    const state = model_zig.digest(ids);
                    if (!search.isAllowed(state, what) and !search.isAllowed(state, self.what)) {
                        return search.violate("recovery after {t}, cut: a state that is not allowed", .{self.what});
                    }
                }
            }
        };

        /// The medium loses the newest durable slot although something that builds on it is there.
        fn loseSlot(self: *Self, image: *Disk) void {
            const meta = image.content(.meta) orelse return;
            if (meta.len < format.meta_size) return;
            var newest: u64 = 0;
            for ([_]u64{ 0, 1 }) |parity| {
                const slot = format.Slot.decode(meta[format.durableSlotOffset(parity)..][0..format.Slot.size]) catch continue;
                newest = @max(newest, slot.seq);
            }
            const lazy = format.Slot.decode(meta[format.lazy_slot_offset..][0..format.Slot.size]) catch null;
            if (newest < 2 or lazy == null or lazy.?.base_seq != newest) return;
            self.counts.lost_slots += 1;
            @memset(meta[format.durableSlotOffset(newest)..][0..format.Slot.size], 0);
            image.tracking = false;
            if (Trial.open(self.arena.allocator(), image)) |trial| {
                trial.abandon();
                self.violate("a lost durable slot went unnoticed", .{});
            } else |err| if (err != error.CorruptStore) self.violate("a lost durable slot: {t}", .{err});
        }

        fn violate(self: *Self, comptime text: []const u8, arguments: anytype) void {
            if (self.violation != null) return;
            self.violation = std.fmt.bufPrint(&self.violation_buffer, text, arguments) catch "a violation";
            self.fault = trial_zig.open_fault;
        }
    };
}
