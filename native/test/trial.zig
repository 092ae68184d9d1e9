//! A store on a simulated disk, driven by record numbers.

const std = @import("std");
const zrecord = @import("zrecord");
const sim = @import("sim_files.zig");
const model = @import("model.zig");

const format = zrecord.format;
const Disk = sim.Disk;
const Fault = zrecord.status.Fault;
const Id = model.Id;
pub const Error = zrecord.status.Error;
pub const Limits = zrecord.limits.Limits;

/// Ten records cross every boundary.
pub const tiny: Limits = .{
    .segment_bits = 3,
    .chunk_size_max = 128,
    .chunk_count_max = 1 << 12,
    .journal_size = 256,
    .append_block_size = 64,
    .compact_group_size = 256,
    .open_files_max = 2,
    .reader_wait_ms = 40,
    .slot_wait_ms = 40,
    .may_err = true,
};

/// Shared content of records, as a trained dictionary would have.
const dict = "zrecord test dictionary: 0123456789abcdef 0123456789abcdef 0123456789abcdef";

/// How the stores of this thread check what they read.
pub threadlocal var checksums: zrecord.engine.Checksums = .always;

/// Where the last store of this thread that did not open failed.
pub threadlocal var open_fault: Fault = .{};

pub fn Trial(comptime limits: Limits, comptime kind_given: format.Kind) type {
    return struct {
        gpa: std.mem.Allocator,
        medium: sim.SimFiles,
        store: *Store,
        fault: Fault = .{},

        const Self = @This();
        pub const Store = zrecord.store.Store(sim.SimFiles, limits);
        pub const kind = kind_given;
        const width = if (kind == .dense) model.dense_width else model.item_size;

        pub fn create(gpa: std.mem.Allocator, disk: *Disk, codec: format.Codec) Error!*Self {
            return start(gpa, disk, .{
                .mode = .create,
                .kind = kind,
                .codec = codec,
                .checksums = checksums,
                .record_width = width,
                .identity = "identity",
                .dict = if (codec == .zstd_dict) dict else &.{},
            });
        }

        pub fn open(gpa: std.mem.Allocator, disk: *Disk) Error!*Self {
            return start(gpa, disk, .{ .mode = .write, .checksums = checksums });
        }

        pub fn openReader(gpa: std.mem.Allocator, disk: *Disk) Error!*Self {
            return start(gpa, disk, .{ .mode = .read, .checksums = checksums });
        }

        pub fn start(gpa: std.mem.Allocator, disk: *Disk, options: zrecord.store.Options) Error!*Self {
            var path: Disk.Path = undefined;
            const self = try gpa.create(Self);
            errdefer gpa.destroy(self);
            self.* = .{ .gpa = gpa, .medium = try .openDirectory(disk.path(&path)), .store = undefined };
            errdefer self.medium.closeDirectory();
            errdefer open_fault = self.fault;
            self.store = try Store.open(gpa, &self.medium, options, &self.fault);
            return self;
        }

        /// Frees what the process had, as its end would: nothing is made durable.
        pub fn abandon(self: *Self) void {
            _ = self.store.free();
            self.medium.closeDirectory();
            self.gpa.destroy(self);
        }

        /// Also frees, whatever it returns.
        pub fn close(self: *Self) Error!void {
            const closed = self.store.close(&self.fault);
            self.abandon();
            return closed;
        }

        fn engine(self: *Self) *(if (kind == .dense) Store.DenseEngine else Store.RaggedEngine) {
            return @field(self.store.engine, @tagName(kind));
        }

        pub fn append(self: *Self, ids: []const Id, parts: usize) Error!void {
            try self.stage(ids, parts);
            _ = self.engine().appendCommit(&self.fault) catch |err| {
                self.engine().appendAbort(&self.fault) catch {};
                return err;
            };
        }

        pub fn abort(self: *Self, ids: []const Id, parts: usize) Error!void {
            try self.stage(ids, parts);
            try self.engine().appendAbort(&self.fault);
        }

        fn stage(self: *Self, ids: []const Id, parts: usize) Error!void {
            try self.engine().appendBegin();
            errdefer self.engine().appendAbort(&self.fault) catch {};
            for (0..parts) |part| {
                const first = ids.len * part / parts;
                const end = ids.len * (part + 1) / parts;
                if (end > first) try self.appendPart(ids[first..end]);
            }
        }

        fn appendPart(self: *Self, ids: []const Id) Error!void {
            var part: model.Part(kind, 64) = .{};
            for (ids) |id| part.add(id);
            try part.append(self.engine(), &self.fault);
        }

        pub fn sync(self: *Self) Error!void {
            try self.store.sync(&self.fault);
        }

        /// `indices` in descending order, each once.
        pub fn delete(self: *Self, indices: []const u64) Error!void {
            _ = try self.store.delete(indices, &self.fault);
        }

        pub fn compact(self: *Self) Error!void {
            try self.store.compact(Progress{}, &self.fault);
        }

        const Progress = struct {
            pub fn step(_: Progress, _: u64, _: u64) bool {
                return true;
            }
        };

        /// What the store itself says about it.
        pub fn hasUnsynced(self: *Self) bool {
            return self.engine().dirty;
        }

        pub fn length(self: *Self) u64 {
            return self.engine().length.load(.acquire);
        }

        /// The numbers of all records in order. CorruptRecord also for one that no append ever had.
        pub fn readAll(self: *Self, gpa: std.mem.Allocator) Error![]Id {
            const count: usize = @intCast(self.length());
            const indices = try gpa.alloc(u64, count);
            defer gpa.free(indices);
            for (indices, 0..) |*index, position| index.* = position;
            return self.read(gpa, indices);
        }

        pub fn read(self: *Self, gpa: std.mem.Allocator, indices: []const u64) Error![]Id {
            const ids = try gpa.alloc(Id, indices.len);
            errdefer gpa.free(ids);
            if (indices.len == 0) return ids;
            if (kind == .dense) {
                const bytes = try gpa.alloc(u8, indices.len * model.dense_width);
                defer gpa.free(bytes);
                try zrecord.dense.gatherInto(self.engine(), indices, bytes, &self.fault);
                for (ids, 0..) |*id, ordinal| {
                    const record = bytes[ordinal * model.dense_width ..][0..model.dense_width];
                    id.* = model.identify(kind, record) orelse return error.CorruptRecord;
                }
                return ids;
            }
            return self.readRagged(gpa, indices, ids);
        }

        fn readRagged(self: *Self, gpa: std.mem.Allocator, indices: []const u64, ids: []Id) Error![]Id {
            const offsets = try gpa.alloc(i64, indices.len + 1);
            defer gpa.free(offsets);
            const shapes = try gpa.alloc(u64, indices.len);
            defer gpa.free(shapes);
            var dim_count: u64 = 0;
            try zrecord.ragged.plan(self.engine(), indices, offsets, shapes, &dim_count, &self.fault);
            const bytes = try gpa.alloc(u8, @as(usize, @intCast(offsets[indices.len])) * model.item_size);
            defer gpa.free(bytes);
            const dims = try gpa.alloc(u64, @intCast(dim_count));
            defer gpa.free(dims);
            try zrecord.ragged.gatherInto(self.engine(), indices, offsets, shapes, bytes, dims, &self.fault);
            var next_dim: usize = 0;
            for (ids, shapes, 0..) |*id, shape_word, ordinal| {
                const from: usize = @intCast(offsets[ordinal] * model.item_size);
                const to: usize = @intCast(offsets[ordinal + 1] * model.item_size);
                id.* = model.identify(kind, bytes[from..to]) orelse return error.CorruptRecord;
                var buffer: [model.rank_max]u64 = undefined;
                const expected = model.dims(id.*, &buffer);
                const shape: format.Shape = @bitCast(shape_word);
                if (shape.rank != expected.len) return error.CorruptRecord;
                if (expected.len > 0 and shape.first != expected[0]) return error.CorruptRecord;
                if (expected.len >= 3) {
                    if (!std.mem.eql(u64, dims[next_dim..][0..expected.len], expected)) return error.CorruptRecord;
                    next_dim += expected.len;
                }
            }
            return ids;
        }
    };
}
