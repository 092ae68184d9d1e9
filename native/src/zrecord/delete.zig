//! Delete: the last record takes the place of a deleted one, so that live records are exactly
//! 0..length. In descending index order; one journalled change for the whole batch.

const std = @import("std");
const format = @import("format.zig");
const gather = @import("gather.zig");
const journal = @import("journal.zig");
const status = @import("status.zig");

const Error = status.Error;
const Fault = status.Fault;

pub const Doomed = struct { indices: []const u64, memory: []u64 };

/// The records to delete: in descending order, each once. The memory is the caller's.
pub fn select(engine: anytype, indices: anytype, fault: *Fault) Error!Doomed {
    const length = engine.current.length;
    const memory = try engine.gpa.alloc(u64, indices.len);
    errdefer engine.gpa.free(memory);
    for (indices, memory, 0..) |index, *resolved, ordinal| {
        resolved.* = gather.resolve(index, length) orelse {
            fault.* = .{ .record = ordinal, .found = @bitCast(index), .expected = length };
            return error.IndexOutOfRange;
        };
    }
    std.sort.pdq(u64, memory, {}, std.sort.desc(u64));
    var count: usize = 0;
    for (memory) |index| {
        if (count > 0 and memory[count - 1] == index) continue;
        memory[count] = index;
        count += 1;
    }
    return .{ .indices = memory[0..count], .memory = memory };
}

/// Under `writers`, with every other reader gone. `doomed` is sorted in descending order, each index
/// once and below the length.
pub fn delete(engine: anytype, doomed: []const u64, fault: *Fault) Error!void {
    const E = @TypeOf(engine.*);
    if (E.limits.mistake() != .delete_without_sync) try engine.syncExclusive(false, fault);

    var state = engine.current;
    state.epoch += 1;
    var moved: std.AutoHashMapUnmanaged(u64, E.Entry) = .empty;
    defer moved.deinit(engine.gpa);
    for (doomed) |index| {
        state.length -= 1;
        const last = moved.get(state.length) orelse try engine.table.read(state.length, fault);
        const gone = if (index == state.length) last else moved.get(index) orelse try engine.table.read(index, fault);
        state.live_bytes -|= gone.stored_size;
        state.table_digest -%= format.entryDigest(state.length, std.mem.asBytes(&last));
        if (index == state.length) continue;
        state.table_digest -%= format.entryDigest(index, std.mem.asBytes(&gone));
        const replacement = format.reindexed(&engine.uuid, last, state.length, index);
        state.table_digest +%= format.entryDigest(index, std.mem.asBytes(&replacement));
        try moved.put(engine.gpa, index, replacement);
    }

    var changes: std.ArrayList(E.Table.Change) = .empty;
    defer changes.deinit(engine.gpa);
    var iterator = moved.iterator();
    while (iterator.next()) |item| {
        // A place that was filled and then cut off with the tail.
        if (item.key_ptr.* >= state.length) continue;
        try changes.append(engine.gpa, .{ .index = item.key_ptr.*, .entry = item.value_ptr.* });
    }
    std.sort.pdq(E.Table.Change, changes.items, {}, struct {
        fn ascending(_: void, a: E.Table.Change, b: E.Table.Change) bool {
            return a.index < b.index;
        }
    }.ascending);

    engine.gate.lock();
    defer engine.gate.unlock();
    engine.forgetChecks();
    try journal.commit(engine, changes.items, state, format.JournalHeader.no_chunk, fault);
    journal.cutBack(engine);
}
