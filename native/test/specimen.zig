//! Small stores for the tests that damage them: built once, kept as bytes, planted on a disk as
//! often as wanted, and examined after something was changed.

const std = @import("std");
const zrecord = @import("zrecord");
const model = @import("model.zig");
const sim = @import("sim_files.zig");
const trial = @import("trial.zig");

const files = zrecord.files;
const format = zrecord.format;
const Disk = sim.Disk;
const Error = zrecord.status.Error;
const Fault = zrecord.status.Fault;
const Id = model.Id;

/// Records cross chunks and segments; the files have the sizes of real stores.
pub const limits: zrecord.limits.Limits = .{
    .segment_bits = 3,
    .segment_count_max = 8,
    .chunk_size_max = 200,
    .chunk_count_max = 64,
    .append_block_size = 128,
    .compact_group_size = 256,
    .open_files_max = 2,
    .reader_wait_ms = 40,
    .slot_wait_ms = 40,
};

pub const records_max = 32;
pub const Records = std.bit_set.IntegerBitSet(records_max);

/// In which moment of its life the store's folder was copied.
pub const Moment = enum {
    /// After appends, a delete and a clean close.
    closed,
    /// Between appends that no sync covers, after two syncs, the writer alive.
    live,
    /// In a delete: the journal is durable, the table is half changed, no D says so.
    deleting,
};

pub const File = struct { name: files.Name, bytes: []const u8 };

pub const Specimen = struct {
    kind: format.Kind,
    codec: format.Codec,
    moment: Moment,
    files: []const File,
    /// The same folder after its first sync.
    earlier: []const File,
    ids: []const Id,
    /// How many of them no sync covers.
    unsynced: usize,

    pub fn describe(specimen: Specimen, buffer: *[64]u8) []const u8 {
        return std.fmt.bufPrint(buffer, "{t} {t} {t}", .{ specimen.kind, specimen.codec, specimen.moment }) catch unreachable;
    }

    pub fn holds(specimen: Specimen, name: files.Name) bool {
        for (specimen.files) |file| if (std.meta.eql(file.name, name)) return true;
        return false;
    }

    pub fn plant(specimen: Specimen, disk: *Disk) void {
        for (specimen.files) |file| disk.plant(file.name, file.bytes);
    }
};

/// Every kind, codec and moment. `variant` gives other records and another uuid.
pub fn buildAll(arena: std.mem.Allocator, variant: u8) ![]Specimen {
    var list: std.ArrayList(Specimen) = .empty;
    inline for (.{ .dense, .ragged }) |kind| {
        for (std.enums.values(format.Codec)) |codec| {
            for (std.enums.values(Moment)) |moment| try list.append(arena, try build(kind, arena, codec, moment, variant));
        }
    }
    return list.items;
}

pub fn build(comptime kind: format.Kind, arena: std.mem.Allocator, codec: format.Codec, moment: Moment, variant: u8) !Specimen {
    var copier: Copier = .{ .arena = arena };
    var disk: Disk = .init(std.heap.smp_allocator);
    defer disk.deinit();
    disk.tracking = false;
    disk.random_state = variant;
    var ids: model.Model = .{};
    var next: Id = @as(Id, variant) * 1000;
    const writer = try trial.Trial(limits, kind).create(std.heap.smp_allocator, &disk, codec);
    try append(writer, &ids, arena, &next, 9);
    try writer.sync();
    const earlier = copyOf(arena, &disk);
    var unsynced: usize = 0;
    switch (moment) {
        .closed => {
            try append(writer, &ids, arena, &next, 5);
            try writer.delete(&.{ 12, 3 });
            ids.delete(&.{ 12, 3 });
            try append(writer, &ids, arena, &next, 4);
            try writer.close();
            copier.files = copyOf(arena, &disk);
        },
        .live => {
            try append(writer, &ids, arena, &next, 4);
            try writer.sync();
            try append(writer, &ids, arena, &next, 2);
            try append(writer, &ids, arena, &next, 3);
            unsynced = 5;
            copier.files = copyOf(arena, &disk);
            writer.abandon();
        },
        .deleting => {
            try append(writer, &ids, arena, &next, 6);
            disk.hook = .{ .context = &copier, .call = Copier.duringDelete };
            try writer.delete(&.{ 11, 5, 2 });
            ids.delete(&.{ 11, 5, 2 });
            disk.hook = null;
            writer.abandon();
        },
    }
    return .{
        .kind = kind,
        .codec = codec,
        .moment = moment,
        .files = copier.files,
        .earlier = earlier,
        .ids = ids.ids.items,
        .unsynced = unsynced,
    };
}

fn append(writer: anytype, ids: *model.Model, arena: std.mem.Allocator, next: *Id, count: usize) !void {
    var added: [records_max]Id = undefined;
    for (added[0..count]) |*id| {
        id.* = next.*;
        next.* += 1;
    }
    try writer.append(added[0..count], 1);
    try ids.append(arena, added[0..count]);
}

fn copyOf(arena: std.mem.Allocator, disk: *Disk) []const File {
    const copied = arena.alloc(File, disk.entries.items.len) catch @panic("out of memory");
    for (disk.entries.items, copied) |entry, *file| {
        file.* = .{ .name = entry.name, .bytes = arena.dupe(u8, disk.content(entry.name).?) catch @panic("out of memory") };
    }
    return copied;
}

const Copier = struct {
    arena: std.mem.Allocator,
    files: []const File = &.{},

    /// Copies when one of the changed entries has been written.
    fn duringDelete(context: *anyopaque, disk: *Disk, event: sim.Event) void {
        const self: *Copier = @ptrCast(@alignCast(context));
        const name = event.name orelse return;
        if (event.call != .write or name != .segment) return;
        if (self.files.len == 0) self.files = copyOf(self.arena, disk);
    }
};

// Examining.

pub const Outcome = enum {
    /// Everything reads as it was written.
    same,
    /// The store did not open, or said in a call that it is damaged.
    refused,
    /// Some records are reported as damaged, all others read as they were written.
    records,
    /// Gathers do not see it, `verify` does: entries that were valid once.
    table,
    /// Whole appends that no sync covered are missing.
    shorter,
    /// Something else was served, or two calls disagree.
    wrong,
};

pub const Examination = struct {
    outcome: Outcome,
    /// What is wrong.
    text: []const u8 = "",
    err: ?anyerror = null,
    fault: Fault = .{},

    fn wrong(text: []const u8, err: ?anyerror, fault: Fault) Examination {
        return .{ .outcome = .wrong, .text = text, .err = err, .fault = fault };
    }
};

/// What a damaged folder may answer.
pub fn saysDamaged(err: anyerror, fault: Fault) bool {
    return switch (err) {
        error.CorruptStore => fault.file != null,
        error.CorruptRecord => fault.record != Fault.no_record,
        // Without store.zr a folder is an unfinished store.
        error.Unsupported, error.Foreign, error.Unfinished => true,
        else => false,
    };
}

pub const Way = struct { mode: zrecord.store.Mode = .read, mapping: bool = false };

/// Opens the store on the disk, reads and verifies all of it, and compares with what was written.
pub fn examine(comptime kind: format.Kind, gpa: std.mem.Allocator, disk: *Disk, way: Way, specimen: Specimen) Examination {
    const ids = specimen.ids;
    disk.mappable = way.mapping;
    // A disk keeps the numbers of closed files.
    disk.handles.clearRetainingCapacity();
    const T = trial.Trial(limits, kind);
    const opened = T.start(gpa, disk, .{ .mode = way.mode, .checksums = .always, .mapping = way.mapping }) catch |err| {
        if (saysDamaged(err, trial.open_fault)) return .{ .outcome = .refused, .err = err, .fault = trial.open_fault };
        return .wrong("opening failed in another way", err, trial.open_fault);
    };
    defer opened.abandon();
    const length = opened.length();
    if (length > ids.len or length + specimen.unsynced < ids.len) return .wrong("another length", null, .{ .expected = ids.len, .found = length });
    var examined = examineOpen(T, gpa, opened, ids[0..@intCast(length)]);
    if (length < ids.len and examined.outcome == .same) examined.outcome = .shorter;
    return examined;
}

fn examineOpen(comptime T: type, gpa: std.mem.Allocator, opened: *T, ids: []const Id) Examination {
    var fault: Fault = .{};
    var damaged: Records = .initEmpty();
    var indices: [records_max]u64 = undefined;
    for (&indices, 0..) |*index, position| index.* = position;

    if (gather(T, gpa, opened, indices[0..ids.len], ids, &fault)) |equal| {
        if (!equal) return served(T, opened, fault);
    } else |err| switch (err) {
        error.CorruptStore => return .{ .outcome = .refused, .err = err, .fault = fault },
        error.CorruptRecord => {
            const first = fault.record;
            if (first >= ids.len) return .wrong("the damaged record is none of the request's", err, fault);
            for (ids, 0..) |_, index| {
                if (gather(T, gpa, opened, indices[index..][0..1], ids[index..][0..1], &fault)) |equal| {
                    if (!equal) return served(T, opened, fault);
                } else |single| {
                    if (single == error.CorruptStore) return .{ .outcome = .refused, .err = single, .fault = fault };
                    if (single != error.CorruptRecord) return .wrong("gather failed in another way", single, fault);
                    if (fault.record != index) return .wrong("another record was named", single, fault);
                    damaged.set(index);
                }
            }
            if (!damaged.isSet(@intCast(first))) return .wrong("damaged in a batch, whole alone", err, fault);
        },
        else => return .wrong("gather failed in another way", err, fault),
    }

    var findings: Findings = .{};
    const report = opened.store.verify(&findings, &fault) catch |err|
        return .wrong("verify failed", err, fault);
    if (!findings.damaged.eql(damaged)) return .wrong("verify names other records than gather", null, .{
        .expected = damaged.mask,
        .found = findings.damaged.mask,
    });
    if (report.damaged != damaged.count()) return .wrong("verify counts other records", null, .{});
    if (damaged.count() > 0) return .{ .outcome = .records };
    return .{ .outcome = if (report.table_damaged) .table else .same };
}

/// A gather served another content: only an entry that was valid once may do that, and then verify
/// sees the table.
fn served(comptime T: type, opened: *T, fault_given: Fault) Examination {
    var fault = fault_given;
    var findings: Findings = .{};
    const report = opened.store.verify(&findings, &fault) catch |err| return .wrong("verify failed", err, fault);
    if (report.table_damaged) return .{ .outcome = .table };
    return .wrong("another content was served", null, fault_given);
}

pub const Findings = struct {
    damaged: Records = .initEmpty(),

    pub fn step(_: *Findings, _: u64, _: u64) bool {
        return true;
    }

    pub fn found(self: *Findings, _: Error, fault: Fault) bool {
        if (fault.record < records_max) self.damaged.set(@intCast(fault.record));
        return true;
    }
};

/// Whether the records at `indices` are those of `ids`, shape and bytes.
pub fn gather(comptime T: type, gpa: std.mem.Allocator, opened: *T, indices: []const u64, ids: []const Id, fault: *Fault) Error!bool {
    const kind = T.kind;
    fault.* = .{};
    const engine = try opened.store.enterKind(kind, fault);
    defer engine.leave();
    var expected: [model.record_size_max]u8 = undefined;
    if (kind == .dense) {
        var bytes: [records_max * model.dense_width]u8 = undefined;
        try zrecord.dense.gatherInto(engine, indices, bytes[0 .. indices.len * model.dense_width], fault);
        for (ids, 0..) |id, ordinal| {
            model.fill(id, expected[0..model.dense_width]);
            fault.record = ordinal;
            if (!std.mem.eql(u8, bytes[ordinal * model.dense_width ..][0..model.dense_width], expected[0..model.dense_width])) return false;
        }
        return true;
    }
    var offsets: [records_max + 1]i64 = undefined;
    var shapes: [records_max]u64 = undefined;
    var dim_count: u64 = 0;
    try zrecord.ragged.plan(engine, indices, offsets[0 .. indices.len + 1], shapes[0..indices.len], &dim_count, fault);
    const bytes = try gpa.alloc(u8, @as(usize, @intCast(offsets[indices.len])) * model.item_size);
    defer gpa.free(bytes);
    const dims = try gpa.alloc(u64, @intCast(dim_count));
    defer gpa.free(dims);
    try zrecord.ragged.gatherInto(engine, indices, offsets[0 .. indices.len + 1], shapes[0..indices.len], bytes, dims, fault);
    var next_dim: usize = 0;
    for (ids, 0..) |id, ordinal| {
        fault.record = ordinal;
        var buffer: [model.rank_max]u64 = undefined;
        const shape = model.dims(id, &buffer);
        const word: format.Shape = @bitCast(shapes[ordinal]);
        if (word.rank != shape.len or word.first != if (shape.len > 0) shape[0] else 0) return false;
        if (shape.len >= format.Shape.stored_rank_min) {
            if (!std.mem.eql(u64, dims[next_dim..][0..shape.len], shape)) return false;
            next_dim += shape.len;
        }
        const size = model.size(kind, id);
        model.fill(id, expected[0..size]);
        const from: usize = @intCast(offsets[ordinal] * model.item_size);
        const to: usize = @intCast(offsets[ordinal + 1] * model.item_size);
        if (!std.mem.eql(u8, bytes[from..to], expected[0..size])) return false;
    }
    return true;
}
