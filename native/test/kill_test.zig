//! kill -9 of a real process at every call that changes a file, on a real file system: a child runs a
//! script of 200 operations, is killed, and the store holds what it acknowledged, or that and the whole
//! operation in flight.

const std = @import("std");
const zrecord = @import("zrecord");
const model = @import("model.zig");
const options = @import("test_options");

const c = std.c;
const files = zrecord.files;
const Fault = zrecord.status.Fault;
const Id = model.Id;
const gpa = std.heap.c_allocator;

const limits: zrecord.limits.Limits = .{
    .segment_bits = 5,
    .chunk_size_max = 512,
    .chunk_count_max = 1 << 12,
    .journal_size = 512,
    .append_block_size = 128,
    .compact_group_size = 512,
    .open_files_max = 4,
};
const Store = zrecord.store.Store(KillingFiles, limits);
const operation_count = 200;

/// The platform's files, whose process ends itself before the chosen change.
const KillingFiles = struct {
    inner: files.Files,

    pub const File = files.Files.File;

    /// Changes made so far in this process, and the one that is not made any more.
    var changes: u64 = 0;
    var last: u64 = std.math.maxInt(u64);

    fn change() void {
        if (changes == last) _ = c.kill(c.getpid(), .KILL);
        changes += 1;
    }

    pub fn open(self: *KillingFiles, name: files.Name, access: files.Access) files.Error!File {
        return self.inner.open(name, access);
    }
    pub fn create(self: *KillingFiles, name: files.Name) files.Error!File {
        change();
        return self.inner.create(name);
    }
    pub fn close(self: *KillingFiles, file: File) void {
        self.inner.close(file);
    }
    pub fn rename(self: *KillingFiles, from: files.Name, to: files.Name) files.Error!void {
        change();
        return self.inner.rename(from, to);
    }
    pub fn unlink(self: *KillingFiles, name: files.Name) files.Error!void {
        change();
        return self.inner.unlink(name);
    }
    pub fn size(self: *KillingFiles, file: File) files.Error!u64 {
        return self.inner.size(file);
    }
    pub fn truncate(self: *KillingFiles, file: File, size_new: u64) files.Error!void {
        change();
        return self.inner.truncate(file, size_new);
    }
    pub fn read(self: *KillingFiles, file: File, target: []u8, offset: u64) files.Error!usize {
        return self.inner.read(file, target, offset);
    }
    pub fn write(self: *KillingFiles, file: File, source: []const u8, offset: u64) files.Error!usize {
        change();
        return self.inner.write(file, source, offset);
    }
    pub fn writeVector(self: *KillingFiles, file: File, pieces: []const []const u8, offset: u64) files.Error!usize {
        change();
        return self.inner.writeVector(file, pieces, offset);
    }
    pub fn sync(self: *KillingFiles, file: File) files.Error!void {
        change();
        return self.inner.sync(file);
    }
    pub fn syncDirectory(self: *KillingFiles) files.Error!void {
        change();
        return self.inner.syncDirectory();
    }
    pub fn list(self: *KillingFiles, visitor: anytype) !void {
        return self.inner.list(visitor);
    }
    pub fn tryLock(self: *KillingFiles, file: File, kind: files.Lock) files.Error!bool {
        return self.inner.tryLock(file, kind);
    }
    pub fn unlock(self: *KillingFiles, file: File) void {
        self.inner.unlock(file);
    }
    pub fn map(self: *KillingFiles, file: File, capacity: usize) ?[*]align(std.heap.page_size_min) const u8 {
        return self.inner.map(file, capacity);
    }
    pub fn unmap(self: *KillingFiles, mapped: [*]align(std.heap.page_size_min) const u8, capacity: usize) void {
        self.inner.unmap(mapped, capacity);
    }
    pub fn isResident(self: *KillingFiles, start: [*]const u8, extent: usize) bool {
        return self.inner.isResident(start, extent);
    }
    pub fn willNeed(self: *KillingFiles, file: File, offset: u64, extent: u64) void {
        self.inner.willNeed(file, offset, extent);
    }
    pub fn processId(self: *KillingFiles) u64 {
        return self.inner.processId();
    }
    pub fn sleep(self: *KillingFiles, milliseconds: u32) void {
        self.inner.sleep(milliseconds);
    }
    pub fn bootId(self: *KillingFiles) [16]u8 {
        return self.inner.bootId();
    }
    pub fn random(self: *KillingFiles, target: []u8) files.Error!void {
        return self.inner.random(target);
    }
};

const Operation = union(enum) {
    /// How many records.
    append: u32,
    /// Where deleted records lie, in descending order: as shares of the length in 1/65536.
    delete: [2]u16,
    sync,
    compact,
};

fn script(seed: u64) [operation_count]Operation {
    var prng: std.Random.DefaultPrng = .init(seed);
    const random = prng.random();
    var operations: [operation_count]Operation = undefined;
    for (&operations) |*operation| operation.* = switch (random.uintLessThan(u32, 20)) {
        0...10 => .{ .append = random.intRangeAtMost(u32, 1, 9) },
        11...14 => pair: {
            const a, const b = .{ random.int(u16), random.int(u16) };
            break :pair .{ .delete = .{ @max(a, b), @min(a, b) } };
        },
        15...17 => .sync,
        else => .compact,
    };
    return operations;
}

/// The indices of a delete, each once.
fn doomed(shares: [2]u16, length: u64, buffer: *[2]u64) []const u64 {
    if (length == 0) return buffer[0..0];
    for (shares, buffer) |share, *index| index.* = share * length >> 16;
    return if (buffer[0] == buffer[1]) buffer[0..1] else buffer;
}

const Progress = struct {
    pub fn step(_: Progress, _: u64, _: u64) bool {
        return true;
    }
};

fn perform(store: *Store, operation: Operation, next: *Id, fault: *Fault) !void {
    const engine = store.engine.dense;
    switch (operation) {
        .append => |count| {
            var bytes: [9 * model.dense_width]u8 = undefined;
            for (0..count) |ordinal| {
                model.fill(next.*, bytes[ordinal * model.dense_width ..][0..model.dense_width]);
                next.* += 1;
            }
            try engine.appendBegin();
            try zrecord.dense.appendPart(engine, bytes[0 .. count * model.dense_width], fault);
            _ = try engine.appendCommit(fault);
        },
        .delete => |shares| {
            var buffer: [2]u64 = undefined;
            _ = try store.delete(doomed(shares, engine.length.load(.acquire), &buffer), fault);
        },
        .sync => try store.sync(fault),
        .compact => try store.compact(Progress{}, fault),
    }
}

/// The child: never returns. Each acknowledgement is a byte in the pipe.
fn runChild(path: [:0]const u8, operations: []const Operation, last: u64, pipe: c_int) noreturn {
    KillingFiles.last = last;
    var medium: KillingFiles = .{ .inner = files.Files.openDirectory(path) catch c._exit(2) };
    var fault: Fault = .{};
    const store = Store.open(gpa, &medium, .{ .mode = .write }, &fault) catch c._exit(3);
    KillingFiles.changes = 0;
    var next: Id = 0;
    for (operations) |operation| {
        perform(store, operation, &next, &fault) catch c._exit(4);
        if (c.write(pipe, "+", 1) != 1) c._exit(5);
    }
    // How many changes the whole script makes, for the parent to choose among.
    _ = c.write(pipe, std.mem.asBytes(&KillingFiles.changes), 8);
    c._exit(0);
}

fn createStore(path: [:0]const u8) !void {
    try files.Files.makeDirectory(path);
    var medium: KillingFiles = .{ .inner = try .openDirectory(path) };
    defer medium.inner.closeDirectory();
    var fault: Fault = .{};
    const store = try Store.open(gpa, &medium, .{
        .mode = .create,
        .kind = .dense,
        .codec = .raw,
        .record_width = model.dense_width,
        .identity = "identity",
    }, &fault);
    defer _ = store.free();
    try store.close(&fault);
}

fn remove(path: [:0]const u8) !void {
    var medium: files.Files = try .openDirectory(path);
    defer medium.closeDirectory();
    try medium.list(Remover{ .medium = &medium });
    if (c.rmdir(path) != 0) return error.FolderNotEmpty;
}

const Remover = struct {
    medium: *files.Files,

    pub fn visit(self: Remover, found: ?files.Name) !void {
        if (found) |name| try self.medium.unlink(name);
    }
};

/// Runs the script in a child that ends before change `last`; returns what it sent.
fn runScript(path: [:0]const u8, operations: []const Operation, last: u64, sent: []u8) !usize {
    var pipe: [2]c_int = undefined;
    if (c.pipe(&pipe) != 0) return error.NoPipe;
    const child = c.fork();
    if (child == 0) {
        _ = c.close(pipe[0]);
        runChild(path, operations, last, pipe[1]);
    }
    _ = c.close(pipe[1]);
    defer _ = c.close(pipe[0]);
    var count: usize = 0;
    while (true) {
        const got = c.read(pipe[0], sent.ptr + count, sent.len - count);
        if (got <= 0) break;
        count += @intCast(got);
    }
    var status: c_int = 0;
    _ = c.waitpid(child, &status, 0);
    const killed = status & 0x7f == @intFromEnum(c.SIG.KILL);
    if (!killed and status != 0) {
        std.debug.print("the child failed: status {x}\n", .{status});
        return error.ChildFailed;
    }
    return count;
}

/// Whether the store holds exactly the records of one of the models, in order.
fn holds(path: [:0]const u8, models: []const []const Id) !bool {
    var medium: KillingFiles = .{ .inner = try .openDirectory(path) };
    defer medium.inner.closeDirectory();
    var fault: Fault = .{};
    const store = try Store.open(gpa, &medium, .{ .mode = .write, .checksums = .always }, &fault);
    defer _ = store.free();
    const length: usize = @intCast(try store.length());
    const indices = try gpa.alloc(u64, length);
    defer gpa.free(indices);
    for (indices, 0..) |*index, position| index.* = position;
    const bytes = try gpa.alloc(u8, length * model.dense_width);
    defer gpa.free(bytes);
    try zrecord.dense.gatherInto(store.engine.dense, @as([]const u64, indices), bytes, &fault);
    for (models) |expected| {
        if (expected.len != length) continue;
        for (expected, 0..) |id, position| {
            if (model.identify(.dense, bytes[position * model.dense_width ..][0..model.dense_width]) != id) break;
        } else return true;
    }
    return false;
}

test "a process killed at any change of a file loses nothing that it acknowledged" {
    const operations = script(options.seed);
    // What the store holds after each operation.
    var states: [operation_count + 1][]const Id = undefined;
    var reference: model.Model = .{};
    defer reference.deinit(gpa);
    defer for (states) |state| gpa.free(state);
    var next: Id = 0;
    states[0] = try gpa.dupe(Id, &.{});
    for (operations, 1..) |operation, number| {
        switch (operation) {
            .append => |count| for (0..count) |_| {
                try reference.append(gpa, &.{next});
                next += 1;
            },
            .delete => |shares| {
                var buffer: [2]u64 = undefined;
                reference.delete(doomed(shares, reference.ids.items.len, &buffer));
            },
            .sync, .compact => {},
        }
        states[number] = try gpa.dupe(Id, reference.ids.items);
    }

    // In memory where that is a file system: the kernel is as real, and an fsync costs nothing.
    const parent = if (c.access("/dev/shm", 7) == 0) "/dev/shm" else ".";
    var path_buffer: [64]u8 = undefined;
    const path = try std.fmt.bufPrintZ(&path_buffer, "{s}/kill-test-{d}", .{ parent, c.getpid() });
    var sent: [operation_count + 8]u8 = undefined;
    try createStore(path);
    const whole = try runScript(path, &operations, std.math.maxInt(u64), &sent);
    try std.testing.expectEqual(sent.len, whole);
    const changes = std.mem.readInt(u64, sent[operation_count..][0..8], .little);
    try std.testing.expect(try holds(path, states[operation_count..]));
    try remove(path);

    var failed: u64 = 0;
    for (0..@intCast(changes)) |last| {
        try createStore(path);
        defer remove(path) catch {};
        const acknowledged = try runScript(path, &operations, last, &sent);
        const possible = states[acknowledged..@min(acknowledged + 2, states.len)];
        if (try holds(path, possible)) continue;
        failed += 1;
        std.debug.print("killed before change {d}, after {d} acknowledgements (seed {d})\n", .{ last, acknowledged, options.seed });
    }
    std.debug.print("kills: {d} operations, {d} passed, {d} failed\n", .{ operation_count, changes - failed, failed });
    try std.testing.expectEqual(0, failed);
}
