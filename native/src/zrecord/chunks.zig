//! Record data: append-only chunk files, the frontier behind which records are added, and reading
//! by mapping or by position.
//!
//! What may be read ends at the committed tail: all of a chunk before it, nothing behind it. So a
//! map is never touched where a failed append may have cut the file.

const std = @import("std");
const files = @import("files.zig");
const format = @import("format.zig");
const limits_zig = @import("limits.zig");
const locks = @import("locks.zig");
const status = @import("status.zig");
const Tail = @import("state.zig").Tail;

const Fault = status.Fault;

pub fn Chunks(comptime Medium: type, comptime limits: limits_zig.Limits) type {
    return struct {
        gpa: std.mem.Allocator,
        medium: *Medium,
        access: files.Access,
        mapping: bool,
        /// The committed tail, a `Tail`.
        tail: std.atomic.Value(u64) = .init(0),
        /// Blocks of states never move, so they are found without a lock.
        blocks: [block_count]std.atomic.Value(?*Block) = @splat(.init(null)),
        /// Guards files: opening, closing, and the counts beside them.
        mutex: locks.Mutex = .init,
        open_count: u32 = 0,
        tick: u64 = 0,

        const Self = @This();
        const block_size = @min(1024, limits.chunk_count_max);
        const block_count = limits.chunk_count_max / block_size;
        const Block = [block_size]Chunk;

        const Chunk = struct {
            mapped: std.atomic.Value(?[*]align(std.heap.page_size_min) const u8) = .init(null),
            map_size: usize = 0,
            /// Bytes known to be in the file and committed.
            readable: std.atomic.Value(u64) = .init(0),
            file: ?Medium.File = null,
            users: u32 = 0,
            used_at: u64 = 0,
        };

        pub fn deinit(self: *Self) void {
            for (&self.blocks) |*slot| {
                const block = slot.load(.monotonic) orelse continue;
                for (block) |*chunk| self.drop(chunk);
                self.gpa.destroy(block);
                slot.store(null, .monotonic);
            }
        }

        fn drop(self: *Self, chunk: *Chunk) void {
            if (chunk.mapped.load(.monotonic)) |mapped| self.medium.unmap(mapped, chunk.map_size);
            if (chunk.file) |file| {
                self.medium.close(file);
                self.open_count -= 1;
            }
            chunk.* = .{};
        }

        pub fn committedTail(self: *Self) Tail {
            return @bitCast(self.tail.load(.acquire));
        }

        pub fn publish(self: *Self, tail: Tail) void {
            self.tail.store(@bitCast(tail), .release);
        }

        fn find(self: *Self, id: u32) ?*Chunk {
            if (id >= limits.chunk_count_max) return null;
            const block = self.blocks[id / block_size].load(.acquire) orelse return null;
            return &block[id % block_size];
        }

        fn state(self: *Self, id: u32) error{OutOfMemory}!*Chunk {
            if (self.find(id)) |chunk| return chunk;
            self.mutex.lock();
            defer self.mutex.unlock();
            const slot = &self.blocks[id / block_size];
            if (slot.load(.acquire) == null) {
                const block = try self.gpa.create(Block);
                for (block) |*chunk| chunk.* = .{};
                slot.store(block, .release);
            }
            return &slot.load(.acquire).?[id % block_size];
        }

        /// The stored bytes of a record as they lie in the map; null where only positional reading
        /// goes. Refuses what lies outside the committed bytes.
        pub inline fn view(self: *Self, location: format.Location, record: u64, fault: *Fault) status.Error!?[*]const u8 {
            if (self.find(location.chunk)) |chunk| {
                const end = @as(u64, location.offset) + location.stored_size;
                if (end <= chunk.readable.load(.acquire)) {
                    const mapped = chunk.mapped.load(.acquire) orelse return null;
                    return mapped + location.offset;
                }
            }
            return self.viewSlowly(location, record, fault);
        }

        /// Committed bytes as they lie in the map; null where a slower way has to look.
        pub inline fn mappedAt(self: *Self, id: u32, offset: u64, size: usize) ?[*]const u8 {
            const chunk = self.find(id) orelse return null;
            if (offset + size > chunk.readable.load(.acquire)) return null;
            const mapped = chunk.mapped.load(.acquire) orelse return null;
            return mapped + @as(usize, @intCast(offset));
        }

        noinline fn viewSlowly(self: *Self, location: format.Location, record: u64, fault: *Fault) status.Error!?[*]const u8 {
            const name: files.Name = .{ .chunk = location.chunk };
            const end = @as(u64, location.offset) + location.stored_size;
            const tail = self.committedTail();
            if (location.chunk > tail.chunk or location.chunk >= limits.chunk_count_max) {
                return fault.corruptRecord(name, record, tail.chunk, location.chunk);
            }
            const chunk = try self.state(location.chunk);
            const file = try self.acquire(location.chunk, record, fault);
            defer self.release(location.chunk);
            const size = self.medium.size(file) catch |err| return fault.in(name, err);
            const readable = if (location.chunk == tail.chunk) @min(size, tail.offset) else size;
            if (end > readable) return fault.corruptRecord(name, record, end, readable);
            if (self.mapping) {
                self.mutex.lock();
                defer self.mutex.unlock();
                if (chunk.mapped.load(.monotonic) == null) {
                    // Room to grow: the file may, and only a record of its own passes the limit.
                    const map_size: usize = @intCast(std.mem.alignForward(u64, @max(size, limits.chunk_size_max), std.heap.page_size_max));
                    if (self.medium.map(file, map_size)) |mapped| {
                        chunk.map_size = map_size;
                        chunk.mapped.store(mapped, .release);
                    }
                }
            }
            chunk.readable.store(readable, .release);
            const mapped = chunk.mapped.load(.acquire) orelse return null;
            return mapped + location.offset;
        }

        /// Reads stored bytes by position; `view` has approved the location.
        pub fn read(self: *Self, location: format.Location, target: []u8, record: u64, fault: *Fault) status.Error!void {
            const name: files.Name = .{ .chunk = location.chunk };
            const file = try self.acquire(location.chunk, record, fault);
            defer self.release(location.chunk);
            const found = files.readAll(self.medium, file, target, location.offset) catch |err| {
                fault.record = record;
                return fault.in(name, err);
            };
            if (found < target.len) return fault.corruptRecord(name, record, target.len, found);
        }

        pub fn willNeed(self: *Self, id: u32, offset: u64, extent: u64) void {
            var fault: Fault = .{};
            if (id > self.committedTail().chunk) return;
            const file = self.acquire(id, Fault.no_record, &fault) catch return;
            defer self.release(id);
            self.medium.willNeed(file, offset, extent);
        }

        /// The chunk's file, open until `release`.
        fn acquire(self: *Self, id: u32, record: u64, fault: *Fault) status.Error!Medium.File {
            const chunk = try self.state(id);
            self.mutex.lock();
            defer self.mutex.unlock();
            if (chunk.file == null) {
                if (self.open_count >= limits.open_files_max) self.closeOldest();
                const name: files.Name = .{ .chunk = id };
                chunk.file = self.medium.open(name, self.access) catch |err| return switch (err) {
                    error.FileNotFound, error.NotRegular => if (record == Fault.no_record)
                        fault.corruptStore(name, 0, 0)
                    else
                        fault.corruptRecord(name, record, 0, 0),
                    else => fault.in(name, err),
                };
                self.open_count += 1;
            }
            chunk.users += 1;
            self.tick += 1;
            chunk.used_at = self.tick;
            return chunk.file.?;
        }

        fn release(self: *Self, id: u32) void {
            self.mutex.lock();
            defer self.mutex.unlock();
            self.find(id).?.users -= 1;
        }

        fn closeOldest(self: *Self) void {
            var oldest: ?*Chunk = null;
            for (&self.blocks) |*slot| {
                const block = slot.load(.monotonic) orelse continue;
                for (block) |*chunk| {
                    if (chunk.file == null or chunk.users > 0) continue;
                    if (oldest == null or chunk.used_at < oldest.?.used_at) oldest = chunk;
                }
            }
            const chunk = oldest orelse return;
            self.medium.close(chunk.file.?);
            chunk.file = null;
            self.open_count -= 1;
        }

        // Writing.

        /// Where staged records go. Reservations run in order under the mutex; the bytes are then
        /// written by whoever reserved.
        pub const Frontier = struct {
            chunks: *Self,
            tail: Tail,
            /// Bytes reserved since the frontier was opened.
            reserved: u64 = 0,
            created: bool = false,
            mutex: locks.Mutex = .init,

            pub const Run = struct { location: Tail, count: usize };

            /// Reserves space for as many of the sizes, from the first on, as fit one chunk: at least one.
            pub fn reserve(self: *Frontier, sizes: []const u32, fault: *Fault) status.Error!Run {
                self.mutex.lock();
                defer self.mutex.unlock();
                var end: u64 = self.tail.offset;
                if (end > 0 and end + sizes[0] > limits.chunk_size_max) {
                    try self.roll(fault);
                    end = 0;
                }
                const start: Tail = self.tail;
                var count: usize = 0;
                while (count < sizes.len) : (count += 1) {
                    const next = end + sizes[count];
                    if (next > limits.chunk_size_max and end > 0) break;
                    end = next;
                }
                self.tail.offset = @intCast(end);
                self.reserved += end - start.offset;
                return .{ .location = start, .count = count };
            }

            fn roll(self: *Frontier, fault: *Fault) status.Error!void {
                const id = self.tail.chunk + 1;
                if (id >= limits.chunk_count_max) {
                    fault.* = .{ .file = .{ .chunk = id }, .expected = limits.chunk_count_max, .found = id };
                    return error.InvalidArgument;
                }
                try self.chunks.create(id, fault);
                self.created = true;
                self.tail = .{ .chunk = id, .offset = 0 };
            }

            /// Moves on to a fresh chunk, whatever room the current one has.
            pub fn startChunk(self: *Frontier, fault: *Fault) status.Error!void {
                self.mutex.lock();
                defer self.mutex.unlock();
                if (self.tail.offset > 0) try self.roll(fault);
            }
        };

        fn create(self: *Self, id: u32, fault: *Fault) status.Error!void {
            const chunk = try self.state(id);
            const name: files.Name = .{ .chunk = id };
            self.mutex.lock();
            defer self.mutex.unlock();
            if (self.open_count >= limits.open_files_max) self.closeOldest();
            chunk.* = .{ .file = self.medium.create(name) catch |err| return fault.in(name, err) };
            self.open_count += 1;
        }

        /// Writes the pieces one behind the other; they are consumed.
        pub fn write(self: *Self, location: Tail, pieces: [][]const u8, fault: *Fault) status.Error!void {
            const file = try self.acquire(location.chunk, Fault.no_record, fault);
            defer self.release(location.chunk);
            files.writeVectorAll(self.medium, file, pieces, location.offset) catch |err|
                return fault.in(.{ .chunk = location.chunk }, err);
        }

        /// Makes the chunks durable from `first` to `last`, both included.
        pub fn sync(self: *Self, first: u32, last: u32, fault: *Fault) status.Error!void {
            var id = first;
            while (id <= last) : (id += 1) {
                const file = try self.acquire(id, Fault.no_record, fault);
                defer self.release(id);
                files.syncFile(self.medium, file) catch |err| return fault.in(.{ .chunk = id }, err);
            }
        }

        /// Removes what lies behind `tail`, up to the chunk `last`. Nothing committed is there.
        pub fn cut(self: *Self, tail: Tail, last: u32, fault: *Fault) status.Error!void {
            var id = last;
            while (id > tail.chunk) : (id -= 1) {
                self.retire(id, fault) catch |err| switch (err) {
                    error.FileNotFound => {},
                    else => return err,
                };
            }
            const name: files.Name = .{ .chunk = tail.chunk };
            const file = try self.acquire(tail.chunk, Fault.no_record, fault);
            defer self.release(tail.chunk);
            const size = self.medium.size(file) catch |err| return fault.in(name, err);
            if (size > tail.offset) self.medium.truncate(file, tail.offset) catch |err| return fault.in(name, err);
        }

        /// Forgets a chunk and removes its file. Nobody may read it any more.
        pub fn retire(self: *Self, id: u32, fault: *Fault) status.Error!void {
            self.forget(id);
            self.medium.unlink(.{ .chunk = id }) catch |err| return fault.in(.{ .chunk = id }, err);
        }

        pub fn forget(self: *Self, id: u32) void {
            const chunk = self.find(id) orelse return;
            self.mutex.lock();
            defer self.mutex.unlock();
            self.drop(chunk);
        }

        /// The size of the chunk's file.
        pub fn fileSize(self: *Self, id: u32, fault: *Fault) status.Error!u64 {
            const file = try self.acquire(id, Fault.no_record, fault);
            defer self.release(id);
            return self.medium.size(file) catch |err| return fault.in(.{ .chunk = id }, err);
        }
    };
}
