//! The store as a list: what every operation must do, in a few lines. A record is a number; its
//! shape and bytes follow from it, so that a record that is read back names itself.

const std = @import("std");
const zrecord = @import("zrecord");

const format = zrecord.format;

pub const Id = u32;

/// Bytes of a dense record.
pub const dense_width = 20;
/// Bytes of a ragged record's item.
pub const item_size = 4;
pub const rank_max = 4;
pub const record_size_max = 4 * 12;

fn mix(id: Id, part: u64) u64 {
    var prng: std.Random.SplitMix64 = .init(@as(u64, id) << 20 | part);
    return prng.next();
}

pub fn dims(id: Id, buffer: *[rank_max]u64) []const u64 {
    const noise = mix(id, 1 << 16);
    const rank = noise % 5;
    switch (rank) {
        0 => {},
        1 => buffer[0] = 1 + (noise >> 8) % 12,
        2 => buffer[0..2].* = .{ 1 + (noise >> 8) % 3, 1 + (noise >> 16) % 4 },
        3 => buffer[0..3].* = .{ 1 + (noise >> 8) % 2, 2, 1 + (noise >> 16) % 3 },
        else => buffer[0..4].* = .{ 1, 2, 1, 1 + (noise >> 8) % 2 },
    }
    return buffer[0..@intCast(rank)];
}

pub fn size(kind: format.Kind, id: Id) usize {
    if (kind == .dense) return dense_width;
    var buffer: [rank_max]u64 = undefined;
    var items: usize = 1;
    for (dims(id, &buffer)) |dim| items *= @intCast(dim);
    return items * item_size;
}

/// `target` has size(kind, id) bytes. The number first, then bytes that repeat a little.
pub fn fill(id: Id, target: []u8) void {
    std.mem.writeInt(Id, target[0..4], id, .little);
    for (target[4..], 0..) |*byte, position| byte.* = @truncate(mix(id, position / 3));
}

/// The number of the record that has these bytes; null if none has.
pub fn identify(kind: format.Kind, bytes: []const u8) ?Id {
    if (bytes.len < 4 or bytes.len > record_size_max) return null;
    const id = std.mem.readInt(Id, bytes[0..4], .little);
    if (bytes.len != size(kind, id)) return null;
    var expected: [record_size_max]u8 = undefined;
    fill(id, expected[0..bytes.len]);
    return if (std.mem.eql(u8, expected[0..bytes.len], bytes)) id else null;
}

/// Up to `count_max` records one behind the other, as one part of an append takes them.
pub fn Part(comptime kind: format.Kind, comptime count_max: usize) type {
    return struct {
        count: usize = 0,
        byte_count: usize = 0,
        dim_count: usize = 0,
        bytes: [count_max * record_size_max]u8 = undefined,
        offsets: [count_max + 1]u64 = @splat(0),
        ranks: [count_max]u8 = undefined,
        dims: [count_max * rank_max]u64 = undefined,

        const Self = @This();

        pub fn add(part: *Self, id: Id) void {
            const record = part.bytes[part.byte_count..][0..size(kind, id)];
            fill(id, record);
            part.byte_count += record.len;
            part.offsets[part.count + 1] = part.byte_count;
            var buffer: [rank_max]u64 = undefined;
            const shape = dims(id, &buffer);
            part.ranks[part.count] = @intCast(shape.len);
            @memcpy(part.dims[part.dim_count..][0..shape.len], shape);
            part.dim_count += shape.len;
            part.count += 1;
        }

        pub fn append(part: *const Self, engine: anytype, fault: *zrecord.status.Fault) zrecord.status.Error!void {
            if (kind == .dense) return zrecord.dense.appendPart(engine, part.bytes[0..part.byte_count], fault);
            const offsets = part.offsets[0 .. part.count + 1];
            return zrecord.ragged.appendPart(engine, &part.bytes, offsets, part.ranks[0..part.count], &part.dims, fault);
        }
    };
}

/// One number for a list of records.
pub fn digest(ids: []const Id) u64 {
    return std.hash.XxHash3.hash(ids.len, std.mem.sliceAsBytes(ids));
}

pub const Model = struct {
    ids: std.ArrayList(Id) = .empty,

    pub fn deinit(model: *Model, gpa: std.mem.Allocator) void {
        model.ids.deinit(gpa);
    }

    pub fn append(model: *Model, gpa: std.mem.Allocator, added: []const Id) !void {
        try model.ids.appendSlice(gpa, added);
    }

    /// `indices` in descending order, each once: the last record takes the place of a deleted one.
    pub fn delete(model: *Model, indices: []const u64) void {
        for (indices) |index| _ = model.ids.swapRemove(@intCast(index));
    }

    pub fn state(model: Model) u64 {
        return digest(model.ids.items);
    }
};

test "records name themselves" {
    var buffer: [record_size_max]u8 = undefined;
    for ([_]format.Kind{ .dense, .ragged }) |kind| {
        for (0..1000) |number| {
            const id: Id = @intCast(number);
            const bytes = buffer[0..size(kind, id)];
            fill(id, bytes);
            try std.testing.expectEqual(id, identify(kind, bytes).?);
            if (bytes.len > 4) {
                bytes[bytes.len - 1] ^= 1;
                try std.testing.expectEqual(null, identify(kind, bytes));
            }
        }
    }
}
