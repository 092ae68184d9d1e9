//! Indices as a pure function of a configuration and a step.
//!
//! The samples of all ranks lie on one line. A step covers batch_size * world_size positions of
//! it, rank after rank: position = (step * world_size + rank) * batch_size + ordinal. Every mode
//! maps a position to an index and remembers nothing, so any step costs the same, in any thread.
//!
//! * sequential: position mod length.
//! * iid: a uniform word of Philox, reduced by Lemire's multiplication with rejection. Key (seed,
//!   length), counter (position / words a block: low, attempt, tag, high). A block has eight
//!   32-bit words, low halves first, for lengths up to 2^32, else four 64-bit words. A rejected
//!   position draws again with the next attempt.
//! * iid with weights: the same with two 64-bit words a position, two positions a block; the first
//!   word picks the column of the alias table, the second decides inside it.
//! * cyclic: the position in the cycle through the permutation of that cycle (permutation.zig).
//!   "drop" leaves out what does not fill a step at the end of each cycle; with "wrap" cycles
//!   follow one another without a gap.
//!
//! Source of the reduction: Lemire, "Fast random integer generation in an interval" (2019).

const std = @import("std");
const builtin = @import("builtin");
const alias = @import("alias.zig");
const permutation = @import("permutation.zig");
const philox = @import("philox.zig");
const Permutation = permutation.Permutation;

comptime {
    // Blocks are read as arrays of their 32-bit halves.
    std.debug.assert(builtin.cpu.arch.endian() == .little);
}

pub const length_max = permutation.length_max;
pub const batch_size_max = 1 << 28;
pub const world_size_max = 1 << 31;

/// Third counter word of the three kinds of iid draws, in ASCII.
const Tag = struct {
    const iid32: u64 = 0x7a732d6969643332; // "zs-iid32"
    const iid64: u64 = 0x7a732d6969643634; // "zs-iid64"
    const weighted: u64 = 0x7a732d616c696173; // "zs-alias"
};

/// Lengths up to here draw 32-bit words.
const length_max_iid32 = 1 << 32;

pub const Mode = enum(u32) { sequential = 0, iid = 1, cyclic = 2 };
pub const Remainder = enum(u32) { drop = 0, wrap = 1 };

pub const Sampler = struct {
    mode: Mode,
    remainder: Remainder,
    length: u64,
    batch_size: u64,
    rank: u64,
    world_size: u64,
    seed: u64,
    /// Of `length` columns, or empty: iid draws are then uniform.
    columns: []const alias.Column,
    fill_cycle: FillCycle,

    /// `permutation.fill`, compiled for one kind of processor.
    pub const FillCycle = *const fn (*const Permutation, u64, [*]u64, usize) callconv(.c) void;

    pub fn globalBatch(s: *const Sampler) u64 {
        return s.batch_size * s.world_size;
    }

    /// Steps in which every record is due once, but for what "drop" leaves out.
    pub fn stepsPerCycle(s: *const Sampler) u64 {
        const whole = s.length / s.globalBatch();
        if (s.mode == .cyclic and s.remainder == .drop) return whole;
        return whole + @intFromBool(s.length % s.globalBatch() != 0);
    }

    /// Writes the batches of successive steps one after the other; the last step must not exceed
    /// 2^64 - 1.
    pub fn fill(s: *const Sampler, first_step: u64, indices: []u64) void {
        const batch_size: usize = @intCast(s.batch_size);
        var cycle: CurrentCycle = .{};
        var batch_start: usize = 0;
        var step = first_step;
        while (batch_start < indices.len) : (batch_start += batch_size) {
            s.fillStep(step, indices[batch_start..][0..batch_size], &cycle);
            step +%= 1;
        }
    }

    fn fillStep(s: *const Sampler, step: u64, batch: []u64, cycle: *CurrentCycle) void {
        const first = @as(u128, step) * s.globalBatch() + s.rank * s.batch_size;
        switch (s.mode) {
            .sequential => s.fillSequential(first, batch),
            .iid => if (s.columns.len > 0)
                s.fillWeighted(first, batch)
            else if (s.length <= length_max_iid32)
                fillUniform(u32, s, first, batch)
            else
                fillUniform(u64, s, first, batch),
            .cyclic => switch (s.remainder) {
                .drop => {
                    const steps = s.stepsPerCycle();
                    const p = cycle.at(s, step / steps);
                    const start = (step % steps) * s.globalBatch() + s.rank * s.batch_size;
                    s.fill_cycle(p, start, batch.ptr, batch.len);
                },
                .wrap => s.fillWrapped(first, batch, cycle),
            },
        }
    }

    fn fillSequential(s: *const Sampler, first: u128, batch: []u64) void {
        var start: u64 = @intCast(first % s.length);
        var rest = batch;
        while (rest.len > 0) {
            const run = rest[0..@intCast(@min(rest.len, s.length - start))];
            for (run, start..) |*index, value| index.* = value;
            rest = rest[run.len..];
            start = 0;
        }
    }

    fn fillWrapped(s: *const Sampler, first: u128, batch: []u64, cycle: *CurrentCycle) void {
        var number = first / s.length;
        var start: u64 = @intCast(first % s.length);
        var rest = batch;
        while (rest.len > 0) {
            const run = rest[0..@intCast(@min(rest.len, s.length - start))];
            s.fill_cycle(cycle.at(s, number), start, run.ptr, run.len);
            rest = rest[run.len..];
            start = 0;
            number += 1;
        }
    }

    fn fillWeighted(s: *const Sampler, first: u128, batch: []u64) void {
        const reduction: Reduction(u64) = .init(s.length);
        var words: philox.Block = undefined;
        for (batch, 0..) |*index, ordinal| {
            const position = first + ordinal;
            const pair: usize = @intCast(position & 1);
            if (ordinal == 0 or pair == 0) words = s.draw(position >> 1, 0, Tag.weighted);
            var chosen = words;
            var attempt: u64 = 0;
            const column_index = while (true) {
                if (reduction.accept(chosen[2 * pair])) |value| break value;
                attempt += 1;
                chosen = s.draw(position >> 1, attempt, Tag.weighted);
            };
            const column = s.columns[@intCast(column_index)];
            const own = chosen[2 * pair + 1] < column.threshold;
            index.* = if (own) column_index else column.alias;
        }
    }

    fn draw(s: *const Sampler, block_index: u128, attempt: u64, tag: u64) philox.Block {
        return philox.block(
            .{ @truncate(block_index), attempt, tag, @truncate(block_index >> 64) },
            .{ s.seed, s.length },
        );
    }
};

/// The permutation in use: successive steps mostly share one.
const CurrentCycle = struct {
    number: ?u128 = null,
    permutation: Permutation = undefined,

    fn at(cycle: *CurrentCycle, s: *const Sampler, number: u128) *const Permutation {
        if (cycle.number == null or cycle.number.? != number) {
            cycle.permutation = .init(s.length, s.seed, number);
            cycle.number = number;
        }
        return &cycle.permutation;
    }
};

/// floor(word * length / 2^bits), refusing the words that would make some values more likely.
fn Reduction(comptime Word: type) type {
    const bits = @bitSizeOf(Word);
    const Product = std.meta.Int(.unsigned, 2 * bits);
    return struct {
        length: u64,
        /// 2^bits mod length: as many words as are too many.
        excess: Word,

        fn init(length: u64) @This() {
            return .{ .length = length, .excess = @intCast((@as(Product, 1) << bits) % length) };
        }

        inline fn accept(r: @This(), word: Word) ?u64 {
            const product = @as(Product, word) * r.length;
            if (@as(Word, @truncate(product)) < r.excess) return null;
            return @intCast(product >> bits);
        }
    };
}

fn fillUniform(comptime Word: type, s: *const Sampler, first: u128, batch: []u64) void {
    const word_count = @sizeOf(philox.Block) / @sizeOf(Word);
    const tag = if (Word == u32) Tag.iid32 else Tag.iid64;
    const reduction: Reduction(Word) = .init(s.length);
    var block_index = first / word_count;
    var skipped: usize = @intCast(first % word_count);
    var rest = batch;
    while (rest.len > 0) {
        const words: [word_count]Word = @bitCast(s.draw(block_index, 0, tag));
        const used = @min(rest.len, word_count - skipped);
        var refused = false;
        if (used == word_count) {
            inline for (words, 0..) |word, i| {
                const index = reduction.accept(word);
                refused = refused or index == null;
                rest[i] = index orelse 0;
            }
        } else {
            for (words[skipped..][0..used], rest[0..used]) |word, *target| {
                const index = reduction.accept(word);
                refused = refused or index == null;
                target.* = index orelse 0;
            }
        }
        if (refused) redraw(Word, s, block_index, words, skipped, rest[0..used]);
        rest = rest[used..];
        block_index += 1;
        skipped = 0;
    }
}

/// The same positions once more, with further attempts where a word is refused.
fn redraw(
    comptime Word: type,
    s: *const Sampler,
    block_index: u128,
    words: [@sizeOf(philox.Block) / @sizeOf(Word)]Word,
    skipped: usize,
    targets: []u64,
) void {
    @branchHint(.cold);
    const tag = if (Word == u32) Tag.iid32 else Tag.iid64;
    const reduction: Reduction(Word) = .init(s.length);
    for (targets, skipped..) |*target, ordinal| {
        var chosen = words;
        var attempt: u64 = 0;
        target.* = while (true) {
            if (reduction.accept(chosen[ordinal])) |index| break index;
            attempt += 1;
            chosen = @bitCast(s.draw(block_index, attempt, tag));
        };
    }
}

const testing = std.testing;

fn forTest(mode: Mode, remainder: Remainder, length: u64, batch_size: u64) Sampler {
    const kernel = struct {
        fn fill(p: *const Permutation, start: u64, out: [*]u64, count: usize) callconv(.c) void {
            permutation.fill(p, start, out, count);
        }
    };
    return .{
        .mode = mode,
        .remainder = remainder,
        .length = length,
        .batch_size = batch_size,
        .rank = 0,
        .world_size = 1,
        .seed = 42,
        .columns = &.{},
        .fill_cycle = kernel.fill,
    };
}

test "several steps in one call are the single steps" {
    const columns = [_]alias.Column{.{ .threshold = 1 << 63, .alias = 0 }} ** 1000;
    for ([_]Mode{ .sequential, .iid, .cyclic }) |mode| {
        for ([_]Remainder{ .drop, .wrap }) |remainder| {
            for ([_]u64{ 1000, (1 << 32) + 5 }) |length| {
                var s = forTest(mode, remainder, length, 7);
                if (length == 1000) s.columns = &columns;
                s.world_size = 3;
                s.rank = 1;
                var together: [7 * 200]u64 = undefined;
                s.fill(40, &together);
                for (0..200) |k| {
                    var single: [7]u64 = undefined;
                    s.fill(40 + k, &single);
                    try testing.expectEqualSlices(u64, &single, together[7 * k ..][0..7]);
                }
            }
        }
    }
}

test "a cycle holds every index once" {
    const s = forTest(.cyclic, .drop, 1000, 10);
    var indices: [1000]u64 = undefined;
    for ([_]u64{ 0, 100, 100 * 12345 }) |step| {
        s.fill(step, &indices);
        std.mem.sort(u64, &indices, {}, std.sort.asc(u64));
        for (indices, 0..) |index, expected| try testing.expectEqual(expected, index);
    }
}

test "the last steps stay in range" {
    for ([_]Mode{ .sequential, .iid, .cyclic }) |mode| {
        for ([_]Remainder{ .drop, .wrap }) |remainder| {
            for ([_]u64{ 1 << 58, (1 << 62) + 1, length_max }) |length| {
                var s = forTest(mode, remainder, length, 64);
                s.world_size = world_size_max;
                s.rank = world_size_max - 1;
                var indices: [2 * 64]u64 = undefined;
                s.fill(std.math.maxInt(u64) - 1, &indices);
                for (indices) |index| try testing.expect(index < length);
            }
        }
    }
}

test "sequential wraps around" {
    const s = forTest(.sequential, .drop, 5, 4);
    var indices: [8]u64 = undefined;
    s.fill(1, &indices);
    try testing.expectEqualSlices(u64, &.{ 4, 0, 1, 2, 3, 4, 0, 1 }, &indices);
}

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
