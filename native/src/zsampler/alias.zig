//! The alias table of a weighted draw: one column an index, each holding at most two indices.
//!
//! Everything after reading the weights is integer arithmetic, so the table is the same on every
//! platform. Weights become integers of up to 62 bits below a common scale; column capacity is
//! their sum and index i brings `length` times its integer, so the columns are filled exactly.
//! Only the final threshold is rounded, down, to a multiple of 2^-64.
//!
//! Source: Walker, "An efficient method for generating discrete random variables with general
//! distributions" (1977); Vose (1991). Columns are filled in one ascending sweep.

const std = @import("std");

/// Thresholds need 32 bits of room in 128-bit divisions.
pub const length_max = 1 << 32;

/// A uniform 64-bit word below `threshold` keeps the column's own index, any other takes `alias`.
/// A full column is its own alias.
pub const Column = extern struct { threshold: u64, alias: u64 };

/// Working space of `build`, one a weight. Two words instead of a u128: an array of them needs no
/// more alignment than one of columns.
pub const Mass = extern struct {
    low: u64,
    high: u64,

    fn init(value: u128) Mass {
        return .{ .low = @truncate(value), .high = @truncate(value >> 64) };
    }

    fn get(mass: Mass) u128 {
        return @as(u128, mass.high) << 64 | mass.low;
    }
};

/// Bits of the greatest weight's integer.
const weight_bit_count = 62;

/// The weights must have one entry a column, up to `length_max` of them.
pub fn build(weights: []const f64, columns: []Column, masses: []Mass) error{BadWeights}!void {
    const length: u128 = weights.len;
    var greatest: f64 = 0;
    for (weights) |weight| {
        if (!(weight >= 0) or std.math.isInf(weight)) return error.BadWeights; // NaN is not >= 0
        greatest = @max(greatest, weight);
    }
    if (greatest == 0) return error.BadWeights;

    // greatest < 2^exponent, as small as can be
    const exponent = std.math.frexp(greatest).exponent;
    var capacity: u128 = 0;
    for (weights, columns, masses, 0..) |weight, *column, *mass, index| {
        const integer = scale(weight, weight_bit_count - exponent);
        capacity += integer;
        mass.* = .init(length * integer);
        column.* = .{ .threshold = 0, .alias = index };
    }

    // `small` needs filling, `large` is the first index with a surplus. When that is used up, the
    // index is full or, if it gave too much, the next to be filled. So an index that needs filling
    // and still is its own alias was small from the start.
    var scan: usize = 0;
    var large = nextLarge(masses, capacity, 0);
    var small = nextSmall(columns, masses, capacity, &scan);
    while (small) |index| {
        // Masses sum to capacity * length, so a column below the capacity leaves another above.
        const needed = capacity - masses[index].get();
        columns[index] = .{ .threshold = fraction(masses[index].get(), capacity), .alias = large };
        const rest = masses[large].get() - needed;
        masses[large] = .init(rest);
        small = if (rest < capacity) large else nextSmall(columns, masses, capacity, &scan);
        if (rest <= capacity) large = nextLarge(masses, capacity, large + 1);
    }
}

/// The first index from `start` on above the capacity; the length if there is none.
fn nextLarge(masses: []const Mass, capacity: u128, start: usize) usize {
    var index = start;
    while (index < masses.len and masses[index].get() <= capacity) index += 1;
    return index;
}

/// The next index of the scan that was below the capacity from the start.
fn nextSmall(columns: []const Column, masses: []const Mass, capacity: u128, scan: *usize) ?usize {
    while (scan.* < columns.len) {
        const index = scan.*;
        scan.* += 1;
        if (masses[index].get() < capacity and columns[index].alias == index) return index;
    }
    return null;
}

/// floor(weight * 2^shift), but 1 for a positive weight below that: it must stay possible.
fn scale(weight: f64, shift: i32) u64 {
    if (weight == 0) return 0;
    const bits: u64 = @bitCast(weight);
    const biased: i32 = @intCast(bits >> 52);
    const stored = bits & ((1 << 52) - 1);
    const mantissa = if (biased == 0) stored else stored | 1 << 52;
    // weight = mantissa * 2^(exponent - 1075)
    const exponent: i32 = @max(biased, 1);
    const left = exponent - 1075 + shift;
    if (left >= 0) return mantissa << @intCast(left);
    if (left <= -64) return 1;
    return @max(1, mantissa >> @intCast(-left));
}

/// floor(mass * 2^64 / capacity) in two steps of 32 bits; mass < capacity < 2^95.
fn fraction(mass: u128, capacity: u128) u64 {
    const first = mass << 32;
    const second = (first % capacity) << 32;
    return @truncate((first / capacity) << 32 | second / capacity);
}

const testing = std.testing;

test "scaled weights" {
    try testing.expectEqual(0, scale(0, 62));
    try testing.expectEqual(1 << 61, scale(0.5, 62));
    try testing.expectEqual(3, scale(3.75, 0));
    try testing.expectEqual(1, scale(0.25, 0));
    try testing.expectEqual(1, scale(std.math.floatTrueMin(f64), -1000));
    try testing.expectEqual(1 << 61, scale(std.math.floatTrueMin(f64), 1074 + 61));
}

test "columns hold exactly the weights" {
    const cases = [_][]const f64{
        &.{1},
        &.{ 1, 1, 1 },
        &.{ 0, 1, 0, 3, 0 },
        &.{ 4, 0, 0, 0 },
        &.{ 0, 0, 0, 4 },
        &.{ 5, 1, 3, 1, 2, 4 },
        &.{ 1e-300, 1e300, 1, std.math.floatTrueMin(f64) },
    };
    for (cases) |weights| {
        var columns: [6]Column = undefined;
        var masses: [6]Mass = undefined;
        const n = weights.len;
        try build(weights, columns[0..n], masses[0..n]);
        var total: f64 = 0;
        for (weights) |weight| total += weight;
        var drawn: [6]f64 = @splat(0);
        for (columns[0..n], 0..) |column, index| {
            const own = @as(f64, @floatFromInt(column.threshold)) / 0x1p64;
            drawn[index] += own;
            drawn[@intCast(column.alias)] += 1 - own;
            if (weights[index] == 0) try testing.expect(column.threshold == 0);
            try testing.expect(weights[@intCast(column.alias)] > 0);
        }
        for (weights, drawn[0..n]) |weight, share|
            try testing.expectApproxEqAbs(weight / total, share / @as(f64, @floatFromInt(n)), 1e-15);
    }
}

test "bad weights" {
    const inf = std.math.inf(f64);
    for ([_][2]f64{ .{ 0, 0 }, .{ 1, -1 }, .{ 1, inf }, .{ std.math.nan(f64), 1 } }) |weights| {
        var columns: [2]Column = undefined;
        var masses: [2]Mass = undefined;
        try testing.expectError(error.BadWeights, build(&weights, &columns, &masses));
    }
}
