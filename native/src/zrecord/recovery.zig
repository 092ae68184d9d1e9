//! Opening: which state is the committed one, and what a crash left to finish or to remove.
//!
//!   1. D is the newer of the two durable slots that are whole.
//!   2. A lazy slot or a journal that builds on a later D proves that a D was lost: refuse.
//!   3. A whole journal that builds on D is redone: its change was durable.
//!   4. Otherwise a lazy slot that builds on D extends it, if it is of this machine start (a killed
//!      process loses no page), or if every record behind D verifies and the digest agrees.
//!   5. A writer that recovered anything makes it durable and commits a fresh D, so that no old lazy
//!      slot or journal can match again. A reader does all of this in memory.
//!   6. A writer removes files that belong to no committed state.
//! After a clean close nothing matches in 3 and 4, and opening costs the same for any length.

const std = @import("std");
const create = @import("create.zig");
const files = @import("files.zig");
const format = @import("format.zig");
const gather = @import("gather.zig");
const journal = @import("journal.zig");
const State = @import("state.zig").State;
const status = @import("status.zig");

const Error = status.Error;
const Fault = status.Fault;

pub const Slots = struct {
    durable: format.Slot,
    /// Builds on `durable` or on an older one.
    lazy: ?format.Slot,
    /// Whether the lazy slot holds parts of two writes, as a power cut leaves it.
    lazy_torn: bool,
};

/// The slots of meta.zr as one read finds them. CorruptStore also while a writer is changing them.
pub fn readSlots(medium: anytype, meta: anytype, comptime limits: anytype, fault: *Fault) Error!Slots {
    var bytes: [format.meta_size]u8 = @splat(0);
    const found = files.readAll(medium, meta, &bytes, 0) catch |err| return fault.in(.meta, err);
    if (found < format.meta_size) return fault.corruptStore(.meta, format.meta_size, found);

    var durable: ?format.Slot = null;
    for ([_]u64{ 0, 1 }) |parity| {
        const at = bytes[format.durableSlotOffset(parity)..][0..format.Slot.size];
        const slot = format.Slot.decode(at) catch |err| switch (err) {
            error.BadMagic, error.BadSum => continue,
            error.OtherVersion, error.UnknownFeature, error.BadField => return unsupported(at, fault),
        };
        if (slot.seq & 1 != parity or slot.base_seq != 0) return fault.corruptStore(.meta, parity, slot.seq);
        if (slot.seq >= counter_max) return fault.corruptStore(.meta, counter_max, slot.seq);
        if (durable) |other| {
            const same = std.mem.eql(u8, &slot.uuid, &other.uuid) and slot.kind == other.kind and slot.codec == other.codec;
            if (!same) return fault.corruptStore(.meta, other.seq, slot.seq);
            if (slot.seq < other.seq) continue;
        }
        durable = slot;
    }
    const chosen = durable orelse {
        // A later format may place its sum elsewhere; its version stands where ours does.
        const first = bytes[0..format.Slot.size];
        const is_ours = std.mem.eql(u8, first[0..4], &format.Slot.magic_expected);
        if (is_ours and first[4] != format.version) return unsupported(first, fault);
        return fault.corruptStore(.meta, 0, 0);
    };

    const at = bytes[format.lazy_slot_offset..][0..format.Slot.size];
    const lazy = format.Slot.decode(at) catch |err| switch (err) {
        error.BadMagic, error.BadSum => {
            if (!mayBeTorn(at, chosen, medium.bootId())) return fault.corruptStore(.meta, 0, 0);
            return .{ .durable = chosen, .lazy = null, .lazy_torn = !std.mem.allEqual(u8, at, 0) };
        },
        error.OtherVersion, error.UnknownFeature, error.BadField => return unsupported(at, fault),
    };
    const same = std.mem.eql(u8, &lazy.uuid, &chosen.uuid) and lazy.kind == chosen.kind and lazy.codec == chosen.codec;
    if (!same or lazy.base_seq == 0) {
        return fault.corruptStore(.meta, chosen.seq, lazy.base_seq);
    }
    if (lazy.base_seq > chosen.seq and limits.mistake() != .lost_slot_ignored) {
        return fault.corruptStore(.meta, lazy.base_seq, chosen.seq);
    }
    return .{ .durable = chosen, .lazy = lazy, .lazy_torn = false };
}

/// No store counts this far; adding to a number below it does not overflow.
const counter_max = 1 << 62;

/// Whether a power cut can have left these bytes in the lazy slot: parts of two writes. Otherwise they
/// are damage, and what they said of acknowledged appends must not be passed over.
fn mayBeTorn(bytes: *const [format.Slot.size]u8, durable: format.Slot, boot_id: [16]u8) bool {
    if (std.mem.allEqual(u8, bytes, 0) and durable.seq < settled_seq) return true;
    // Nothing tears while the machine runs. A reader beside a writer looks again.
    const boot_at = @offsetOf(format.Slot, "boot_id");
    if (!std.mem.allEqual(u8, &boot_id, 0) and std.mem.eql(u8, bytes[boot_at..][0..16], &boot_id)) return false;
    // These are the same in all writes.
    const prefix = durable.encode()[0..boot_at].*;
    if (durable.seq >= settled_seq and !std.mem.eql(u8, bytes[0..boot_at], &prefix)) return false;
    var whole = bytes.*;
    for (0..whole.len * 8) |bit| {
        const mask = @as(u8, 1) << @intCast(bit % 8);
        whole[bit / 8] ^= mask;
        if (format.Slot.decode(&whole)) |_| return false else |_| {}
        whole[bit / 8] ^= mask;
    }
    return true;
}

/// From this D on a lazy slot was whole on the medium: the fsync of the D before it covered the one that
/// it made durable, or the one that took a torn one's place.
const settled_seq = 3;

fn unsupported(slot: *const [format.Slot.size]u8, fault: *Fault) Error {
    fault.* = .{ .file = .meta, .expected = format.version, .found = slot[4] };
    return error.Unsupported;
}

/// Lets the engine, whose files are open, find its committed state. `others_gone` is asked when
/// something that a reader may have seen has to go.
pub fn recover(engine: anytype, slots: Slots, others_gone: anytype, fault: *Fault) Error!void {
    const E = @TypeOf(engine.*);
    const mistake = E.limits.mistake();
    // A writer that was killed may have left D, and below the journal, in the page cache alone. What is
    // built upon has to be durable first.
    if (engine.writable and mistake != .found_slot_not_synced) {
        files.syncFile(engine.medium, engine.meta) catch |err| return fault.in(.meta, err);
    }
    try adopt(engine, .of(engine.durable), fault);

    var retired = format.JournalHeader.no_chunk;
    var recovered = false;
    const header = try journal.peek(engine, fault);
    const told = if (header) |found| try journal.read(engine, found, fault) else null;
    if (told) |whole| {
        const base_seq = whole.header.base_seq;
        const seq = engine.durable.seq;
        if (base_seq > seq and mistake != .lost_slot_ignored) {
            engine.gpa.free(whole.changes);
            return fault.corruptStore(.journal, base_seq, seq);
        }
        // The chunk of an older one is gone for good.
        if (base_seq +| 1 >= seq) retired = whole.header.retired_chunk;
        if (base_seq == seq and mistake != .journal_not_redone) {
            try redo(engine, whole, fault);
            recovered = true;
        } else {
            engine.gpa.free(whole.changes);
        }
    } else if (try journal.isBroken(engine, header, fault)) {
        // Cut before it was durable, then the table is as D says; else it was damaged.
        try compareDigest(engine, fault);
        if (engine.writable) try journal.clear(engine, fault);
    }
    if (!recovered) {
        if (slots.lazy) |slot| {
            const builds_on = slot.base_seq == engine.durable.seq or mistake == .stale_lazy_slot_trusted;
            if (builds_on and slot.length > engine.durable.length) {
                recovered = true;
                if (!try extend(engine, slot, fault)) try others_gone.require(fault);
            }
        }
    }
    if (!engine.writable) return;
    if (slots.lazy_torn) {
        // It names nothing new. Whole on the medium before the next D is there: that one says so.
        try engine.writeLazy(.of(engine.durable), @splat(0), fault);
        files.syncFile(engine.medium, engine.meta) catch |err| return fault.in(.meta, err);
        recovered = true;
    }
    try removeStrays(engine, retired, recovered, fault);
}

/// Takes the state as committed; the files must hold what it says.
fn adopt(engine: anytype, state: State, fault: *Fault) Error!void {
    const E = @TypeOf(engine.*);
    const largest = @max(state.epoch, state.live_bytes, state.chunk_bytes);
    if (largest >= counter_max) return fault.corruptStore(.meta, counter_max, largest);
    if (state.tail.chunk >= E.limits.chunk_count_max) return fault.corruptStore(.meta, E.limits.chunk_count_max, state.tail.chunk);
    try engine.table.reach(state.length, fault);
    const name: files.Name = .{ .chunk = state.tail.chunk };
    const size = try engine.chunks.fileSize(state.tail.chunk, fault);
    if (size < state.tail.offset) return fault.corruptStore(name, state.tail.offset, size);
    engine.publish(state);
}

fn redo(engine: anytype, found: anytype, fault: *Fault) Error!void {
    const header = found.header;
    const state: State = .{
        .epoch = header.epoch,
        .length = header.length,
        .live_bytes = header.live_bytes,
        .table_digest = header.table_digest,
        .chunk_bytes = header.chunk_bytes,
        .tail = .{ .chunk = header.tail_chunk, .offset = header.tail_offset },
    };
    {
        errdefer engine.gpa.free(found.changes);
        var next: u64 = 0;
        for (found.changes) |change| {
            if (change.index < next or change.index >= state.length) return fault.corruptStore(.journal, next, change.index);
            next = change.index + 1;
        }
        if (state.length > engine.durable.length) return fault.corruptStore(.journal, engine.durable.length, state.length);
    }
    engine.table.overlay = found.changes;
    try adopt(engine, state, fault);
    try compareDigest(engine, fault);
    if (!engine.writable) return;
    if (@TypeOf(engine.*).limits.mistake() != .found_journal_not_synced) {
        files.syncFile(engine.medium, engine.journal.?) catch |err| return fault.in(.journal, err);
    }
    try journal.apply(engine, found.changes, fault);
    if (@TypeOf(engine.*).limits.mistake() != .entries_not_synced) try journal.syncChanges(engine, found.changes, fault);
    engine.table.overlay = &.{};
    engine.gpa.free(found.changes);
}

/// Extends D by the records that the lazy slot names; false if they are not whole.
fn extend(engine: anytype, slot: format.Slot, fault: *Fault) Error!bool {
    const E = @TypeOf(engine.*);
    const durable: State = .of(engine.durable);
    const zeros: [16]u8 = @splat(0);
    const this_boot = std.mem.eql(u8, &slot.boot_id, &engine.boot_id) and !std.mem.eql(u8, &slot.boot_id, &zeros);
    adopt(engine, .of(slot), fault) catch |err| {
        // Under one start of the machine nothing is lost by itself: this is damage.
        if (this_boot or err != error.CorruptStore) return err;
        engine.publish(durable);
        return false;
    };
    if (this_boot or E.limits.mistake() == .foreign_boot_trusted) return true;
    const whole = verifyTail(engine, fault) catch |err| switch (err) {
        error.CorruptStore, error.CorruptRecord => false,
        else => return err,
    };
    if (!whole) engine.publish(durable);
    if (whole and engine.writable) try rewriteTail(engine, fault);
    return whole;
}

/// After an fsync that failed, pages may stay in the cache as clean ones that the medium does not have.
/// What was verified there is written again, so that the next fsync covers it.
fn rewriteTail(engine: anytype, fault: *Fault) Error!void {
    const E = @TypeOf(engine.*);
    var scratch: []u8 = &.{};
    defer engine.gpa.free(scratch);
    var index = engine.durable.length;
    while (index < engine.current.length) : (index += 1) {
        var entries: [1]E.Entry = undefined;
        try engine.table.readRun(index, &entries, fault);
        const stored = try readStored(engine, &entries[0], index, &scratch, fault);
        var pieces = [1][]const u8{stored};
        try engine.chunks.write(.{ .chunk = entries[0].chunk, .offset = entries[0].offset }, &pieces, fault);
        _ = try engine.table.write(index, &entries, fault);
    }
}

/// The stored bytes of a record by position, in `scratch`, which grows as needed.
fn readStored(engine: anytype, entry: anytype, index: u64, scratch: *[]u8, fault: *Fault) Error![]u8 {
    switch (engine.codecs.codec) {
        inline else => |codec| try gather.checkEntry(engine, codec, entry, index, fault),
    }
    _ = try engine.chunks.view(gather.locationOf(entry), index, fault);
    if (scratch.len < entry.stored_size) {
        engine.gpa.free(scratch.*);
        scratch.* = &.{};
        scratch.* = try engine.gpa.alloc(u8, entry.stored_size);
    }
    const stored = scratch.*[0..entry.stored_size];
    try engine.chunks.read(gather.locationOf(entry), stored, index, fault);
    return stored;
}

/// Whether every record behind D reads back with its sum, and the digests agree.
fn verifyTail(engine: anytype, fault: *Fault) Error!bool {
    const E = @TypeOf(engine.*);
    var scratch: []u8 = &.{};
    defer engine.gpa.free(scratch);
    var digest = engine.durable.table_digest;
    var index = engine.durable.length;
    while (index < engine.current.length) : (index += 1) {
        var entries: [1]E.Entry = undefined;
        try engine.table.readRun(index, &entries, fault);
        const entry = &entries[0];
        const stored = try readStored(engine, entry, index, &scratch, fault);
        const sum = format.entrySum(&engine.uuid, index, entry, format.hash(0, stored));
        if (sum != entry.sum and E.limits.mistake() != .record_sum_skipped) return false;
        digest +%= format.entryDigest(index, std.mem.asBytes(entry));
    }
    if (E.limits.mistake() == .table_digest_skipped) return true;
    if (digest != engine.current.table_digest) return false;
    // Something of another machine start is taken over: the whole table has to be the one meant.
    try compareDigest(engine, fault);
    return true;
}

/// CorruptStore if the table is not the one that the committed state means.
pub fn compareDigest(engine: anytype, fault: *Fault) Error!void {
    if (@TypeOf(engine.*).limits.mistake() == .table_digest_skipped) return;
    const digest = try tableDigest(engine, fault);
    if (digest != engine.current.table_digest) return fault.corruptStore(.{ .segment = 0 }, engine.current.table_digest, digest);
}

pub fn tableDigest(engine: anytype, fault: *Fault) Error!u64 {
    const E = @TypeOf(engine.*);
    const length = engine.length.load(.acquire);
    const entries = try engine.gpa.alloc(E.Entry, @intCast(@min(length, 4096)));
    defer engine.gpa.free(entries);
    var digest: u64 = 0;
    var first: u64 = 0;
    while (first < length) {
        const count: usize = @intCast(@min(length - first, entries.len));
        try engine.table.readRun(first, entries[0..count], fault);
        for (entries[0..count], first..) |*entry, index| digest +%= format.entryDigest(index, std.mem.asBytes(entry));
        first += count;
    }
    return digest;
}

/// A reader takes over what was committed since. Within an epoch its length never goes back; in
/// another one, which only a reader without a lock can meet, its files are opened anew.
pub fn refresh(engine: anytype, fault: *Fault) Error!void {
    const E = @TypeOf(engine.*);
    const slots = try create.settledSlots(engine.medium, engine.meta, E.limits, fault);
    var state: State = .of(slots.durable);
    if (slots.lazy) |lazy| {
        // One of another machine start was judged when the store was opened; its writer is gone.
        const live = lazy.base_seq == slots.durable.seq and std.mem.eql(u8, &lazy.boot_id, &engine.boot_id);
        if (live and lazy.length > state.length) state = .of(lazy);
    }
    if (state.epoch < engine.current.epoch) return;
    if (state.epoch == engine.current.epoch) {
        if (state.length <= engine.current.length) return;
        return adopt(engine, state, fault);
    }
    engine.gate.lock();
    defer engine.gate.unlock();
    engine.gpa.free(engine.table.overlay);
    engine.table.overlay = &.{};
    engine.table.deinit();
    engine.chunks.deinit();
    engine.forgetChecks();
    engine.length.store(0, .release);
    try adopt(engine, state, fault);
}

/// For a reader without a lock, after it has read: Changed if records were moved meanwhile, or are
/// being moved.
pub fn requireUnchanged(engine: anytype, fault: *Fault) Error!void {
    const E = @TypeOf(engine.*);
    const slots = try create.settledSlots(engine.medium, engine.meta, E.limits, fault);
    var epoch = slots.durable.epoch;
    if (try journal.peek(engine, fault)) |header| {
        if (header.base_seq == slots.durable.seq) epoch = @max(epoch, header.epoch);
    }
    if (epoch > engine.committed().epoch) return error.Changed;
}

/// The writer's part: commits what was recovered, then removes what no committed state refers to.
fn removeStrays(engine: anytype, retired: u32, recovered: bool, fault: *Fault) Error!void {
    const E = @TypeOf(engine.*);
    const mistake = E.limits.mistake();
    if (recovered and mistake != .no_fence) {
        engine.dirty = true;
        engine.directory_dirty = true;
        try engine.syncExclusive(false, fault);
    }
    if (mistake == .no_orphan_removal) return;
    var strays: Strays(E) = .{ .engine = engine, .retired = retired };
    defer strays.names.deinit(engine.gpa);
    engine.medium.list(&strays) catch |err| return switch (err) {
        error.OutOfMemory => error.OutOfMemory,
        else => |other| fault.in(.store, other),
    };
    engine.table.forget(engine.current.length);
    for (strays.names.items) |name| {
        if (name == .chunk) engine.chunks.forget(name.chunk);
        engine.medium.unlink(name) catch |err| return fault.in(name, err);
    }
    if (strays.names.items.len > 0) {
        files.syncDirectory(engine.medium) catch |err| return fault.in(.store, err);
    }
    // Behind the tail lies what an append left that was killed.
    try engine.chunks.cut(engine.current.tail, engine.current.tail.chunk, fault);
}

fn Strays(comptime E: type) type {
    return struct {
        engine: *E,
        retired: u32,
        names: std.ArrayList(files.Name) = .empty,

        pub fn visit(self: *@This(), found: ?files.Name) error{OutOfMemory}!void {
            const name = found orelse return;
            const stray = switch (name) {
                .chunk => |id| id > self.engine.current.tail.chunk or id == self.retired,
                .segment => |id| id >= E.Table.segmentsFor(self.engine.current.length),
                else => false,
            };
            if (stray) try self.names.append(self.engine.gpa, name);
        }
    };
}
