//! Append, staged: parts are written behind the committed tail and length, where nobody reads,
//! until a commit makes all of them visible at once.
//!
//! source -> blocks of consecutive records -> workers: encode, sum, reserve, write -> join -> entries
//!
//! Raw records take their places before the workers begin, in index order: regular.zig builds on it.

const std = @import("std");
const codec = @import("codec.zig");
const format = @import("format.zig");
const locks = @import("locks.zig");
const parallel = @import("parallel.zig");
const state_zig = @import("state.zig");
const status = @import("status.zig");

const Error = status.Error;
const Fault = status.Fault;
const State = state_zig.State;

/// Most records of one block: what a worker keeps on its stack.
const block_records_max = 1024;
/// Most records whose entries are collected before they are written.
const batch_records_max = 1 << 16;
/// What a byte takes a thread, in picoseconds: to be encoded at the usual level, or to be summed and
/// copied by the system call. The latter go one by one, beside the sums of others.
const encode_byte_ps = 4000;
const copy_byte_ps = 300;

pub fn Staged(comptime Engine: type) type {
    return struct {
        engine: *Engine,
        /// What a commit would make true; tail and chunk_bytes lag behind the frontier until `finish`.
        state: State,
        frontier: Engine.Chunks.Frontier,
        /// Whether a file came into being.
        created: bool = false,
        /// A part failed: only rolling back is left.
        broken: bool = false,

        const Self = @This();
        const Entry = Engine.Entry;
        const limits = Engine.limits;

        pub fn init(engine: *Engine) Self {
            return .{
                .engine = engine,
                .state = engine.current,
                .frontier = .{ .chunks = &engine.chunks, .tail = engine.current.tail },
            };
        }

        /// `source` has count(), at(ordinal) and, for ragged stores, dimsAt(ordinal); its owner has
        /// validated it.
        pub fn add(self: *Self, source: anytype, fault: *Fault) Error!void {
            var first: usize = 0;
            while (first < source.count()) {
                const count = @min(source.count() - first, batch_records_max);
                try self.addBatch(source, first, count, fault);
                first += count;
            }
        }

        fn addBatch(self: *Self, source: anytype, first: usize, count: usize, fault: *Fault) Error!void {
            const engine = self.engine;
            const entries = try engine.gpa.alloc(Entry, count);
            defer engine.gpa.free(entries);
            var block_starts: std.ArrayList(usize) = .empty;
            defer block_starts.deinit(engine.gpa);
            var ordinal: usize = 0;
            while (ordinal < count) {
                try block_starts.append(engine.gpa, ordinal);
                var size: usize = 0;
                const start = ordinal;
                while (ordinal < count and ordinal - start < block_records_max) : (ordinal += 1) {
                    size += source.at(first + ordinal).len;
                    if (size > limits.append_block_size and ordinal > start) break;
                }
            }
            const block_count = block_starts.items.len;
            try block_starts.append(engine.gpa, count);

            var batch: Batch(@TypeOf(source)) = .{
                .staged = self,
                .source = source,
                .first = first,
                .entries = entries,
                .block_starts = block_starts.items,
            };
            const bytes = source.start(first + count) - source.start(first);
            const raw = engine.codecs.codec == .raw;
            if (raw) try self.place(source, first, entries, fault);
            const threads = parallel.threadsFor(engine.medium, bytes *| @as(u64, if (raw) copy_byte_ps else encode_byte_ps) / 1000);
            parallel.run(threads, block_count, &batch, Batch(@TypeOf(source)).writeBlock);
            if (batch.failed.raw) {
                fault.* = batch.fault;
                return batch.failure;
            }
            for (entries, 0..) |*entry, index| {
                self.state.live_bytes += entry.stored_size;
                self.state.table_digest +%= format.entryDigest(self.state.length + index, std.mem.asBytes(entry));
            }
            if (try engine.table.write(self.state.length, entries, fault)) self.created = true;
            self.state.length += count;
        }

        /// Sets each entry's size, chunk and offset, for records that are stored as they come.
        fn place(self: *Self, source: anytype, first: usize, entries: []Entry, fault: *Fault) Error!void {
            var sizes: [block_records_max]u32 = undefined;
            var start: usize = 0;
            while (start < entries.len) {
                const count = @min(entries.len - start, block_records_max);
                for (sizes[0..count], start..) |*size, ordinal| {
                    size.* = @intCast(source.at(first + ordinal).len + dimBytes(source, first + ordinal).len);
                }
                var done: usize = 0;
                while (done < count) {
                    const run = try self.frontier.reserve(sizes[done..count], fault);
                    var offset = run.location.offset;
                    for (entries[start + done ..][0..run.count], sizes[done..][0..run.count]) |*entry, size| {
                        entry.stored_size = size;
                        entry.chunk = run.location.chunk;
                        entry.offset = offset;
                        offset += size;
                    }
                    done += run.count;
                }
                start += count;
            }
        }

        pub fn finish(self: *Self) State {
            self.state.tail = self.frontier.tail;
            self.state.chunk_bytes += self.frontier.reserved;
            self.created = self.created or self.frontier.created;
            return self.state;
        }

        pub fn rollBack(self: *Self, fault: *Fault) Error!void {
            const engine = self.engine;
            // A chunk or segment whose creation failed halfway may have left its file.
            const last = @min(self.frontier.tail.chunk + 1, limits.chunk_count_max - 1);
            try engine.chunks.cut(engine.current.tail, last, fault);
            _ = try engine.table.cut(engine.current.length, fault);
        }

        /// One batch on its way through the workers.
        fn Batch(comptime Source: type) type {
            return struct {
                staged: *Self,
                source: Source,
                first: usize,
                entries: []Entry,
                block_starts: []const usize,
                mutex: locks.Mutex = .init,
                /// The first failure wins; blocks after it are not begun.
                failed: std.atomic.Value(bool) = .init(false),
                failure: Error = error.System,
                fault: Fault = .{},

                const Work = @This();
                const has_dims = @hasDecl(Source, "dimsAt");

                fn writeBlock(self: *Work, block: usize) void {
                    if (self.failed.load(.monotonic)) return;
                    var fault: Fault = .{};
                    self.tryWriteBlock(self.block_starts[block], self.block_starts[block + 1], &fault) catch |err| {
                        self.mutex.lock();
                        defer self.mutex.unlock();
                        if (self.failed.load(.monotonic)) return;
                        self.failure = err;
                        self.fault = fault;
                        self.failed.store(true, .monotonic);
                    };
                }

                fn tryWriteBlock(self: *Work, from: usize, to: usize, fault: *Fault) Error!void {
                    const engine = self.staged.engine;
                    const encoder = try engine.codecs.encoder();
                    defer engine.codecs.returnEncoder(encoder);
                    const buffer = try engine.gpa.alloc(u8, self.bufferSize(from, to));
                    defer engine.gpa.free(buffer);

                    // Encode and sum. Until the place is known, `sum` holds the hash of the stored bytes.
                    var sizes: [block_records_max]u32 = undefined;
                    var stored: [block_records_max][]const u8 = undefined;
                    var used: usize = 0;
                    for (from..to) |ordinal| {
                        const logical = self.source.at(self.first + ordinal);
                        const payload = switch (engine.codecs.codec) {
                            .raw => logical,
                            .zstd, .zstd_dict => encoded: {
                                const room = codec.storedSizeMax(engine.codecs.codec, logical.len);
                                const size = try encoder.encode(logical, buffer[used..][0..room]);
                                used += size;
                                break :encoded buffer[used - size ..][0..size];
                            },
                        };
                        const dims = dimBytes(self.source, self.first + ordinal);
                        stored[ordinal - from] = payload;
                        sizes[ordinal - from] = @intCast(payload.len + dims.len);
                        const entry = &self.entries[ordinal];
                        entry.stored_size = sizes[ordinal - from];
                        entry.logical_size = @intCast(logical.len);
                        if (has_dims) entry.shape = self.shapeWord(ordinal);
                        entry.sum = format.hashPair(payload, dims);
                    }
                    var done = from;
                    while (done < to) {
                        const run = if (engine.codecs.codec == .raw)
                            self.placed(done, to)
                        else
                            try self.staged.frontier.reserve(sizes[done - from .. to - from], fault);
                        try self.writeRun(done, stored[done - from ..][0..run.count], run.location, fault);
                        done += run.count;
                    }
                }

                /// As many records, from `from` on, as have their places in one chunk.
                fn placed(self: *Work, from: usize, to: usize) Engine.Chunks.Frontier.Run {
                    const entries = self.entries[from..to];
                    var count: usize = 1;
                    while (count < entries.len and entries[count].chunk == entries[0].chunk) count += 1;
                    return .{ .location = .{ .chunk = entries[0].chunk, .offset = entries[0].offset }, .count = count };
                }

                /// Writes consecutive stored records to one place and completes their entries.
                fn writeRun(self: *Work, from: usize, stored: []const []const u8, location: state_zig.Tail, fault: *Fault) Error!void {
                    const engine = self.staged.engine;
                    var pieces: [2 * block_records_max][]const u8 = undefined;
                    var piece_count: usize = 0;
                    var offset = location.offset;
                    for (stored, from..) |payload, ordinal| {
                        for ([2][]const u8{ payload, dimBytes(self.source, self.first + ordinal) }) |bytes| {
                            if (bytes.len == 0) continue;
                            // Neighbours in memory are neighbours in the file: one piece.
                            if (piece_count > 0) {
                                const last = &pieces[piece_count - 1];
                                if (last.ptr + last.len == bytes.ptr) {
                                    last.* = last.ptr[0 .. last.len + bytes.len];
                                    continue;
                                }
                            }
                            pieces[piece_count] = bytes;
                            piece_count += 1;
                        }
                        const entry = &self.entries[ordinal];
                        entry.chunk = location.chunk;
                        entry.offset = offset;
                        entry.sum = format.entrySum(&engine.uuid, self.staged.state.length + ordinal, entry, entry.sum);
                        offset += entry.stored_size;
                    }
                    try engine.chunks.write(location, pieces[0..piece_count], fault);
                }

                fn bufferSize(self: *Work, from: usize, to: usize) usize {
                    const chosen = self.staged.engine.codecs.codec;
                    if (chosen == .raw) return 0;
                    var size: usize = 0;
                    for (from..to) |ordinal| size += codec.storedSizeMax(chosen, self.source.at(self.first + ordinal).len);
                    return size;
                }

                fn shapeWord(self: *Work, ordinal: usize) u64 {
                    const dims = self.source.dimsAt(self.first + ordinal);
                    const items = self.source.at(self.first + ordinal).len / self.staged.engine.width;
                    return @bitCast(format.Shape.of(dims, items).?);
                }
            };
        }
    };
}

/// The dimensions that are stored behind the payload.
fn dimBytes(source: anytype, ordinal: usize) []const u8 {
    if (!@hasDecl(@TypeOf(source), "dimsAt")) return &.{};
    const dims = source.dimsAt(ordinal);
    return if (dims.len >= format.Shape.stored_rank_min) std.mem.sliceAsBytes(dims) else &.{};
}
