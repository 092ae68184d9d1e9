//! The record table: index -> location entry. Segments of fixed capacity, found by arithmetic.
//!
//! Entries below the committed length never change in place except by a journalled change, so any
//! number of threads may read them while one appends behind them. Mapped where the medium can.

const std = @import("std");
const files = @import("files.zig");
const format = @import("format.zig");
const limits_zig = @import("limits.zig");
const locks = @import("locks.zig");
const status = @import("status.zig");

const Fault = status.Fault;

pub fn Table(comptime Medium: type, comptime limits: limits_zig.Limits, comptime kind: format.Kind) type {
    return struct {
        medium: *Medium,
        access: files.Access,
        mapping: bool,
        segments: [segment_count_max]Segment = @splat(.{}),
        /// Segments whose files are open: those that the committed length reaches, and a staged one.
        segment_count: u32 = 0,
        /// Guards the opening of segments.
        mutex: locks.Mutex = .init,
        /// Entries of a durable journal that are not in the files: read before them. Sorted by index.
        overlay: []const Change = &.{},

        const Self = @This();
        pub const Entry = format.Entry(kind);
        pub const entry_size = @sizeOf(Entry);
        pub const segment_count_max = limits.segment_count_max;
        pub const segment_capacity: u64 = 1 << limits.segment_bits;
        pub const length_max: u64 = segment_capacity * segment_count_max;
        const map_size: usize = std.math.cast(usize, segment_capacity * entry_size) orelse std.math.maxInt(usize);

        pub const Change = struct { index: u64, entry: Entry };

        const Segment = struct {
            file: ?Medium.File = null,
            mapped: ?[*]align(std.heap.page_size_min) const u8 = null,
        };

        pub fn deinit(self: *Self) void {
            for (self.segments[0..self.segment_count]) |*segment| {
                if (segment.mapped) |mapped| self.medium.unmap(mapped, map_size);
                if (segment.file) |file| self.medium.close(file);
                segment.* = .{};
            }
            self.segment_count = 0;
        }

        pub fn segmentsFor(length: u64) u32 {
            return @intCast((length + segment_capacity - 1) / segment_capacity);
        }

        /// Opens what `length` entries need and checks that the files hold them.
        pub fn reach(self: *Self, length: u64, fault: *Fault) status.Error!void {
            self.mutex.lock();
            defer self.mutex.unlock();
            if (length > length_max) return fault.corruptStore(.meta, length_max, length);
            const count = segmentsFor(length);
            // Segments before the last one were whole when they were reached.
            const first_unchecked = self.segment_count -| 1;
            while (self.segment_count < count) {
                const id = self.segment_count;
                const name: files.Name = .{ .segment = id };
                const file = self.medium.open(name, self.access) catch |err| return fault.missing(name, err);
                self.adopt(file);
            }
            for (first_unchecked..@max(first_unchecked, count)) |id| {
                const needed = @as(u64, @min(length - id * segment_capacity, segment_capacity)) * entry_size;
                const name: files.Name = .{ .segment = @intCast(id) };
                const found = self.medium.size(self.segments[id].file.?) catch |err| return fault.in(name, err);
                if (found < needed) return fault.corruptStore(name, needed, found);
            }
        }

        fn adopt(self: *Self, file: Medium.File) void {
            const segment = &self.segments[self.segment_count];
            segment.file = file;
            if (self.mapping) segment.mapped = self.medium.map(file, map_size);
            @atomicStore(u32, &self.segment_count, self.segment_count + 1, .release);
        }

        /// The entry of a committed record. Beyond the file: a store that was cut.
        pub inline fn read(self: *Self, index: u64, fault: *Fault) status.Error!Entry {
            if (self.overlay.len > 0) {
                if (self.overlaid(index)) |entry| return entry;
            }
            const segment = &self.segments[@intCast(index >> limits.segment_bits)];
            const position = (index & (segment_capacity - 1)) * entry_size;
            if (segment.mapped) |mapped| {
                return @as(*const Entry, @ptrCast(@alignCast(mapped + @as(usize, @intCast(position))))).*;
            }
            var entries: [1]Entry = undefined;
            try self.readFile(index, &entries, fault);
            return entries[0];
        }

        /// Asks the processor for the entry: it is read soon.
        pub inline fn prefetch(self: *Self, index: u64) void {
            const mapped = self.segments[@intCast(index >> limits.segment_bits)].mapped orelse return;
            const position: usize = @intCast((index & (segment_capacity - 1)) * entry_size);
            @prefetch(mapped + position, .{});
        }

        /// A run of committed entries, by positional reads: for scans, which must not fill the map.
        pub fn readRun(self: *Self, first: u64, entries: []Entry, fault: *Fault) status.Error!void {
            try self.readFile(first, entries, fault);
            if (self.overlay.len == 0) return;
            for (self.overlay) |change| {
                if (change.index >= first and change.index < first + entries.len) {
                    entries[@intCast(change.index - first)] = change.entry;
                }
            }
        }

        fn readFile(self: *Self, first: u64, entries: []Entry, fault: *Fault) status.Error!void {
            var done: usize = 0;
            while (done < entries.len) {
                const index = first + done;
                const id: u32 = @intCast(index >> limits.segment_bits);
                const within = index & (segment_capacity - 1);
                const count: usize = @intCast(@min(entries.len - done, segment_capacity - within));
                const bytes = std.mem.sliceAsBytes(entries[done..][0..count]);
                const name: files.Name = .{ .segment = id };
                const found = files.readAll(self.medium, self.segments[id].file.?, bytes, within * entry_size) catch |err|
                    return fault.in(name, err);
                if (found < bytes.len) return fault.corruptStore(name, within * entry_size + bytes.len, within * entry_size + found);
                done += count;
            }
        }

        fn overlaid(self: *Self, index: u64) ?Entry {
            const position = std.sort.binarySearch(Change, self.overlay, index, struct {
                fn order(wanted: u64, change: Change) std.math.Order {
                    return std.math.order(wanted, change.index);
                }
            }.order) orelse return null;
            return self.overlay[position].entry;
        }

        /// Writes entries from index `first` on. Creates the segments that they begin; true if one was.
        pub fn write(self: *Self, first: u64, entries: []const Entry, fault: *Fault) status.Error!bool {
            if (first + entries.len > length_max) {
                fault.* = .{ .expected = length_max, .found = first + entries.len };
                return error.InvalidArgument;
            }
            var created = false;
            var done: usize = 0;
            while (done < entries.len) {
                const index = first + done;
                const id: u32 = @intCast(index >> limits.segment_bits);
                const name: files.Name = .{ .segment = id };
                if (id >= self.segment_count) {
                    const file = self.medium.create(name) catch |err| return fault.in(name, err);
                    self.mutex.lock();
                    defer self.mutex.unlock();
                    self.adopt(file);
                    created = true;
                }
                const within = index & (segment_capacity - 1);
                const count: usize = @intCast(@min(entries.len - done, segment_capacity - within));
                const bytes = std.mem.sliceAsBytes(entries[done..][0..count]);
                files.writeAll(self.medium, self.segments[id].file.?, bytes, within * entry_size) catch |err|
                    return fault.in(name, err);
                done += count;
            }
            return created;
        }

        /// Makes the segments durable that hold the entries from `first` to `end`.
        pub fn sync(self: *Self, first: u64, end: u64, fault: *Fault) status.Error!void {
            if (end <= first) return;
            var id: u32 = @intCast(first >> limits.segment_bits);
            while (id < segmentsFor(end)) : (id += 1) {
                files.syncFile(self.medium, self.segments[id].file.?) catch |err| return fault.in(.{ .segment = id }, err);
            }
        }

        /// Whether `cut` would give back whole segments.
        pub fn hasSpare(self: *Self, length: u64) bool {
            return self.segment_count > segmentsFor(length);
        }

        /// Closes the segments behind `length` entries. Nobody may read there.
        pub fn forget(self: *Self, length: u64) void {
            while (self.hasSpare(length)) {
                const id = self.segment_count - 1;
                const segment = &self.segments[id];
                if (segment.mapped) |mapped| self.medium.unmap(mapped, map_size);
                if (segment.file) |file| self.medium.close(file);
                segment.* = .{};
                @atomicStore(u32, &self.segment_count, id, .release);
            }
        }

        /// Gives back what lies behind `length` entries: removes whole segments, cuts the last. Nobody may
        /// read there. True if a file was removed.
        pub fn cut(self: *Self, length: u64, fault: *Fault) status.Error!bool {
            const keep = segmentsFor(length);
            const removed = self.hasSpare(length);
            while (self.hasSpare(length)) {
                const id = self.segment_count - 1;
                self.medium.unlink(.{ .segment = id }) catch |err| return fault.in(.{ .segment = id }, err);
                self.forget(id * segment_capacity);
            }
            if (keep > 0) {
                const name: files.Name = .{ .segment = keep - 1 };
                const size = (length - (keep - 1) * segment_capacity) * entry_size;
                const file = self.segments[keep - 1].file.?;
                const found = self.medium.size(file) catch |err| return fault.in(name, err);
                if (found > size) self.medium.truncate(file, size) catch |err| return fault.in(name, err);
            }
            return removed;
        }
    };
}
