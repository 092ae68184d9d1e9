//! A disk in memory that loses, tears and fails on request. It has the declarations of the real
//! medium, so the engine runs on it unchanged.
//!
//! What is written lies in the page cache (`content`) at once and on the medium (`durable`) after a
//! sync. In between it is a list of updates, each of which a power cut keeps or loses on its own:
//! pieces of writes no longer than `page_size`, changes of size, and entries of the folder.
//! `image` builds the disk that a chosen set of kept updates leaves behind.

const std = @import("std");
const files = @import("zrecord").files;

const Error = files.Error;
const Name = files.Name;

/// What a call is; also the kind of a numbered event when it changed something.
pub const Call = enum {
    open_directory,
    make_directory,
    open,
    create,
    rename,
    unlink,
    size,
    truncate,
    read,
    write,
    sync,
    sync_directory,
    list,
    try_lock,
    random,
    sleep,
};

pub const Event = struct { number: u64, call: Call, name: ?Name, offset: u64 = 0, size: u64 = 0 };

pub const Hook = struct {
    context: *anyopaque,
    call: *const fn (context: *anyopaque, disk: *Disk, event: Event) void,
};

pub const FaultKind = enum { io, no_space, quota, interrupted, again, short_by_one, short_by_half, zero };

/// What a failed sync leaves of the pages that it did not write: still dirty, clean in the cache
/// although never written, or as they are on the medium. Names stay dirty: a file system whose
/// journal of names fails stops altogether.
pub const SyncLoss = enum { kept, dropped, reverted };

pub const Fault = struct {
    /// The number of the call that fails first.
    call: u64,
    kind: FaultKind,
    for_good: bool = false,
    sync_loss: SyncLoss = .kept,
    /// Only calls of this kind fail, and only they are counted.
    only: ?Call = null,
    hits: u64 = 0,
};

const Update = union(enum) {
    write: struct { offset: u64, bytes: []const u8 },
    resize: u64,
};

const Content = std.array_list.Aligned(u8, .fromByteUnits(std.heap.page_size_min));

const Inode = struct {
    content: Content = .empty,
    /// Null: the same as `content`.
    durable: ?[]const u8 = null,
    updates: std.ArrayList(Update) = .empty,
    /// A failed sync left pages that are neither dirty nor written.
    diverged: bool = false,
    map_capacity: usize = 0,
    locks: std.ArrayList(struct { handle: u32, kind: files.Lock }) = .empty,
    /// The last name, for reports.
    name: Name,
};

const Entry = struct { name: Name, inode: u32 };

const NameUpdate = union(enum) {
    link: Entry,
    unlink: Name,
    rename: struct { from: Name, to: Name, inode: u32 },
};

const Handle = struct { inode: u32, writable: bool, is_open: bool = true };

/// Bytes beyond the end of a mapped file: whoever trusts them reads nonsense.
const beyond_end = 0xaa;
const map_capacity_max = 1 << 20;

pub const Disk = struct {
    gpa: std.mem.Allocator,
    exists: bool = true,
    inodes: std.ArrayList(Inode) = .empty,
    entries: std.ArrayList(Entry) = .empty,
    entries_durable: std.ArrayList(Entry) = .empty,
    name_updates: std.ArrayList(NameUpdate) = .empty,
    /// Name updates that an ordered folder has written because a file was synced after them.
    names_ordered: usize = 0,
    handles: std.ArrayList(Handle) = .empty,
    handles_open: u32 = 0,
    folders_open: u32 = 0,

    page_size: u32 = 4096,
    /// Off: updates are not kept, the disk cannot be cut. Faster.
    tracking: bool = true,
    mappable: bool = false,
    boot_id: [16]u8 = @splat(1),
    process_id: u64 = 1,
    random_state: u64 = 7,

    event_count: u64 = 0,
    call_count: u64 = 0,
    calls_by_kind: std.enums.EnumArray(Call, u64) = .initFill(0),
    hook: ?Hook = null,
    sleep_hook: ?Hook = null,
    slept_ms: u64 = 0,
    fault: ?Fault = null,
    trace: ?*std.ArrayList(Event) = null,
    call_log: ?*std.ArrayList(Call) = null,

    pub fn init(gpa: std.mem.Allocator) Disk {
        return .{ .gpa = gpa };
    }

    pub fn deinit(disk: *Disk) void {
        for (disk.inodes.items) |*inode| {
            disk.settle(inode);
            inode.updates.deinit(disk.gpa);
            inode.content.deinit(disk.gpa);
            inode.locks.deinit(disk.gpa);
        }
        disk.inodes.deinit(disk.gpa);
        disk.entries.deinit(disk.gpa);
        disk.entries_durable.deinit(disk.gpa);
        disk.name_updates.deinit(disk.gpa);
        disk.handles.deinit(disk.gpa);
        disk.* = undefined;
    }

    pub const Path = [32]u8;

    /// The text by which this disk's folder is opened.
    pub fn path(disk: *Disk, buffer: *Path) [:0]const u8 {
        return std.fmt.bufPrintZ(buffer, "sim:{x}", .{@intFromPtr(disk)}) catch unreachable;
    }

    pub fn folder(disk: *Disk) SimFiles {
        disk.folders_open += 1;
        return .{ .disk = disk };
    }

    pub fn content(disk: *const Disk, name: Name) ?[]u8 {
        const inode = find(disk.entries.items, name) orelse return null;
        return disk.inodes.items[inode].content.items;
    }

    /// Puts a file there as if it had always been: durable, no event.
    pub fn plant(disk: *Disk, name: Name, bytes: []const u8) void {
        const index = find(disk.entries.items, name) orelse disk.newInode(name);
        const inode = &disk.inodes.items[index];
        disk.settle(inode);
        inode.content.clearRetainingCapacity();
        must(inode.content.appendSlice(disk.gpa, bytes));
        disk.link(&disk.entries, .{ .name = name, .inode = index });
        disk.link(&disk.entries_durable, .{ .name = name, .inode = index });
    }

    /// Everything in the page cache is on the medium, as after a clean shutdown.
    pub fn flush(disk: *Disk) void {
        for (disk.inodes.items) |*inode| disk.settle(inode);
        disk.nameFlush();
    }

    // Crash images.

    pub fn updateCount(disk: *const Disk) usize {
        var count = disk.name_updates.items.len;
        for (disk.inodes.items) |inode| count += inode.updates.items.len;
        return count;
    }

    pub const Names = enum { strict, ordered };

    /// The disk after a power cut that kept the chosen updates; names come first in `kept`. An
    /// ordered folder keeps a prefix: as many as are chosen, and at least what a sync wrote.
    pub fn image(disk: *const Disk, gpa: std.mem.Allocator, kept: []const bool, names: Names) Disk {
        var cut = disk.successor(gpa);
        const name_updates = disk.name_updates.items;
        must(cut.entries.appendSlice(gpa, disk.entries_durable.items));
        var prefix: usize = 0;
        for (kept[0..name_updates.len]) |keep| prefix += @intFromBool(keep);
        prefix = @max(prefix, disk.names_ordered);
        for (name_updates, 0..) |update, position| {
            if (if (names == .ordered) position < prefix else kept[position]) cut.applyName(&cut.entries, update);
        }
        var next = name_updates.len;
        for (disk.inodes.items, 0..) |*inode, index| {
            const chosen = kept[next..][0..inode.updates.items.len];
            next += chosen.len;
            for (cut.entries.items) |*entry| {
                if (entry.inode != index) continue;
                const fresh = cut.newInode(entry.name);
                const target = &cut.inodes.items[fresh].content;
                // Marked until every entry has found its file.
                entry.inode = fresh | image_mark;
                must(target.appendSlice(gpa, inode.durable orelse inode.content.items));
                for (inode.updates.items, chosen) |update, keep| {
                    if (keep) apply(gpa, target, update);
                }
            }
        }
        for (cut.entries.items) |*entry| entry.inode &= ~image_mark;
        must(cut.entries_durable.appendSlice(gpa, cut.entries.items));
        return cut;
    }

    const image_mark: u32 = 1 << 31;

    /// The disk after every process was killed: the page cache is whole, locks are gone. Updates
    /// that were not synced may still be lost in a later power cut.
    pub fn killed(disk: *const Disk, gpa: std.mem.Allocator) Disk {
        var copy = disk.successor(gpa);
        copy.boot_id = disk.boot_id;
        for (disk.inodes.items) |*inode| {
            const fresh = copy.newInode(inode.name);
            const target = &copy.inodes.items[fresh];
            must(target.content.appendSlice(gpa, inode.content.items));
            if (inode.durable) |durable| target.durable = must(gpa.dupe(u8, durable));
            target.diverged = inode.diverged;
            for (inode.updates.items) |update| must(target.updates.append(gpa, switch (update) {
                .write => |piece| .{ .write = .{ .offset = piece.offset, .bytes = must(gpa.dupe(u8, piece.bytes)) } },
                .resize => |size| .{ .resize = size },
            }));
        }
        must(copy.entries.appendSlice(gpa, disk.entries.items));
        must(copy.entries_durable.appendSlice(gpa, disk.entries_durable.items));
        must(copy.name_updates.appendSlice(gpa, disk.name_updates.items));
        copy.names_ordered = disk.names_ordered;
        return copy;
    }

    /// An empty disk of the same kind, started anew.
    fn successor(disk: *const Disk, gpa: std.mem.Allocator) Disk {
        var next: Disk = .{
            .gpa = gpa,
            .page_size = disk.page_size,
            .mappable = disk.mappable,
            .boot_id = disk.boot_id,
            .process_id = disk.process_id + 1,
            .random_state = disk.random_state +% 1,
        };
        // As unlike the one before as real ones are.
        for (0..2) |half| {
            const before = std.mem.readInt(u64, disk.boot_id[half * 8 ..][0..8], .little);
            std.mem.writeInt(u64, next.boot_id[half * 8 ..][0..8], std.hash.XxHash3.hash(half, std.mem.asBytes(&before)), .little);
        }
        return next;
    }

    /// One number for all that a store could read here.
    pub fn fingerprint(disk: *const Disk) u64 {
        var total: u64 = 0;
        for (disk.entries.items) |entry| {
            const seed = @as(u64, @intFromEnum(entry.name)) << 32 | switch (entry.name) {
                .segment, .chunk => |id| id,
                else => 0,
            };
            // Independent of the order of the entries.
            total +%= std.hash.XxHash3.hash(seed, disk.inodes.items[entry.inode].content.items);
        }
        return total;
    }

    // State.

    fn newInode(disk: *Disk, name: Name) u32 {
        must(disk.inodes.append(disk.gpa, .{ .name = name }));
        return @intCast(disk.inodes.items.len - 1);
    }

    fn find(entries: []const Entry, name: Name) ?u32 {
        for (entries) |entry| if (std.meta.eql(entry.name, name)) return entry.inode;
        return null;
    }

    fn link(disk: *Disk, entries: *std.ArrayList(Entry), new: Entry) void {
        drop(entries, new.name);
        must(entries.append(disk.gpa, new));
    }

    fn drop(entries: *std.ArrayList(Entry), name: Name) void {
        for (entries.items, 0..) |entry, index| {
            if (!std.meta.eql(entry.name, name)) continue;
            _ = entries.orderedRemove(index);
            return;
        }
    }

    fn applyName(disk: *Disk, entries: *std.ArrayList(Entry), update: NameUpdate) void {
        switch (update) {
            .link => |entry| disk.link(entries, entry),
            .unlink => |name| drop(entries, name),
            .rename => |move| {
                drop(entries, move.from);
                disk.link(entries, .{ .name = move.to, .inode = move.inode });
            },
        }
    }

    fn changeName(disk: *Disk, update: NameUpdate) void {
        disk.applyName(&disk.entries, update);
        if (disk.tracking) {
            must(disk.name_updates.append(disk.gpa, update));
        } else {
            disk.applyName(&disk.entries_durable, update);
        }
    }

    fn nameFlush(disk: *Disk) void {
        for (disk.name_updates.items) |update| disk.applyName(&disk.entries_durable, update);
        disk.name_updates.clearRetainingCapacity();
        disk.names_ordered = 0;
    }

    fn change(disk: *Disk, inode: *Inode, update: Update) void {
        if (disk.tracking) {
            if (inode.durable == null) inode.durable = must(disk.gpa.dupe(u8, inode.content.items));
            var kept = update;
            if (update == .write) kept.write.bytes = must(disk.gpa.dupe(u8, update.write.bytes));
            must(inode.updates.append(disk.gpa, kept));
        }
        if (inode.map_capacity > 0) {
            const end = switch (update) {
                .write => |piece| piece.offset + piece.bytes.len,
                .resize => |size| size,
            };
            if (end > inode.map_capacity) @panic("simulation: a file grew beyond its mapping");
            const cut_from = @min(end, inode.content.items.len);
            if (update == .resize) @memset(inode.content.items[cut_from..], beyond_end);
        }
        apply(disk.gpa, &inode.content, update);
    }

    fn apply(gpa: std.mem.Allocator, target: *Content, update: Update) void {
        switch (update) {
            .write => |piece| {
                const end = piece.offset + piece.bytes.len;
                if (end > target.items.len) grow(gpa, target, end);
                @memcpy(target.items[@intCast(piece.offset)..@intCast(end)], piece.bytes);
            },
            .resize => |size| if (size > target.items.len) grow(gpa, target, size) else {
                target.items.len = @intCast(size);
            },
        }
    }

    fn grow(gpa: std.mem.Allocator, target: *Content, size: u64) void {
        must(target.appendNTimes(gpa, 0, @intCast(size - target.items.len)));
    }

    /// The cache's content is durable.
    fn settle(disk: *Disk, inode: *Inode) void {
        clearUpdates(disk, inode);
        if (inode.durable) |durable| disk.gpa.free(durable);
        inode.durable = null;
        inode.diverged = false;
    }

    fn clearUpdates(disk: *Disk, inode: *Inode) void {
        for (inode.updates.items) |update| {
            if (update == .write) disk.gpa.free(update.write.bytes);
        }
        inode.updates.clearRetainingCapacity();
    }

    fn flushInode(disk: *Disk, inode: *Inode) void {
        if (!inode.diverged) return disk.settle(inode);
        // Pages that an earlier sync gave up are not dirty: this sync does not write them.
        var durable: Content = .empty;
        must(durable.appendSlice(disk.gpa, inode.durable.?));
        for (inode.updates.items) |update| apply(disk.gpa, &durable, update);
        clearUpdates(disk, inode);
        disk.gpa.free(inode.durable.?);
        inode.durable = must(disk.gpa.dupe(u8, durable.items));
        durable.deinit(disk.gpa);
    }

    fn loseDirtyPages(disk: *Disk, inode: *Inode, loss: SyncLoss) void {
        if (loss == .kept or inode.durable == null) return;
        clearUpdates(disk, inode);
        inode.diverged = true;
        if (loss != .reverted) return;
        // The size belongs to the inode, which stays; pages that never were on the medium are zeros.
        const size = inode.content.items.len;
        inode.content.clearRetainingCapacity();
        const durable = inode.durable.?;
        must(inode.content.appendSlice(disk.gpa, durable[0..@min(durable.len, size)]));
        grow(disk.gpa, &inode.content, size);
    }

    fn happened(disk: *Disk, event: Event) void {
        var numbered = event;
        numbered.number = disk.event_count;
        disk.event_count += 1;
        if (disk.trace) |trace| must(trace.append(disk.gpa, numbered));
        if (disk.hook) |hook| hook.call(hook.context, disk, numbered);
    }

    /// Counts the call and lets the fault strike. Returns how many of `size` bytes may be moved.
    fn admit(disk: *Disk, call: Call, size: usize) Error!usize {
        const kind_count = disk.calls_by_kind.getPtr(call);
        defer kind_count.* += 1;
        defer disk.call_count += 1;
        if (disk.call_log) |log| must(log.append(disk.gpa, call));
        const fault = if (disk.fault) |*fault| fault else return size;
        if (fault.only) |only| if (only != call) return size;
        const number = if (fault.only == null) disk.call_count else kind_count.*;
        if (number < fault.call or (number > fault.call and !fault.for_good)) return size;
        const moves_bytes = call == .read or call == .write;
        const errno: i32, const err: Error = switch (fault.kind) {
            .io => .{ 5, error.System },
            .no_space => .{ 28, error.NoSpace },
            .quota => .{ 122, error.NoSpace },
            .again => .{ 11, error.System },
            .interrupted => if (moves_bytes or call == .sync or call == .sync_directory) .{ 4, error.Interrupted } else return size,
            .short_by_one, .short_by_half, .zero => {
                if (!moves_bytes or size == 0) return size;
                fault.hits += 1;
                return switch (fault.kind) {
                    .short_by_one => @max(size - 1, 1),
                    .short_by_half => @max(size / 2, 1),
                    else => 0,
                };
            },
        };
        fault.hits += 1;
        files.last_errno = errno;
        return err;
    }
};

/// One open folder. Several at the same disk are several processes.
pub const SimFiles = struct {
    disk: *Disk,

    pub const File = u32;

    fn diskAt(path: [*:0]const u8) *Disk {
        const text = std.mem.span(path);
        std.debug.assert(std.mem.startsWith(u8, text, "sim:"));
        return @ptrFromInt(std.fmt.parseInt(usize, text[4..], 16) catch unreachable);
    }

    pub fn openDirectory(path: [*:0]const u8) Error!SimFiles {
        const disk = diskAt(path);
        _ = try disk.admit(.open_directory, 0);
        if (!disk.exists) return notFound();
        return disk.folder();
    }

    pub fn makeDirectory(path: [*:0]const u8) Error!void {
        const disk = diskAt(path);
        _ = try disk.admit(.make_directory, 0);
        disk.exists = true;
    }

    pub fn closeDirectory(self: *SimFiles) void {
        self.disk.folders_open -= 1;
    }

    pub fn open(self: *SimFiles, name: Name, access: files.Access) Error!File {
        _ = try self.disk.admit(.open, 0);
        const inode = Disk.find(self.disk.entries.items, name) orelse return notFound();
        return self.newHandle(inode, access == .write);
    }

    pub fn create(self: *SimFiles, name: Name) Error!File {
        const disk = self.disk;
        _ = try disk.admit(.create, 0);
        if (Disk.find(disk.entries.items, name) != null) {
            files.last_errno = 17;
            return error.FileExists;
        }
        const inode = disk.newInode(name);
        const handle = self.newHandle(inode, true);
        disk.changeName(.{ .link = .{ .name = name, .inode = inode } });
        disk.happened(.{ .number = 0, .call = .create, .name = name });
        return handle;
    }

    fn newHandle(self: *SimFiles, inode: u32, writable: bool) File {
        must(self.disk.handles.append(self.disk.gpa, .{ .inode = inode, .writable = writable }));
        self.disk.handles_open += 1;
        return @intCast(self.disk.handles.items.len - 1);
    }

    fn inodeOf(self: *SimFiles, file: File) *Inode {
        const handle = self.disk.handles.items[file];
        if (!handle.is_open) @panic("simulation: a closed file is used");
        return &self.disk.inodes.items[handle.inode];
    }

    fn inodeToChange(self: *SimFiles, file: File) *Inode {
        if (!self.disk.handles.items[file].writable) @panic("simulation: a file opened for reading is changed");
        return self.inodeOf(file);
    }

    pub fn close(self: *SimFiles, file: File) void {
        self.unlock(file);
        self.disk.handles.items[file].is_open = false;
        self.disk.handles_open -= 1;
    }

    pub fn rename(self: *SimFiles, from: Name, to: Name) Error!void {
        _ = try self.disk.admit(.rename, 0);
        const inode = Disk.find(self.disk.entries.items, from) orelse return notFound();
        self.disk.changeName(.{ .rename = .{ .from = from, .to = to, .inode = inode } });
        self.disk.inodes.items[inode].name = to;
        self.disk.happened(.{ .number = 0, .call = .rename, .name = to });
    }

    pub fn unlink(self: *SimFiles, name: Name) Error!void {
        _ = try self.disk.admit(.unlink, 0);
        if (Disk.find(self.disk.entries.items, name) == null) return notFound();
        self.disk.changeName(.{ .unlink = name });
        self.disk.happened(.{ .number = 0, .call = .unlink, .name = name });
    }

    pub fn size(self: *SimFiles, file: File) Error!u64 {
        _ = try self.disk.admit(.size, 0);
        return self.inodeOf(file).content.items.len;
    }

    pub fn truncate(self: *SimFiles, file: File, size_new: u64) Error!void {
        const inode = self.inodeToChange(file);
        _ = try self.disk.admit(.truncate, 0);
        self.disk.change(inode, .{ .resize = size_new });
        self.disk.happened(.{ .number = 0, .call = .truncate, .name = inode.name, .size = size_new });
    }

    pub fn read(self: *SimFiles, file: File, target: []u8, offset: u64) Error!usize {
        const content = self.inodeOf(file).content.items;
        const admitted = try self.disk.admit(.read, target.len);
        if (offset >= content.len) return 0;
        const count = @min(admitted, content.len - offset);
        @memcpy(target[0..count], content[@intCast(offset)..][0..count]);
        return count;
    }

    pub fn write(self: *SimFiles, file: File, source: []const u8, offset: u64) Error!usize {
        return self.writeVector(file, &.{source}, offset);
    }

    pub fn writeVector(self: *SimFiles, file: File, pieces: []const []const u8, offset: u64) Error!usize {
        const disk = self.disk;
        const inode = self.inodeToChange(file);
        var total: usize = 0;
        for (pieces) |piece| total += piece.len;
        const count = try disk.admit(.write, total);
        if (count == 0) return 0;
        if (disk.tracking and offset + count > inode.content.items.len) {
            // The new size may reach the medium without the bytes.
            disk.change(inode, .{ .resize = offset + count });
        }
        var position = offset;
        var left = count;
        for (pieces) |piece| {
            var rest = piece[0..@min(piece.len, left)];
            left -= rest.len;
            while (rest.len > 0) {
                const in_page = disk.page_size - position % disk.page_size;
                const part = rest[0..@intCast(@min(rest.len, in_page))];
                disk.change(inode, .{ .write = .{ .offset = position, .bytes = part } });
                position += part.len;
                rest = rest[part.len..];
            }
        }
        disk.happened(.{ .number = 0, .call = .write, .name = inode.name, .offset = offset, .size = count });
        return count;
    }

    pub fn sync(self: *SimFiles, file: File) Error!void {
        const disk = self.disk;
        const inode = self.inodeOf(file);
        _ = disk.admit(.sync, 0) catch |err| {
            if (err != error.Interrupted) disk.loseDirtyPages(inode, disk.fault.?.sync_loss);
            return err;
        };
        disk.flushInode(inode);
        disk.names_ordered = disk.name_updates.items.len;
        disk.happened(.{ .number = 0, .call = .sync, .name = inode.name });
    }

    pub fn syncDirectory(self: *SimFiles) Error!void {
        const disk = self.disk;
        _ = try disk.admit(.sync_directory, 0);
        disk.nameFlush();
        disk.happened(.{ .number = 0, .call = .sync_directory, .name = null });
    }

    pub fn list(self: *SimFiles, visitor: anytype) !void {
        _ = try self.disk.admit(.list, 0);
        // The visitor may unlink what it sees.
        const snapshot = must(self.disk.gpa.dupe(Entry, self.disk.entries.items));
        defer self.disk.gpa.free(snapshot);
        for (snapshot) |entry| try visitor.visit(@as(?Name, entry.name));
    }

    pub fn tryLock(self: *SimFiles, file: File, kind: files.Lock) Error!bool {
        const inode = self.inodeOf(file);
        _ = try self.disk.admit(.try_lock, 0);
        self.unlock(file);
        for (inode.locks.items) |held| {
            if (kind == .exclusive or held.kind == .exclusive) return false;
        }
        must(inode.locks.append(self.disk.gpa, .{ .handle = file, .kind = kind }));
        return true;
    }

    pub fn unlock(self: *SimFiles, file: File) void {
        const locks = &self.inodeOf(file).locks;
        for (locks.items, 0..) |held, index| {
            if (held.handle != file) continue;
            _ = locks.swapRemove(index);
            return;
        }
    }

    /// The content itself, which from now on keeps its place.
    pub fn map(self: *SimFiles, file: File, capacity: usize) ?[*]align(std.heap.page_size_min) const u8 {
        const inode = self.inodeOf(file);
        if (!self.disk.mappable or capacity > map_capacity_max) return null;
        if (capacity > inode.map_capacity) {
            if (inode.map_capacity > 0) return null;
            must(inode.content.ensureTotalCapacityPrecise(self.disk.gpa, @max(capacity, inode.content.items.len)));
            inode.map_capacity = inode.content.capacity;
            @memset(inode.content.allocatedSlice()[inode.content.items.len..], beyond_end);
        }
        return inode.content.items.ptr;
    }

    pub fn unmap(self: *SimFiles, mapped: [*]align(std.heap.page_size_min) const u8, capacity: usize) void {
        _ = self;
        _ = mapped;
        _ = capacity;
    }

    /// Never: large records are read by position here, where reading can fail.
    pub fn isResident(self: *SimFiles, start: [*]const u8, extent: usize) bool {
        _ = self;
        _ = start;
        _ = extent;
        return false;
    }

    pub fn willNeed(self: *SimFiles, file: File, offset: u64, extent: u64) void {
        _ = self;
        _ = file;
        _ = offset;
        _ = extent;
    }

    pub fn processId(self: *SimFiles) u64 {
        return self.disk.process_id;
    }

    /// Time passes at once; what others do meanwhile, a hook does.
    pub fn sleep(self: *SimFiles, milliseconds: u32) void {
        self.disk.slept_ms += milliseconds;
        if (self.disk.sleep_hook) |hook| hook.call(hook.context, self.disk, .{ .number = self.disk.event_count, .call = .sleep, .name = null });
    }

    pub fn bootId(self: *SimFiles) [16]u8 {
        return self.disk.boot_id;
    }

    /// The same disk gives the same bytes, so that a run can be repeated.
    pub fn random(self: *SimFiles, target: []u8) Error!void {
        _ = try self.disk.admit(.random, 0);
        var prng: std.Random.SplitMix64 = .init(self.disk.random_state);
        for (target) |*byte| byte.* = @truncate(prng.next() >> 32);
        self.disk.random_state +%= 1;
    }

    fn notFound() Error {
        files.last_errno = 2;
        return error.FileNotFound;
    }
};

/// The simulation's own memory is not what runs out in a test.
fn must(result: anytype) @typeInfo(@TypeOf(result)).error_union.payload {
    return result catch @panic("simulation: out of memory");
}

comptime {
    files.check(SimFiles);
}
