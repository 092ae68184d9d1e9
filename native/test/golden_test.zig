//! Golden stores of format 5: made once, kept as files, never rewritten. The engine must read each
//! of them, and make the raw ones again byte for byte from the same operations.

const std = @import("std");
const zrecord = @import("zrecord");
const model = @import("model.zig");
const sim = @import("sim_files.zig");
const trial_zig = @import("trial.zig");

pub const simulation = sim;
const Disk = sim.Disk;
const Id = model.Id;
const Name = zrecord.files.Name;
const format = zrecord.format;
const print = std.debug.print;

pub const Golden = struct {
    name: []const u8,
    kind: format.Kind,
    codec: format.Codec,
    end: End = .closed,
    chunk: u32 = 1,

    const End = enum {
        closed,
        /// Killed with three records that were never synced.
        killed,
        /// Killed in a delete, between the journal and the entries.
        journalled,
    };
};

pub const goldens = [_]Golden{
    .{ .name = "v5-dense-raw", .kind = .dense, .codec = .raw },
    .{ .name = "v5-dense-zstd", .kind = .dense, .codec = .zstd },
    .{ .name = "v5-ragged-raw", .kind = .ragged, .codec = .raw },
    .{ .name = "v5-ragged-zstd-dict", .kind = .ragged, .codec = .zstd_dict },
    .{ .name = "v5-dense-raw-killed", .kind = .dense, .codec = .raw, .end = .killed },
    .{ .name = "v5-dense-raw-journalled", .kind = .dense, .codec = .raw, .end = .journalled },
};

/// The files of a golden store.
pub fn names(golden: Golden) []const Name {
    const all = [_]Name{ .store, .meta, .lock, .readers_lock, .journal, .{ .segment = 0 }, .{ .chunk = golden.chunk }, .dict };
    const count: usize = if (golden.codec == .zstd_dict) all.len else all.len - 1;
    return std.heap.smp_allocator.dupe(Name, all[0..count]) catch unreachable;
}

fn Trial(comptime kind: format.Kind) type {
    return trial_zig.Trial(.{}, kind);
}

/// Makes the store and returns the numbers of its records.
pub fn make(comptime golden: Golden, disk: *Disk) ![]const Id {
    const gpa = disk.gpa;
    var truth: model.Model = .{};
    errdefer truth.deinit(gpa);
    const trial = try Trial(golden.kind).create(gpa, disk, golden.codec);
    errdefer trial.abandon();
    try append(trial, &truth, gpa, 1, 12, 2);
    try trial.sync();
    try delete(trial, &truth, &.{ 11, 4, 1 });
    try append(trial, &truth, gpa, 13, 16, 1);
    try trial.compact();
    switch (golden.end) {
        .closed => try trial.close(),
        .killed => {
            try append(trial, &truth, gpa, 17, 19, 1);
            trial.abandon();
        },
        .journalled => {
            var witness: Witness = .{};
            disk.hook = .{ .context = &witness, .call = Witness.happened };
            try delete(trial, &truth, &.{ 9, 0 });
            disk.hook = null;
            trial.abandon();
            disk.deinit();
            disk.* = witness.left.?;
        },
    }
    return truth.ids.toOwnedSlice(gpa);
}

fn append(trial: anytype, truth: *model.Model, gpa: std.mem.Allocator, first: Id, last: Id, parts: usize) !void {
    var ids: [16]Id = undefined;
    for (ids[0 .. last - first + 1], first..) |*id, number| id.* = @intCast(number);
    try trial.append(ids[0 .. last - first + 1], parts);
    try truth.append(gpa, ids[0 .. last - first + 1]);
}

fn delete(trial: anytype, truth: *model.Model, indices: []const u64) !void {
    try trial.delete(indices);
    truth.delete(indices);
}

/// Keeps the disk as it is when the journal has been synced.
const Witness = struct {
    left: ?Disk = null,

    fn happened(context: *anyopaque, disk: *Disk, event: sim.Event) void {
        const self: *Witness = @ptrCast(@alignCast(context));
        const name = event.name orelse return;
        if (event.call == .sync and name == .journal and self.left == null) self.left = disk.killed(disk.gpa);
    }
};

fn fileText(comptime golden: Golden, comptime name: Name) []const u8 {
    comptime var buffer: Name.Buffer = undefined;
    const file = comptime name.text(&buffer)[0..].*;
    return @embedFile("testdata/" ++ golden.name ++ "/" ++ file);
}

fn plant(comptime golden: Golden, disk: *Disk) void {
    inline for (.{ Name.store, Name.meta, Name.lock, Name.readers_lock, Name.journal, Name{ .segment = 0 }, Name{ .chunk = golden.chunk } }) |name| {
        disk.plant(name, fileText(golden, name));
    }
    if (golden.codec == .zstd_dict) disk.plant(.dict, fileText(golden, .dict));
}

fn expectRecords(comptime golden: Golden, trial: *Trial(golden.kind), expected: []const Id) !void {
    const gpa = std.testing.allocator;
    const ids = try trial.readAll(gpa);
    defer gpa.free(ids);
    try std.testing.expectEqualSlices(Id, expected, ids);
}

test "golden stores are read, by readers and writers" {
    const gpa = std.testing.allocator;
    inline for (goldens) |golden| {
        var made: Disk = .init(gpa);
        defer made.deinit();
        const expected = try make(golden, &made);
        defer gpa.free(expected);
        var disk: Disk = .init(gpa);
        defer disk.deinit();
        plant(golden, &disk);

        const reader = try Trial(golden.kind).openReader(gpa, &disk);
        try expectRecords(golden, reader, expected);
        reader.abandon();
        const writer = try Trial(golden.kind).open(gpa, &disk);
        try expectRecords(golden, writer, expected);
        try writer.append(&.{ 100, 101 }, 1);
        try writer.close();
        const again = try Trial(golden.kind).open(gpa, &disk);
        defer again.abandon();
        try std.testing.expectEqual(expected.len + 2, again.length());
    }
    print("golden stores: {d} passed, 0 failed\n", .{goldens.len});
}

test "the same operations make the raw golden stores byte for byte" {
    const gpa = std.testing.allocator;
    inline for (goldens) |golden| {
        // Frames may differ from one zstd to the next.
        if (golden.codec != .raw) continue;
        var made: Disk = .init(gpa);
        defer made.deinit();
        gpa.free(try make(golden, &made));
        const listed = names(golden);
        defer std.heap.smp_allocator.free(listed);
        try std.testing.expectEqual(listed.len, made.entries.items.len);
        var planted: Disk = .init(gpa);
        defer planted.deinit();
        plant(golden, &planted);
        for (listed) |name| try std.testing.expectEqualSlices(u8, planted.content(name).?, made.content(name).?);
    }
}

test "every truncation of a golden header, and another magic or version, is refused" {
    const golden = goldens[0];
    const gpa = std.testing.allocator;
    for ([_]Name{ .store, .meta }) |name| {
        const size = if (name == .store) fileText(golden, .store).len else fileText(golden, .meta).len;
        for (0..size) |cut| {
            // All of the header, and a meta.zr at every sector.
            if (name == .meta and cut % 512 != 0) continue;
            try expectRefused(gpa, name, cut, null);
        }
        // Magic and version.
        for (0..5) |position| try expectRefused(gpa, name, size, position);
    }
}

/// Cuts a file, or changes a byte of it (in meta.zr of both durable slots).
fn expectRefused(gpa: std.mem.Allocator, name: Name, size: usize, changed: ?usize) !void {
    const golden = goldens[0];
    var disk: Disk = .init(gpa);
    defer disk.deinit();
    plant(golden, &disk);
    const bytes = try gpa.dupe(u8, disk.content(name).?[0..size]);
    defer gpa.free(bytes);
    if (changed) |position| {
        bytes[position] ^= 1;
        if (name == .meta) bytes[format.slot_size + position] ^= 1;
    }
    disk.plant(name, bytes);
    if (Trial(golden.kind).openReader(gpa, &disk)) |reader| {
        reader.abandon();
        return error.TestUnexpectedResult;
    } else |err| switch (err) {
        error.CorruptStore, error.Unsupported, error.Foreign => {},
        else => return err,
    }
}
