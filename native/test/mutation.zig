//! Changes a store's folder the way somebody would who knows the format: fields get values that no
//! store writes, and sums are made right again, so that the change gets past them.

const std = @import("std");
const zrecord = @import("zrecord");
const sim = @import("sim_files.zig");
const specimen_zig = @import("specimen.zig");

const format = zrecord.format;
const Disk = sim.Disk;
const Name = zrecord.files.Name;
const Random = std.Random;

const segment_bits = specimen_zig.limits.segment_bits;
const records_max = specimen_zig.records_max;

const Mutation = enum { slot, header, identity, entry, payload, journal, digest, bytes, resize, remove, exchange };

/// One change; some do nothing.
pub fn mutate(comptime kind: format.Kind, disk: *Disk, random: Random) void {
    switch (random.enumValue(Mutation)) {
        .slot => mutateSlot(disk, random),
        .header => mutateHeader(disk, random),
        .identity => mutateIdentity(disk, random),
        .entry => mutateEntry(kind, disk, random),
        .payload => mutatePayload(kind, disk, random),
        .journal => writeJournal(kind, disk, random),
        .digest => redigest(kind, disk),
        .bytes => {
            const content = disk.content(anyName(disk, random)).?;
            if (content.len > 0) content[random.uintLessThan(usize, @min(content.len, 1024))] = random.int(u8);
        },
        .resize => resize(disk, random),
        .remove => remove(disk, anyName(disk, random)),
        .exchange => {
            var buffer: [70 << 10]u8 = undefined;
            const a = anyName(disk, random);
            const content = disk.content(a).?;
            @memcpy(buffer[0..content.len], content);
            disk.plant(anyName(disk, random), buffer[0..content.len]);
        },
    }
}

fn anyName(disk: *Disk, random: Random) Name {
    return disk.entries.items[random.uintLessThan(usize, disk.entries.items.len)].name;
}

fn remove(disk: *Disk, name: Name) void {
    if (disk.entries.items.len == 1) return;
    var folder = disk.folder();
    folder.unlink(name) catch unreachable;
    folder.closeDirectory();
}

fn resize(disk: *Disk, random: Random) void {
    var buffer: [70 << 10]u8 = @splat(0);
    const name = anyName(disk, random);
    const content = disk.content(name).?;
    const size = if (random.boolean() and content.len > 0)
        random.uintLessThan(usize, content.len)
    else
        @min(content.len + random.uintLessThan(usize, 5000), buffer.len);
    const kept = @min(content.len, size);
    @memcpy(buffer[0..kept], content[0..kept]);
    disk.plant(name, buffer[0..size]);
}

/// A value at a boundary, near the old one, or any.
fn value(comptime T: type, random: Random, old: T) T {
    return switch (random.uintLessThan(u8, 8)) {
        0 => 0,
        1 => 1,
        2 => std.math.maxInt(T),
        3 => old +% 1,
        4 => old -% 1,
        5 => old ^ @as(T, 1) << @intCast(random.uintLessThan(u8, @bitSizeOf(T))),
        6 => random.int(T),
        else => @intCast(random.uintLessThan(u8, 64)),
    };
}

/// Changes one field of a structure; the last field, where it is a sum, is left for the caller.
fn changeField(target: anytype, random: Random) void {
    const T = std.meta.Child(@TypeOf(target));
    const fields = comptime std.meta.fields(T);
    const chosen = random.uintLessThan(usize, fields.len);
    inline for (fields, 0..) |field, position| {
        if (position == chosen) {
            const at = &@field(target, field.name);
            switch (@typeInfo(field.type)) {
                .int => at.* = value(field.type, random, at.*),
                else => random.bytes(at),
            }
        }
    }
}

// Slots.

const slot_offsets = [_]usize{ format.durableSlotOffset(0), format.durableSlotOffset(1), format.lazy_slot_offset };

fn slotAt(disk: *Disk, offset: usize) ?format.Slot {
    const meta = disk.content(.meta) orelse return null;
    if (meta.len < offset + format.Slot.size) return null;
    return std.mem.bytesToValue(format.Slot, meta[offset..][0..format.Slot.size]);
}

fn putSlot(disk: *Disk, offset: usize, slot: format.Slot) void {
    disk.content(.meta).?[offset..][0..format.Slot.size].* = slot.encode();
}

fn mutateSlot(disk: *Disk, random: Random) void {
    const offset = slot_offsets[random.uintLessThan(usize, slot_offsets.len)];
    var slot = slotAt(disk, offset) orelse return;
    changeField(&slot, random);
    putSlot(disk, offset, slot);
}

/// The newest durable slot, whatever its sum says.
fn durable(disk: *Disk) ?struct { offset: usize, slot: format.Slot } {
    const even = slotAt(disk, slot_offsets[0]) orelse return null;
    const odd = slotAt(disk, slot_offsets[1]) orelse return null;
    return if (even.seq > odd.seq) .{ .offset = slot_offsets[0], .slot = even } else .{ .offset = slot_offsets[1], .slot = odd };
}

// store.zr

fn mutateHeader(disk: *Disk, random: Random) void {
    const content = disk.content(.store) orelse return;
    if (content.len < @sizeOf(format.TypedHeader) + 8) return;
    var header = std.mem.bytesToValue(format.TypedHeader, content[0..@sizeOf(format.TypedHeader)]);
    changeField(&header, random);
    content[0..@sizeOf(format.TypedHeader)].* = std.mem.toBytes(header);
    sealHeader(content);
}

fn mutateIdentity(disk: *Disk, random: Random) void {
    const content = disk.content(.store) orelse return;
    if (content.len < @sizeOf(format.TypedHeader) + 9) return;
    const identity = content[@sizeOf(format.TypedHeader) .. content.len - 8];
    identity[random.uintLessThan(usize, identity.len)] = random.int(u8);
    sealHeader(content);
}

fn sealHeader(content: []u8) void {
    const end = content.len - 8;
    std.mem.writeInt(u64, content[end..][0..8], format.hash(0, content[0..end]), .little);
}

// Table and chunks.

fn Place(comptime kind: format.Kind) type {
    return struct { index: u64, at: *align(1) format.Entry(kind) };
}

fn anyEntry(comptime kind: format.Kind, disk: *Disk, random: Random) ?Place(kind) {
    for (0..8) |_| {
        const name = anyName(disk, random);
        if (name != .segment) continue;
        const count = disk.content(name).?.len / kind.entrySize();
        if (count == 0) return null;
        const index = (@as(u64, name.segment) << segment_bits) + random.uintLessThan(u64, count);
        return .{ .index = index, .at = entryAt(kind, disk, index) orelse return null };
    }
    return null;
}

fn entryAt(comptime kind: format.Kind, disk: *Disk, index: u64) ?*align(1) format.Entry(kind) {
    const size = comptime kind.entrySize();
    const content = disk.content(.{ .segment = @truncate(index >> segment_bits) }) orelse return null;
    const position = @as(usize, @intCast(index & ((1 << segment_bits) - 1))) * size;
    return if (position + size <= content.len) @ptrCast(content[position..][0..size]) else null;
}

fn mutateEntry(comptime kind: format.Kind, disk: *Disk, random: Random) void {
    const place = anyEntry(kind, disk, random) orelse return;
    var entry = place.at.*;
    for (0..random.intRangeAtMost(usize, 1, 3)) |_| changeField(&entry, random);
    // Sizes that fit each other get further.
    if (random.boolean()) entry.stored_size = entry.logical_size;
    seal(disk, place.index, &entry);
    place.at.* = entry;
    if (random.boolean()) redigest(kind, disk);
}

fn stored(disk: *Disk, entry: anytype) ?[]u8 {
    const content = disk.content(.{ .chunk = entry.chunk }) orelse return null;
    const end = @as(u64, entry.offset) + entry.stored_size;
    return if (end <= content.len) content[entry.offset..@intCast(end)] else null;
}

fn seal(disk: *Disk, index: u64, entry: anytype) void {
    const slot = (durable(disk) orelse return).slot;
    entry.sum = format.entrySum(&slot.uuid, index, entry, format.hash(0, stored(disk, entry) orelse &.{}));
}

/// Frames and stored dimensions that nobody wrote.
fn mutatePayload(comptime kind: format.Kind, disk: *Disk, random: Random) void {
    const place = anyEntry(kind, disk, random) orelse return;
    var entry = place.at.*;
    const bytes = stored(disk, &entry) orelse return;
    if (bytes.len == 0) return;
    // Heads of frames and the dimensions at the end say most.
    const position = switch (random.uintLessThan(u8, 3)) {
        0 => random.uintLessThan(usize, @min(bytes.len, 12)),
        1 => bytes.len - 1 - random.uintLessThan(usize, @min(bytes.len, 24)),
        else => random.uintLessThan(usize, bytes.len),
    };
    bytes[position] = random.int(u8);
    seal(disk, place.index, &entry);
    place.at.* = entry;
}

/// Another content for record 0 with a right sum and digest: what nobody can tell from the real one.
pub fn forge(comptime kind: format.Kind, disk: *Disk) void {
    const at = entryAt(kind, disk, 0).?;
    var entry = at.*;
    stored(disk, &entry).?[4] ^= 1;
    seal(disk, 0, &entry);
    at.* = entry;
    redigest(kind, disk);
}

/// The table that stands there is the one that the newest slot means.
fn redigest(comptime kind: format.Kind, disk: *Disk) void {
    var found = durable(disk) orelse return;
    found.slot.table_digest = digest(kind, disk, found.slot.length, &.{}, &.{});
    putSlot(disk, found.offset, found.slot);
}

fn digest(comptime kind: format.Kind, disk: *Disk, length: u64, indices: []const u64, entries: []const format.Entry(kind)) u64 {
    var total: u64 = 0;
    for (0..@intCast(@min(length, 2 * records_max))) |index| {
        var entry = (entryAt(kind, disk, index) orelse continue).*;
        for (indices, entries) |changed, new| if (changed == index) {
            entry = new;
        };
        total +%= format.entryDigest(index, std.mem.asBytes(&entry));
    }
    return total;
}

// journal.zr

/// A whole journal that builds on the newest slot, or nearly.
fn writeJournal(comptime kind: format.Kind, disk: *Disk, random: Random) void {
    const Entry = format.Entry(kind);
    const slot = (durable(disk) orelse return).slot;
    const journal = disk.content(.journal) orelse return;
    const count = random.uintLessThan(usize, 12);
    if (journal.len < format.JournalHeader.fileSize(count, @sizeOf(Entry))) return;
    var indices: [12]u64 = undefined;
    var entries: [12]Entry = undefined;
    var next: u64 = 0;
    for (indices[0..count], entries[0..count]) |*index, *entry| {
        index.* = if (random.uintLessThan(u8, 16) == 0) value(u64, random, next) else next;
        next = index.* +% random.intRangeAtMost(u64, 1, 3);
        entry.* = (anyEntry(kind, disk, random) orelse return).at.*;
        if (random.uintLessThan(u8, 4) == 0) changeField(entry, random);
        seal(disk, index.*, entry);
    }
    var header: format.JournalHeader = .{
        .kind = slot.kind,
        .count = count,
        .uuid = slot.uuid,
        .base_seq = slot.seq,
        .epoch = slot.epoch +% 1,
        .length = slot.length -| random.uintLessThan(u64, 4),
        .live_bytes = slot.live_bytes,
        .table_digest = undefined,
        .chunk_bytes = slot.chunk_bytes,
        .tail_chunk = slot.tail_chunk,
        .tail_offset = slot.tail_offset,
    };
    header.table_digest = digest(kind, disk, header.length, indices[0..count], entries[0..count]);
    if (random.boolean()) changeField(&header, random);
    journal[0..@sizeOf(format.JournalHeader)].* = std.mem.toBytes(header);
    var position: usize = @sizeOf(format.JournalHeader);
    for (indices[0..count], entries[0..count]) |index, entry| {
        std.mem.writeInt(u64, journal[position..][0..8], index, .little);
        journal[position + 8 ..][0..@sizeOf(Entry)].* = std.mem.toBytes(entry);
        position += 8 + @sizeOf(Entry);
    }
    std.mem.writeInt(u64, journal[position..][0..8], format.hash(0, journal[0..position]), .little);
}
