//! Verify: reads every stored byte by position, at the speed of the medium, and compares all sums.

const std = @import("std");
const files = @import("files.zig");
const format = @import("format.zig");
const gather = @import("gather.zig");
const ragged = @import("ragged.zig");
const status = @import("status.zig");

const Error = status.Error;
const Fault = status.Fault;

const scan_entries = 1024;
/// Neighbouring records are read together up to this size.
const read_size = 1 << 20;

pub const Report = struct {
    records: u64 = 0,
    bytes: u64 = 0,
    damaged: u64 = 0,
    table_damaged: bool = false,
};

/// `observer` has step(done, total) in bytes and found(err, fault); each returns false to stop. Gathers,
/// appends and deletes may go on: what is removed meanwhile is not reported.
pub fn verify(engine: anytype, observer: anytype, fault: *Fault) Error!Report {
    var scan: Scan(@TypeOf(engine.*), @TypeOf(observer)) = .{ .engine = engine, .observer = observer };
    defer engine.gpa.free(scan.buffer);
    return scan.run(fault);
}

fn Scan(comptime E: type, comptime Observer: type) type {
    return struct {
        engine: *E,
        observer: Observer,
        buffer: []u8 = &.{},
        report: Report = .{},

        const Self = @This();

        fn run(self: *Self, fault: *Fault) Error!Report {
            const engine = self.engine;
            const start = engine.committed();
            const entries = try engine.gpa.alloc(E.Entry, @intCast(@min(start.length, scan_entries)));
            defer engine.gpa.free(entries);
            var digest: u64 = 0;
            var first: u64 = 0;
            while (first < start.length) {
                try engine.enter();
                defer engine.leave();
                const length = @min(start.length, engine.length.load(.acquire));
                if (first >= length) break;
                const batch = entries[0..@intCast(@min(length - first, scan_entries))];
                try engine.table.readRun(first, batch, fault);
                for (batch, first..) |*entry, index| digest +%= format.entryDigest(index, std.mem.asBytes(entry));
                try self.checkBatch(first, batch);
                first += batch.len;
                if (!self.observer.step(self.report.bytes, @max(start.live_bytes, self.report.bytes))) return error.Cancelled;
            }
            if (engine.committed().epoch == start.epoch) self.report.table_damaged = digest != start.table_digest;
            return self.report;
        }

        fn checkBatch(self: *Self, first: u64, batch: []const E.Entry) Error!void {
            var from: usize = 0;
            while (from < batch.len) {
                // Records that lie one behind the other take one read.
                var to = from + 1;
                var size: u64 = batch[from].stored_size;
                while (to < batch.len and batch[to].chunk == batch[from].chunk and
                    batch[to].offset == batch[from].offset + size and size + batch[to].stored_size <= read_size) : (to += 1)
                {
                    size += batch[to].stored_size;
                }
                try self.checkRun(first + from, batch[from..to], size);
                from = to;
            }
        }

        fn checkRun(self: *Self, first: u64, records: []const E.Entry, size: u64) Error!void {
            var fault: Fault = .{};
            const bytes = self.readRun(first, records, size, &fault) catch |err| {
                if (err == error.OutOfMemory) return err;
                if (records.len == 1) return self.found(err, first, fault);
                // Which of them it is, one by one.
                for (records, first..) |*entry, index| try self.checkRun(index, entry[0..1], entry.stored_size);
                return;
            };
            var offset: usize = 0;
            for (records, first..) |*entry, index| {
                const sum = format.entrySum(&self.engine.uuid, index, entry, format.hash(0, bytes[offset..][0..entry.stored_size]));
                offset += entry.stored_size;
                if (sum == entry.sum) continue;
                const err = fault.corruptRecord(.{ .chunk = entry.chunk }, index, entry.sum, sum);
                fault.offset = entry.offset;
                try self.found(err, index, fault);
            }
            self.report.records += records.len;
            self.report.bytes += size;
        }

        fn readRun(self: *Self, first: u64, records: []const E.Entry, size: u64, fault: *Fault) Error![]const u8 {
            const engine = self.engine;
            for (records, first..) |*entry, index| {
                switch (engine.codecs.codec) {
                    inline else => |codec| try gather.checkEntry(engine, codec, entry, index, fault),
                }
                switch (E.kind) {
                    .dense => if (entry.logical_size != engine.width) {
                        return fault.corruptRecord(.{ .chunk = entry.chunk }, index, engine.width, entry.logical_size);
                    },
                    .ragged => _ = try ragged.itemCount(engine, entry, index, fault),
                }
                _ = try engine.chunks.view(gather.locationOf(entry), index, fault);
            }
            if (self.buffer.len < size) {
                engine.gpa.free(self.buffer);
                self.buffer = &.{};
                // Grows by doubling: a small store takes little.
                const rounded = if (size < read_size) std.math.ceilPowerOfTwoAssert(u64, size) else size;
                self.buffer = try engine.gpa.alloc(u8, @intCast(rounded));
            }
            const bytes = self.buffer[0..@intCast(size)];
            const whole: format.Location = .{
                .chunk = records[0].chunk,
                .offset = records[0].offset,
                .stored_size = @intCast(size),
                .logical_size = 0,
            };
            try engine.chunks.read(whole, bytes, first, fault);
            return bytes;
        }

        fn found(self: *Self, err: Error, index: u64, fault: Fault) Error!void {
            self.report.damaged += 1;
            var named = fault;
            named.record = index;
            if (!self.observer.found(err, named)) return error.Cancelled;
        }
    };
}
