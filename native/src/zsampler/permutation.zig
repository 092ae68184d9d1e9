//! A keyed permutation of 0 .. n - 1 that is evaluated point by point, without a table.
//!
//! A position is a pair (row, column) in a grid of about sqrt(n) rows and columns. Each round adds
//! a keyed hash of one coordinate to the other, modulo its range: a generalised Feistel network.
//! The grid has fewer than one row of cells beyond n; a value that lands there is encrypted again
//! until it is below n. Every round moves a row by an amount that depends on the column only (or
//! the reverse), which for most grids is an even permutation, so one keyed transposition of the
//! positions 0 and 1 gives both parities.
//!
//! Source: Black and Rogaway, "Ciphers with arbitrary finite domains" (CT-RSA 2002), for the grid
//! and the walk; Philox (philox.zig) for the keys. The hash is two steps of the 32-bit finaliser
//! of MurmurHash3, each with a key word of its own.
//!
//! Compiled three times on x86-64: in the library for the baseline processor, and in objects of their
//! own for those with AVX2 and AVX-512 (kernel_wide.zig).

const builtin = @import("builtin");
const philox = @import("philox.zig");

/// Greatest n: both sides of the grid then fit 32 bits.
pub const length_max = 1 << 63;

/// Below this length the network needs more rounds to pass the tests of small permutations.
const short_length_limit = 1024;
const round_count_short = 24;
const round_count_long = 8;

/// Second word of the Philox key of the permutation's round keys: "zs-cycle" in ASCII.
pub const cycle_tag: u64 = 0x7a732d6379636c65;

/// The permutation of one cycle. Extern: it crosses the border between the two objects.
pub const Permutation = extern struct {
    length: u64,
    row_count: u32,
    column_count: u32,
    round_count: u32,
    /// 1 when positions 0 and 1 change places.
    swap: u32,
    keys: [round_count_short][2]u32,

    /// Words of Philox(key = (seed, cycle_tag), counter = (block, cycle low, cycle high, length)),
    /// in order, are the round keys, low half first; the word after them gives the swap bit.
    pub fn init(length: u64, seed: u64, cycle: u128) Permutation {
        const root = squareRoot(length);
        const row_count = if (root * root == length) root else root + 1;
        var p: Permutation = .{
            .length = length,
            .row_count = @intCast(row_count),
            .column_count = @intCast(length / row_count + @intFromBool(length % row_count != 0)),
            .round_count = if (length < short_length_limit) round_count_short else round_count_long,
            .swap = 0,
            .keys = undefined,
        };
        var words: philox.Block = undefined;
        for (0..p.round_count + 1) |index| {
            if (index % words.len == 0) words = philox.block(
                .{ index / words.len, @truncate(cycle), @truncate(cycle >> 64), length },
                .{ seed, cycle_tag },
            );
            const word = words[index % words.len];
            if (index < p.round_count) {
                p.keys[index] = .{ @truncate(word), @truncate(word >> 32) };
            } else if (length >= 2) {
                p.swap = @truncate(word & 1);
            }
        }
        return p;
    }
};

/// Positions that `fill` computes together: enough independent work to hide the latency of the
/// multiplications, few enough to stay near the registers. Measured, not derived.
const lane_count = if (builtin.cpu.arch == .x86_64 and builtin.cpu.has(.x86, .avx2)) 64 else 32;

const Lanes = @Vector(lane_count, u32);
const WideLanes = @Vector(lane_count, u64);
/// The same bits as `Lanes`, two lanes a word.
const Pairs = @Vector(lane_count / 2, u64);

/// Writes the images of successive positions from `start` on, all below the length.
pub fn fill(p: *const Permutation, start: u64, indices: []u64) void {
    var target = indices;
    var x = start;
    while (target.len > 0 and x < 2) : (x += 1) {
        target[0] = image(p, x ^ p.swap);
        target = target[1..];
    }
    // A side above 2^31 (n above 2^62) would overflow the sums of the vector code.
    if (p.row_count > 1 << 31) {
        for (target) |*index| {
            index.* = image(p, x);
            x += 1;
        }
        return;
    }
    var row: u32 = @intCast(x / p.column_count);
    var column: u32 = @intCast(x % p.column_count);
    while (target.len > 0) {
        var rows: Lanes = undefined;
        var columns: Lanes = undefined;
        if (p.column_count >= lane_count) {
            // At most one row ends inside the lanes.
            const ahead = splat(column) + @import("std").simd.iota(u32, lane_count);
            const wraps = ahead >= splat(p.column_count);
            columns = @select(u32, wraps, ahead -% splat(p.column_count), ahead);
            rows = splat(row) + @intFromBool(wraps);
            column += lane_count;
            if (column >= p.column_count) {
                column -= p.column_count;
                row += 1;
            }
        } else {
            var row_array: [lane_count]u32 = undefined;
            var column_array: [lane_count]u32 = undefined;
            for (&row_array, &column_array) |*r, *c| {
                r.* = row;
                c.* = column;
                column += 1;
                if (column == p.column_count) {
                    column = 0;
                    row += 1;
                }
            }
            rows = row_array;
            columns = column_array;
        }
        // Lanes past the end of the target may lie outside the grid: they hold any value, and
        // are neither walked nor written.
        const values: [lane_count]u64 = encryptLanes(p, rows, columns);
        const used = @min(target.len, lane_count);
        if (used == lane_count) {
            target[0..lane_count].* = values;
        } else {
            @memcpy(target[0..used], values[0..used]);
        }
        if (@reduce(.Or, @as(WideLanes, values) >= @as(WideLanes, @splat(p.length)))) {
            for (target[0..used]) |*index| index.* = walk(p, index.*);
        }
        target = target[used..];
    }
}

inline fn splat(value: u32) Lanes {
    return @splat(value);
}

inline fn encryptLanes(p: *const Permutation, row_lanes: Lanes, column_lanes: Lanes) WideLanes {
    var rows = row_lanes;
    var columns = column_lanes;
    var round: usize = 0;
    while (round < p.round_count) : (round += 2) {
        rows = addLanes(rows, hashLanes(columns, p.keys[round]), p.row_count);
        columns = addLanes(columns, hashLanes(rows, p.keys[round + 1]), p.column_count);
    }
    const stride: WideLanes = @splat(p.column_count);
    return @as(WideLanes, rows) *% stride +% @as(WideLanes, columns);
}

inline fn hashLanes(value: Lanes, key: [2]u32) Lanes {
    var h = (value ^ splat(key[0])) *% splat(hash_multipliers[0]);
    h ^= h >> @splat(16);
    h = (h +% splat(key[1])) *% splat(hash_multipliers[1]);
    h ^= h >> @splat(15);
    return h;
}

/// (value + floor(hash * modulus / 2^32)) mod modulus, for a modulus up to 2^31.
inline fn addLanes(value: Lanes, hash: Lanes, modulus: u32) Lanes {
    // Products of even and odd lanes apart, as the processor's 32 to 64-bit multiplication has it.
    const pairs: Pairs = @bitCast(hash);
    const low_half: Pairs = @splat(0xffff_ffff);
    const factor: Pairs = @splat(modulus);
    const even = ((pairs & low_half) *% factor) >> @splat(32);
    const odd = ((pairs >> @splat(32)) *% factor) & ~low_half;
    const scaled: Lanes = @bitCast(even | odd);

    const sum = value +% scaled; // below 2 * modulus, so it fits
    const reduced = sum -% splat(modulus);
    if (has_unsigned_minimum) return @min(sum, reduced); // a borrow makes `reduced` the greater
    const Signed = @Vector(lane_count, i32);
    const borrow: Lanes = @bitCast(@as(Signed, @bitCast(reduced)) >> @splat(31));
    return reduced +% (borrow & splat(modulus));
}

/// SSE2 alone has no minimum of unsigned 32-bit lanes.
const has_unsigned_minimum = builtin.cpu.arch != .x86_64 or builtin.cpu.has(.x86, .sse4_1);

const hash_multipliers = [2]u32{ 0x85EBCA6B, 0xC2B2AE35 };

/// The definition, one position at a time; `fill` gives the same values.
fn image(p: *const Permutation, position: u64) u64 {
    return walk(p, encrypt(p, position));
}

fn walk(p: *const Permutation, value: u64) u64 {
    var y = value;
    while (y >= p.length) y = encrypt(p, y);
    return y;
}

fn encrypt(p: *const Permutation, cell: u64) u64 {
    var row = cell / p.column_count;
    var column = cell % p.column_count;
    var round: usize = 0;
    while (round < p.round_count) : (round += 2) {
        row = add(row, hashOf(column, p.keys[round]), p.row_count);
        column = add(column, hashOf(row, p.keys[round + 1]), p.column_count);
    }
    return row * p.column_count + column;
}

fn hashOf(value: u64, key: [2]u32) u64 {
    var h = (@as(u32, @intCast(value)) ^ key[0]) *% hash_multipliers[0];
    h ^= h >> 16;
    h = (h +% key[1]) *% hash_multipliers[1];
    h ^= h >> 15;
    return h;
}

fn add(value: u64, hash: u64, modulus: u64) u64 {
    const sum = value + ((hash * modulus) >> 32);
    return if (sum >= modulus) sum - modulus else sum;
}

fn squareRoot(value: u64) u64 {
    // The float is off by at most one; below 2^63 + 1 no square here overflows.
    var root: u64 = @intFromFloat(@sqrt(@as(f64, @floatFromInt(value))));
    while (root * root > value) root -= 1;
    while ((root + 1) * (root + 1) <= value) root += 1;
    return root;
}

const testing = @import("std").testing;

test "square roots around squares" {
    for ([_]u64{ 1, 2, 3, 255, 1 << 16, (1 << 31) - 1, 1 << 31, 3037000499 }) |root| {
        const square = root * root;
        try testing.expectEqual(root, squareRoot(square));
        try testing.expectEqual(root - 1, squareRoot(square - 1));
        try testing.expectEqual(root, squareRoot(square + 1));
    }
}

test "every short length is permuted, and lanes agree with the definition" {
    var seen: [1200]bool = undefined;
    var indices: [1200]u64 = undefined;
    for (1..1200) |n| {
        const p: Permutation = .init(n, 7, n * n);
        fill(&p, 0, indices[0..n]);
        @memset(seen[0..n], false);
        for (indices[0..n], 0..) |index, x| {
            try testing.expect(index < n);
            try testing.expect(!seen[@intCast(index)]);
            seen[@intCast(index)] = true;
            const from = if (x < 2) x ^ p.swap else x;
            try testing.expectEqual(image(&p, from), index);
        }
    }
}

test "lanes agree with the definition at great lengths and any start" {
    var indices: [200]u64 = undefined;
    for ([_]u64{ 4095, 4097, 1 << 32, (1 << 40) + 1, 1 << 62, (1 << 62) + 1, length_max }) |n| {
        const p: Permutation = .init(n, 1 << 63, 1 << 100);
        for ([_]u64{ 0, 1, 63, n / 2, n - indices.len }) |start| {
            fill(&p, start, &indices);
            for (indices, start..) |index, x| {
                try testing.expect(index < n);
                const from = if (x < 2) x ^ p.swap else x;
                try testing.expectEqual(image(&p, from), index);
            }
        }
    }
}

test "sides of the grid" {
    for ([_]u64{ 1, 2, 3, 12, 1024, 1025, (1 << 32) + 1, length_max }) |n| {
        const p: Permutation = .init(n, 0, 0);
        const cells = @as(u128, p.row_count) * p.column_count;
        try testing.expect(cells >= n and cells - n < p.row_count);
    }
}
