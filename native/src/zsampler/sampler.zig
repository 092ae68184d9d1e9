//! Indices as a pure function of a configuration and a step.
//!
//! The samples of all ranks lie on one line. A step covers batch_size * world_size positions of
//! it, rank after rank: position = (step * world_size + rank) * batch_size + ordinal. Every mode
//! maps a position to an index and remembers nothing, so any step costs the same, in any thread.
//!
//! * sequential: position mod length.
//! * iid: uniform.zig. With weights, two 64-bit words a position and two positions a block: the
//!   first word picks the column of the alias table (alias.zig), the second decides inside it.
//! * cyclic: the position in the cycle, through the permutation of that cycle (permutation.zig).
//!   "drop" leaves out what does not fill a step at the end of each cycle; with "wrap" cycles
//!   follow one another without a gap.

const std = @import("std");
const alias = @import("alias.zig");
const kernels = @import("kernel.zig");
const permutation = @import("permutation.zig");
const philox = @import("philox.zig");
const uniform = @import("uniform.zig");
const Permutation = permutation.Permutation;

pub const length_max = permutation.length_max;
pub const batch_size_max = 1 << 28;
pub const world_size_max = 1 << 31;

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
    kernel: *const kernels.Kernel,

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
            else
                s.fillUniform(first, batch),
            .cyclic => switch (s.remainder) {
                .drop => {
                    const steps = s.stepsPerCycle();
                    const p = cycle.at(s, step / steps);
                    const start = (step % steps) * s.globalBatch() + s.rank * s.batch_size;
                    s.kernel.fillCycle(p, start, batch.ptr, batch.len);
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
            s.kernel.fillCycle(cycle.at(s, number), start, run.ptr, run.len);
            rest = rest[run.len..];
            start = 0;
            number += 1;
        }
    }

    fn fillUniform(s: *const Sampler, first: u128, batch: []u64) void {
        const stream = s.drawStream();
        const low: u64 = @truncate(first);
        const high: u64 = @truncate(first >> 64);
        const narrow = s.length <= uniform.length_max_narrow;
        const fillKind = if (narrow) s.kernel.fillNarrow else s.kernel.fillWide;
        fillKind(&stream, low, high, batch.ptr, batch.len);
    }

    fn drawStream(s: *const Sampler) uniform.Stream {
        return .{ .seed = s.seed, .length = s.length };
    }

    fn fillWeighted(s: *const Sampler, first: u128, batch: []u64) void {
        const reduction: uniform.Reduction(u64) = .init(s.length);
        const stream = s.drawStream();
        var words: philox.Block = undefined;
        for (batch, 0..) |*index, ordinal| {
            const position = first + ordinal;
            const block_index: [2]u64 = .{ @truncate(position >> 1), @truncate(position >> 65) };
            const pair: usize = @intCast(position & 1);
            if (ordinal == 0 or pair == 0) words = stream.draw(.weighted, block_index, 0);
            var chosen = words;
            var attempt: u64 = 0;
            const number = while (true) {
                if (reduction.accept(chosen[2 * pair])) |accepted| break accepted;
                attempt += 1;
                chosen = stream.draw(.weighted, block_index, attempt);
            };
            const column = s.columns[@intCast(number)];
            index.* = if (chosen[2 * pair + 1] < column.threshold) number else column.alias;
        }
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

const testing = std.testing;

fn forTest(mode: Mode, remainder: Remainder, length: u64, batch_size: u64) Sampler {
    return .{
        .mode = mode,
        .remainder = remainder,
        .length = length,
        .batch_size = batch_size,
        .rank = 0,
        .world_size = 1,
        .seed = 42,
        .columns = &.{},
        .kernel = &kernels.baseline,
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
