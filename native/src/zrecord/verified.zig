//! Which records were checked since the store was opened: one bit each, for checksums "once".

const std = @import("std");
const locks = @import("locks.zig");

/// Bits in blocks that are made when first needed and never move, so that threads set and read them
/// without a lock. A lost bit costs one more check, nothing else.
pub const Verified = struct {
    gpa: std.mem.Allocator,
    blocks: []std.atomic.Value(?*Block) = &.{},

    const block_bits = 1 << 20;
    const Block = [block_bits / 64]std.atomic.Value(u64);
    /// Records behind the last block (2^32 of them) are checked every time.
    const block_count = 4096;

    pub fn init(gpa: std.mem.Allocator, enabled: bool) error{OutOfMemory}!Verified {
        if (!enabled) return .{ .gpa = gpa };
        const blocks = try gpa.alloc(std.atomic.Value(?*Block), block_count);
        for (blocks) |*block| block.* = .init(null);
        return .{ .gpa = gpa, .blocks = blocks };
    }

    pub fn deinit(self: *Verified) void {
        self.clear();
        self.gpa.free(self.blocks);
        self.blocks = &.{};
    }

    /// Indices mean other records now. Nobody else may use the bits meanwhile.
    pub fn clear(self: *Verified) void {
        for (self.blocks) |*slot| {
            if (slot.load(.monotonic)) |block| self.gpa.destroy(block);
            slot.store(null, .monotonic);
        }
    }

    pub inline fn contains(self: *Verified, index: u64) bool {
        const block_index = index / block_bits;
        if (block_index >= self.blocks.len) return false;
        const block = self.blocks[@intCast(block_index)].load(.acquire) orelse return false;
        const bit: u6 = @truncate(index);
        return block[@intCast(index % block_bits / 64)].load(.monotonic) >> bit & 1 != 0;
    }

    pub inline fn add(self: *Verified, index: u64) void {
        const block_index = index / block_bits;
        if (block_index >= self.blocks.len) return;
        const slot = &self.blocks[@intCast(block_index)];
        const block = slot.load(.acquire) orelse self.make(slot) orelse return;
        const bit: u6 = @truncate(index);
        _ = block[@intCast(index % block_bits / 64)].fetchOr(@as(u64, 1) << bit, .monotonic);
    }

    noinline fn make(self: *Verified, slot: *std.atomic.Value(?*Block)) ?*Block {
        const block = self.gpa.create(Block) catch return null;
        @memset(block, .init(0));
        if (slot.cmpxchgStrong(null, block, .acq_rel, .acquire)) |other| {
            self.gpa.destroy(block);
            return other;
        }
        return block;
    }
};

test "bits" {
    var verified = try Verified.init(std.testing.allocator, true);
    defer verified.deinit();
    for ([_]u64{ 0, 63, 64, (1 << 20) - 1, 1 << 20, 1 << 40 }) |index| {
        try std.testing.expect(!verified.contains(index));
        verified.add(index);
        try std.testing.expectEqual(index < 1 << 32, verified.contains(index));
    }
    verified.clear();
    try std.testing.expect(!verified.contains(64));
    var disabled = try Verified.init(std.testing.allocator, false);
    disabled.add(1);
    try std.testing.expect(!disabled.contains(1));
}
