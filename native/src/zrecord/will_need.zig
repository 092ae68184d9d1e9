//! Telling the kernel which records are read soon: their extents, merged where they lie close.

const std = @import("std");
const gather = @import("gather.zig");
const status = @import("status.zig");

const Error = status.Error;
const Fault = status.Fault;

/// Extents with less than this between them are asked for as one.
const gap_max = 16 << 10;

/// A hint: what is out of range or cannot be read is passed over.
pub fn willNeed(engine: anytype, indices: anytype) Error!void {
    const length = engine.length.load(.acquire);
    const extents = try engine.gpa.alloc(Extent, indices.len);
    defer engine.gpa.free(extents);
    var count: usize = 0;
    var ignored: Fault = .{};
    for (indices) |index| {
        const resolved = gather.resolve(index, length) orelse continue;
        const entry = engine.table.read(resolved, &ignored) catch continue;
        extents[count] = .{ .chunk = entry.chunk, .start = entry.offset, .end = @as(u64, entry.offset) + entry.stored_size };
        count += 1;
    }
    std.sort.pdq(Extent, extents[0..count], {}, Extent.before);
    var first: usize = 0;
    while (first < count) {
        var merged = extents[first];
        first += 1;
        while (first < count and extents[first].chunk == merged.chunk and extents[first].start <= merged.end + gap_max) : (first += 1) {
            merged.end = @max(merged.end, extents[first].end);
        }
        engine.chunks.willNeed(merged.chunk, merged.start, merged.end - merged.start);
    }
}

const Extent = struct {
    chunk: u32,
    start: u64,
    end: u64,

    fn before(_: void, a: Extent, b: Extent) bool {
        return if (a.chunk != b.chunk) a.chunk < b.chunk else a.start < b.start;
    }
};
