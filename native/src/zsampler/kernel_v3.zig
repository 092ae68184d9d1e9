//! Root of the second object on x86-64: the loops that gain from AVX2 and BMI2, compiled for
//! processors that have them. The library calls them only after asking the processor.

const kernel = @import("kernel.zig");

pub const panic = @import("panic.zig").panic;

comptime {
    @export(&kernel.fillCycle, .{ .name = "zs_fill_cycle_v3", .visibility = .hidden });
    @export(&kernel.fillNarrow, .{ .name = "zs_fill_narrow_v3", .visibility = .hidden });
    @export(&kernel.fillWide, .{ .name = "zs_fill_wide_v3", .visibility = .hidden });
}
