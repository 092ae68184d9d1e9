//! Ragged: record i has a size and a shape of its own. What is validated, and where it lies in a
//! packed batch.

const std = @import("std");
const format = @import("format.zig");
const gather_zig = @import("gather.zig");
const recovery = @import("recovery.zig");
const spans = @import("spans.zig");
const status = @import("status.zig");

const Error = status.Error;
const Fault = status.Fault;
const Shape = format.Shape;

/// `offsets` has one more element than `ranks`; `dims` holds the dimensions of all records.
pub fn appendPart(
    engine: anytype,
    source: [*]const u8,
    offsets: []const u64,
    ranks: []const u8,
    dims: [*]const u64,
    fault: *Fault,
) Error!void {
    const limits = @TypeOf(engine.*).limits;
    const dim_starts = try engine.gpa.alloc(u64, ranks.len);
    defer engine.gpa.free(dim_starts);
    if (offsets[0] != 0) return error.InvalidArgument;
    var dim_count: u64 = 0;
    for (ranks, dim_starts, 0..) |rank, *dim_start, ordinal| {
        dim_start.* = dim_count;
        const size = std.math.sub(u64, offsets[ordinal + 1], offsets[ordinal]) catch return error.InvalidArgument;
        fault.* = .{ .record = ordinal, .found = size };
        if (size == 0) return error.EmptyRecord;
        if (size > limits.record_size_max) return error.RecordTooLarge;
        const shape = dims[@intCast(dim_count)..][0..rank];
        if (size % engine.width != 0 or Shape.of(shape, size / engine.width) == null) return error.ShapeMismatch;
        dim_count += rank;
    }
    fault.* = .{};
    try engine.appendPart(spans.Paired{
        .payload = .{ .bytes = source[0..@intCast(offsets[ranks.len])], .offsets = offsets, .unit = 1 },
        .ranks = ranks,
        .dims = dims[0..@intCast(dim_count)],
        .dim_starts = dim_starts,
    }, fault);
}

/// What a packed gather of these records fills: offsets in items, shape words, and how many stored
/// dimensions there are.
pub fn plan(engine: anytype, indices: anytype, offsets: []i64, shapes: []u64, dims_count_out: *u64, fault: *Fault) Error!void {
    const limits = @TypeOf(engine.*).limits;
    const length = engine.length.load(.acquire);
    const ahead = 16;
    var total: u64 = 0;
    var dims_count: u64 = 0;
    offsets[0] = 0;
    for (indices, 0..) |index, ordinal| {
        if (ordinal + ahead < indices.len) {
            if (gather_zig.resolve(indices[ordinal + ahead], length)) |later| engine.table.prefetch(later);
        }
        const resolved = gather_zig.resolve(index, length) orelse {
            fault.* = .{ .record = ordinal, .found = @bitCast(index), .expected = length };
            return error.IndexOutOfRange;
        };
        const entry = try engine.table.read(resolved, fault);
        const items = try itemCount(engine, &entry, resolved, fault);
        total += items;
        if (total > limits.batch_size_max / engine.width) {
            fault.* = .{ .expected = limits.batch_size_max, .found = total *| engine.width };
            return error.BatchTooLarge;
        }
        offsets[ordinal + 1] = @intCast(total);
        shapes[ordinal] = entry.shape;
        dims_count += @as(Shape, @bitCast(entry.shape)).storedDims();
    }
    if (engine.lock_free) try recovery.requireUnchanged(engine, fault);
    dims_count_out.* = dims_count;
}

/// Records one behind the other.
pub const Run = struct {
    first: u64,

    pub inline fn at(self: Run, ordinal: usize) u64 {
        return self.first +| ordinal;
    }
};

pub fn List(comptime Index: type) type {
    return struct {
        indices: []const Index,

        pub inline fn at(self: @This(), ordinal: usize) Index {
            return self.indices[ordinal];
        }
    };
}

/// Items per record, from the table alone.
pub fn lengths(engine: anytype, indices: anytype, counts: []i64, fault: *Fault) Error!void {
    const length = engine.length.load(.acquire);
    for (counts, 0..) |*count, ordinal| {
        const resolved = gather_zig.resolve(indices.at(ordinal), length) orelse {
            fault.* = .{ .record = ordinal, .found = @bitCast(indices.at(ordinal)), .expected = length };
            return error.IndexOutOfRange;
        };
        const entry = try engine.table.read(resolved, fault);
        count.* = @intCast(try itemCount(engine, &entry, resolved, fault));
    }
    if (engine.lock_free) try recovery.requireUnchanged(engine, fault);
}

/// Records up to this size are planned for on the word of their entries alone.
const unseen_size_max = 64 << 10;

/// The items of a record whose entry is sound.
pub fn itemCount(engine: anytype, entry: *const format.RaggedEntry, index: u64, fault: *Fault) Error!u64 {
    switch (engine.codecs.codec) {
        inline else => |codec| try gather_zig.checkEntry(engine, codec, entry, index, fault),
    }
    // Whoever allocates for a large record shall know that its bytes are there.
    if (entry.logical_size > unseen_size_max) _ = try engine.chunks.view(gather_zig.locationOf(entry), index, fault);
    const items = entry.logical_size / engine.width;
    const shape: Shape = @bitCast(entry.shape);
    if (entry.logical_size % engine.width != 0 or !shape.fits(items)) {
        return fault.corruptRecord(.{ .segment = gather_zig.segmentOf(engine, index) }, index, entry.logical_size, entry.shape);
    }
    return items;
}

/// The same request as the plan, with its results.
pub fn gatherInto(
    engine: anytype,
    indices: anytype,
    offsets: []const i64,
    shapes: []const u64,
    bytes: []u8,
    dims: []u64,
    fault: *Fault,
) Error!void {
    const spans_given: spans.Offsets([]u8, i64) = .{ .bytes = bytes, .offsets = offsets, .unit = engine.width };
    if (!spans_given.valid()) {
        fault.* = .{ .expected = @bitCast(offsets[indices.len] *| @as(i64, @intCast(engine.width))), .found = bytes.len };
        return error.TargetSize;
    }
    var dims_count: u64 = 0;
    for (shapes) |shape| dims_count += @as(Shape, @bitCast(shape)).storedDims();
    if (dims_count != dims.len) {
        fault.* = .{ .expected = dims_count, .found = dims.len };
        return error.TargetSize;
    }
    // Most batches hold nothing of rank 3, and then nobody asks where dimensions go.
    const dim_starts = try engine.gpa.alloc(u64, if (dims_count > 0) shapes.len else 0);
    defer engine.gpa.free(dim_starts);
    var start: u64 = 0;
    for (shapes[0..dim_starts.len], dim_starts) |shape, *dim_start| {
        dim_start.* = start;
        start += @as(Shape, @bitCast(shape)).storedDims();
    }
    const target: Packed = .{ .bytes = bytes, .spans = spans_given, .shapes = shapes, .dims = dims, .dim_starts = dim_starts };
    try gather_zig.gather(engine, indices, target, fault);
}

const Packed = struct {
    bytes: []u8,
    spans: spans.Offsets([]u8, i64),
    shapes: []const u64,
    dims: []u64,
    dim_starts: []const u64,

    pub inline fn at(self: Packed, ordinal: usize) []u8 {
        return self.spans.at(ordinal);
    }

    /// The record is still the one that was planned for.
    pub inline fn check(self: Packed, ordinal: usize, entry: *const format.RaggedEntry, index: u64, fault: *Fault) Error!void {
        _ = index;
        if (entry.logical_size != self.spans.at(ordinal).len or entry.shape != self.shapes[ordinal]) {
            fault.* = .{ .record = ordinal };
            return error.Changed;
        }
    }

    pub inline fn takeDims(self: Packed, ordinal: usize, stored: []const u8, index: u64, fault: *Fault) Error!void {
        if (stored.len == 0) return;
        const dims = self.dims[@intCast(self.dim_starts[ordinal])..][0 .. stored.len / 8];
        @memcpy(std.mem.sliceAsBytes(dims), stored);
        const items = self.spans.at(ordinal).len / self.spans.unit;
        const shape = Shape.of(dims, items) orelse Shape{ .rank = 0, .first = 0 };
        if (@as(u64, @bitCast(shape)) != self.shapes[ordinal]) {
            return fault.corruptRecord(null, index, self.shapes[ordinal], @bitCast(shape));
        }
    }
};
