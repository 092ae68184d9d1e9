//! The exports of zrecord.h: pointers are checked, the call is made, errors become numbers. No logic.

const std = @import("std");
const builtin = @import("builtin");

pub const codec = @import("codec.zig");
pub const create = @import("create.zig");
pub const dense = @import("dense.zig");
pub const engine = @import("engine.zig");
pub const files = @import("files.zig");
pub const format = @import("format.zig");
pub const limits = @import("limits.zig");
pub const parallel = @import("parallel.zig");
pub const ragged = @import("ragged.zig");
pub const status = @import("status.zig");
pub const store = @import("store.zig");
pub const verify = @import("verify.zig");

// A library must not print traces or drag in what that needs.
pub const panic = std.debug.FullPanic(panicked);
pub const std_options: std.Options = .{ .signal_stack_size = null };

extern "c" fn write(fd: c_int, bytes: [*]const u8, size: usize) isize;

fn panicked(message: []const u8, address: ?usize) noreturn {
    _ = address;
    _ = write(2, message.ptr, message.len);
    std.c.abort();
}

const Error = status.Error;
const Fault = status.Fault;
const gpa = std.heap.c_allocator;
const abi_version = 1;

const Medium = files.Files;
const Store = store.Store(Medium, .{});

const Handle = struct {
    medium: Medium,
    store: *Store,
    /// Until the store is closed: an open folder would keep its file system busy.
    folder_open: bool = true,

    fn closeFolder(self: *Handle) void {
        if (!@atomicRmw(bool, &self.folder_open, .Xchg, false, .acq_rel)) return;
        self.medium.closeDirectory();
    }
};

/// What C sees as zr_store.
const Opaque = opaque {};

fn handleOf(given: ?*Opaque) Error!*Handle {
    return @ptrCast(@alignCast(given orelse return error.InvalidArgument));
}

const CError = extern struct {
    size: u64,
    status: i32,
    os_errno: i32,
    file_kind: u32,
    file_id: u32,
    record: u64,
    offset: u64,
    expected: u64,
    found: u64,
};

const COptions = extern struct {
    size: u64,
    mode: u32,
    kind: u32,
    codec: u32,
    checksums: u32,
    no_mapping: u32,
    reserved: u32,
    record_width: u64,
    identity: ?[*]const u8,
    identity_size: u64,
    dict: ?[*]const u8,
    dict_size: u64,
};

/// The size of the options in the first version of this interface: no program passes fewer bytes.
/// Whoever adds a field may read it only where `size` reaches so far.
const options_size_first = 72;

const CInfo = extern struct {
    size: u64,
    format_version: u32,
    kind: u32,
    codec: u32,
    checksums: u32,
    writable: u32,
    mapped: u32,
    record_width: u64,
    identity_size: u64,
    dict_size: u64,
    epoch: u64,
    length: u64,
    uuid: [16]u8,
};

const CStats = extern struct { size: u64, records: u64, live_bytes: u64, chunk_bytes: u64 };
const CReport = extern struct { size: u64, records: u64, bytes: u64, damaged: u64, table_damaged: u64 };
const CProgress = ?*const fn (?*anyopaque, u64, u64) callconv(.c) i32;
const CFinding = ?*const fn (?*anyopaque, *const CError) callconv(.c) i32;

/// Copies as much as the caller's struct, whose first field is its size, has room for.
fn fill(target: anytype, value: std.meta.Child(@TypeOf(target))) Error!void {
    const size = target.size;
    if (size < 16) return error.InvalidArgument;
    const bytes = std.mem.asBytes(&value);
    const count = @min(size, bytes.len);
    @memcpy(@as([*]u8, @ptrCast(target))[8..@intCast(count)], bytes[8..@intCast(count)]);
}

fn describeFault(err: Error, fault: Fault) CError {
    const code = status.of(err);
    var described: CError = .{
        .size = @sizeOf(CError),
        .status = @intFromEnum(code),
        .os_errno = if (code == .os_error) (if (fault.os_errno != 0) fault.os_errno else files.last_errno) else 0,
        .file_kind = 0,
        .file_id = 0,
        .record = fault.record,
        .offset = fault.offset,
        .expected = fault.expected,
        .found = fault.found,
    };
    if (fault.file) |name| switch (name) {
        .store, .store_new => described.file_kind = 1,
        .meta => described.file_kind = 2,
        .lock => described.file_kind = 3,
        .readers_lock => described.file_kind = 4,
        .journal => described.file_kind = 5,
        .dict => described.file_kind = 6,
        .segment, .chunk => |id| {
            described.file_kind = if (name == .segment) 7 else 8;
            described.file_id = id;
        },
    };
    return described;
}

/// Ends a call: 0, or the error's number with its context in `target`.
fn finish(result: Error!void, fault: Fault, target: ?*CError) c_int {
    result catch |err| {
        if (target) |given| fill(given, describeFault(err, fault)) catch {};
        return @intFromEnum(status.of(err));
    };
    return 0;
}

/// Calls body(indices, ...) with the indices as the type that the caller names.
fn withIndices(indices: ?*const anyopaque, index_type: u32, count: u64, arguments: anytype, comptime body: anytype) Error!void {
    const length = std.math.cast(usize, count) orelse return error.InvalidArgument;
    if (length > std.math.maxInt(usize) / 8) return error.InvalidArgument;
    switch (index_type) {
        0 => return @call(.auto, body, .{try items(u64, indices, length)} ++ arguments),
        1 => return @call(.auto, body, .{try items(i64, indices, length)} ++ arguments),
        else => return error.InvalidArgument,
    }
}

fn items(comptime T: type, address: ?*const anyopaque, count: usize) Error![]const T {
    if (count == 0) return &.{};
    const given = address orelse return error.InvalidArgument;
    if (@intFromPtr(given) % @alignOf(T) != 0) return error.InvalidArgument;
    return @as([*]const T, @ptrCast(@alignCast(given)))[0..count];
}

fn itemsMutable(comptime T: type, address: ?*anyopaque, count: usize) Error![]T {
    return @constCast(try items(T, address, count));
}

fn sizeOf(size: u64) Error!usize {
    return std.math.cast(usize, size) orelse error.InvalidArgument;
}

export fn zr_abi_version() u32 {
    return abi_version;
}

export fn zr_build_info() [*:0]const u8 {
    const target = @tagName(builtin.cpu.arch) ++ "-" ++ @tagName(builtin.os.tag) ++ "-" ++ @tagName(builtin.abi);
    const numbers = std.fmt.comptimePrint("C ABI {d}, format {d}, zstd {s}", .{ abi_version, format.version, codec.zstd_version });
    return "zrecord, " ++ numbers ++ ", " ++ target ++ ", " ++ @tagName(builtin.mode);
}

export fn zr_set_num_threads(count: u32) c_int {
    if (count < 1 or count > parallel.thread_count_max) return @intFromEnum(status.Status.invalid_argument);
    parallel.setThreadCount(count);
    return 0;
}

export fn zr_get_num_threads() u32 {
    return parallel.threadCount();
}

export fn zr_peek(path: ?[*:0]const u8, info_out: ?*CInfo, identity: ?[*]u8, capacity: u64, error_out: ?*CError) c_int {
    var fault: Fault = .{};
    return finish(peek(path, info_out, identity, capacity, &fault), fault, error_out);
}

fn peek(path: ?[*:0]const u8, info_out: ?*CInfo, identity: ?[*]u8, capacity: u64, fault: *Fault) Error!void {
    const info = info_out orelse return error.InvalidArgument;
    var medium = Medium.openDirectory(path orelse return error.InvalidArgument) catch |err| switch (err) {
        error.FileNotFound => return error.NoStore,
        else => return err,
    };
    defer medium.closeDirectory();
    const description = try create.describe(gpa, &medium, .{}, fault);
    defer gpa.free(description.identity);
    if (identity) |target| {
        const size: usize = @intCast(@min(capacity, description.identity.len));
        @memcpy(target[0..size], description.identity[0..size]);
    }
    try fill(info, .{
        .size = undefined,
        .format_version = format.version,
        .kind = @intFromEnum(description.kind),
        .codec = @intFromEnum(description.codec),
        .checksums = 0,
        .writable = 0,
        .mapped = 0,
        .record_width = description.record_width,
        .identity_size = description.identity.len,
        .dict_size = description.dict_size,
        .epoch = description.epoch,
        .length = description.length,
        .uuid = description.uuid,
    });
}

export fn zr_store_open(path: ?[*:0]const u8, options: ?*const COptions, store_out: ?*?*Opaque, error_out: ?*CError) c_int {
    var fault: Fault = .{};
    return finish(open(path, options, store_out, &fault), fault, error_out);
}

fn open(path_given: ?[*:0]const u8, options_given: ?*const COptions, store_out: ?*?*Opaque, fault: *Fault) Error!void {
    const path = path_given orelse return error.InvalidArgument;
    const given = options_given orelse return error.InvalidArgument;
    const target = store_out orelse return error.InvalidArgument;
    if (given.size < options_size_first or given.reserved != 0) return error.InvalidArgument;
    const options: store.Options = .{
        .mode = switch (given.mode) {
            0 => .read,
            1 => .write,
            2 => .create,
            else => return error.InvalidArgument,
        },
        .kind = if (given.kind == 0) null else std.enums.fromInt(format.Kind, given.kind) orelse return error.InvalidArgument,
        .codec = if (given.codec == 255) null else std.enums.fromInt(format.Codec, given.codec) orelse return error.InvalidArgument,
        .checksums = switch (given.checksums) {
            0 => null,
            1 => .always,
            2 => .once,
            3 => .off,
            else => return error.InvalidArgument,
        },
        .mapping = given.no_mapping == 0,
        .record_width = given.record_width,
        .identity = if (given.identity) |bytes| bytes[0..try sizeOf(given.identity_size)] else null,
        .dict = if (given.dict) |bytes| bytes[0..try sizeOf(given.dict_size)] else &.{},
    };
    const handle = try gpa.create(Handle);
    errdefer gpa.destroy(handle);
    handle.folder_open = true;
    handle.medium = Medium.openDirectory(path) catch |err| missing: {
        if (err != error.FileNotFound) return err;
        if (options.mode == .read or options.identity == null) return error.NoStore;
        try Medium.makeDirectory(path);
        break :missing try Medium.openDirectory(path);
    };
    errdefer handle.medium.closeDirectory();
    handle.store = try Store.open(gpa, &handle.medium, options, fault);
    target.* = @ptrCast(handle);
}

export fn zr_store_close(given: ?*Opaque, error_out: ?*CError) c_int {
    var fault: Fault = .{};
    const handle = handleOf(given) catch |err| return finish(err, fault, error_out);
    const result = handle.store.close(&fault);
    handle.closeFolder();
    return finish(result, fault, error_out);
}

export fn zr_store_free(given: ?*Opaque) c_int {
    const handle = handleOf(given) catch return 0;
    const unsynced = handle.store.free();
    handle.closeFolder();
    gpa.destroy(handle);
    return @intFromBool(unsynced);
}

export fn zr_store_after_fork(given: ?*Opaque) c_int {
    const handle = handleOf(given) catch |err| return finish(err, .{}, null);
    handle.store.afterFork();
    return 0;
}

export fn zr_store_info(given: ?*Opaque, info_out: ?*CInfo) c_int {
    return finish(storeInfo(given, info_out), .{}, null);
}

fn storeInfo(given: ?*Opaque, info_out: ?*CInfo) Error!void {
    const handle = try handleOf(given);
    const info = info_out orelse return error.InvalidArgument;
    switch (handle.store.engine) {
        inline else => |inner| {
            try inner.enter();
            defer inner.leave();
            const state = inner.committed();
            try fill(info, .{
                .size = undefined,
                .format_version = format.version,
                .kind = @intFromEnum(@TypeOf(inner.*).kind),
                .codec = @intFromEnum(inner.codecs.codec),
                .checksums = switch (inner.checksums) {
                    .always => 1,
                    .once => 2,
                    .off => 3,
                },
                .writable = @intFromBool(inner.writable),
                .mapped = @intFromBool(inner.chunks.mapping),
                .record_width = inner.width,
                .identity_size = handle.store.identity.len,
                .dict_size = inner.codecs.dict.len,
                .epoch = state.epoch,
                .length = state.length,
                .uuid = inner.uuid,
            });
        },
    }
}

export fn zr_store_identity(given: ?*Opaque, target: ?[*]u8, capacity: u64, size_out: ?*u64) c_int {
    const handle = handleOf(given) catch |err| return finish(err, .{}, null);
    return finish(copyOut(handle.store.identity, target, capacity, size_out), .{}, null);
}

export fn zr_store_dict(given: ?*Opaque, target: ?[*]u8, capacity: u64, size_out: ?*u64) c_int {
    return finish(storeDict(given, target, capacity, size_out), .{}, null);
}

fn storeDict(given: ?*Opaque, target: ?[*]u8, capacity: u64, size_out: ?*u64) Error!void {
    const handle = try handleOf(given);
    switch (handle.store.engine) {
        inline else => |inner| {
            try inner.enter();
            defer inner.leave();
            try copyOut(inner.codecs.dict, target, capacity, size_out);
        },
    }
}

fn copyOut(bytes: []const u8, target: ?[*]u8, capacity: u64, size_out: ?*u64) Error!void {
    const size = size_out orelse return error.InvalidArgument;
    if (target) |given| {
        if (capacity < bytes.len) return error.TargetSize;
        @memcpy(given[0..bytes.len], bytes);
    }
    size.* = bytes.len;
}

export fn zr_store_length(given: ?*Opaque, length_out: ?*u64) c_int {
    const target = length_out orelse return finish(error.InvalidArgument, .{}, null);
    const handle = handleOf(given) catch |err| return finish(err, .{}, null);
    target.* = handle.store.length() catch |err| return finish(err, .{}, null);
    return 0;
}

export fn zr_store_stats(given: ?*Opaque, stats_out: ?*CStats) c_int {
    const target = stats_out orelse return finish(error.InvalidArgument, .{}, null);
    const handle = handleOf(given) catch |err| return finish(err, .{}, null);
    const stats = handle.store.stats() catch |err| return finish(err, .{}, null);
    return finish(fill(target, .{
        .size = undefined,
        .records = stats.records,
        .live_bytes = stats.live_bytes,
        .chunk_bytes = stats.chunk_bytes,
    }), .{}, null);
}

export fn zr_store_refresh(given: ?*Opaque, length_out: ?*u64, error_out: ?*CError) c_int {
    var fault: Fault = .{};
    const target = length_out orelse return finish(error.InvalidArgument, fault, error_out);
    const handle = handleOf(given) catch |err| return finish(err, fault, error_out);
    target.* = handle.store.refresh(&fault) catch |err| return finish(err, fault, error_out);
    return 0;
}

export fn zr_store_will_need(given: ?*Opaque, indices: ?*const anyopaque, index_type: u32, count: u64) c_int {
    const handle = handleOf(given) catch |err| return finish(err, .{}, null);
    return finish(withIndices(indices, index_type, count, .{handle}, struct {
        fn call(list: anytype, inner: *Handle) Error!void {
            return inner.store.willNeed(list);
        }
    }.call), .{}, null);
}

export fn zr_store_sync(given: ?*Opaque, error_out: ?*CError) c_int {
    var fault: Fault = .{};
    const handle = handleOf(given) catch |err| return finish(err, fault, error_out);
    return finish(handle.store.sync(&fault), fault, error_out);
}

export fn zr_store_delete(given: ?*Opaque, indices: ?*const anyopaque, index_type: u32, count: u64, deleted_out: ?*u64, error_out: ?*CError) c_int {
    var fault: Fault = .{};
    const handle = handleOf(given) catch |err| return finish(err, fault, error_out);
    const target = deleted_out orelse return finish(error.InvalidArgument, fault, error_out);
    return finish(withIndices(indices, index_type, count, .{ handle, target, &fault }, struct {
        fn call(list: anytype, inner: *Handle, deleted: *u64, context: *Fault) Error!void {
            deleted.* = try inner.store.delete(list, context);
        }
    }.call), fault, error_out);
}

/// Hands progress and findings to the caller's functions.
const Observer = struct {
    progress: CProgress,
    finding: CFinding = null,
    context: ?*anyopaque,

    pub fn step(self: Observer, done: u64, total: u64) bool {
        const call = self.progress orelse return true;
        return call(self.context, done, total) == 0;
    }

    pub fn found(self: Observer, err: Error, fault: Fault) bool {
        const call = self.finding orelse return true;
        const described = describeFault(err, fault);
        return call(self.context, &described) == 0;
    }
};

export fn zr_store_compact(given: ?*Opaque, progress: CProgress, context: ?*anyopaque, error_out: ?*CError) c_int {
    var fault: Fault = .{};
    const handle = handleOf(given) catch |err| return finish(err, fault, error_out);
    const observer: Observer = .{ .progress = progress, .context = context };
    return finish(handle.store.compact(observer, &fault), fault, error_out);
}

export fn zr_store_verify(given: ?*Opaque, finding: CFinding, progress: CProgress, context: ?*anyopaque, report_out: ?*CReport, error_out: ?*CError) c_int {
    var fault: Fault = .{};
    const handle = handleOf(given) catch |err| return finish(err, fault, error_out);
    const target = report_out orelse return finish(error.InvalidArgument, fault, error_out);
    const observer: Observer = .{ .progress = progress, .finding = finding, .context = context };
    const report = handle.store.verify(observer, &fault) catch |err| return finish(err, fault, error_out);
    return finish(fill(target, .{
        .size = undefined,
        .records = report.records,
        .bytes = report.bytes,
        .damaged = report.damaged,
        .table_damaged = @intFromBool(report.table_damaged),
    }), fault, error_out);
}

export fn zr_append_begin(given: ?*Opaque, error_out: ?*CError) c_int {
    const handle = handleOf(given) catch |err| return finish(err, .{}, error_out);
    return finish(handle.store.appendBegin(), .{}, error_out);
}

export fn zr_append_commit(given: ?*Opaque, first_index_out: ?*u64, error_out: ?*CError) c_int {
    var fault: Fault = .{};
    const handle = handleOf(given) catch |err| return finish(err, fault, error_out);
    const target = first_index_out orelse return finish(error.InvalidArgument, fault, error_out);
    target.* = handle.store.appendCommit(&fault) catch |err| return finish(err, fault, error_out);
    return 0;
}

export fn zr_append_abort(given: ?*Opaque, error_out: ?*CError) c_int {
    var fault: Fault = .{};
    const handle = handleOf(given) catch |err| return finish(err, fault, error_out);
    return finish(handle.store.appendAbort(&fault), fault, error_out);
}

export fn zr_dense_append_part(given: ?*Opaque, source: ?[*]const u8, count: u64, error_out: ?*CError) c_int {
    var fault: Fault = .{};
    return finish(denseAppendPart(given, source, count, &fault), fault, error_out);
}

fn denseAppendPart(given: ?*Opaque, source: ?[*]const u8, count: u64, fault: *Fault) Error!void {
    const handle = try handleOf(given);
    const inner = try handle.store.ofKind(.dense, fault);
    if (count == 0) return;
    const bytes = source orelse return error.InvalidArgument;
    const size = std.math.mul(u64, count, inner.width) catch return error.BatchTooLarge;
    if (size > std.math.maxInt(isize)) return error.BatchTooLarge;
    try dense.appendPart(inner, bytes[0..@intCast(size)], fault);
}

export fn zr_ragged_append_part(
    given: ?*Opaque,
    source: ?[*]const u8,
    offsets: ?[*]const u64,
    ranks: ?[*]const u8,
    dims: ?[*]const u64,
    count: u64,
    error_out: ?*CError,
) c_int {
    var fault: Fault = .{};
    return finish(raggedAppendPart(given, source, offsets, ranks, dims, count, &fault), fault, error_out);
}

fn raggedAppendPart(
    given: ?*Opaque,
    source: ?[*]const u8,
    offsets: ?[*]const u64,
    ranks: ?[*]const u8,
    dims: ?[*]const u64,
    count_given: u64,
    fault: *Fault,
) Error!void {
    const handle = try handleOf(given);
    const inner = try handle.store.ofKind(.ragged, fault);
    if (count_given == 0) return;
    const count = try sizeOf(count_given);
    const bytes = source orelse return error.InvalidArgument;
    const none: [1]u64 = .{0};
    try ragged.appendPart(
        inner,
        bytes,
        (offsets orelse return error.InvalidArgument)[0 .. count + 1],
        (ranks orelse return error.InvalidArgument)[0..count],
        dims orelse &none,
        fault,
    );
}

export fn zr_dense_gather(given: ?*Opaque, indices: ?*const anyopaque, index_type: u32, count: u64, target: ?[*]u8, target_size: u64, error_out: ?*CError) c_int {
    var fault: Fault = .{};
    return finish(denseGather(given, indices, index_type, count, target, target_size, &fault), fault, error_out);
}

fn denseGather(given: ?*Opaque, indices: ?*const anyopaque, index_type: u32, count: u64, target: ?[*]u8, target_size: u64, fault: *Fault) Error!void {
    const handle = try handleOf(given);
    const bytes = try itemsMutable(u8, target, try sizeOf(target_size));
    const inner = try handle.store.enterKind(.dense, fault);
    defer inner.leave();
    try withIndices(indices, index_type, count, .{ inner, bytes, fault }, struct {
        fn call(list: anytype, to: *Store.DenseEngine, into: []u8, context: *Fault) Error!void {
            return dense.gatherInto(to, list, into, context);
        }
    }.call);
}

export fn zr_ragged_plan(
    given: ?*Opaque,
    indices: ?*const anyopaque,
    index_type: u32,
    count: u64,
    offsets_out: ?[*]i64,
    shapes_out: ?[*]u64,
    dims_count_out: ?*u64,
    error_out: ?*CError,
) c_int {
    var fault: Fault = .{};
    return finish(raggedPlan(given, indices, index_type, count, offsets_out, shapes_out, dims_count_out, &fault), fault, error_out);
}

fn raggedPlan(
    given: ?*Opaque,
    indices: ?*const anyopaque,
    index_type: u32,
    count_given: u64,
    offsets_out: ?[*]i64,
    shapes_out: ?[*]u64,
    dims_count_out: ?*u64,
    fault: *Fault,
) Error!void {
    const handle = try handleOf(given);
    const count = try sizeOf(count_given);
    const offsets = (offsets_out orelse return error.InvalidArgument)[0 .. count + 1];
    const shapes = try itemsMutable(u64, shapes_out, count);
    const dims_count = dims_count_out orelse return error.InvalidArgument;
    const inner = try handle.store.enterKind(.ragged, fault);
    defer inner.leave();
    try withIndices(indices, index_type, count_given, .{ inner, offsets, shapes, dims_count, fault }, struct {
        fn call(list: anytype, to: *Store.RaggedEngine, o: []i64, s: []u64, d: *u64, context: *Fault) Error!void {
            return ragged.plan(to, list, o, s, d, context);
        }
    }.call);
}

export fn zr_ragged_gather(
    given: ?*Opaque,
    indices: ?*const anyopaque,
    index_type: u32,
    count: u64,
    offsets: ?[*]const i64,
    shapes: ?[*]const u64,
    target: ?[*]u8,
    target_size: u64,
    dims_out: ?[*]u64,
    dims_count: u64,
    error_out: ?*CError,
) c_int {
    var fault: Fault = .{};
    return finish(raggedGather(given, indices, index_type, count, offsets, shapes, target, target_size, dims_out, dims_count, &fault), fault, error_out);
}

fn raggedGather(
    given: ?*Opaque,
    indices: ?*const anyopaque,
    index_type: u32,
    count_given: u64,
    offsets_given: ?[*]const i64,
    shapes_given: ?[*]const u64,
    target: ?[*]u8,
    target_size: u64,
    dims_out: ?[*]u64,
    dims_count: u64,
    fault: *Fault,
) Error!void {
    const handle = try handleOf(given);
    const count = try sizeOf(count_given);
    const offsets = (offsets_given orelse return error.InvalidArgument)[0 .. count + 1];
    const shapes = try items(u64, shapes_given, count);
    const bytes = try itemsMutable(u8, target, try sizeOf(target_size));
    const dims = try itemsMutable(u64, dims_out, try sizeOf(dims_count));
    const inner = try handle.store.enterKind(.ragged, fault);
    defer inner.leave();
    try withIndices(indices, index_type, count_given, .{ inner, offsets, shapes, bytes, dims, fault }, struct {
        fn call(list: anytype, to: *Store.RaggedEngine, o: []const i64, s: []const u64, b: []u8, d: []u64, context: *Fault) Error!void {
            return ragged.gatherInto(to, list, o, s, b, d, context);
        }
    }.call);
}

export fn zr_ragged_lengths(
    given: ?*Opaque,
    indices: ?*const anyopaque,
    index_type: u32,
    first: u64,
    count: u64,
    lengths_out: ?[*]i64,
    error_out: ?*CError,
) c_int {
    var fault: Fault = .{};
    return finish(raggedLengths(given, indices, index_type, first, count, lengths_out, &fault), fault, error_out);
}

fn raggedLengths(given: ?*Opaque, indices: ?*const anyopaque, index_type: u32, first: u64, count: u64, lengths_out: ?[*]i64, fault: *Fault) Error!void {
    const handle = try handleOf(given);
    const lengths = try itemsMutable(i64, lengths_out, try sizeOf(count));
    const inner = try handle.store.enterKind(.ragged, fault);
    defer inner.leave();
    if (indices == null) return ragged.lengths(inner, ragged.Run{ .first = first }, lengths, fault);
    try withIndices(indices, index_type, count, .{ inner, lengths, fault }, struct {
        fn call(list: anytype, to: *Store.RaggedEngine, into: []i64, context: *Fault) Error!void {
            return ragged.lengths(to, ragged.List(std.meta.Elem(@TypeOf(list))){ .indices = list }, into, context);
        }
    }.call);
}

export fn zr_dict_train(
    samples: ?[*]const u8,
    sizes: ?[*]const u64,
    count: u64,
    dict: ?[*]u8,
    capacity: u64,
    dict_size_out: ?*u64,
    error_out: ?*CError,
) c_int {
    const target = dict_size_out orelse return finish(error.InvalidArgument, .{}, error_out);
    target.* = trainDict(samples, sizes, count, dict, capacity) catch |err| return finish(err, .{}, error_out);
    return 0;
}

fn trainDict(samples: ?[*]const u8, sizes_given: ?[*]const u64, count: u64, dict: ?[*]u8, capacity: u64) Error!u64 {
    const sizes = try items(u64, sizes_given, try sizeOf(count));
    if (sizes.len == 0) return error.TooFewSamples;
    const target = try itemsMutable(u8, dict, try sizeOf(capacity));
    var total: u64 = 0;
    for (sizes) |size| total = std.math.add(u64, total, size) catch return error.InvalidArgument;
    if (total > std.math.maxInt(isize)) return error.InvalidArgument;
    const bytes = (samples orelse return error.InvalidArgument)[0..@intCast(total)];
    return try codec.trainDict(gpa, bytes, sizes, target);
}

test {
    std.testing.refAllDecls(@This());
    _ = @import("append.zig");
    _ = @import("chunks.zig");
    _ = @import("compact.zig");
    _ = @import("delete.zig");
    _ = @import("gather.zig");
    _ = @import("journal.zig");
    _ = @import("recovery.zig");
    _ = @import("regular.zig");
    _ = @import("spans.zig");
    _ = @import("table.zig");
    _ = @import("verified.zig");
    _ = @import("will_need.zig");
}
