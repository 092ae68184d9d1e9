//! A folder before it is opened: what lies in it, and how a store comes to be in it.
//!
//! Creation writes and syncs everything under the writer's lock; store.zr appears last, by rename.
//! Until then the folder is unfinished: opening says so, and the next creation clears it.

const std = @import("std");
const files = @import("files.zig");
const format = @import("format.zig");
const limits_zig = @import("limits.zig");
const recovery = @import("recovery.zig");
const status = @import("status.zig");

const Codec = format.Codec;
const Error = status.Error;
const Fault = status.Fault;
const Kind = format.Kind;
const Limits = limits_zig.Limits;

/// What a folder says of itself.
pub const Description = struct {
    kind: Kind,
    codec: Codec,
    record_width: u64,
    uuid: [16]u8,
    epoch: u64,
    length: u64,
    dict_size: u64,
    /// Owned by the caller.
    identity: []u8,
};

pub const Plan = struct {
    kind: Kind,
    codec: Codec,
    record_width: u64,
    identity: []const u8,
    dict: []const u8,
};

/// Reads identity and header without a lock. The length is that of the last sync.
pub fn describe(gpa: std.mem.Allocator, medium: anytype, comptime limits: Limits, fault: *Fault) Error!Description {
    const file = medium.open(.store, .read) catch |err| switch (err) {
        error.FileNotFound => return emptiness(medium, fault),
        error.NotRegular => return error.Foreign,
        else => return fault.in(.store, err),
    };
    defer medium.close(file);
    const size = medium.size(file) catch |err| return fault.in(.store, err);
    if (size > format.TypedHeader.file_size_max) return error.Foreign;
    const bytes = try gpa.alloc(u8, @intCast(size));
    defer gpa.free(bytes);
    const found = files.readAll(medium, file, bytes, 0) catch |err| return fault.in(.store, err);
    const header = format.TypedHeader.decode(bytes[0..found]) catch |err| switch (err) {
        error.BadMagic => return otherHeader(bytes[0..found], fault),
        error.OtherVersion, error.UnknownFeature => {
            fault.* = .{ .file = .store, .expected = format.version, .found = bytes[4] };
            return error.Unsupported;
        },
        error.BadSum, error.BadField => return fault.corruptStore(.store, 0, 0),
    };
    const meta = medium.open(.meta, .read) catch |err| return fault.missing(.meta, err);
    defer medium.close(meta);
    const slots = try settledSlots(medium, meta, limits, fault);
    return .{
        .kind = header.kind,
        .codec = @enumFromInt(slots.durable.codec),
        .record_width = header.record_width,
        .uuid = slots.durable.uuid,
        .epoch = slots.durable.epoch,
        .length = slots.durable.length,
        .dict_size = slots.durable.dict_size,
        .identity = try gpa.dupe(u8, header.identity),
    };
}

/// Whoever holds no writer's lock may meet meta.zr in the middle of a change: looks again for a while.
pub fn settledSlots(medium: anytype, meta: anytype, comptime limits: Limits, fault: *Fault) Error!recovery.Slots {
    const pause_ms = 10;
    var waited_ms: u32 = 0;
    while (true) : (waited_ms += pause_ms) {
        return recovery.readSlots(medium, meta, limits, fault) catch |err| {
            if (err != error.CorruptStore or waited_ms >= limits.slot_wait_ms) return err;
            medium.sleep(pause_ms);
            continue;
        };
    }
}

/// The header of format 4 has a magic of its own; anything else is not a store.
fn otherHeader(bytes: []const u8, fault: *Fault) Error {
    if (bytes.len >= 4 and std.mem.eql(u8, bytes[0..4], "LXST")) {
        fault.* = .{ .file = .store, .expected = format.version, .found = 4 };
        return error.Unsupported;
    }
    return error.Foreign;
}

/// Why a folder without store.zr has none.
fn emptiness(medium: anytype, fault: *Fault) Error {
    var content: Content = .{};
    medium.list(&content) catch |err| return fault.in(.store, err);
    if (content.foreign) return error.Foreign;
    if (content.count == 0) return error.NoStore;
    return if (content.lock) error.Unfinished else error.Foreign;
}

const Content = struct {
    count: u64 = 0,
    foreign: bool = false,
    lock: bool = false,

    pub fn visit(self: *Content, found: ?files.Name) error{}!void {
        self.count += 1;
        const name = found orelse {
            self.foreign = true;
            return;
        };
        if (name == .lock) self.lock = true;
    }
};

/// The folder holds nothing, or an unfinished store.
pub fn create(gpa: std.mem.Allocator, medium: anytype, comptime limits: Limits, plan: Plan, fault: *Fault) Error!void {
    if (plan.identity.len > format.identity_size_max) return error.InvalidArgument;
    if (plan.record_width == 0 or plan.record_width > limits.record_size_max) return error.InvalidArgument;
    if ((plan.codec == .zstd_dict) != (plan.dict.len > 0) or plan.dict.len > format.dict_size_max) return error.BadDictionary;

    const lock = medium.create(.lock) catch |err| switch (err) {
        error.FileExists => medium.open(.lock, .write) catch |other| return fault.in(.lock, other),
        else => return fault.in(.lock, err),
    };
    defer medium.close(lock);
    const mine = medium.tryLock(lock, .exclusive) catch |err| return fault.in(.lock, err);
    if (!mine) return error.BusyWriter;
    // Another creation may have ended between the first look and the lock.
    if (describe(gpa, medium, limits, fault)) |description| {
        gpa.free(description.identity);
        return error.StoreExists;
    } else |err| switch (err) {
        error.NoStore, error.Unfinished => {},
        else => return err,
    }
    // The name by which an unfinished store is known comes before every other.
    files.syncDirectory(medium) catch |err| return fault.in(.store, err);
    try clear(gpa, medium, fault);
    try writeFiles(gpa, medium, limits, plan, fault);
}

fn clear(gpa: std.mem.Allocator, medium: anytype, fault: *Fault) Error!void {
    var leftovers: Leftovers = .{ .gpa = gpa };
    defer leftovers.names.deinit(gpa);
    medium.list(&leftovers) catch |err| return switch (err) {
        error.OutOfMemory => error.OutOfMemory,
        else => |other| fault.in(.store, other),
    };
    for (leftovers.names.items) |name| {
        medium.unlink(name) catch |err| return fault.in(name, err);
    }
}

const Leftovers = struct {
    gpa: std.mem.Allocator,
    names: std.ArrayList(files.Name) = .empty,

    pub fn visit(self: *Leftovers, found: ?files.Name) error{OutOfMemory}!void {
        const name = found orelse return;
        if (name != .lock) try self.names.append(self.gpa, name);
    }
};

fn writeFiles(gpa: std.mem.Allocator, medium: anytype, comptime limits: Limits, plan: Plan, fault: *Fault) Error!void {
    var slot: format.Slot = .{
        .codec = @intFromEnum(plan.codec),
        .kind = @intFromEnum(plan.kind),
        .uuid = undefined,
        .seq = 1,
        .dict_size = plan.dict.len,
        .dict_hash = if (plan.dict.len > 0) format.hash(0, plan.dict) else 0,
    };
    medium.random(&slot.uuid) catch |err| return fault.in(.meta, err);

    const zeros = try gpa.alloc(u8, @max(format.meta_size, limits.journal_size));
    defer gpa.free(zeros);
    @memset(zeros, 0);
    try writeFile(medium, .readers_lock, &.{}, fault);
    try writeFile(medium, .{ .chunk = 0 }, &.{}, fault);
    // Really allocated, so that a small change needs no space when the medium is full.
    try writeFile(medium, .journal, zeros[0..limits.journal_size], fault);
    if (plan.dict.len > 0) try writeFile(medium, .dict, plan.dict, fault);
    const slot_bytes = slot.encode();
    @memcpy(zeros[format.durableSlotOffset(slot.seq)..][0..slot_bytes.len], &slot_bytes);
    try writeFile(medium, .meta, zeros[0..format.meta_size], fault);

    const header = try gpa.alloc(u8, format.TypedHeader.file_size_max);
    defer gpa.free(header);
    try writeFile(medium, .store_new, format.TypedHeader.encode(plan.kind, plan.record_width, plan.identity, header), fault);
    files.syncDirectory(medium) catch |err| return fault.in(.store, err);
    medium.rename(.store_new, .store) catch |err| return fault.in(.store, err);
    files.syncDirectory(medium) catch |err| return fault.in(.store, err);
}

fn writeFile(medium: anytype, name: files.Name, bytes: []const u8, fault: *Fault) Error!void {
    const file = medium.create(name) catch |err| return fault.in(name, err);
    defer medium.close(file);
    files.writeAll(medium, file, bytes, 0) catch |err| return fault.in(name, err);
    files.syncFile(medium, file) catch |err| return fault.in(name, err);
}
