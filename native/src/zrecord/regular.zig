//! The regular layout: a raw dense store from which nothing was deleted holds record i where plain
//! arithmetic says, since appends fill one chunk after the other in index order.
//!
//! Nothing is taken on trust. A record's first read goes through its entry, whose sum binds the place;
//! if that is the regular one, the record's bit in `verified` stands for both, and later reads need
//! neither the entry nor the sum. One record elsewhere ends the layout for the handle.

const std = @import("std");
const format = @import("format.zig");
const gather = @import("gather.zig");

/// Records whose copies follow each other while the next ones are fetched.
const tile = 16;
/// Bytes of a record that are fetched ahead; the processor's own prefetching continues from there.
const prefetch_bytes_max = 512;
const cache_line = 64;

pub const Layout = struct {
    width: usize,
    records_per_chunk: u64,

    pub fn of(width: usize, chunk_size_max: u64) Layout {
        return .{ .width = width, .records_per_chunk = @max(1, chunk_size_max / width) };
    }

    pub inline fn place(layout: Layout, index: u64) struct { chunk: u32, offset: u64 } {
        if (index < layout.records_per_chunk) return .{ .chunk = 0, .offset = index * layout.width };
        return .{
            .chunk = @intCast(index / layout.records_per_chunk),
            .offset = index % layout.records_per_chunk * layout.width,
        };
    }

    pub fn holds(layout: Layout, index: u64, location: format.Location) bool {
        const regular = layout.place(index);
        return location.chunk == regular.chunk and location.offset == regular.offset;
    }
};

/// Copies the records from ordinal `first` on that are known to be whole and in their place; returns
/// the ordinal of the first tile that is not.
pub fn copyKnown(engine: anytype, layout: Layout, indices: anytype, length: u64, target: anytype, first: usize, end: usize) usize {
    var sources: [2][tile][*]const u8 = undefined;
    var start = first;
    if (start == end or !locate(engine, layout, indices, length, start, @min(start + tile, end), &sources[0])) return start;
    var side: u1 = 0;
    while (true) : (side ^= 1) {
        const stop = @min(start + tile, end);
        const next_stop = @min(stop + tile, end);
        const more = stop < end and locate(engine, layout, indices, length, stop, next_stop, &sources[side ^ 1]);
        for (sources[side][0 .. stop - start], start..) |source, ordinal| {
            copy(target.at(ordinal), source);
        }
        start = stop;
        if (!more) return start;
    }
}

/// Finds a tile's records and has their first bytes fetched; false if one has not been checked yet.
inline fn locate(engine: anytype, layout: Layout, indices: anytype, length: u64, from: usize, to: usize, sources: *[tile][*]const u8) bool {
    for (indices[from..to], sources[0 .. to - from]) |given, *source| {
        const index = gather.resolve(given, length) orelse return false;
        if (!engine.verified.contains(index)) return false;
        const place = layout.place(index);
        const start = engine.chunks.mappedAt(place.chunk, place.offset, layout.width) orelse return false;
        source.* = start;
        var position: usize = 0;
        while (position < @min(layout.width, prefetch_bytes_max)) : (position += cache_line) {
            @prefetch(start + position, .{});
        }
    }
    return true;
}

/// A call costs more than the copy of a very small record. From there on libc's copy, which knows this
/// processor's widest registers, keeps more of the records that are on their way in flight.
inline fn copy(target: []u8, source: [*]const u8) void {
    const Vector = @Vector(16, u8);
    const size = @sizeOf(Vector);
    if (target.len < size or target.len > 4 * size) {
        @memcpy(target, source);
        return;
    }
    var position: usize = 0;
    while (position + size <= target.len) : (position += size) {
        target[position..][0..size].* = source[position..][0..size].*;
    }
    // The last bytes once more with what stands before them.
    const last = target.len - size;
    target[last..][0..size].* = source[last..][0..size].*;
}

test "places" {
    const layout: Layout = .of(24, 100);
    try std.testing.expectEqual(4, layout.records_per_chunk);
    try std.testing.expect(layout.holds(5, .{ .chunk = 1, .offset = 24, .stored_size = 24, .logical_size = 24 }));
    try std.testing.expect(!layout.holds(5, .{ .chunk = 0, .offset = 120, .stored_size = 24, .logical_size = 24 }));
    try std.testing.expectEqual(1, Layout.of(200, 100).records_per_chunk);
}
