//! Geometry: which bytes ordinal i of a batch occupies. A type each, so that code written once is
//! specialised by the compiler and asks no flag at run time.

const std = @import("std");
const format = @import("format.zig");

/// Records of one width, one behind the other. `Bytes` is []u8 for a target, []const u8 for a source.
pub fn Strided(comptime Bytes: type) type {
    return struct {
        bytes: Bytes,
        width: usize,

        const Self = @This();

        pub fn count(self: Self) usize {
            return self.bytes.len / self.width;
        }

        pub inline fn at(self: Self, ordinal: usize) Bytes {
            return self.bytes[ordinal * self.width ..][0..self.width];
        }

        pub inline fn start(self: Self, ordinal: usize) usize {
            return ordinal * self.width;
        }
    };
}

/// Records of any size, one behind the other; offsets count units of `unit` bytes and are one more
/// than the records.
pub fn Offsets(comptime Bytes: type, comptime Offset: type) type {
    return struct {
        bytes: Bytes,
        offsets: []const Offset,
        unit: usize,

        const Self = @This();

        pub fn count(self: Self) usize {
            return self.offsets.len - 1;
        }

        pub inline fn at(self: Self, ordinal: usize) Bytes {
            return self.bytes[self.start(ordinal)..self.start(ordinal + 1)];
        }

        pub inline fn start(self: Self, ordinal: usize) usize {
            return @as(usize, @intCast(self.offsets[ordinal])) * self.unit;
        }

        /// Whether the offsets start at 0, never fall and end within the bytes.
        pub fn valid(self: Self) bool {
            if (self.offsets[0] != 0) return false;
            for (self.offsets[0..self.count()], self.offsets[1..]) |low, high| {
                if (high < low) return false;
            }
            const end = std.math.cast(usize, self.offsets[self.count()]) orelse return false;
            return end <= self.bytes.len / self.unit;
        }
    };
}

/// Records of any size with the dimensions of each.
pub const Paired = struct {
    payload: Offsets([]const u8, u64),
    ranks: []const u8,
    dims: []const u64,
    /// Where each record's dimensions start.
    dim_starts: []const u64,

    pub fn count(self: Paired) usize {
        return self.payload.count();
    }

    pub inline fn at(self: Paired, ordinal: usize) []const u8 {
        return self.payload.at(ordinal);
    }

    pub inline fn start(self: Paired, ordinal: usize) usize {
        return self.payload.start(ordinal);
    }

    pub inline fn dimsAt(self: Paired, ordinal: usize) []const u64 {
        return self.dims[@intCast(self.dim_starts[ordinal])..][0..self.ranks[ordinal]];
    }
};

test "geometry" {
    const bytes = "abcdefgh";
    const strided: Strided([]const u8) = .{ .bytes = bytes, .width = 2 };
    try std.testing.expectEqual(4, strided.count());
    try std.testing.expectEqualStrings("ef", strided.at(2));
    const offsets: Offsets([]const u8, u64) = .{ .bytes = bytes, .offsets = &.{ 0, 1, 1, 4 }, .unit = 2 };
    try std.testing.expect(offsets.valid());
    try std.testing.expectEqualStrings("", offsets.at(1));
    try std.testing.expectEqualStrings("cdefgh", offsets.at(2));
    try std.testing.expect(!(Offsets([]const u8, u64){ .bytes = bytes, .offsets = &.{ 0, 5 }, .unit = 2 }).valid());
    try std.testing.expect(!(Offsets([]const u8, i64){ .bytes = bytes, .offsets = &.{ 0, 3, -1 }, .unit = 1 }).valid());
}
