//! Philox4x64-10, the counter-based generator behind every random index.
//!
//! Source: Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3" (SC 2011).
//! It is the generator of `numpy.random.Philox`, which steps its counter before it draws: the block
//! of counter c here is the first block of numpy's generator set to c - 1.

const std = @import("std");

pub const Counter = [4]u64;
pub const Key = [2]u64;
pub const Block = [4]u64;

const round_count = 10;
const multiplier = [2]u64{ 0xD2E7470EE14C6C93, 0xCA5A826395121157 };
const key_step = [2]u64{ 0x9E3779B97F4A7C15, 0xBB67AE8584CAA73B };

/// The four words that belong to a counter under a key.
pub inline fn block(counter: Counter, key: Key) Block {
    var c = counter;
    var k = key;
    inline for (0..round_count) |round| {
        if (round > 0) {
            k[0] +%= key_step[0];
            k[1] +%= key_step[1];
        }
        const p0 = @as(u128, multiplier[0]) * c[0];
        const p1 = @as(u128, multiplier[1]) * c[2];
        c = .{ high(p1) ^ c[1] ^ k[0], low(p1), high(p0) ^ c[3] ^ k[1], low(p0) };
    }
    return c;
}

/// Blocks that `blocks` computes together: two vectors a word, so that one works while the other waits.
pub const lane_count = 16;
const Lanes = @Vector(8, u64);
const group_count = lane_count / 8;

/// The blocks of successive counters; no carry may leave the first word. For processors whose vectors
/// beat the scalar multiplier.
pub inline fn blocks(counter: Counter, key: Key, target: *[lane_count]Block) void {
    var c: [group_count][4]Lanes = undefined;
    for (&c, 0..) |*group, g| {
        for (group, counter) |*word, first| word.* = @splat(first);
        group[0] +%= std.simd.iota(u64, 8) +% @as(Lanes, @splat(8 * g));
    }
    var k = key;
    inline for (0..round_count) |round| {
        if (round > 0) {
            k[0] +%= key_step[0];
            k[1] +%= key_step[1];
        }
        inline for (&c) |*group| {
            const p0 = multiply(multiplier[0], group[0]);
            const p1 = multiply(multiplier[1], group[2]);
            group.* = .{
                p1.high ^ group[1] ^ @as(Lanes, @splat(k[0])), p1.low,
                p0.high ^ group[3] ^ @as(Lanes, @splat(k[1])), p0.low,
            };
        }
    }
    // Words of a lane come together: pairs first, then pairs of pairs.
    inline for (&c, 0..) |group, g| {
        inline for (.{ even, odd }, 0..) |choice, side| {
            const front = @shuffle(u64, group[0], group[1], choice);
            const back = @shuffle(u64, group[2], group[3], choice);
            inline for (.{ near, far }, 0..) |halves, half| {
                const pair: [2]Block = @bitCast(@shuffle(u64, front, back, halves));
                target[8 * g + 4 * half + side] = pair[0];
                target[8 * g + 4 * half + side + 2] = pair[1];
            }
        }
    }
}

// Lanes of the first vector, and complements of lanes of the second.
const even = [8]i32{ 0, ~@as(i32, 0), 2, ~@as(i32, 2), 4, ~@as(i32, 4), 6, ~@as(i32, 6) };
const odd = [8]i32{ 1, ~@as(i32, 1), 3, ~@as(i32, 3), 5, ~@as(i32, 5), 7, ~@as(i32, 7) };
const near = [8]i32{ 0, 1, ~@as(i32, 0), ~@as(i32, 1), 2, 3, ~@as(i32, 2), ~@as(i32, 3) };
const far = [8]i32{ 4, 5, ~@as(i32, 4), ~@as(i32, 5), 6, 7, ~@as(i32, 6), ~@as(i32, 7) };

/// The product of 64-bit words out of those of their halves, which is what vectors can multiply.
inline fn multiply(comptime factor: u64, word: Lanes) struct { high: Lanes, low: Lanes } {
    const half: Lanes = @splat(0xffff_ffff);
    const shift: Lanes = @splat(32);
    const factor_low: Lanes = @splat(factor & 0xffff_ffff);
    const factor_high: Lanes = @splat(factor >> 32);
    const word_low = word & half;
    const word_high = word >> shift;
    const low_low = word_low *% factor_low;
    const middle = word_high *% factor_low +% (low_low >> shift);
    const other = word_low *% factor_high +% (middle & half);
    return .{
        .high = word_high *% factor_high +% (middle >> shift) +% (other >> shift),
        .low = (other << shift) | (low_low & half),
    };
}

inline fn low(product: u128) u64 {
    return @truncate(product);
}

inline fn high(product: u128) u64 {
    return @truncate(product >> 64);
}

const expectEqual = std.testing.expectEqual;

test "known answers" {
    const ones = ~@as(u64, 0);
    // The three vectors that Random123 publishes: zeros, ones, and the digits of pi.
    try expectEqual(
        Block{ 0x16554d9eca36314c, 0xdb20fe9d672d0fdc, 0xd7e772cee186176b, 0x7e68b68aec7ba23b },
        block(@splat(0), @splat(0)),
    );
    try expectEqual(
        Block{ 0x87b092c3013fe90b, 0x438c3c67be8d0224, 0x9cc7d7c69cd777b6, 0xa09caebf594f0ba0 },
        block(@splat(ones), @splat(ones)),
    );
    try expectEqual(
        Block{ 0xa528f45403e61d95, 0x38c72dbd566e9788, 0xa5a1610e72fd18b5, 0x57bd43b5e52b7fe6 },
        block(
            .{ 0x243f6a8885a308d3, 0x13198a2e03707344, 0xa4093822299f31d0, 0x082efa98ec4e6c89 },
            .{ 0x452821e638d01377, 0xbe5466cf34e90c6c },
        ),
    );
}

test "lanes are the single blocks" {
    const key: Key = .{ 3, ~@as(u64, 7) };
    for ([_]u64{ 0, 5, ~@as(u64, lane_count - 1) }) |first| {
        var target: [lane_count]Block = undefined;
        blocks(.{ first, 1, 2, 3 }, key, &target);
        for (target, 0..) |together, i| {
            try expectEqual(block(.{ first + i, 1, 2, 3 }, key), together);
        }
    }
}
