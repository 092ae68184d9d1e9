//! Compact: gives back the bytes of deleted records. Live records of a chunk with garbage are copied
//! behind the tail, the table is changed through the journal, the old chunk is unlinked; one chunk
//! after the other, so the extra space is one chunk, and stopping between two loses nothing.

const std = @import("std");
const files = @import("files.zig");
const format = @import("format.zig");
const gather = @import("gather.zig");
const journal = @import("journal.zig");
const status = @import("status.zig");

const Error = status.Error;
const Fault = status.Fault;

/// A chunk up to this size is rewritten for any garbage, a larger one only if it is worth the copying.
const small_chunk_size = 64 << 20;
const garbage_share_min = 20;
/// Table entries that are read at a time.
const scan_entries = 4096;
/// Bytes that are copied at a time, if no record is larger.
const copy_size = 1 << 20;
const copy_records_max = 1024;

pub const Victim = struct { chunk: u32, file_size: u64, live_bytes: u64, record_count: u64 };

/// The chunks worth rewriting, the most garbage first. Owned by the caller.
pub fn survey(engine: anytype, fault: *Fault) Error![]Victim {
    const E = @TypeOf(engine.*);
    const chunk_count = engine.current.tail.chunk + 1;
    const chunks = try engine.gpa.alloc(Victim, chunk_count);
    defer engine.gpa.free(chunks);
    for (chunks, 0..) |*chunk, id| chunk.* = .{ .chunk = @intCast(id), .file_size = 0, .live_bytes = 0, .record_count = 0 };

    // Only what exists: ids of earlier victims are gone for good.
    var existing: Existing = .{ .present = try .initEmpty(engine.gpa, chunk_count) };
    defer existing.present.deinit(engine.gpa);
    engine.medium.list(&existing) catch |err| return fault.in(.store, err);
    for (chunks) |*chunk| {
        if (existing.present.isSet(chunk.chunk)) chunk.file_size = try engine.chunks.fileSize(chunk.chunk, fault);
    }

    const entries = try engine.gpa.alloc(E.Entry, scan_entries);
    defer engine.gpa.free(entries);
    var first: u64 = 0;
    while (first < engine.current.length) {
        const count: usize = @intCast(@min(engine.current.length - first, scan_entries));
        try engine.table.readRun(first, entries[0..count], fault);
        for (entries[0..count], first..) |*entry, index| {
            if (entry.chunk >= chunk_count) return fault.corruptRecord(.{ .chunk = entry.chunk }, index, chunk_count - 1, entry.chunk);
            chunks[entry.chunk].live_bytes += entry.stored_size;
            chunks[entry.chunk].record_count += 1;
        }
        first += count;
    }

    var victims: std.ArrayList(Victim) = .empty;
    errdefer victims.deinit(engine.gpa);
    for (chunks) |chunk| {
        if (!existing.present.isSet(chunk.chunk) or chunk.live_bytes >= chunk.file_size) continue;
        const garbage = chunk.file_size - chunk.live_bytes;
        if (chunk.file_size <= small_chunk_size or garbage * garbage_share_min >= chunk.file_size) {
            try victims.append(engine.gpa, chunk);
        }
    }
    std.sort.pdq(Victim, victims.items, {}, moreGarbage);
    return victims.toOwnedSlice(engine.gpa);
}

const Existing = struct {
    present: std.DynamicBitSetUnmanaged,

    pub fn visit(self: *Existing, found: ?files.Name) error{}!void {
        const name = found orelse return;
        switch (name) {
            .chunk => |id| if (id < self.present.bit_length) self.present.set(id),
            else => {},
        }
    }
};

fn moreGarbage(_: void, a: Victim, b: Victim) bool {
    // garbage share = 1 - live / size, compared without division
    const left = @as(u128, a.live_bytes) * b.file_size;
    const right = @as(u128, b.live_bytes) * a.file_size;
    return left < right or (left == right and a.chunk < b.chunk);
}

/// Under `writers`, with every other reader gone. `progress` has step(done, total) in bytes and
/// returns false to stop: chunks that were rewritten until then stay so.
pub fn compact(engine: anytype, victims: []Victim, progress: anytype, fault: *Fault) Error!void {
    const E = @TypeOf(engine.*);
    try engine.syncExclusive(false, fault);
    var rewriting: Rewriting(E, @TypeOf(progress)) = .{ .engine = engine, .victims = victims, .progress = progress };
    for (victims) |victim| rewriting.total += victim.live_bytes;

    const collected_max = @max(1, E.limits.compact_group_size / @sizeOf(E.Table.Change));
    var first: usize = 0;
    while (first < victims.len) {
        // As many victims as one pass over the table may collect; a single one may need several.
        var end = first + 1;
        var records = victims[first].record_count;
        while (end < victims.len and records + victims[end].record_count <= collected_max) : (end += 1) {
            records += victims[end].record_count;
        }
        try rewriting.group(victims[first..end], collected_max, fault);
        first = end;
    }

    engine.gate.lock();
    defer engine.gate.unlock();
    if (try engine.table.cut(engine.current.length, fault)) {
        files.syncDirectory(engine.medium) catch |err| return fault.in(.store, err);
    }
}

fn Rewriting(comptime E: type, comptime Progress: type) type {
    return struct {
        engine: *E,
        victims: []const Victim,
        progress: Progress,
        total: u64 = 0,
        done: u64 = 0,

        const Self = @This();
        const Change = E.Table.Change;

        fn group(self: *Self, victims: []Victim, collected_max: usize, fault: *Fault) Error!void {
            const engine = self.engine;
            std.sort.pdq(Victim, victims, {}, byChunk);
            var collected: std.ArrayList(Change) = .empty;
            defer collected.deinit(engine.gpa);
            var index: u64 = 0;
            while (true) {
                collected.clearRetainingCapacity();
                index = try self.collect(victims, index, collected_max, &collected, fault);
                const last_pass = index >= engine.current.length;
                std.sort.pdq(Change, collected.items, {}, byPlace);
                var start: usize = 0;
                for (victims) |victim| {
                    var end = start;
                    while (end < collected.items.len and collected.items[end].entry.chunk == victim.chunk) end += 1;
                    const retired: ?Victim = if (last_pass) victim else null;
                    if (end > start or last_pass) try self.rewrite(collected.items[start..end], retired, fault);
                    start = end;
                }
                if (last_pass) return;
            }
        }

        /// Entries of the victims from index `first` on; returns the index to go on from.
        fn collect(self: *Self, victims: []const Victim, first: u64, collected_max: usize, collected: *std.ArrayList(Change), fault: *Fault) Error!u64 {
            const engine = self.engine;
            const entries = try engine.gpa.alloc(E.Entry, scan_entries);
            defer engine.gpa.free(entries);
            var index = first;
            while (index < engine.current.length) {
                const count: usize = @intCast(@min(engine.current.length - index, scan_entries));
                try engine.table.readRun(index, entries[0..count], fault);
                for (entries[0..count]) |entry| {
                    const found = std.sort.binarySearch(Victim, victims, entry.chunk, victimOrder);
                    if (found != null) {
                        if (collected.items.len == collected_max) return index;
                        try collected.append(engine.gpa, .{ .index = index, .entry = entry });
                    }
                    index += 1;
                }
            }
            return index;
        }

        /// Copies records of one chunk behind the tail and commits their new places. `changes` is in the
        /// order of the old places.
        fn rewrite(self: *Self, changes: []Change, retired: ?Victim, fault: *Fault) Error!void {
            const engine = self.engine;
            var state = engine.current;
            state.epoch += 1;
            var frontier: E.Chunks.Frontier = .{ .chunks = &engine.chunks, .tail = state.tail };
            // A journal that was cut between its fsync and the D may still need what it refers to.
            errdefer if (!engine.failed) {
                var ignored: Fault = .{};
                engine.chunks.cut(engine.current.tail, frontier.tail.chunk, &ignored) catch engine.poison();
            };
            for (self.victims) |victim| {
                if (victim.chunk == frontier.tail.chunk) try frontier.startChunk(fault);
            }
            try self.copy(changes, &frontier, &state, fault);
            if (E.limits.mistake() != .compact_skips_chunk_sync) {
                try self.syncCopies(frontier.tail.chunk, fault);
            }
            if (frontier.created and E.limits.mistake() != .compact_skips_directory_sync) {
                files.syncDirectory(engine.medium) catch |err| {
                    engine.poison();
                    return fault.in(.store, err);
                };
            }
            state.tail = frontier.tail;
            state.chunk_bytes += frontier.reserved;
            if (retired) |victim| state.chunk_bytes -|= victim.file_size;
            std.sort.pdq(Change, changes, {}, byIndex);

            engine.gate.lock();
            defer engine.gate.unlock();
            // Records stay what they were and checked, but not where they were.
            engine.regular.store(false, .monotonic);
            const retired_id = if (retired) |victim| victim.chunk else format.JournalHeader.no_chunk;
            if (E.limits.mistake() == .compact_unlinks_first and retired != null) try engine.chunks.retire(retired_id, fault);
            try journal.commit(engine, changes, state, retired_id, fault);
            if (E.limits.mistake() != .compact_unlinks_first and retired != null) {
                // If this fails the next writable open removes the file: the journal names it.
                engine.chunks.retire(retired_id, fault) catch return;
            }
            if (format.JournalHeader.fileSize(changes.len, E.Table.entry_size) > E.limits.journal_size) {
                // Cutting the journal takes that name away: first the removal has to be durable.
                files.syncDirectory(engine.medium) catch return;
                journal.cutBack(engine);
            }
        }

        fn syncCopies(self: *Self, last: u32, fault: *Fault) Error!void {
            const engine = self.engine;
            engine.chunks.sync(engine.current.tail.chunk, last, fault) catch |err| {
                engine.poison();
                return err;
            };
        }

        fn copy(self: *Self, changes: []Change, frontier: *E.Chunks.Frontier, state: anytype, fault: *Fault) Error!void {
            const engine = self.engine;
            var buffer: []u8 = &.{};
            defer engine.gpa.free(buffer);
            var first: usize = 0;
            while (first < changes.len) {
                // Records close together are read together, garbage between them included.
                const start: u64 = changes[first].entry.offset;
                var end = first + 1;
                var span: u64 = changes[first].entry.stored_size;
                while (end < changes.len and end - first < copy_records_max) : (end += 1) {
                    const reach = changes[end].entry.offset + @as(u64, changes[end].entry.stored_size) -| start;
                    if (reach > copy_size) break;
                    span = @max(span, reach);
                }
                if (buffer.len < span) {
                    engine.gpa.free(buffer);
                    buffer = &.{};
                    buffer = try engine.gpa.alloc(u8, @intCast(@max(span, copy_size)));
                }
                const batch = changes[first..end];
                try self.readChecked(batch, buffer[0..@intCast(span)], fault);
                try self.place(batch, start, buffer, frontier, state, fault);
                self.done += span;
                if (!self.progress.step(@min(self.done, self.total), self.total)) return error.Cancelled;
                first = end;
            }
        }

        fn readChecked(self: *Self, batch: []const Change, bytes: []u8, fault: *Fault) Error!void {
            const engine = self.engine;
            const start = batch[0].entry.offset;
            for (batch) |*change| {
                _ = try engine.chunks.view(gather.locationOf(&change.entry), change.index, fault);
            }
            const whole: format.Location = .{ .chunk = batch[0].entry.chunk, .offset = start, .stored_size = @intCast(bytes.len), .logical_size = 0 };
            try engine.chunks.read(whole, bytes, batch[0].index, fault);
            for (batch) |*change| {
                const stored = bytes[change.entry.offset - start ..][0..change.entry.stored_size];
                const sum = format.entrySum(&engine.uuid, change.index, &change.entry, format.hash(0, stored));
                if (sum != change.entry.sum and E.limits.mistake() != .record_sum_skipped) {
                    return fault.corruptRecord(.{ .chunk = change.entry.chunk }, change.index, change.entry.sum, sum);
                }
            }
        }

        /// Writes a batch behind the frontier; its entries then say where.
        fn place(self: *Self, batch: []Change, start: u64, buffer: []const u8, frontier: *E.Chunks.Frontier, state: anytype, fault: *Fault) Error!void {
            const engine = self.engine;
            const uuid = &engine.uuid;
            var sizes: [copy_records_max]u32 = undefined;
            for (batch, sizes[0..batch.len]) |change, *size| size.* = change.entry.stored_size;
            var done: usize = 0;
            while (done < batch.len) {
                const run = try frontier.reserve(sizes[done..batch.len], fault);
                var pieces: [copy_records_max][]const u8 = undefined;
                var offset = run.location.offset;
                for (batch[done..][0..run.count], pieces[0..run.count]) |*change, *piece| {
                    const entry = &change.entry;
                    piece.* = buffer[@intCast(entry.offset - start)..][0..entry.stored_size];
                    state.table_digest -%= format.entryDigest(change.index, std.mem.asBytes(entry));
                    // The address is bound into the sum by XOR: exchanged without the payload's hash.
                    entry.sum ^= format.entrySum(uuid, change.index, entry, 0);
                    entry.chunk = run.location.chunk;
                    entry.offset = offset;
                    entry.sum ^= format.entrySum(uuid, change.index, entry, 0);
                    state.table_digest +%= format.entryDigest(change.index, std.mem.asBytes(entry));
                    offset += entry.stored_size;
                }
                try engine.chunks.write(run.location, pieces[0..run.count], fault);
                done += run.count;
            }
        }

        fn byPlace(_: void, a: Change, b: Change) bool {
            if (a.entry.chunk != b.entry.chunk) return a.entry.chunk < b.entry.chunk;
            return a.entry.offset < b.entry.offset;
        }

        fn byIndex(_: void, a: Change, b: Change) bool {
            return a.index < b.index;
        }
    };
}

fn byChunk(_: void, a: Victim, b: Victim) bool {
    return a.chunk < b.chunk;
}

fn victimOrder(wanted: u32, victim: Victim) std.math.Order {
    return std.math.order(wanted, victim.chunk);
}
