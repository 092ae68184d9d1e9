//! Root of the second object on x86-64: the permutation for processors with AVX2. The library
//! calls it only after asking the processor (c_api.zig).

const permutation = @import("permutation.zig");

pub const panic = @import("panic.zig").panic;

fn fill(
    p: *const permutation.Permutation,
    start: u64,
    indices: [*]u64,
    count: usize,
) callconv(.c) void {
    permutation.fill(p, start, indices, count);
}

comptime {
    @export(&fill, .{ .name = "zs_permutation_fill_v3", .visibility = .hidden });
}
