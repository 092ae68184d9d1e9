//! A store: a folder with one engine in it. Creation in place, opening, locks, kind and identity.
//!
//! Locks are whole-file locks of the open file, so they go with the process that holds them.
//!   lock          exclusive: the one writer
//!   readers.lock  shared: every reader. Exclusive, for a moment: a writer that deletes, compacts, or
//!                 takes back what a reader may have seen

const std = @import("std");
const compact_zig = @import("compact.zig");
const create_zig = @import("create.zig");
const delete_zig = @import("delete.zig");
const engine_zig = @import("engine.zig");
const files = @import("files.zig");
const format = @import("format.zig");
const gather_zig = @import("gather.zig");
const limits_zig = @import("limits.zig");
const recovery = @import("recovery.zig");
const status = @import("status.zig");
const verify_zig = @import("verify.zig");
const will_need = @import("will_need.zig");

const Error = status.Error;
const Fault = status.Fault;
const Kind = format.Kind;
const Codec = format.Codec;

pub const Mode = enum { read, write, create };

pub const Options = struct {
    mode: Mode,
    kind: ?Kind = null,
    codec: ?Codec = null,
    checksums: ?engine_zig.Checksums = null,
    mapping: bool = true,
    /// 0: whatever is stored.
    record_width: u64 = 0,
    identity: ?[]const u8 = null,
    dict: []const u8 = &.{},
};

pub fn Store(comptime Medium: type, comptime limits: limits_zig.Limits) type {
    return struct {
        gpa: std.mem.Allocator,
        medium: *Medium,
        identity: []u8,
        record_width: u64,
        writer_lock: ?Medium.File,
        readers_lock: ?Medium.File,
        /// Whether `readers_lock` is held shared.
        reader_locked: bool,
        process: std.atomic.Value(u64),
        engine: AnyEngine,

        const Self = @This();
        pub const DenseEngine = engine_zig.Engine(Medium, limits, .dense);
        pub const RaggedEngine = engine_zig.Engine(Medium, limits, .ragged);
        const AnyEngine = union(Kind) { dense: *DenseEngine, ragged: *RaggedEngine };

        // Opening.

        /// The folder of `medium` is open; the medium outlives the store.
        pub fn open(gpa: std.mem.Allocator, medium: *Medium, options: Options, fault: *Fault) Error!*Self {
            if (create_zig.describe(gpa, medium, limits, fault)) |description| {
                if (options.mode != .create) return openExisting(gpa, medium, options, description, fault);
                gpa.free(description.identity);
                return error.StoreExists;
            } else |err| switch (err) {
                error.NoStore, error.Unfinished => if (options.mode == .read or options.identity == null) return err,
                else => return err,
            }
            try create_zig.create(gpa, medium, limits, .{
                .kind = options.kind orelse return error.InvalidArgument,
                .codec = options.codec orelse .zstd,
                .record_width = options.record_width,
                .identity = options.identity.?,
                .dict = options.dict,
            }, fault);
            var again = options;
            again.dict = &.{};
            return openExisting(gpa, medium, again, try create_zig.describe(gpa, medium, limits, fault), fault);
        }

        /// Takes over the description's identity, also when it fails.
        fn openExisting(gpa: std.mem.Allocator, medium: *Medium, options: Options, description: create_zig.Description, fault: *Fault) Error!*Self {
            errdefer gpa.free(description.identity);
            try compare(options, description);
            if (options.dict.len > 0) return error.BadDictionary;
            const writable = options.mode != .read;
            const store = try gpa.create(Self);
            errdefer gpa.destroy(store);
            store.* = .{
                .gpa = gpa,
                .medium = medium,
                .identity = description.identity,
                .record_width = description.record_width,
                .writer_lock = null,
                .readers_lock = null,
                .reader_locked = false,
                .process = .init(medium.processId()),
                .engine = undefined,
            };
            errdefer store.releaseLocks();
            if (writable) try store.lockWriter(fault) else try store.lockReader(fault);
            switch (description.kind) {
                inline else => |kind| {
                    const E = engine_zig.Engine(Medium, limits, kind);
                    const engine = try gpa.create(E);
                    errdefer gpa.destroy(engine);
                    try store.openEngine(E, engine, options, writable, fault);
                    store.engine = @unionInit(AnyEngine, @tagName(kind), engine);
                },
            }
            return store;
        }

        fn compare(options: Options, description: create_zig.Description) Error!void {
            if (options.kind) |kind| if (kind != description.kind) return error.IdentityMismatch;
            if (options.codec) |codec| if (codec != description.codec) return error.IdentityMismatch;
            if (options.record_width != 0 and options.record_width != description.record_width) return error.IdentityMismatch;
            if (options.identity) |identity| {
                if (!std.mem.eql(u8, identity, description.identity)) return error.IdentityMismatch;
            }
        }

        fn openEngine(store: *Self, comptime E: type, engine: *E, options: Options, writable: bool, fault: *Fault) Error!void {
            const medium = store.medium;
            const access: files.Access = if (writable) .write else .read;
            const meta = medium.open(.meta, access) catch |err| return fault.missing(.meta, err);
            const mapping = options.mapping and (writable or store.reader_locked);
            var initialised = false;
            errdefer if (!initialised) medium.close(meta);
            const slots = try create_zig.settledSlots(medium, meta, limits, fault);
            const slot = slots.durable;
            if (slot.kind != @intFromEnum(E.kind)) return fault.corruptStore(.meta, @intFromEnum(E.kind), slot.kind);
            if (writable and slot.features_read_only != 0) {
                fault.* = .{ .file = .meta, .expected = 0, .found = slot.features_read_only };
                return error.Unsupported;
            }
            const codec: Codec = @enumFromInt(slot.codec);
            engine.* = .{
                .gpa = store.gpa,
                .medium = medium,
                .writable = writable,
                .checksums = options.checksums orelse if (codec == .raw) .once else .always,
                .width = @intCast(store.record_width),
                .process = store.process.raw,
                .uuid = slot.uuid,
                .boot_id = medium.bootId(),
                .meta = meta,
                .codecs = .{ .gpa = store.gpa, .codec = codec },
                .table = .{ .medium = medium, .access = access, .mapping = mapping },
                .chunks = .{ .gpa = store.gpa, .medium = medium, .access = access, .mapping = mapping },
                .verified = .{ .gpa = store.gpa },
                .lock_free = !writable and !store.reader_locked,
                .durable = slot,
                .current = .of(slot),
                .length = .init(0),
            };
            initialised = true;
            errdefer engine.deinit();
            engine.verified = try .init(store.gpa, engine.checksums == .once);
            if (codec == .zstd_dict) {
                const dict = try store.readDict(slot, fault);
                defer store.gpa.free(dict);
                try engine.codecs.init(store.gpa, codec, dict, writable);
            } else try store.requireNoDict(fault);
            engine.journal = medium.open(.journal, access) catch |err| return fault.missing(.journal, err);
            try recovery.recover(engine, slots, OthersGone{ .store = store }, fault);
            const is_looked_for = engine.width >= gather_zig.resident_bytes_min;
            engine.regular = .init(E.kind == .dense and codec == .raw and !is_looked_for and engine.current.epoch == 0);
        }

        const OthersGone = struct {
            store: *Self,

            /// Records that a reader may have seen are going: none may be left.
            pub fn require(self: OthersGone, fault: *Fault) Error!void {
                if (self.store.writer_lock == null) return;
                try self.store.lockOutReaders(fault);
                self.store.letReadersIn();
            }
        };

        fn readDict(store: *Self, slot: format.Slot, fault: *Fault) Error![]u8 {
            const file = store.medium.open(.dict, .read) catch |err| return fault.missing(.dict, err);
            defer store.medium.close(file);
            const size = store.medium.size(file) catch |err| return fault.in(.dict, err);
            if (size != slot.dict_size) return fault.corruptStore(.dict, slot.dict_size, size);
            const dict = try store.gpa.alloc(u8, @intCast(size));
            errdefer store.gpa.free(dict);
            const found = files.readAll(store.medium, file, dict, 0) catch |err| return fault.in(.dict, err);
            const sum = format.hash(0, dict);
            if (found != size or sum != slot.dict_hash) return fault.corruptStore(.dict, slot.dict_hash, sum);
            return dict;
        }

        /// A dictionary where none belongs: the folder was put together from two stores.
        fn requireNoDict(store: *Self, fault: *Fault) Error!void {
            const file = store.medium.open(.dict, .read) catch |err| return switch (err) {
                error.FileNotFound => {},
                else => fault.missing(.dict, err),
            };
            store.medium.close(file);
            return fault.corruptStore(.dict, 0, 0);
        }

        // Locks.

        fn lockWriter(store: *Self, fault: *Fault) Error!void {
            const medium = store.medium;
            store.writer_lock = medium.open(.lock, .write) catch |err| return fault.missing(.lock, err);
            const mine = medium.tryLock(store.writer_lock.?, .exclusive) catch |err| return fault.in(.lock, err);
            if (!mine) return error.BusyWriter;
        }

        /// Waits while a writer moves or removes records. A medium that knows no locks lets the reader go
        /// on without one, and without mapping.
        fn lockReader(store: *Self, fault: *Fault) Error!void {
            const medium = store.medium;
            store.readers_lock = medium.open(.readers_lock, .read) catch |err| switch (err) {
                error.FileNotFound, error.NotRegular => return fault.corruptStore(.readers_lock, 0, 0),
                else => return,
            };
            var waited_ms: u32 = 0;
            while (true) {
                const mine = medium.tryLock(store.readers_lock.?, .shared) catch return;
                if (mine) break;
                if (waited_ms >= limits.reader_wait_ms) return error.BusyMaintenance;
                medium.sleep(20);
                waited_ms += 20;
            }
            store.reader_locked = true;
        }

        fn lockOutReaders(store: *Self, fault: *Fault) Error!void {
            const medium = store.medium;
            if (store.readers_lock == null) {
                store.readers_lock = medium.open(.readers_lock, .write) catch |err| return fault.missing(.readers_lock, err);
            }
            const mine = medium.tryLock(store.readers_lock.?, .exclusive) catch |err| return fault.in(.readers_lock, err);
            if (!mine) return error.BusyReaders;
        }

        fn letReadersIn(store: *Self) void {
            store.medium.unlock(store.readers_lock.?);
        }

        /// A child that was just born holds copies of these files until it runs, so closing alone would
        /// leave them locked for that long.
        fn releaseLocks(store: *Self) void {
            if (store.writer_lock) |file| store.medium.unlock(file);
            if (store.reader_locked) store.medium.unlock(store.readers_lock.?);
            store.closeLocks();
        }

        /// Leaves the locks to whoever else holds these files.
        fn closeLocks(store: *Self) void {
            if (store.writer_lock) |file| store.medium.close(file);
            if (store.readers_lock) |file| store.medium.close(file);
            store.writer_lock = null;
            store.readers_lock = null;
            store.reader_locked = false;
        }

        // Every call first.

        /// In a child process: lets go of the parent's locks, whose copies came with the fork. Threads of
        /// the parent may have held locks in memory; nothing that they were doing goes on here.
        pub fn afterFork(store: *Self) void {
            const process = store.medium.processId();
            var seen = store.process.load(.acquire);
            while (seen != process) {
                if (seen == process_changing) {
                    std.atomic.spinLoopHint();
                    seen = store.process.load(.acquire);
                } else if (store.process.cmpxchgWeak(seen, process_changing, .acquire, .acquire)) |other| {
                    seen = other;
                } else {
                    store.closeLocks();
                    switch (store.engine) {
                        inline else => |engine| engine.forgetThreads(),
                    }
                    store.process.store(process, .release);
                    return;
                }
            }
        }

        const process_changing = std.math.maxInt(u64);

        /// A child reads under a lock of its own, taken at its first use.
        fn ready(store: *Self, fault: *Fault) Error!void {
            if (store.process.load(.acquire) != store.medium.processId()) store.afterFork();
            switch (store.engine) {
                inline else => |engine| {
                    if (!@atomicLoad(bool, &engine.orphaned, .acquire)) return;
                    engine.writers.lock();
                    defer engine.writers.unlock();
                    if (!engine.orphaned or engine.closed) return;
                    try store.lockReader(fault);
                    engine.lock_free = !store.reader_locked;
                    try recovery.refresh(engine, fault);
                    @atomicStore(bool, &engine.orphaned, false, .release);
                },
            }
        }

        // Reading.

        pub fn length(store: *Self) Error!u64 {
            switch (store.engine) {
                inline else => |engine| {
                    try engine.enter();
                    defer engine.leave();
                    return engine.length.load(.acquire);
                },
            }
        }

        pub fn stats(store: *Self) Error!engine_zig.Stats {
            switch (store.engine) {
                inline else => |engine| return engine.stats(),
            }
        }

        pub fn refresh(store: *Self, fault: *Fault) Error!u64 {
            try store.ready(fault);
            switch (store.engine) {
                inline else => |engine| {
                    engine.writers.lock();
                    defer engine.writers.unlock();
                    if (engine.closed) return error.Closed;
                    if (store.writer_lock == null) try recovery.refresh(engine, fault);
                    return engine.length.load(.acquire);
                },
            }
        }

        pub fn willNeed(store: *Self, indices: anytype) Error!void {
            var fault: Fault = .{};
            try store.ready(&fault);
            switch (store.engine) {
                inline else => |engine| {
                    try engine.enter();
                    defer engine.leave();
                    try will_need.willNeed(engine, indices);
                },
            }
        }

        pub fn verify(store: *Self, observer: anytype, fault: *Fault) Error!verify_zig.Report {
            try store.ready(fault);
            switch (store.engine) {
                inline else => |engine| return verify_zig.verify(engine, observer, fault),
            }
        }

        /// The engine of the kind that a data call is for, entered: `leave` it.
        pub fn enterKind(store: *Self, comptime kind: Kind, fault: *Fault) Error!*engine_zig.Engine(Medium, limits, kind) {
            const engine = try store.ofKind(kind, fault);
            try store.ready(fault);
            try engine.enter();
            return engine;
        }

        pub fn ofKind(store: *Self, comptime kind: Kind, fault: *Fault) Error!*engine_zig.Engine(Medium, limits, kind) {
            if (store.engine != kind) {
                fault.* = .{ .expected = @intFromEnum(kind), .found = @intFromEnum(store.engine) };
                return error.WrongKind;
            }
            return @field(store.engine, @tagName(kind));
        }

        // Writing.

        pub fn sync(store: *Self, fault: *Fault) Error!void {
            switch (store.engine) {
                inline else => |engine| return engine.sync(fault),
            }
        }

        pub fn appendBegin(store: *Self) Error!void {
            switch (store.engine) {
                inline else => |engine| return engine.appendBegin(),
            }
        }

        pub fn appendCommit(store: *Self, fault: *Fault) Error!u64 {
            switch (store.engine) {
                inline else => |engine| return engine.appendCommit(fault),
            }
        }

        pub fn appendAbort(store: *Self, fault: *Fault) Error!void {
            switch (store.engine) {
                inline else => |engine| return engine.appendAbort(fault),
            }
        }

        /// Returns how many records were deleted: an index that is named twice counts once.
        pub fn delete(store: *Self, indices: anytype, fault: *Fault) Error!u64 {
            switch (store.engine) {
                inline else => |engine| {
                    try engine.enterSyncer();
                    defer engine.leaveSyncer();
                    const doomed = try delete_zig.select(engine, indices, fault);
                    defer store.gpa.free(doomed.memory);
                    if (doomed.indices.len == 0) return 0;
                    try store.lockOutReaders(fault);
                    defer store.letReadersIn();
                    try delete_zig.delete(engine, doomed.indices, fault);
                    return doomed.indices.len;
                },
            }
        }

        pub fn compact(store: *Self, progress: anytype, fault: *Fault) Error!void {
            switch (store.engine) {
                inline else => |engine| {
                    try engine.enterSyncer();
                    defer engine.leaveSyncer();
                    const victims = try compact_zig.survey(engine, fault);
                    defer store.gpa.free(victims);
                    // Nothing to give back needs nobody gone.
                    if (victims.len == 0 and !engine.table.hasSpare(engine.current.length)) return;
                    try store.lockOutReaders(fault);
                    defer store.letReadersIn();
                    try compact_zig.compact(engine, victims, progress, fault);
                },
            }
        }

        // Ending.

        /// A writer makes everything durable first. The store is closed whatever is returned.
        pub fn close(store: *Self, fault: *Fault) Error!void {
            if (store.process.load(.acquire) != store.medium.processId()) store.afterFork();
            switch (store.engine) {
                inline else => |engine| {
                    engine.syncing.lock();
                    defer engine.syncing.unlock();
                    engine.writers.lock();
                    defer engine.writers.unlock();
                    if (engine.closed) return;
                    const inherited = engine.process != store.process.raw;
                    const result: Error!void = if (inherited or !engine.dirty) {} else if (engine.failed)
                        error.Failed
                    else
                        engine.syncExclusive(false, fault);
                    engine.gate.lock();
                    defer engine.gate.unlock();
                    engine.closed = true;
                    engine.deinit();
                    store.releaseLocks();
                    return result;
                },
            }
        }

        /// Without close: releases everything and makes nothing durable. True if records were committed
        /// that no sync covered.
        pub fn free(store: *Self) bool {
            if (store.process.load(.acquire) != store.medium.processId()) store.afterFork();
            const gpa = store.gpa;
            var unsynced = false;
            switch (store.engine) {
                inline else => |engine| {
                    if (!engine.closed) {
                        const inherited = engine.process != store.process.raw;
                        unsynced = engine.dirty and !inherited;
                        if (engine.staged) |*staged| {
                            var ignored: Fault = .{};
                            if (!inherited) staged.rollBack(&ignored) catch {};
                        }
                        engine.deinit();
                        store.releaseLocks();
                    }
                    gpa.destroy(engine);
                },
            }
            gpa.free(store.identity);
            gpa.destroy(store);
            return unsynced;
        }
    };
}
