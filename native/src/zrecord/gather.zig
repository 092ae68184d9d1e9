//! Gather: indices -> records in the caller's memory.
//!
//! indices -> entry (mapped table) -> stored bytes (mapped chunk, or a positional read) -> copy or
//! decode into the destination -> sum. In tiles of a few records, each step for a whole tile, so that
//! the processor fetches entries and payload of the next records while it works on these.

const std = @import("std");
const codec_zig = @import("codec.zig");
const format = @import("format.zig");
const locks = @import("locks.zig");
const parallel = @import("parallel.zig");
const recovery = @import("recovery.zig");
const regular = @import("regular.zig");
const status = @import("status.zig");

const Error = status.Error;
const Fault = status.Fault;

/// Records that go through the steps together.
const tile = 32;
/// What a thread needs for a record, and for each of its bytes: picoseconds, measured.
const Cost = struct { record: u64, byte: u64 };
const copy_cost: Cost = .{ .record = 25_000, .byte = 150 };
const decode_cost: Cost = .{ .record = 500_000, .byte = 800 };
/// Stored bytes from which on a record is looked for in memory before it is copied out of the map. One
/// that is not there would come page by page, and end the process where the disk cannot read it: the
/// kernel is told of it, and it is read by position. One that is there costs a few percent more.
pub const resident_bytes_min = 128 << 10;
/// Blocks per thread: enough that one slow block does not leave the others idle.
const blocks_per_thread = 4;
/// Bytes of a record that are fetched ahead; the processor's own prefetching continues from there.
const prefetch_bytes_max = 256;
const cache_line = 64;

/// The index itself if unsigned, from the end if signed and negative; null outside the records.
pub inline fn resolve(index: anytype, length: u64) ?u64 {
    const resolved: u64 = if (@TypeOf(index) == i64)
        if (index < 0) length +% @as(u64, @bitCast(index)) else @bitCast(index)
    else
        index;
    return if (resolved < length) resolved else null;
}

/// Fills `target`, one record per index. A target has at(ordinal), check(ordinal, entry, fault),
/// takeDims(ordinal, bytes) and bytesMax(): its owner has checked that there is one span per index.
pub fn gather(engine: anytype, indices: anytype, target: anytype, fault: *Fault) Error!void {
    const Task = Gather(@TypeOf(engine.*), std.meta.Elem(@TypeOf(indices)), @TypeOf(target));
    const length = engine.length.load(.acquire);
    const bytes = target.bytes.len;
    const cost = if (engine.codecs.codec == .raw) copy_cost else decode_cost;
    const threads = parallel.threadsFor(engine.medium, (indices.len *| cost.record +| bytes *| cost.byte) / 1000);
    const block_count = if (threads == 1) 1 else @min(indices.len, threads * blocks_per_thread);
    var task: Task = .{
        .engine = engine,
        .indices = indices,
        .target = target,
        .length = length,
        .block_count = block_count,
    };
    parallel.run(threads, block_count, &task, Task.gatherBlock);
    if (engine.lock_free) try recovery.requireUnchanged(engine, fault);
    if (task.failed.raw) {
        fault.* = task.fault;
        return task.failure;
    }
}

fn Gather(comptime Engine: type, comptime Index: type, comptime Target: type) type {
    return struct {
        engine: *Engine,
        indices: []const Index,
        target: Target,
        length: u64,
        block_count: usize,
        mutex: locks.Mutex = .init,
        /// The first failure wins; blocks after it are not begun.
        failed: std.atomic.Value(bool) = .init(false),
        failure: Error = error.System,
        fault: Fault = .{},

        const Self = @This();
        const Entry = Engine.Entry;

        fn gatherBlock(self: *Self, block: usize) void {
            if (self.failed.load(.monotonic)) return;
            var fault: Fault = .{};
            const count = self.indices.len;
            const first = count * block / self.block_count;
            const end = count * (block + 1) / self.block_count;
            const result = switch (self.engine.codecs.codec) {
                .raw => self.gatherRaw(first, end, &fault),
                inline else => |codec| self.gatherRange(codec, first, end, &fault),
            };
            result catch |err| {
                self.mutex.lock();
                defer self.mutex.unlock();
                if (self.failed.load(.monotonic)) return;
                self.failure = err;
                self.fault = fault;
                self.failed.store(true, .monotonic);
            };
        }

        /// Records that were checked before and lie where arithmetic says need no entry.
        fn gatherRaw(self: *Self, first: usize, end: usize, fault: *Fault) Error!void {
            var start = first;
            if (Engine.kind == .dense) {
                while (start < end and self.engine.regular.load(.monotonic)) {
                    start = regular.copyKnown(self.engine, self.engine.layout(), self.indices, self.length, self.target, start, end);
                    const stop = @min(start + tile, end);
                    try self.gatherRange(.raw, start, stop, fault);
                    start = stop;
                }
            }
            try self.gatherRange(.raw, start, end, fault);
        }

        fn gatherRange(self: *Self, comptime codec: format.Codec, first: usize, end: usize, fault: *Fault) Error!void {
            const engine = self.engine;
            const decoder = try engine.codecs.decoder();
            defer engine.codecs.returnDecoder(decoder);
            var reader: Reader(Engine, codec) = .{ .engine = engine, .decoder = decoder };
            defer reader.deinit();

            self.prefetchEntries(first, @min(first + tile, end));
            var start = first;
            while (start < end) : (start += tile) {
                const stop = @min(start + tile, end);
                self.prefetchEntries(stop, @min(stop + tile, end));
                var resolved: [tile]u64 = undefined;
                var entries: [tile]Entry = undefined;
                var views: [tile]?[*]const u8 = undefined;
                for (start..stop, 0..) |ordinal, lane| {
                    const index = resolve(self.indices[ordinal], self.length) orelse {
                        fault.* = .{ .record = ordinal, .found = @bitCast(self.indices[ordinal]), .expected = self.length };
                        return error.IndexOutOfRange;
                    };
                    resolved[lane] = index;
                    entries[lane] = try engine.table.read(index, fault);
                    const entry = &entries[lane];
                    try checkEntry(engine, codec, entry, index, fault);
                    try self.target.check(ordinal, entry, index, fault);
                    views[lane] = try engine.chunks.view(locationOf(entry), index, fault);
                    const view = views[lane] orelse continue;
                    if (entry.stored_size >= resident_bytes_min and !engine.medium.isResident(view, entry.stored_size)) {
                        engine.chunks.willNeed(entry.chunk, entry.offset, entry.stored_size);
                        views[lane] = null;
                    } else {
                        prefetchBytes(view, entry.stored_size);
                    }
                }
                for (start..stop, 0..) |ordinal, lane| {
                    const dims = try reader.take(resolved[lane], &entries[lane], views[lane], self.target.at(ordinal), fault);
                    try self.target.takeDims(ordinal, dims, resolved[lane], fault);
                }
            }
        }

        /// Entries of the next tile; an index out of range is reported when its turn comes.
        inline fn prefetchEntries(self: *Self, from: usize, to: usize) void {
            for (from..to) |ordinal| {
                if (resolve(self.indices[ordinal], self.length)) |index| self.engine.table.prefetch(index);
            }
        }
    };
}

inline fn prefetchBytes(view: [*]const u8, size: usize) void {
    var position: usize = 0;
    while (position < @min(size, prefetch_bytes_max)) : (position += cache_line) {
        @prefetch(view + position, .{});
    }
}

pub inline fn locationOf(entry: anytype) format.Location {
    return .{ .chunk = entry.chunk, .offset = entry.offset, .stored_size = entry.stored_size, .logical_size = entry.logical_size };
}

/// Bytes behind the payload in the stored record.
pub inline fn dimsSize(entry: anytype) usize {
    if (!@hasField(@TypeOf(entry.*), "shape")) return 0;
    return 8 * @as(format.Shape, @bitCast(entry.shape)).storedDims();
}

/// What an entry may say, whatever lies in the file: sizes that fit each other, so that nothing is
/// allocated or copied that the stored bytes do not justify.
pub inline fn checkEntry(engine: anytype, comptime codec: format.Codec, entry: anytype, index: u64, fault: *Fault) Error!void {
    const dims_size = dimsSize(entry);
    const payload_size = @as(usize, entry.stored_size) -% dims_size;
    const sizes_fit = entry.logical_size != 0 and entry.stored_size > dims_size and
        entry.logical_size <= codec_zig.logicalSizeMax(codec, payload_size) and
        (codec != .raw or payload_size == entry.logical_size);
    if (!sizes_fit) {
        return fault.corruptRecord(.{ .segment = segmentOf(engine, index) }, index, 0, 0);
    }
}

pub fn segmentOf(engine: anytype, index: u64) u32 {
    return @intCast(index >> @TypeOf(engine.*).limits.segment_bits);
}

/// Brings one record after the other into memory and checks it.
pub fn Reader(comptime Engine: type, comptime codec: format.Codec) type {
    return struct {
        engine: *Engine,
        decoder: codec_zig.Decoder,
        /// Stored bytes that were read by position and are not the record itself.
        scratch: []u8 = &.{},

        const Self = @This();

        pub fn deinit(self: *Self) void {
            self.engine.gpa.free(self.scratch);
        }

        /// Fills `target`, whose size is the entry's logical size. Returns the stored dimensions, valid
        /// until the next call.
        pub inline fn take(
            self: *Self,
            index: u64,
            entry: *const Engine.Entry,
            view: ?[*]const u8,
            target: []u8,
            fault: *Fault,
        ) Error![]const u8 {
            const engine = self.engine;
            const dims_size = dimsSize(entry);
            const payload_size = entry.stored_size - dims_size;
            const check = switch (engine.checksums) {
                .always => true,
                .once => !engine.verified.contains(index),
                .off => false,
            };
            var stored_hash: u64 = undefined;
            var dims: []const u8 = &.{};
            if (codec == .raw) {
                if (view != null) {
                    @memcpy(target, view.?);
                    if (dims_size > 0) dims = view.?[payload_size..][0..dims_size];
                } else {
                    try engine.chunks.read(payloadLocation(entry, payload_size), target, index, fault);
                    if (dims_size > 0) dims = try self.readDims(entry, payload_size, dims_size, index, fault);
                }
                // After the copy: what was checked is what is handed out.
                if (check) stored_hash = format.hashPair(target, dims);
            } else {
                const stored = if (view) |mapped| mapped[0..entry.stored_size] else read: {
                    const buffer = try self.room(entry.stored_size);
                    try engine.chunks.read(locationOf(entry), buffer, index, fault);
                    break :read buffer;
                };
                dims = stored[payload_size..];
                if (check) {
                    stored_hash = format.hash(0, stored);
                    try self.compare(index, entry, stored_hash, fault);
                }
                self.decoder.decode(stored[0..payload_size], target) catch |err| switch (err) {
                    error.OutOfMemory => return error.OutOfMemory,
                    error.BadFrame => return damaged(index, entry, 0, 0, fault),
                };
            }
            if (check) {
                if (codec == .raw) try self.compare(index, entry, stored_hash, fault);
                if (engine.checksums == .once) {
                    if (Engine.kind == .dense and codec == .raw and !engine.layout().holds(index, locationOf(entry))) {
                        engine.regular.store(false, .monotonic);
                    }
                    engine.verified.add(index);
                }
            }
            return dims;
        }

        inline fn compare(self: *Self, index: u64, entry: *const Engine.Entry, stored_hash: u64, fault: *Fault) Error!void {
            const sum = format.entrySum(&self.engine.uuid, index, entry, stored_hash);
            if (sum != entry.sum and Engine.limits.mistake() != .record_sum_skipped) {
                return damaged(index, entry, entry.sum, sum, fault);
            }
        }

        fn damaged(index: u64, entry: *const Engine.Entry, expected: u64, found: u64, fault: *Fault) Error {
            const err = fault.corruptRecord(.{ .chunk = entry.chunk }, index, expected, found);
            fault.offset = entry.offset;
            return err;
        }

        fn payloadLocation(entry: *const Engine.Entry, payload_size: usize) format.Location {
            return .{ .chunk = entry.chunk, .offset = entry.offset, .stored_size = @intCast(payload_size), .logical_size = entry.logical_size };
        }

        fn readDims(self: *Self, entry: *const Engine.Entry, payload_size: usize, dims_size: usize, index: u64, fault: *Fault) Error![]const u8 {
            const buffer = try self.room(dims_size);
            const location: format.Location = .{
                .chunk = entry.chunk,
                .offset = @intCast(entry.offset + payload_size),
                .stored_size = @intCast(dims_size),
                .logical_size = 0,
            };
            try self.engine.chunks.read(location, buffer, index, fault);
            return buffer;
        }

        fn room(self: *Self, size: usize) Error![]u8 {
            if (self.scratch.len < size) {
                self.engine.gpa.free(self.scratch);
                self.scratch = &.{};
                self.scratch = try self.engine.gpa.alloc(u8, size);
            }
            return self.scratch[0..size];
        }
    };
}

test "resolve" {
    try std.testing.expectEqual(4, resolve(@as(u64, 4), 5).?);
    try std.testing.expectEqual(null, resolve(@as(u64, 5), 5));
    try std.testing.expectEqual(null, resolve(@as(u64, std.math.maxInt(u64)), 5));
    try std.testing.expectEqual(4, resolve(@as(i64, -1), 5).?);
    try std.testing.expectEqual(0, resolve(@as(i64, -5), 5).?);
    try std.testing.expectEqual(null, resolve(@as(i64, -6), 5));
    try std.testing.expectEqual(null, resolve(@as(i64, std.math.minInt(i64)), 5));
    try std.testing.expectEqual(null, resolve(@as(i64, -1), 0));
}
