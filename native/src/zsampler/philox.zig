//! Philox4x64-10, the counter-based generator behind every random index.
//!
//! Source: Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3" (SC 2011).
//! It is the generator of `numpy.random.Philox`, which steps its counter before it draws: the block
//! of counter c here is the first block of numpy's generator set to c - 1.

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

inline fn low(product: u128) u64 {
    return @truncate(product);
}

inline fn high(product: u128) u64 {
    return @truncate(product >> 64);
}

const expectEqual = @import("std").testing.expectEqual;

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
