//! Readers beside a writer: with a lock, without one, while records move and while slots change.

const std = @import("std");
const zrecord = @import("zrecord");
const model = @import("model.zig");
const sim = @import("sim_files.zig");
const specimen_zig = @import("specimen.zig");
const trial = @import("trial.zig");

const Disk = sim.Disk;
const Id = model.Id;
const Fault = zrecord.status.Fault;
const expectEqual = std.testing.expectEqual;
const expectError = std.testing.expectError;
const gpa = std.testing.allocator;

const first_ids = [_]Id{ 1, 2, 3, 4, 5, 6, 7, 8, 9, 10 };

/// A disk with a writer of ten records.
fn Beside(comptime kind: zrecord.format.Kind) type {
    return struct {
        disk: Disk,
        writer: *T,

        const Self = @This();
        const T = trial.Trial(specimen_zig.limits, kind);

        fn init(self: *Self) !void {
            self.disk = .init(gpa);
            self.disk.tracking = false;
            self.writer = try T.create(gpa, &self.disk, .raw);
            try self.writer.append(&first_ids, 1);
            try self.writer.sync();
        }

        fn deinit(self: *Self) void {
            self.writer.abandon();
            self.disk.deinit();
        }

        /// On a medium that knows no locks.
        fn openLockFree(self: *Self) !*T {
            self.disk.fault = .{ .call = 0, .kind = .again, .for_good = true, .only = .try_lock };
            defer self.disk.fault = null;
            return T.openReader(gpa, &self.disk);
        }

        fn expectRecords(reader: *T, ids: []const Id) !void {
            var indices: [specimen_zig.records_max]u64 = undefined;
            for (&indices, 0..) |*index, position| index.* = position;
            var fault: Fault = .{};
            try std.testing.expect(try specimen_zig.gather(T, gpa, reader, indices[0..ids.len], ids, &fault));
        }
    };
}

fn swapLast(ids: []const Id, index: usize, buffer: *[32]Id) []const Id {
    @memcpy(buffer[0..ids.len], ids);
    buffer[index] = buffer[ids.len - 1];
    return buffer[0 .. ids.len - 1];
}

test "a reader without a lock notices that records moved, and reads on after refresh" {
    inline for (.{ .dense, .ragged }) |kind| {
        const B = Beside(kind);
        var beside: B = undefined;
        try beside.init();
        defer beside.deinit();
        const reader = try beside.openLockFree();
        defer reader.abandon();
        try B.expectRecords(reader, &first_ids);
        try beside.writer.append(&.{ 11, 12 }, 1);
        // Appends move nothing.
        try B.expectRecords(reader, &first_ids);
        try beside.writer.delete(&.{3});
        try expectError(error.Changed, B.expectRecords(reader, &first_ids));
        try expectError(error.Changed, B.expectRecords(reader, first_ids[0..1]));
        var buffer: [32]Id = undefined;
        const left = swapLast(&(first_ids ++ .{ 11, 12 }), 3, &buffer);
        var fault: Fault = .{};
        try expectEqual(left.len, try reader.store.refresh(&fault));
        try B.expectRecords(reader, left);
        try beside.writer.compact();
        try expectError(error.Changed, B.expectRecords(reader, left));
        try expectEqual(left.len, try reader.store.refresh(&fault));
        try B.expectRecords(reader, left);
    }
}

test "a reader without a lock serves nothing while a delete is under way" {
    inline for (.{ .dense, .ragged }) |kind| {
        const B = Beside(kind);
        const Watch = struct {
            reader: *B.T,
            refused: u32 = 0,
            other: u32 = 0,

            fn look(context: *anyopaque, disk: *Disk, event: sim.Event) void {
                const self: *@This() = @ptrCast(@alignCast(context));
                const hook = disk.hook;
                disk.hook = null;
                defer disk.hook = hook;
                _ = event;
                if (B.expectRecords(self.reader, &first_ids)) |_| {
                    // Served before the change, never again after.
                    if (self.refused > 0) self.other += 1;
                } else |err| switch (err) {
                    error.Changed => self.refused += 1,
                    else => self.other += 1,
                }
            }
        };
        var beside: B = undefined;
        try beside.init();
        defer beside.deinit();
        const reader = try beside.openLockFree();
        defer reader.abandon();
        var buffer: [32]Id = undefined;
        var watch: Watch = .{ .reader = reader };
        beside.disk.hook = .{ .context = &watch, .call = Watch.look };
        try beside.writer.delete(&.{4});
        beside.disk.hook = null;
        try expectEqual(0, watch.other);
        try std.testing.expect(watch.refused > 0);
        var fault: Fault = .{};
        try expectEqual(9, try reader.store.refresh(&fault));
        try B.expectRecords(reader, swapLast(&first_ids, 4, &buffer));
    }
}

test "a reader with a lock keeps records in place" {
    const B = Beside(.ragged);
    var beside: B = undefined;
    try beside.init();
    defer beside.deinit();
    const reader = try B.T.openReader(gpa, &beside.disk);
    try expectError(error.BusyReaders, beside.writer.delete(&.{3}));
    try B.expectRecords(reader, &first_ids);
    try B.expectRecords(beside.writer, &first_ids);
    reader.abandon();
    try beside.writer.delete(&.{3});
    try expectError(error.BusyReaders, busyCompact(B, &beside));
}

fn busyCompact(comptime B: type, beside: *B) !void {
    const reader = try B.T.openReader(gpa, &beside.disk);
    defer reader.abandon();
    try beside.writer.compact();
}

/// Somebody else's lock or half-written slot, which goes after some pauses.
const Obstacle = struct {
    folder: sim.SimFiles,
    lock: ?sim.SimFiles.File = null,
    torn: ?usize = null,
    pauses: u32,

    fn pause(context: *anyopaque, disk: *Disk, event: sim.Event) void {
        const self: *Obstacle = @ptrCast(@alignCast(context));
        _ = event;
        if (self.pauses == 0) return;
        self.pauses -= 1;
        if (self.pauses > 0) return;
        if (self.lock) |file| self.folder.unlock(file);
        if (self.torn) |position| disk.content(.meta).?[position] ^= 0xff;
    }
};

test "a reader waits for a delete, but not for ever" {
    const B = Beside(.dense);
    var beside: B = undefined;
    try beside.init();
    defer beside.deinit();
    var obstacle: Obstacle = .{ .folder = beside.disk.folder(), .pauses = 1 };
    defer obstacle.folder.closeDirectory();
    obstacle.lock = try obstacle.folder.open(.readers_lock, .write);
    try std.testing.expect(try obstacle.folder.tryLock(obstacle.lock.?, .exclusive));
    try expectError(error.BusyMaintenance, B.T.openReader(gpa, &beside.disk));
    try std.testing.expect(beside.disk.slept_ms >= specimen_zig.limits.reader_wait_ms);

    beside.disk.sleep_hook = .{ .context = &obstacle, .call = Obstacle.pause };
    const reader = try B.T.openReader(gpa, &beside.disk);
    defer reader.abandon();
    try expectEqual(0, obstacle.pauses);
    try B.expectRecords(reader, &first_ids);
}

test "a reader looks again at slots that a writer is changing" {
    const B = Beside(.dense);
    for ([_]usize{ 0, zrecord.format.lazy_slot_offset }) |slot_offset| {
        var beside: B = undefined;
        try beside.init();
        defer beside.deinit();
        const opened = try B.T.openReader(gpa, &beside.disk);
        defer opened.abandon();
        try beside.writer.append(&.{ 11, 12 }, 1);
        var obstacle: Obstacle = .{ .folder = beside.disk.folder(), .torn = slot_offset + 80, .pauses = 1 };
        defer obstacle.folder.closeDirectory();
        beside.disk.content(.meta).?[obstacle.torn.?] ^= 0xff;
        beside.disk.sleep_hook = .{ .context = &obstacle, .call = Obstacle.pause };
        const reader = try B.T.openReader(gpa, &beside.disk);
        defer reader.abandon();
        try expectEqual(0, obstacle.pauses);
        try B.expectRecords(reader, &(first_ids ++ .{ 11, 12 }));
        // The same for one that is open.
        beside.disk.content(.meta).?[obstacle.torn.?] ^= 0xff;
        obstacle.pauses = 1;
        var fault: Fault = .{};
        try expectEqual(12, try opened.store.refresh(&fault));
        try expectEqual(0, obstacle.pauses);
    }
}
