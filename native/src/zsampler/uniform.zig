//! Independent uniform indices: words of Philox, reduced to 0 .. n - 1 by a multiplication.
//!
//! A word of b bits gives floor(word * n / 2^b). 2^b mod n of the words are too many; they are
//! refused, and the position draws again from the block of the next attempt. So every index has
//! the same probability, exactly, and still depends on its position alone.
//!
//! Source: Lemire, "Fast random integer generation in an interval" (ACM TOMACS 2019).
//!
//! Compiled three times on x86-64, like permutation.zig.

const std = @import("std");
const builtin = @import("builtin");
const philox = @import("philox.zig");

/// Lengths up to here draw 32-bit words: half the blocks.
pub const length_max_narrow = 1 << 32;

/// Third counter word, one a purpose, in ASCII.
pub const Tag = enum(u64) {
    narrow = 0x7a732d6969643332, // "zs-iid32"
    wide = 0x7a732d6969643634, // "zs-iid64"
    weighted = 0x7a732d616c696173, // "zs-alias"
};

/// Extern: it crosses the border between the two objects.
pub const Stream = extern struct {
    seed: u64,
    length: u64,

    /// Philox(key = (seed, length), counter = (block low, attempt, tag, block high)).
    pub inline fn draw(stream: Stream, tag: Tag, block_index: [2]u64, attempt: u64) philox.Block {
        return philox.block(
            .{ block_index[0], attempt, @intFromEnum(tag), block_index[1] },
            stream.key(),
        );
    }

    inline fn key(stream: Stream) philox.Key {
        return .{ stream.seed, stream.length };
    }
};

/// Which words are refused, and what the others give.
pub fn Reduction(comptime Word: type) type {
    const bits = @bitSizeOf(Word);
    const Product = std.meta.Int(.unsigned, 2 * bits);
    return struct {
        length: u64,
        /// 2^bits mod length: as many words as are too many.
        excess: Word,

        pub fn init(length: u64) @This() {
            return .{ .length = length, .excess = @intCast((@as(Product, 1) << bits) % length) };
        }

        pub inline fn accept(r: @This(), word: Word) ?u64 {
            const index, const refused = r.apply(word);
            return if (refused) null else index;
        }

        /// The index of a word, and whether the word is refused.
        inline fn apply(r: @This(), word: Word) struct { u64, bool } {
            const product = @as(Product, word) * r.length;
            return .{ @intCast(product >> bits), @as(Word, @truncate(product)) < r.excess };
        }
    };
}

/// Blocks drawn before their words are reduced: apart, both loops run faster.
const chunk_block_count = 2 * philox.lane_count;

const draws_in_lanes = builtin.cpu.has(.x86, .avx512dq);

/// Indices of successive positions from `first` on. `Word` is u32 for lengths up to
/// length_max_narrow, else u64. Halves of a block's words count as words of their own, the low
/// half first.
pub fn fill(comptime Word: type, stream: Stream, first: u128, indices: []u64) void {
    // Blocks are read as arrays of their halves.
    comptime std.debug.assert(builtin.cpu.arch.endian() == .little);
    const tag: Tag = if (Word == u32) .narrow else .wide;
    const word_count = @sizeOf(philox.Block) / @sizeOf(Word);
    const reduction: Reduction(Word) = .init(stream.length);
    var blocks: [chunk_block_count]philox.Block = undefined;
    const words: *const [chunk_block_count * word_count]Word = @ptrCast(&blocks);

    var block_index = first / word_count;
    var skipped: usize = @intCast(first % word_count); // words before the position, in the chunk
    var rest = indices;
    while (rest.len > 0) {
        // Chunks end at multiples of their size, so that no carry leaves the low half inside one.
        const low: u64 = @truncate(block_index);
        const high: u64 = @truncate(block_index >> 64);
        const room: usize = chunk_block_count - @as(usize, @intCast(low % chunk_block_count));
        const used = @min(rest.len, room * word_count - skipped);
        const block_count = (skipped + used + word_count - 1) / word_count;
        drawBlocks(stream, tag, .{ low, high }, &blocks, block_count);

        // Rare, unless the length is near the number of words.
        if (reduce(Word, reduction, words[skipped..][0..used], rest[0..used]))
            redraw(Word, stream, reduction, .{ low, high }, &blocks, skipped, rest[0..used]);
        rest = rest[used..];
        block_index += room;
        skipped = 0;
    }
}

inline fn drawBlocks(stream: Stream, tag: Tag, first: [2]u64, blocks: *[chunk_block_count]philox.Block, count: usize) void {
    var i: usize = 0;
    if (draws_in_lanes) {
        // Those beyond the last that is asked for have room in the chunk.
        while (count - i > philox.lane_count / 4) {
            const counter: philox.Counter = .{ first[0] + i, 0, @intFromEnum(tag), first[1] };
            philox.blocks(counter, stream.key(), blocks[i..][0..philox.lane_count]);
            i += philox.lane_count;
            if (i >= count) return;
        }
    }
    for (blocks[i..count], i..) |*block, k| block.* = stream.draw(tag, .{ first[0] + k, first[1] }, 0);
}

/// Whether a word was refused; its index is then meaningless.
inline fn reduce(
    comptime Word: type,
    reduction: Reduction(Word),
    words: []const Word,
    indices: []u64,
) bool {
    var refused = false;
    var i: usize = 0;
    if (Word == u32 and reduction.length < length_max_narrow) {
        const lane_count = 8;
        const Words = @Vector(lane_count, u32);
        const Lanes = @Vector(lane_count, u64);
        const factor: Lanes = @splat(@as(u32, @intCast(reduction.length)));
        var least: Words = @splat(0xffff_ffff);
        while (i + lane_count <= words.len) : (i += lane_count) {
            const word: Lanes = @as(Words, words[i..][0..lane_count].*);
            const product = word *% factor;
            indices[i..][0..lane_count].* = product >> @splat(32);
            least = @min(least, @as(Words, @truncate(product)));
        }
        refused = @reduce(.Min, least) < reduction.excess;
    }
    for (words[i..], indices[i..]) |word, *index| {
        index.*, const word_refused = reduction.apply(word);
        refused = refused or word_refused;
    }
    return refused;
}

/// Draws for the refused words of a chunk until none is refused. Out of line, to leave the
/// registers to the loops above.
noinline fn redraw(
    comptime Word: type,
    stream: Stream,
    reduction: Reduction(Word),
    first_block: [2]u64,
    blocks: *[chunk_block_count]philox.Block,
    skipped: usize,
    indices: []u64,
) void {
    const tag: Tag = if (Word == u32) .narrow else .wide;
    const word_count = @sizeOf(philox.Block) / @sizeOf(Word);
    const words: *const [chunk_block_count * word_count]Word = @ptrCast(blocks);
    var refused: [words.len]u16 = undefined;
    var count: usize = 0;
    for (words[skipped..][0..indices.len], skipped..) |word, i| {
        if (reduction.accept(word) != null) continue;
        refused[count] = @intCast(i);
        count += 1;
    }
    var attempt: u64 = 1;
    while (count > 0) : (attempt += 1) {
        // In ascending order, so those of one block share its next words.
        var drawn: ?usize = null;
        var left: usize = 0;
        for (refused[0..count]) |i| {
            const b = i / word_count;
            if (drawn != b) {
                blocks[b] = stream.draw(tag, .{ first_block[0] + b, first_block[1] }, attempt);
                drawn = b;
            }
            if (reduction.accept(words[i])) |index| {
                indices[i - skipped] = index;
            } else {
                refused[left] = i;
                left += 1;
            }
        }
        count = left;
    }
}

const testing = std.testing;

test "rejection is exact" {
    // 2^32 mod 3 = 1: only the word 0 is refused.
    const r: Reduction(u32) = .init(3);
    try testing.expectEqual(null, r.accept(0));
    try testing.expectEqual(0, r.accept(1));
    try testing.expectEqual(2, r.accept(std.math.maxInt(u32)));
    const whole: Reduction(u32) = .init(1 << 32);
    try testing.expectEqual(0, whole.accept(0));
    try testing.expectEqual(std.math.maxInt(u32), whole.accept(std.math.maxInt(u32)));
}

fn expectDefinition(comptime Word: type, length: u64) !void {
    const tag: Tag = if (Word == u32) .narrow else .wide;
    const word_count = @sizeOf(philox.Block) / @sizeOf(Word);
    const stream: Stream = .{ .seed = 5, .length = length };
    const reduction: Reduction(Word) = .init(length);
    var indices: [300]u64 = undefined;
    for ([_]u128{ 0, 3, 8, 13, 1 << 64, (1 << 67) - 9, (1 << 68) - 1 }) |first| {
        for ([_]usize{ 1, 7, 8, 128, 300 }) |count| {
            fill(Word, stream, first, indices[0..count]);
            for (indices[0..count], 0..) |index, i| {
                const position = first + i;
                var attempt: u64 = 0;
                const expected = while (true) : (attempt += 1) {
                    const q = position / word_count;
                    const block = stream.draw(tag, .{ @truncate(q), @truncate(q >> 64) }, attempt);
                    const words: [word_count]Word = @bitCast(block);
                    if (reduction.accept(words[@intCast(position % word_count)])) |value| break value;
                };
                try testing.expectEqual(expected, index);
            }
        }
    }
}

test "chunks and attempts follow the definition, position by position" {
    for ([_]u64{ 1, 2, 3, 1000, (1 << 31) + 1, (1 << 32) - 1, 1 << 32 }) |n|
        try expectDefinition(u32, n);
    for ([_]u64{ (1 << 32) + 1, 3 << 61, 1 << 63 }) |n| try expectDefinition(u64, n);
}
