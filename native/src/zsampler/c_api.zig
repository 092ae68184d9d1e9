//! The C functions of libzsampler (include/zsampler.h): check what came in, call, report.

const std = @import("std");
const alias = @import("alias.zig");
const kernels = @import("kernel.zig");
const sampler = @import("sampler.zig");
const Sampler = sampler.Sampler;

pub const panic = @import("panic.zig").panic;

const abi_version = 1;

const Status = enum(i32) {
    ok = 0,
    null_pointer = 1,
    bad_size = 2,
    bad_kernel = 3,
    bad_reserved = 4,
    bad_mode = 10,
    bad_remainder = 11,
    bad_length = 12,
    bad_batch_size = 13,
    bad_rank = 14,
    bad_world_size = 15,
    bad_weights = 16,
    short_cycle = 20,
    bad_step = 21,
};

const Kernel = enum(u32) { best = 0, baseline = 1 };

/// zs_config of the header.
const Config = extern struct {
    size: u64,
    length: u64,
    batch_size: u64,
    rank: u64,
    world_size: u64,
    seed: u64,
    mode: u32,
    remainder: u32,
    kernel: u32,
    reserved: u32,
    columns: ?[*]const alias.Column,
};

comptime {
    std.debug.assert(@sizeOf(Config) == 72);
    std.debug.assert(@sizeOf(alias.Column) == 16);
    std.debug.assert(@sizeOf(alias.Mass) == 16);
}

/// How a configuration can be wrong; `status` maps each to its number.
const ConfigError = error{
    BadSize,
    BadKernel,
    BadReserved,
    BadMode,
    BadRemainder,
    BadLength,
    BadBatchSize,
    BadRank,
    BadWorldSize,
    BadWeights,
    ShortCycle,
};

fn status(err: ConfigError) i32 {
    return @intFromEnum(@as(Status, switch (err) {
        error.BadSize => .bad_size,
        error.BadKernel => .bad_kernel,
        error.BadReserved => .bad_reserved,
        error.BadMode => .bad_mode,
        error.BadRemainder => .bad_remainder,
        error.BadLength => .bad_length,
        error.BadBatchSize => .bad_batch_size,
        error.BadRank => .bad_rank,
        error.BadWorldSize => .bad_world_size,
        error.BadWeights => .bad_weights,
        error.ShortCycle => .short_cycle,
    }));
}

fn fail(value: Status) i32 {
    return @intFromEnum(value);
}

export fn zs_abi_version() u32 {
    return abi_version;
}

export fn zs_kernel_name() [*:0]const u8 {
    return kernels.best().name;
}

export fn zs_check(config: ?*const Config) i32 {
    _ = read(config orelse return fail(.null_pointer)) catch |err| return status(err);
    return fail(.ok);
}

export fn zs_steps_per_cycle(config: ?*const Config, steps_out: ?*u64) i32 {
    const s = read(config orelse return fail(.null_pointer)) catch |err| return status(err);
    const target = steps_out orelse return fail(.null_pointer);
    target.* = s.stepsPerCycle();
    return fail(.ok);
}

export fn zs_indices(
    config: ?*const Config,
    first_step: u64,
    step_count: u64,
    indices_out: ?[*]u64,
) i32 {
    const s = read(config orelse return fail(.null_pointer)) catch |err| return status(err);
    const target = indices_out orelse return fail(.null_pointer);
    if (step_count == 0) return fail(.ok);
    _ = std.math.add(u64, first_step, step_count - 1) catch return fail(.bad_step);
    // A buffer of more than half the address space cannot exist.
    const count = std.math.mul(u64, step_count, s.batch_size) catch return fail(.bad_step);
    if (count > std.math.maxInt(isize) / @sizeOf(u64)) return fail(.bad_step);
    s.fill(first_step, target[0..@intCast(count)]);
    return fail(.ok);
}

export fn zs_alias_table(
    weights: ?[*]const f64,
    length: u64,
    scratch: ?[*]alias.Mass,
    columns_out: ?[*]alias.Column,
) i32 {
    const source = weights orelse return fail(.null_pointer);
    const masses = scratch orelse return fail(.null_pointer);
    const target = columns_out orelse return fail(.null_pointer);
    if (length == 0 or length > alias.length_max) return fail(.bad_length);
    const count: usize = @intCast(length);
    alias.build(source[0..count], target[0..count], masses[0..count]) catch |err| return status(err);
    return fail(.ok);
}

fn read(config: *const Config) ConfigError!Sampler {
    if (config.size != @sizeOf(Config)) return error.BadSize;
    if (config.reserved != 0) return error.BadReserved;
    const kernel = std.enums.fromInt(Kernel, config.kernel) orelse return error.BadKernel;
    const s: Sampler = .{
        .mode = std.enums.fromInt(sampler.Mode, config.mode) orelse return error.BadMode,
        .remainder = std.enums.fromInt(sampler.Remainder, config.remainder) orelse
            return error.BadRemainder,
        .length = config.length,
        .batch_size = config.batch_size,
        .rank = config.rank,
        .world_size = config.world_size,
        .seed = config.seed,
        .columns = if (config.columns) |columns| columns[0..@intCast(config.length)] else &.{},
        .kernel = switch (kernel) {
            .best => kernels.best(),
            .baseline => &kernels.baseline,
        },
    };
    if (s.length == 0 or s.length > sampler.length_max) return error.BadLength;
    if (s.batch_size == 0 or s.batch_size > sampler.batch_size_max) return error.BadBatchSize;
    if (s.world_size == 0 or s.world_size > sampler.world_size_max) return error.BadWorldSize;
    if (s.rank >= s.world_size) return error.BadRank;
    if (s.columns.len > 0 and (s.mode != .iid or s.length > alias.length_max))
        return error.BadWeights;
    if (s.stepsPerCycle() == 0) return error.ShortCycle;
    return s;
}

test {
    _ = sampler;
}

fn configForTest(mode: sampler.Mode, length: u64, batch_size: u64) Config {
    return .{
        .size = @sizeOf(Config),
        .length = length,
        .batch_size = batch_size,
        .rank = 0,
        .world_size = 1,
        .seed = 42,
        .mode = @intFromEnum(mode),
        .remainder = 0,
        .kernel = 0,
        .reserved = 0,
        .columns = null,
    };
}

test "both kernels give the same indices" {
    for ([_]u64{ 1, 2, 5, 63, 64, 65, 1023, 1024, 4097, 1_000_000, (1 << 32) + 1, (1 << 62) + 1 }) |n| {
        for ([_]u32{ 0, 1 }) |remainder| {
            var config = configForTest(.cyclic, n, @min(n, 331));
            config.remainder = remainder;
            var best: [3 * 331]u64 = undefined;
            var baseline: [3 * 331]u64 = undefined;
            for ([_]u64{ 0, 1, 77, std.math.maxInt(u64) - 2 }) |step| {
                config.kernel = 0;
                try std.testing.expectEqual(0, zs_indices(&config, step, 3, &best));
                config.kernel = 1;
                try std.testing.expectEqual(0, zs_indices(&config, step, 3, &baseline));
                const count: usize = @intCast(3 * config.batch_size);
                try std.testing.expectEqualSlices(u64, best[0..count], baseline[0..count]);
            }
        }
    }
}

test "every wrong field has its status" {
    const good = configForTest(.cyclic, 100, 10);
    var indices: [10]u64 = undefined;
    try std.testing.expectEqual(0, zs_indices(&good, 0, 1, &indices));
    const columns: [1]alias.Column = undefined;
    inline for (.{
        .{ "size", 8, Status.bad_size },
        .{ "kernel", 2, Status.bad_kernel },
        .{ "reserved", 1, Status.bad_reserved },
        .{ "mode", 3, Status.bad_mode },
        .{ "remainder", 2, Status.bad_remainder },
        .{ "length", 0, Status.bad_length },
        .{ "length", sampler.length_max + 1, Status.bad_length },
        .{ "batch_size", 0, Status.bad_batch_size },
        .{ "batch_size", sampler.batch_size_max + 1, Status.bad_batch_size },
        .{ "world_size", 0, Status.bad_world_size },
        .{ "world_size", sampler.world_size_max + 1, Status.bad_world_size },
        .{ "rank", 1, Status.bad_rank },
        .{ "columns", &columns, Status.bad_weights },
        .{ "world_size", 11, Status.short_cycle },
    }) |case| {
        var config = good;
        @field(config, case[0]) = case[1];
        try std.testing.expectEqual(@intFromEnum(case[2]), zs_check(&config));
        try std.testing.expectEqual(@intFromEnum(case[2]), zs_indices(&config, 0, 1, &indices));
    }
    const last = std.math.maxInt(u64);
    try std.testing.expectEqual(0, zs_indices(&good, last, 1, &indices));
    try std.testing.expectEqual(@intFromEnum(Status.bad_step), zs_indices(&good, last, 2, &indices));
    try std.testing.expectEqual(@intFromEnum(Status.bad_step), zs_indices(&good, 0, last, &indices));
    try std.testing.expectEqual(@intFromEnum(Status.null_pointer), zs_indices(&good, 0, 1, null));
    try std.testing.expectEqual(@intFromEnum(Status.null_pointer), zs_indices(null, 0, 1, &indices));
}
