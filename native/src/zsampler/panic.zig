//! What a failed safety check does: print its message and abort. Zig's own handler would bring
//! its input and output, stack traces and signal handling into the library.

const std = @import("std");

pub const panic = std.debug.FullPanic(print);

extern "c" fn write(fd: c_int, bytes: [*]const u8, size: usize) isize;
extern "c" fn abort() noreturn;

fn print(message: []const u8, return_address: ?usize) noreturn {
    _ = return_address;
    _ = write(2, message.ptr, message.len);
    abort();
}
