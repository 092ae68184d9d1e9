//! Damages small stores in every way and examines what they serve.
//!
//!     zig build fuzz [-Dscale=N] [-Dseed=N] [-Dtest-filter=TEXT]

test {
    _ = @import("flip_test.zig");
    _ = @import("fuzz.zig");
    _ = @import("reader_test.zig");
    _ = @import("sector_test.zig");
}
