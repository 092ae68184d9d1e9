//! The journal: makes a change to entries in place atomic.
//!
//! Commit, with everything the change refers to durable before:
//!   1. the journal is written: base_seq = the current D, the state after the change, the entries
//!   2. fsync journal.zr: from here on the change happens, whatever is cut
//!   3. the entries are written into the table
//!   4. fsync the table
//!   5. the next D
//! A journal whose base_seq is the current D's was cut between 2 and 5 and is redone. An older one
//! says nothing any more.

const std = @import("std");
const files = @import("files.zig");
const format = @import("format.zig");
const State = @import("state.zig").State;
const status = @import("status.zig");

const Error = status.Error;
const Fault = status.Fault;
const Header = format.JournalHeader;

/// Bytes that are written at a time.
const piece_size = 64 << 10;

/// `changes` is sorted by index, each index once. Exclusive: nobody reads meanwhile. On success the
/// state is published.
pub fn commit(
    engine: anytype,
    changes: []const @TypeOf(engine.*).Table.Change,
    state: State,
    retired_chunk: u32,
    fault: *Fault,
) Error!void {
    const E = @TypeOf(engine.*);
    const mistake = E.limits.mistake();
    // If the files cannot take the change once it is durable, reads go on with it from memory.
    const remembered = try engine.gpa.dupe(E.Table.Change, changes);
    var owned = true;
    defer if (owned) engine.gpa.free(remembered);

    if (mistake == .journal_after_entries) try apply(engine, changes, fault);
    write(engine, changes, state, retired_chunk, fault) catch |err| {
        cutBack(engine);
        return err;
    };
    if (mistake != .journal_not_synced) {
        files.syncFile(engine.medium, engine.journal.?) catch |err| {
            engine.poison();
            return fault.in(.journal, err);
        };
    }

    const applied = finish(engine, changes, state, fault);
    if (applied) |_| {
        engine.publish(state);
    } else |err| {
        engine.gpa.free(engine.table.overlay);
        engine.table.overlay = remembered;
        owned = false;
        engine.publish(state);
        engine.poison();
        return err;
    }
}

fn finish(engine: anytype, changes: anytype, state: anytype, fault: *Fault) Error!void {
    const mistake = @TypeOf(engine.*).limits.mistake();
    if (mistake == .durable_before_entries) try engine.commitDurable(state, fault);
    try apply(engine, changes, fault);
    if (mistake != .entries_not_synced) try syncChanges(engine, changes, fault);
    if (mistake != .durable_before_entries) try engine.commitDurable(state, fault);
}

/// Gives an extended journal back to its preallocated size; whatever it says must not be needed any
/// more. A failure costs space only.
pub fn cutBack(engine: anytype) void {
    const journal_size = @TypeOf(engine.*).limits.journal_size;
    const size = engine.medium.size(engine.journal.?) catch return;
    if (size > journal_size) engine.medium.truncate(engine.journal.?, journal_size) catch {};
}

fn write(engine: anytype, changes: anytype, state: anytype, retired_chunk: u32, fault: *Fault) Error!void {
    const E = @TypeOf(engine.*);
    const header: Header = .{
        .kind = @intFromEnum(E.kind),
        .count = changes.len,
        .uuid = engine.durable.uuid,
        .base_seq = engine.durable.seq,
        .epoch = state.epoch,
        .length = state.length,
        .live_bytes = state.live_bytes,
        .table_digest = state.table_digest,
        .chunk_bytes = state.chunk_bytes,
        .tail_chunk = state.tail.chunk,
        .tail_offset = state.tail.offset,
        .retired_chunk = retired_chunk,
    };
    const buffer = try engine.gpa.alloc(u8, @min(piece_size, Header.fileSize(changes.len, E.Table.entry_size)));
    defer engine.gpa.free(buffer);
    var writer: Writer = .{ .buffer = buffer };
    try writer.put(engine, std.mem.asBytes(&header), fault);
    for (changes) |*change| {
        try writer.put(engine, std.mem.asBytes(&change.index), fault);
        try writer.put(engine, std.mem.asBytes(&change.entry), fault);
    }
    const sum = writer.sum.final();
    try writer.put(engine, std.mem.asBytes(&sum), fault);
    try writer.flush(engine, fault);
}

const Writer = struct {
    buffer: []u8,
    used: usize = 0,
    offset: u64 = 0,
    sum: std.hash.XxHash3 = .init(0),

    fn put(self: *Writer, engine: anytype, bytes: []const u8, fault: *Fault) Error!void {
        self.sum.update(bytes);
        var rest = bytes;
        while (rest.len > 0) {
            if (self.used == self.buffer.len) try self.flush(engine, fault);
            const count = @min(rest.len, self.buffer.len - self.used);
            @memcpy(self.buffer[self.used..][0..count], rest[0..count]);
            self.used += count;
            rest = rest[count..];
        }
    }

    fn flush(self: *Writer, engine: anytype, fault: *Fault) Error!void {
        files.writeAll(engine.medium, engine.journal.?, self.buffer[0..self.used], self.offset) catch |err|
            return fault.in(.journal, err);
        self.offset += self.used;
        self.used = 0;
    }
};

/// Writes changed entries into the table, neighbours together.
pub fn apply(engine: anytype, changes: anytype, fault: *Fault) Error!void {
    const E = @TypeOf(engine.*);
    var run: [256]E.Entry = undefined;
    var first: usize = 0;
    while (first < changes.len) {
        var count: usize = 0;
        while (count < run.len and first + count < changes.len and
            changes[first + count].index == changes[first].index + count) : (count += 1)
        {
            run[count] = changes[first + count].entry;
        }
        _ = try engine.table.write(changes[first].index, run[0..count], fault);
        first += count;
    }
}

/// Makes the segments durable that `changes` touched.
pub fn syncChanges(engine: anytype, changes: anytype, fault: *Fault) Error!void {
    const E = @TypeOf(engine.*);
    var next_segment: u64 = 0;
    for (changes) |change| {
        const segment = change.index >> E.limits.segment_bits;
        if (segment < next_segment) continue;
        try engine.table.sync(change.index, change.index + 1, fault);
        next_segment = segment + 1;
    }
}

pub fn Found(comptime Change: type) type {
    return struct {
        header: Header,
        /// Owned by whoever read it.
        changes: []const Change,
    };
}

/// The header alone, without its sum: whether the rest is worth reading. Null: not a journal of this
/// store.
pub fn peek(engine: anytype, fault: *Fault) Error!?Header {
    const E = @TypeOf(engine.*);
    var header: Header = undefined;
    const found = files.readAll(engine.medium, engine.journal.?, std.mem.asBytes(&header), 0) catch |err|
        return fault.in(.journal, err);
    if (found < @sizeOf(Header)) return null;
    if (!std.mem.eql(u8, &header.magic, &Header.magic_expected)) return null;
    if (header.version != format.version or header.kind != @intFromEnum(E.kind)) return null;
    if (!std.mem.eql(u8, &header.uuid, &engine.durable.uuid)) return null;
    return header;
}

/// For a journal that is not whole: whether it may have been one that the table depends on. Zeros are
/// none, and an older one may have been cut back once it had served.
pub fn isBroken(engine: anytype, header: ?Header, fault: *Fault) Error!bool {
    const E = @TypeOf(engine.*);
    const size = engine.medium.size(engine.journal.?) catch |err| return fault.in(.journal, err);
    if (header) |found| {
        return found.base_seq >= engine.durable.seq or found.count <= (size -| @sizeOf(Header) -| 8) / (8 + E.Table.entry_size);
    }
    var bytes: [@sizeOf(Header)]u8 = undefined;
    const found = files.readAll(engine.medium, engine.journal.?, &bytes, 0) catch |err| return fault.in(.journal, err);
    return found < bytes.len or !std.mem.allEqual(u8, &bytes, 0);
}

/// Takes away what a power cut left of a journal, so that the next opening need not judge it.
pub fn clear(engine: anytype, fault: *Fault) Error!void {
    const zeros: [@sizeOf(Header)]u8 = @splat(0);
    files.writeAll(engine.medium, engine.journal.?, &zeros, 0) catch |err| return fault.in(.journal, err);
}

/// The whole journal, if its sum holds. What is allocated is bounded by the file.
pub fn read(engine: anytype, header: Header, fault: *Fault) Error!?Found(@TypeOf(engine.*).Table.Change) {
    const E = @TypeOf(engine.*);
    const record_size = 8 + E.Table.entry_size;
    const size = engine.medium.size(engine.journal.?) catch |err| return fault.in(.journal, err);
    if (header.count > size / record_size or Header.fileSize(header.count, E.Table.entry_size) > size) return null;

    var sum: std.hash.XxHash3 = .init(0);
    sum.update(std.mem.asBytes(&header));
    const changes = try engine.gpa.alloc(E.Table.Change, @intCast(header.count));
    errdefer engine.gpa.free(changes);
    var offset: u64 = @sizeOf(Header);
    var buffer: [128 * record_size]u8 = undefined;
    var done: usize = 0;
    while (done < changes.len) {
        const count: usize = @min(changes.len - done, 128);
        const bytes = buffer[0 .. count * record_size];
        const found = files.readAll(engine.medium, engine.journal.?, bytes, offset) catch |err| return fault.in(.journal, err);
        if (found < bytes.len) return fault.corruptStore(.journal, offset + bytes.len, offset + found);
        sum.update(bytes);
        for (changes[done..][0..count], 0..) |*change, position| {
            const record = bytes[position * record_size ..][0..record_size];
            change.index = std.mem.readInt(u64, record[0..8], .little);
            change.entry = std.mem.bytesToValue(E.Entry, record[8..]);
        }
        offset += bytes.len;
        done += count;
    }
    var stored_sum: u64 = undefined;
    const found = files.readAll(engine.medium, engine.journal.?, std.mem.asBytes(&stored_sum), offset) catch |err|
        return fault.in(.journal, err);
    if (found < 8 or stored_sum != sum.final()) {
        engine.gpa.free(changes);
        return null;
    }
    return .{ .header = header, .changes = changes };
}
