//! Every byte on disk, and nothing else. Format version 5.
//!
//! All integers are little-endian; reserved bytes are zero and checked. Each structure is a table of
//! fields, from which encode and decode are derived and which the documentation repeats.
//!
//! store.zr      typed header, type identity, sum
//! meta.zr       four slots of 4096 bytes: two durable ones (D) that alternate, one lazy one (L), one reserved
//! journal.zr    journal header, entries with their indices, sum
//! {n}.loc       location entries, 24 bytes dense, 32 bytes ragged
//! {n}.chunk     stored bytes of records, one behind the other
//! dict.zr       the dictionary's bytes

const std = @import("std");
const builtin = @import("builtin");
const assert = std.debug.assert;

comptime {
    // Structures are read and written as they lie in memory.
    if (builtin.cpu.arch.endian() != .little) @compileError("the format is little-endian; this target is not");
}

pub const version = 5;
pub const identity_size_max = 64 << 10;
pub const dict_size_max = 16 << 20;

pub const Kind = enum(u8) {
    dense = 1,
    ragged = 2,

    pub fn entrySize(kind: Kind) usize {
        return switch (kind) {
            .dense => @sizeOf(DenseEntry),
            .ragged => @sizeOf(RaggedEntry),
        };
    }
};

pub const Codec = enum(u8) { raw = 0, zstd = 1, zstd_dict = 2 };

pub const Error = error{ BadMagic, BadSum, OtherVersion, UnknownFeature, BadField };

pub fn hash(seed: u64, bytes: []const u8) u64 {
    return std.hash.XxHash3.hash(seed, bytes);
}

// store.zr

/// | offset | size | field |
/// |---|---|---|
/// | 0 | 4 | magic `ZRTY` |
/// | 4 | 1 | version |
/// | 5 | 1 | kind: 1 dense, 2 ragged |
/// | 6 | 2 | reserved |
/// | 8 | 8 | record_width: dense the bytes of a record, ragged the bytes of an item |
/// | 16 | 8 | identity_size |
/// | 24 | 8 | reserved |
/// | 32 | identity_size | identity (msgpack) |
/// | 32 + identity_size | 8 | XXH3-64 of everything before it |
pub const TypedHeader = extern struct {
    magic: [4]u8 = magic_expected,
    version: u8 = version,
    kind: u8,
    reserved_6: u16 = 0,
    record_width: u64,
    identity_size: u64,
    reserved_24: u64 = 0,

    pub const magic_expected = "ZRTY".*;
    pub const file_size_max = @sizeOf(TypedHeader) + identity_size_max + 8;

    comptime {
        assert(@sizeOf(TypedHeader) == 32);
        assert(std.meta.hasUniqueRepresentation(TypedHeader));
    }

    pub const Decoded = struct { kind: Kind, record_width: u64, identity: []const u8 };

    pub fn encode(kind: Kind, record_width: u64, identity: []const u8, target: []u8) []u8 {
        const header: TypedHeader = .{
            .kind = @intFromEnum(kind),
            .record_width = record_width,
            .identity_size = identity.len,
        };
        const body_size = @sizeOf(TypedHeader) + identity.len;
        target[0..@sizeOf(TypedHeader)].* = std.mem.toBytes(header);
        @memcpy(target[@sizeOf(TypedHeader)..body_size], identity);
        std.mem.writeInt(u64, target[body_size..][0..8], hash(0, target[0..body_size]), .little);
        return target[0 .. body_size + 8];
    }

    pub fn decode(bytes: []const u8) Error!Decoded {
        if (bytes.len < @sizeOf(TypedHeader)) return error.BadMagic;
        const header = std.mem.bytesToValue(TypedHeader, bytes[0..@sizeOf(TypedHeader)]);
        if (!std.mem.eql(u8, &header.magic, &magic_expected)) return error.BadMagic;
        if (header.version != version) return error.OtherVersion;
        if (header.identity_size > identity_size_max) return error.BadField;
        const body_size = @sizeOf(TypedHeader) + @as(usize, @intCast(header.identity_size));
        if (bytes.len != body_size + 8) return error.BadField;
        if (std.mem.readInt(u64, bytes[body_size..][0..8], .little) != hash(0, bytes[0..body_size])) return error.BadSum;
        if (header.reserved_6 != 0 or header.reserved_24 != 0) return error.BadField;
        if (header.record_width == 0 or header.record_width >= 1 << 31) return error.BadField;
        const kind = std.enums.fromInt(Kind, header.kind) orelse return error.BadField;
        return .{ .kind = kind, .record_width = header.record_width, .identity = bytes[@sizeOf(TypedHeader)..body_size] };
    }
};

// meta.zr

pub const slot_size = 4096;
pub const meta_size = 4 * slot_size;

/// The place of a slot in meta.zr. D slots alternate with the parity of their sequence number.
pub const lazy_slot_offset = 2 * slot_size;
pub fn durableSlotOffset(seq: u64) u64 {
    return (seq & 1) * slot_size;
}

/// | offset | size | field |
/// |---|---|---|
/// | 0 | 4 | magic `ZREC` |
/// | 4 | 1 | version |
/// | 5 | 1 | codec: 0 raw, 1 zstd, 2 zstd with dictionary |
/// | 6 | 1 | filter: 0 |
/// | 7 | 1 | kind |
/// | 8 | 4 | features_incompatible: a reader that does not know a bit refuses |
/// | 12 | 4 | features_read_only: a writer that does not know a bit refuses |
/// | 16 | 16 | uuid |
/// | 32 | 16 | boot_id: the machine start under which an L was written, zeros elsewhere |
/// | 48 | 8 | seq: grows by one with each D |
/// | 56 | 8 | base_seq: of an L, the D that it extends; of a D, 0 |
/// | 64 | 8 | epoch: grows whenever an index may mean another record |
/// | 72 | 8 | length |
/// | 80 | 8 | live_bytes: stored bytes of all records |
/// | 88 | 4 | tail_chunk |
/// | 92 | 4 | tail_offset |
/// | 96 | 8 | table_digest: sum mod 2^64 of XXH3-64(entry, seed = index) |
/// | 104 | 8 | chunk_bytes: of all chunks up to the tail |
/// | 112 | 8 | dict_size |
/// | 120 | 8 | dict_hash: XXH3-64 of the dictionary |
/// | 128 | 4 | writer_version |
/// | 132 | 4 | reserved |
/// | 136 | 8 | XXH3-64 of everything before it |
pub const Slot = extern struct {
    magic: [4]u8 = magic_expected,
    version: u8 = version,
    codec: u8,
    filter: u8 = 0,
    kind: u8,
    features_incompatible: u32 = 0,
    features_read_only: u32 = 0,
    uuid: [16]u8,
    boot_id: [16]u8 = @splat(0),
    seq: u64,
    base_seq: u64 = 0,
    epoch: u64 = 0,
    length: u64 = 0,
    live_bytes: u64 = 0,
    tail_chunk: u32 = 0,
    tail_offset: u32 = 0,
    table_digest: u64 = 0,
    chunk_bytes: u64 = 0,
    dict_size: u64 = 0,
    dict_hash: u64 = 0,
    writer_version: u32 = writer_version_current,
    reserved_132: u32 = 0,
    sum: u64 = 0,

    pub const magic_expected = "ZREC".*;
    pub const writer_version_current = 1;
    pub const size = @sizeOf(Slot);

    comptime {
        assert(@sizeOf(Slot) == 144);
        assert(@offsetOf(Slot, "uuid") == 16 and @offsetOf(Slot, "seq") == 48);
        assert(@offsetOf(Slot, "tail_chunk") == 88 and @offsetOf(Slot, "sum") == 136);
        assert(std.meta.hasUniqueRepresentation(Slot));
        assert(size <= 512); // one sector
    }

    pub fn encode(slot: Slot) [size]u8 {
        var sealed = slot;
        sealed.sum = hash(0, std.mem.asBytes(&slot)[0..@offsetOf(Slot, "sum")]);
        return std.mem.toBytes(sealed);
    }

    /// BadSum and BadMagic: nothing valid here, as after a torn write. The other errors belong to a
    /// slot whose sum holds: a program wrote it that this one does not understand.
    pub fn decode(bytes: *const [size]u8) Error!Slot {
        const slot = std.mem.bytesToValue(Slot, bytes);
        if (!std.mem.eql(u8, &slot.magic, &magic_expected)) return error.BadMagic;
        if (slot.sum != hash(0, bytes[0..@offsetOf(Slot, "sum")])) {
            return error.BadSum;
        }
        if (slot.version != version) return error.OtherVersion;
        if (slot.features_incompatible != 0) return error.UnknownFeature;
        if (slot.filter != 0 or slot.reserved_132 != 0) return error.BadField;
        if (std.enums.fromInt(Kind, slot.kind) == null) return error.BadField;
        const codec = std.enums.fromInt(Codec, slot.codec) orelse return error.BadField;
        if ((codec == .zstd_dict) != (slot.dict_size != 0) or slot.dict_size > dict_size_max) return error.BadField;
        return slot;
    }
};

// {n}.loc

pub const Location = struct {
    chunk: u32,
    offset: u32,
    stored_size: u32,
    logical_size: u32,
};

/// | offset | size | field |
/// |---|---|---|
/// | 0 | 4 | offset: in the chunk |
/// | 4 | 4 | stored_size |
/// | 8 | 4 | logical_size |
/// | 12 | 4 | chunk: bit 31 is reserved |
/// | 16 | 8 | sum: XXH3-64(stored bytes) XOR XXH3-64(uuid, index, entry without sum) |
pub const DenseEntry = extern struct {
    offset: u32,
    stored_size: u32,
    logical_size: u32,
    chunk: u32,
    sum: u64,

    comptime {
        assert(@sizeOf(DenseEntry) == 24 and @offsetOf(DenseEntry, "sum") == 16);
        assert(std.meta.hasUniqueRepresentation(DenseEntry));
    }
};

/// | offset | size | field |
/// |---|---|---|
/// | 0 | 4 | offset: in the chunk |
/// | 4 | 4 | stored_size: the payload's stored bytes, then for rank 3 and more 8 bytes a dimension |
/// | 8 | 4 | logical_size: of the payload |
/// | 12 | 4 | chunk: bit 31 is reserved |
/// | 16 | 8 | shape: rank in bits 0 to 7, the first dimension above |
/// | 24 | 8 | sum: XXH3-64(stored bytes) XOR XXH3-64(uuid, index, entry without sum) |
pub const RaggedEntry = extern struct {
    offset: u32,
    stored_size: u32,
    logical_size: u32,
    chunk: u32,
    shape: u64,
    sum: u64,

    comptime {
        assert(@sizeOf(RaggedEntry) == 32 and @offsetOf(RaggedEntry, "sum") == 24);
        assert(std.meta.hasUniqueRepresentation(RaggedEntry));
    }
};

pub fn Entry(comptime kind: Kind) type {
    return switch (kind) {
        .dense => DenseEntry,
        .ragged => RaggedEntry,
    };
}

/// The hash of stored bytes that lie in two places.
pub fn hashPair(payload: []const u8, dims: []const u8) u64 {
    if (dims.len == 0) return hash(0, payload);
    var state: std.hash.XxHash3 = .init(0);
    state.update(payload);
    state.update(dims);
    return state.final();
}

/// The sum of an entry, given the hash of its stored bytes. Binding the store's uuid, the index and the
/// address makes stale, swapped and misdirected payload visible, and entries in each other's place.
pub inline fn entrySum(uuid: *const [16]u8, index: u64, entry: anytype, stored_hash: u64) u64 {
    const T = @TypeOf(entry.*);
    const body_size = @sizeOf(T) - 8;
    var body: [24 + body_size]u8 = undefined;
    body[0..16].* = uuid.*;
    body[16..24].* = @bitCast(index);
    body[24..].* = std.mem.asBytes(entry)[0..body_size].*;
    return stored_hash ^ hash(0, &body);
}

/// An entry that moves to another index keeps its payload's part of the sum.
pub fn reindexed(uuid: *const [16]u8, entry: anytype, from: u64, to: u64) @TypeOf(entry) {
    var moved = entry;
    moved.sum ^= entrySum(uuid, from, &entry, 0) ^ entrySum(uuid, to, &entry, 0);
    return moved;
}

/// What an entry contributes to the table digest.
pub inline fn entryDigest(index: u64, entry: []const u8) u64 {
    return hash(index, entry);
}

/// The shape word of a ragged record.
pub const Shape = packed struct(u64) {
    rank: u8,
    first: u56,

    /// Up to rank 2 the dimensions follow from the word and the number of items; from here on all are
    /// stored behind the payload, 8 bytes each.
    pub const stored_rank_min = 3;

    pub fn storedDims(shape: Shape) usize {
        return if (shape.rank >= stored_rank_min) shape.rank else 0;
    }

    /// Null if the dimensions do not multiply to the number of items.
    pub fn of(dims: []const u64, item_count: u64) ?Shape {
        if (dims.len > 255) return null;
        var product: u64 = 1;
        for (dims) |dim| {
            if (dim == 0) return null;
            product = std.math.mul(u64, product, dim) catch return null;
        }
        if (product != item_count) return null;
        const first = if (dims.len == 0) 0 else dims[0];
        return .{ .rank = @intCast(dims.len), .first = std.math.cast(u56, first) orelse return null };
    }

    /// Whether the word fits a record of that many items, as far as it can be told without the
    /// stored dimensions.
    pub fn fits(shape: Shape, item_count: u64) bool {
        return switch (shape.rank) {
            0 => shape.first == 0 and item_count == 1,
            1 => shape.first == item_count and item_count != 0,
            else => shape.first != 0 and item_count != 0 and item_count % shape.first == 0,
        };
    }
};

// journal.zr

/// | offset | size | field |
/// |---|---|---|
/// | 0 | 4 | magic `ZRJL` |
/// | 4 | 1 | version |
/// | 5 | 1 | kind |
/// | 6 | 2 | reserved |
/// | 8 | 8 | count: entries that follow |
/// | 16 | 16 | uuid |
/// | 32 | 8 | base_seq: the D that the change starts from |
/// | 40 | 8 | epoch: after the change |
/// | 48 | 8 | length: after the change |
/// | 56 | 8 | live_bytes: after the change |
/// | 64 | 8 | table_digest: after the change |
/// | 72 | 8 | chunk_bytes: after the change |
/// | 80 | 4 | tail_chunk: after the change |
/// | 84 | 4 | tail_offset: after the change |
/// | 88 | 4 | retired_chunk: 4294967295 is none |
/// | 92 | 4 | reserved |
/// | 96 | count x (8 + entry size) | index, entry |
/// | then | 8 | XXH3-64 of everything before it |
pub const JournalHeader = extern struct {
    magic: [4]u8 = magic_expected,
    version: u8 = version,
    kind: u8,
    reserved_6: u16 = 0,
    count: u64,
    uuid: [16]u8,
    base_seq: u64,
    epoch: u64,
    length: u64,
    live_bytes: u64,
    table_digest: u64,
    chunk_bytes: u64,
    tail_chunk: u32,
    tail_offset: u32,
    retired_chunk: u32 = no_chunk,
    reserved_92: u32 = 0,

    pub const magic_expected = "ZRJL".*;
    pub const no_chunk: u32 = std.math.maxInt(u32);

    comptime {
        assert(@sizeOf(JournalHeader) == 96 and @offsetOf(JournalHeader, "base_seq") == 32);
        assert(std.meta.hasUniqueRepresentation(JournalHeader));
    }

    pub fn fileSize(count: u64, entry_size: u64) u64 {
        return @sizeOf(JournalHeader) + count * (8 + entry_size) + 8;
    }
};

test "typed header: every truncation and every flipped bit is refused" {
    var buffer: [TypedHeader.file_size_max]u8 = undefined;
    const bytes = TypedHeader.encode(.ragged, 4, "identity", &buffer);
    const decoded = try TypedHeader.decode(bytes);
    try std.testing.expectEqual(Kind.ragged, decoded.kind);
    try std.testing.expectEqual(4, decoded.record_width);
    try std.testing.expectEqualStrings("identity", decoded.identity);
    for (0..bytes.len) |size| {
        if (TypedHeader.decode(bytes[0..size])) |_| return error.TestUnexpectedResult else |_| {}
    }
    for (0..bytes.len * 8) |bit| {
        bytes[bit / 8] ^= @as(u8, 1) << @intCast(bit % 8);
        defer bytes[bit / 8] ^= @as(u8, 1) << @intCast(bit % 8);
        if (TypedHeader.decode(bytes)) |_| return error.TestUnexpectedResult else |_| {}
    }
}

test "slot: every flipped bit is refused" {
    var bytes = (Slot{ .codec = 1, .kind = 1, .uuid = @splat(7), .seq = 9, .length = 3 }).encode();
    const slot = try Slot.decode(&bytes);
    try std.testing.expectEqual(3, slot.length);
    for (0..bytes.len * 8) |bit| {
        bytes[bit / 8] ^= @as(u8, 1) << @intCast(bit % 8);
        defer bytes[bit / 8] ^= @as(u8, 1) << @intCast(bit % 8);
        if (Slot.decode(&bytes)) |_| return error.TestUnexpectedResult else |_| {}
    }
}

test "shape words" {
    try std.testing.expectEqual(Shape{ .rank = 0, .first = 0 }, Shape.of(&.{}, 1).?);
    try std.testing.expectEqual(Shape{ .rank = 3, .first = 2 }, Shape.of(&.{ 2, 3, 4 }, 24).?);
    try std.testing.expectEqual(null, Shape.of(&.{ 2, 3 }, 7));
    try std.testing.expectEqual(null, Shape.of(&.{ 0, 3 }, 0));
    try std.testing.expectEqual(null, Shape.of(&.{ 1 << 40, 1 << 40 }, 0));
    try std.testing.expect(Shape.of(&.{ 5, 2 }, 10).?.fits(10));
    try std.testing.expect(!(Shape{ .rank = 2, .first = 3 }).fits(10));
    try std.testing.expect(!(Shape{ .rank = 0, .first = 1 }).fits(1));
}

test "hash is XXH3-64" {
    try std.testing.expectEqual(0x78af5f94892f3950, hash(0, "abc"));
}
