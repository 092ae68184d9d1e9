//! The loops in which the time goes, behind functions that two objects can share, and the choice
//! between the objects: one compiled for every processor of the architecture, and on x86-64 one
//! for AVX2 (kernel_v3.zig). Both give the same indices.

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
        const choice = if (hasV3()) &v3 else &baseline;
        chosen.store(choice, .monotonic);
        return choice;
    };
}

var chosen: std.atomic.Value(?*const Kernel) = .init(null);

const v3: Kernel = .{
    .name = "x86-64-v3",
    .fillCycle = @extern(*const @TypeOf(fillCycle), .{ .name = "zs_fill_cycle_v3" }),
    .fillNarrow = @extern(*const @TypeOf(fillNarrow), .{ .name = "zs_fill_narrow_v3" }),
    .fillWide = @extern(*const @TypeOf(fillWide), .{ .name = "zs_fill_wide_v3" }),
};

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
