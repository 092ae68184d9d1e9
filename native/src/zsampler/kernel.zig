//! The loops in which the time goes, behind functions that several objects can share, and the choice
//! between the objects: one compiled for every processor of the architecture, and on x86-64 one for
//! AVX2 and one for AVX-512 (kernel_wide.zig). All give the same indices.

const std = @import("std");
const builtin = @import("builtin");
const permutation = @import("permutation.zig");
const uniform = @import("uniform.zig");

pub const Kernel = struct {
    name: [*:0]const u8,
    fillCycle: *const @TypeOf(fillCycle),
    fillNarrow: *const @TypeOf(fillNarrow),
    fillWide: *const @TypeOf(fillWide),
};

pub const baseline: Kernel = .{
    .name = "baseline",
    .fillCycle = fillCycle,
    .fillNarrow = fillNarrow,
    .fillWide = fillWide,
};

/// permutation.fill
pub fn fillCycle(
    p: *const permutation.Permutation,
    start: u64,
    indices: [*]u64,
    count: usize,
) callconv(.c) void {
    permutation.fill(p, start, indices[0..count]);
}

/// uniform.fill with 32-bit words
pub fn fillNarrow(
    stream: *const uniform.Stream,
    first_low: u64,
    first_high: u64,
    indices: [*]u64,
    count: usize,
) callconv(.c) void {
    const first = @as(u128, first_high) << 64 | first_low;
    uniform.fill(u32, stream.*, first, indices[0..count]);
}

/// uniform.fill with 64-bit words
pub fn fillWide(
    stream: *const uniform.Stream,
    first_low: u64,
    first_high: u64,
    indices: [*]u64,
    count: usize,
) callconv(.c) void {
    const first = @as(u128, first_high) << 64 | first_low;
    uniform.fill(u64, stream.*, first, indices[0..count]);
}

/// The fastest kernel of this processor, which is asked once. Threads that ask together store the
/// same answer.
pub fn best() *const Kernel {
    if (builtin.cpu.arch != .x86_64) return &baseline;
    return chosen.load(.monotonic) orelse {
        const choice = if (!hasV3()) &baseline else if (!hasV4()) &v3 else &v4;
        chosen.store(choice, .monotonic);
        return choice;
    };
}

var chosen: std.atomic.Value(?*const Kernel) = .init(null);

const v3 = wide("x86-64-v3", "_v3");
const v4 = wide("x86-64-v4", "_v4");

fn wide(comptime name: [*:0]const u8, comptime suffix: []const u8) Kernel {
    return .{
        .name = name,
        .fillCycle = @extern(*const @TypeOf(fillCycle), .{ .name = "zs_fill_cycle" ++ suffix }),
        .fillNarrow = @extern(*const @TypeOf(fillNarrow), .{ .name = "zs_fill_narrow" ++ suffix }),
        .fillWide = @extern(*const @TypeOf(fillWide), .{ .name = "zs_fill_wide" ++ suffix }),
    };
}

/// Whether the processor and the operating system support all that x86-64-v3 code may use.
fn hasV3() bool {
    if (cpuid(0, 0).eax < 7 or cpuid(0x8000_0000, 0).eax < 0x8000_0001) return false;
    const basic = cpuid(1, 0).ecx;
    // SSE3, SSSE3, FMA, CMPXCHG16B, SSE4.1, SSE4.2, MOVBE, POPCNT, OSXSAVE, AVX, F16C
    if (!hasBits(basic, &.{ 0, 9, 12, 13, 19, 20, 22, 23, 27, 28, 29 })) return false;
    if (!hasBits(extendedControl(), &.{ 1, 2 })) return false; // the system saves wide registers
    if (!hasBits(cpuid(7, 0).ebx, &.{ 3, 5, 8 })) return false; // BMI1, AVX2, BMI2
    return hasBits(cpuid(0x8000_0001, 0).ecx, &.{ 0, 5 }); // LAHF, LZCNT
}

/// Whether a processor with v3 may and should run x86-64-v4 code: the first ones with AVX-512 slow down
/// for it, those that also have IFMA do not.
fn hasV4() bool {
    if (!hasBits(extendedControl(), &.{ 5, 6, 7 })) return false; // the system saves these too
    return hasBits(cpuid(7, 0).ebx, &.{ 16, 17, 21, 28, 30, 31 }); // F, DQ, IFMA, CD, BW, VL
}

fn hasBits(word: u32, comptime bits: []const u5) bool {
    comptime var mask: u32 = 0;
    inline for (bits) |bit| mask |= 1 << bit;
    return word & mask == mask;
}

const CpuId = struct { eax: u32, ebx: u32, ecx: u32 };

fn cpuid(leaf: u32, part: u32) CpuId {
    var eax: u32 = undefined;
    var ebx: u32 = undefined;
    var ecx: u32 = undefined;
    var edx: u32 = undefined;
    asm volatile ("cpuid"
        : [eax] "={eax}" (eax),
          [ebx] "={ebx}" (ebx),
          [ecx] "={ecx}" (ecx),
          [edx] "={edx}" (edx),
        : [leaf] "{eax}" (leaf),
          [part] "{ecx}" (part),
    );
    return .{ .eax = eax, .ebx = ebx, .ecx = ecx };
}

fn extendedControl() u32 {
    return asm volatile ("xgetbv"
        : [low] "={eax}" (-> u32),
        : [register] "{ecx}" (@as(u32, 0)),
        : .{ .edx = true });
}

test "all kernels of this processor give the same indices" {
    if (builtin.cpu.arch != .x86_64 or !hasV3()) return;
    const others = [_]Kernel{ v3, v4 };
    var expected: [700]u64 = undefined;
    var given: [700]u64 = undefined;
    for (others[0..if (hasV4()) 2 else 1]) |kernel| {
        for ([_]u64{ 1, 3, 1000, (1 << 20) + 1, (1 << 31) + 7, (1 << 32) - 1, (1 << 40) + 1, 3 << 61 }) |length| {
            const stream: uniform.Stream = .{ .seed = length ^ 77, .length = length };
            const p: permutation.Permutation = .init(length, 99, length);
            for ([_]usize{ 0, 1, 31, 32, 33, 100, 128, 300, given.len }) |count| {
                for ([_]u64{ 0, 1, 7, 129, 251 }) |first| {
                    if (length <= uniform.length_max_narrow) {
                        baseline.fillNarrow(&stream, first, 0, &expected, count);
                        kernel.fillNarrow(&stream, first, 0, &given, count);
                        try std.testing.expectEqualSlices(u64, expected[0..count], given[0..count]);
                    }
                    baseline.fillWide(&stream, first, 3, &expected, count);
                    kernel.fillWide(&stream, first, 3, &given, count);
                    try std.testing.expectEqualSlices(u64, expected[0..count], given[0..count]);
                    if (first + count > length) continue;
                    baseline.fillCycle(&p, first, &expected, count);
                    kernel.fillCycle(&p, first, &given, count);
                    try std.testing.expectEqualSlices(u64, expected[0..count], given[0..count]);
                }
            }
        }
    }
}
