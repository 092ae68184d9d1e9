//! Root of the further objects on x86-64: the same loops, compiled for processors with AVX2 and BMI2,
//! and for those with AVX-512. The library calls them only after asking the processor.

const builtin = @import("builtin");
const kernel = @import("kernel.zig");

pub const panic = @import("panic.zig").panic;

const suffix = if (builtin.cpu.has(.x86, .avx512f)) "_v4" else "_v3";

comptime {
    @export(&kernel.fillCycle, .{ .name = "zs_fill_cycle" ++ suffix, .visibility = .hidden });
    @export(&kernel.fillNarrow, .{ .name = "zs_fill_narrow" ++ suffix, .visibility = .hidden });
    @export(&kernel.fillWide, .{ .name = "zs_fill_wide" ++ suffix, .visibility = .hidden });
}
