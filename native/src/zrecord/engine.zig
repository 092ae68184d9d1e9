//! The engine: one store's committed state, and the order in which it changes.
//!
//! Append      1. payload into chunks behind the tail        (append.zig)
//!             2. entries into the table behind the length   (append.zig)
//!             3. the lazy slot L: base_seq = the current D, this boot; no fsync
//!             4. tail, then length are published to gathers
//!             A failure before 3 cuts files back to the old tail: nothing happened.
//! Sync        1. fsync chunks and table as they are, appends going on
//!             2. under exclusion: fsync what came since, the directory if files came
//!             3. the next D, in the slot that the last one is not in; fsync meta.zr
//! Delete      sync, then a journalled change                (delete.zig, journal.zig)
//! Compact     sync, copies behind the tail, fsync, then a journalled change, then unlink
//!                                                           (compact.zig, journal.zig)
//! A failed fsync, or any failure behind a durable journal, poisons the handle: reads go on, writes
//! fail, and nothing is ever reported durable again.
//!
//! Locks, in the order in which they are taken:
//!   syncing   one of sync, delete, compact, close: an fsync that failed is reported once, and whoever
//!             commits next has to know of it
//!   writers   one of append (from begin to commit or abort), sync, delete, compact, close
//!   gate      shared by everything that reads, exclusive for what moves or removes records

const std = @import("std");
const assert = std.debug.assert;
const chunks_zig = @import("chunks.zig");
const codec = @import("codec.zig");
const files = @import("files.zig");
const format = @import("format.zig");
const limits_zig = @import("limits.zig");
const locks = @import("locks.zig");
const State = @import("state.zig").State;
const status = @import("status.zig");
const table_zig = @import("table.zig");
const append = @import("append.zig");
const Layout = @import("regular.zig").Layout;
const Verified = @import("verified.zig").Verified;

const Error = status.Error;
const Fault = status.Fault;

pub const Checksums = enum { always, once, off };

pub const Stats = struct { records: u64, live_bytes: u64, chunk_bytes: u64 };

pub fn Engine(comptime Medium: type, comptime limits_given: limits_zig.Limits, comptime kind_given: format.Kind) type {
    files.check(Medium);
    return struct {
        gpa: std.mem.Allocator,
        medium: *Medium,
        writable: bool,
        checksums: Checksums,
        /// Dense: the bytes of a record. Ragged: the bytes of an item.
        width: usize,
        process: u64,
        uuid: [16]u8,
        boot_id: [16]u8,
        meta: Medium.File,
        journal: ?Medium.File = null,
        codecs: codec.Codecs,
        table: Table,
        chunks: Chunks,
        verified: Verified,
        /// Whether records may lie in the regular layout (regular.zig): set at opening, never set again.
        regular: std.atomic.Value(bool) = .init(false),
        /// A reader whose medium gave it no lock looks for changes after each batch.
        lock_free: bool = false,

        /// The newest durable slot.
        durable: format.Slot,
        /// What was committed last; changed under `writers` and `current_mutex`.
        current: State,
        current_mutex: locks.Mutex = .init,
        /// The length that gathers see: `current.length`, published after everything below it.
        length: std.atomic.Value(u64),
        staged: ?Staged = null,
        /// Whether something was committed since `durable`.
        dirty: bool = false,
        /// Whether a file was created or removed since the directory was synced.
        directory_dirty: bool = false,
        failed: bool = false,
        closed: bool = false,
        /// In a child process that has not read yet: the lock that kept records in place was the parent's.
        orphaned: bool = false,
        syncing: locks.Mutex = .init,
        writers: locks.Mutex = .init,
        gate: locks.Gate = .init,

        const Self = @This();
        pub const limits = limits_given;
        pub const kind = kind_given;
        pub const Table = table_zig.Table(Medium, limits, kind);
        pub const Chunks = chunks_zig.Chunks(Medium, limits);
        pub const Entry = Table.Entry;
        pub const Staged = append.Staged(Self);

        // Entering and leaving calls.

        /// Shared entry: the store stays open and its records in place until `leave`.
        pub fn enter(self: *Self) Error!void {
            self.gate.lockShared();
            if (self.closed) {
                self.gate.unlockShared();
                return error.Closed;
            }
        }

        pub fn leave(self: *Self) void {
            self.gate.unlockShared();
        }

        /// Entry of a call that writes: alone among those until `leaveWriter`.
        pub fn enterWriter(self: *Self) Error!void {
            if (self.medium.processId() != self.process) return error.Forked;
            self.writers.lock();
            errdefer self.writers.unlock();
            if (self.closed) return error.Closed;
            if (!self.writable) return error.ReadOnly;
            if (self.failed) return error.Failed;
        }

        pub fn leaveWriter(self: *Self) void {
            self.writers.unlock();
        }

        /// Entry of a call that makes something durable: `enterWriter`, and no other such call beside it.
        pub fn enterSyncer(self: *Self) Error!void {
            if (self.medium.processId() != self.process) return error.Forked;
            self.syncing.lock();
            errdefer self.syncing.unlock();
            try self.enterWriter();
        }

        pub fn leaveSyncer(self: *Self) void {
            self.leaveWriter();
            self.syncing.unlock();
        }

        /// In a child process: threads that held these locks do not exist here, nor what they staged.
        pub fn forgetThreads(self: *Self) void {
            self.syncing = .init;
            self.writers = .init;
            self.gate = .init;
            self.current_mutex = .init;
            self.table.mutex = .init;
            self.chunks.mutex = .init;
            self.codecs.mutex = .init;
            self.staged = null;
            self.dirty = false;
            self.orphaned = !self.closed;
        }

        pub fn deinit(self: *Self) void {
            self.gpa.free(self.table.overlay);
            self.table.overlay = &.{};
            self.table.deinit();
            self.chunks.deinit();
            self.verified.deinit();
            self.codecs.deinit();
            if (self.journal) |file| self.medium.close(file);
            self.journal = null;
            self.medium.close(self.meta);
        }

        pub inline fn layout(self: *Self) Layout {
            return .of(self.width, limits.chunk_size_max);
        }

        /// Indices mean other records from now on. Nobody reads meanwhile.
        pub fn forgetChecks(self: *Self) void {
            self.verified.clear();
            self.regular.store(false, .monotonic);
        }

        /// Makes a new committed state visible. Tail before length: a gather that sees the length
        /// finds every byte below it readable.
        pub fn publish(self: *Self, state: State) void {
            self.current_mutex.lock();
            defer self.current_mutex.unlock();
            self.chunks.publish(state.tail);
            self.current = state;
            self.length.store(state.length, .release);
        }

        pub fn committed(self: *Self) State {
            self.current_mutex.lock();
            defer self.current_mutex.unlock();
            return self.current;
        }

        pub fn stats(self: *Self) Error!Stats {
            try self.enter();
            defer self.leave();
            const state = self.committed();
            return .{ .records = state.length, .live_bytes = state.live_bytes, .chunk_bytes = state.chunk_bytes };
        }

        // Append.

        pub fn appendBegin(self: *Self) Error!void {
            try self.enterWriter();
            assert(self.staged == null);
            self.staged = .init(self);
        }

        pub fn appendPart(self: *Self, source: anytype, fault: *Fault) Error!void {
            const staged = if (self.staged) |*open| open else return error.NoAppend;
            if (staged.broken) return error.NoAppend;
            errdefer staged.broken = true;
            try staged.add(source, fault);
        }

        /// Returns the index of the first record.
        pub fn appendCommit(self: *Self, fault: *Fault) Error!u64 {
            const staged = if (self.staged) |*open| open else return error.NoAppend;
            if (staged.broken) return error.NoAppend;
            const first = self.current.length;
            if (staged.state.length > first) {
                const state = staged.finish();
                self.writeLazy(state, self.boot_id, fault) catch |err| {
                    staged.broken = true;
                    // The slot may be torn, and the one before it was an acknowledgement.
                    var ignored: Fault = .{};
                    self.writeLazy(self.current, self.boot_id, &ignored) catch self.poison();
                    return err;
                };
                self.dirty = true;
                if (staged.created) self.directory_dirty = true;
                self.publish(state);
            }
            self.staged = null;
            self.leaveWriter();
            return first;
        }

        /// Files go back to the committed tail.
        pub fn appendAbort(self: *Self, fault: *Fault) Error!void {
            const staged = if (self.staged) |*open| open else return error.NoAppend;
            defer {
                self.staged = null;
                self.leaveWriter();
            }
            if (limits.mistake() == .append_keeps_old_tail) return;
            staged.rollBack(fault) catch |err| {
                // What lies behind the tail would collide with the next append.
                self.poison();
                return err;
            };
        }

        // Sync.

        pub fn sync(self: *Self, fault: *Fault) Error!void {
            try self.enterSyncer();
            defer self.leaveSyncer();
            if (!self.dirty) return;
            // A first pass beside appends, so that the second one, which excludes them, is short.
            const seen = self.current;
            const first_pass = pass: {
                self.leaveWriter();
                defer self.writers.lock();
                break :pass self.syncData(seen, fault);
            };
            first_pass catch |err| {
                self.poison();
                return err;
            };
            const nothing_since = std.meta.eql(seen, self.current) or limits.mistake() == .sync_not_exclusive;
            try self.syncExclusive(nothing_since, fault);
        }

        /// Under `writers`: what was committed becomes durable. `data_synced` if chunks and table are.
        pub fn syncExclusive(self: *Self, data_synced: bool, fault: *Fault) Error!void {
            if (!self.dirty) return;
            errdefer self.poison();
            if (limits.mistake() == .sync_header_first) try self.commitDurable(self.current, fault);
            if (!data_synced) try self.syncData(self.current, fault);
            if (self.directory_dirty and limits.mistake() != .sync_skips_directory) {
                files.syncDirectory(self.medium) catch |err| return fault.in(.store, err);
            }
            self.directory_dirty = false;
            if (limits.mistake() != .sync_header_first) try self.commitDurable(self.current, fault);
            self.dirty = false;
        }

        fn syncData(self: *Self, state: State, fault: *Fault) Error!void {
            if (limits.mistake() != .sync_skips_chunks) {
                try self.chunks.sync(self.durable.tail_chunk, state.tail.chunk, fault);
            }
            if (limits.mistake() != .sync_skips_table) {
                try self.table.sync(self.durable.length, state.length, fault);
            }
        }

        // Slots.

        /// The next D: everything it says is durable before, and it is when this returns.
        pub fn commitDurable(self: *Self, state: State, fault: *Fault) Error!void {
            var slot = self.durable;
            slot.seq += 1;
            slot.base_seq = 0;
            slot.boot_id = @splat(0);
            slot.writer_version = format.Slot.writer_version_current;
            state.into(&slot);
            const bytes = slot.encode();
            // A slot whose fsync failed may stay in the page cache and never reach the medium: nobody
            // may find it there.
            errdefer files.writeAll(self.medium, self.meta, &std.mem.zeroes([format.Slot.size]u8), format.durableSlotOffset(slot.seq)) catch {};
            files.writeAll(self.medium, self.meta, &bytes, format.durableSlotOffset(slot.seq)) catch |err|
                return fault.in(.meta, err);
            if (limits.mistake() != .sync_skips_meta) {
                files.syncFile(self.medium, self.meta) catch |err| return fault.in(.meta, err);
            }
            self.durable = slot;
        }

        pub fn writeLazy(self: *Self, state: State, boot_id: [16]u8, fault: *Fault) Error!void {
            var slot = self.durable;
            slot.base_seq = self.durable.seq;
            slot.boot_id = boot_id;
            state.into(&slot);
            const bytes = slot.encode();
            files.writeAll(self.medium, self.meta, &bytes, format.lazy_slot_offset) catch |err|
                return fault.in(.meta, err);
        }

        /// Under `writers`. No write and no fsync happens through this handle any more. The lazy slot
        /// stops vouching for its records by the boot alone: a later open checks them.
        pub fn poison(self: *Self) void {
            if (limits.mistake() == .failed_sync_retried) return;
            self.failed = true;
            if (!self.dirty or limits.mistake() == .poison_keeps_boot_id) return;
            var ignored: Fault = .{};
            self.writeLazy(self.current, @splat(0), &ignored) catch {};
        }
    };
}
