//! Files on Linux and macOS: libc calls, every error number kept. No call here retries.

const std = @import("std");
const builtin = @import("builtin");
const files = @import("files.zig");

const assert = std.debug.assert;
const c = std.c;
const linux = std.os.linux;
const on_linux = builtin.os.tag == .linux;
const Error = files.Error;
const Name = files.Name;

// Offsets have 64 bits on every platform of the table, so the plain names do. musl knows the names
// that end in 64 when it loads a library, and refuses them when a program is linked.
const openat = c.openat;
const pread = c.pread;
const pwrite = c.pwrite;
const pwritev = c.pwritev;
const ftruncate = c.ftruncate;
const mmap = c.mmap;
comptime {
    assert(@sizeOf(c.off_t) == 8 and @sizeOf(usize) == 8);
}
extern "c" fn posix_fadvise(fd: c_int, offset: i64, size: i64, advice: c_int) c_int;
extern "c" fn mincore(start: *const anyopaque, size: usize, pages: [*]u8) c_int;
extern "c" fn arc4random_buf(target: [*]u8, size: usize) void;

pub const errno_io: i32 = @intFromEnum(c.E.IO);
/// Linux transfers at most this much in one call; asking for less keeps the rule visible.
const transfer_max = 0x7ffff000;
const mode_file: c.mode_t = 0o666;
const mode_directory: c.mode_t = 0o777;

pub const Files = struct {
    directory: c.fd_t,

    pub const File = c.fd_t;

    pub fn openDirectory(path: [*:0]const u8) Error!Files {
        const fd = openat(c.AT.FDCWD, path, .{ .CLOEXEC = true, .DIRECTORY = true });
        if (fd < 0) return fail();
        return .{ .directory = fd };
    }

    /// Makes the folder and its missing parents. Each new one is durable in its parent when this
    /// returns.
    pub fn makeDirectory(path: [*:0]const u8) Error!void {
        const given = std.mem.span(path);
        var buffer: [4096]u8 = undefined;
        if (given.len >= buffer.len) {
            files.last_errno = @intFromEnum(c.E.NAMETOOLONG);
            return error.System;
        }
        var end: usize = 0;
        while (end < given.len) {
            while (end < given.len and given[end] == '/') end += 1;
            while (end < given.len and given[end] != '/') end += 1;
            @memcpy(buffer[0..end], given[0..end]);
            buffer[end] = 0;
            const part = buffer[0..end :0];
            if (c.mkdir(part, mode_directory) == 0) {
                try syncParent(part);
                continue;
            }
            const err = fail();
            if (err == error.FileExists) continue;
            // A parent that exists but may not be written to, or lies on a read-only medium.
            if (end < given.len and isDirectory(part)) continue;
            return err;
        }
    }

    pub fn closeDirectory(self: *Files) void {
        _ = c.close(self.directory);
    }

    pub fn open(self: *Files, name: Name, access: files.Access) Error!File {
        var buffer: Name.Buffer = undefined;
        // Without NONBLOCK a FIFO of that name would hang; the check below then refuses it.
        const fd = openat(self.directory, name.text(&buffer), .{
            .ACCMODE = if (access == .write) .RDWR else .RDONLY,
            .CLOEXEC = true,
            .NOFOLLOW = true,
            .NONBLOCK = true,
        });
        if (fd < 0) return fail();
        errdefer _ = c.close(fd);
        if (!(try status(fd)).regular) {
            files.last_errno = @intFromEnum(c.E.INVAL);
            return error.NotRegular;
        }
        return fd;
    }

    pub fn create(self: *Files, name: Name) Error!File {
        var buffer: Name.Buffer = undefined;
        const fd = openat(self.directory, name.text(&buffer), .{
            .ACCMODE = .RDWR,
            .CLOEXEC = true,
            .NOFOLLOW = true,
            .CREAT = true,
            .EXCL = true,
        }, mode_file);
        if (fd < 0) return fail();
        return fd;
    }

    pub fn close(self: *Files, file: File) void {
        _ = self;
        _ = c.close(file);
    }

    pub fn rename(self: *Files, from: Name, to: Name) Error!void {
        var from_buffer: Name.Buffer = undefined;
        var to_buffer: Name.Buffer = undefined;
        const from_text = from.text(&from_buffer);
        const to_text = to.text(&to_buffer);
        if (c.renameat(self.directory, from_text, self.directory, to_text) != 0) return fail();
    }

    pub fn unlink(self: *Files, name: Name) Error!void {
        var buffer: Name.Buffer = undefined;
        if (c.unlinkat(self.directory, name.text(&buffer), 0) != 0) return fail();
    }

    pub fn size(self: *Files, file: File) Error!u64 {
        _ = self;
        return (try status(file)).size;
    }

    pub fn truncate(self: *Files, file: File, size_new: u64) Error!void {
        _ = self;
        if (ftruncate(file, @intCast(size_new)) != 0) return fail();
    }

    pub fn read(self: *Files, file: File, target: []u8, offset: u64) Error!usize {
        _ = self;
        const count = pread(file, target.ptr, @min(target.len, transfer_max), @intCast(offset));
        if (count < 0) return fail();
        return @intCast(count);
    }

    pub fn write(self: *Files, file: File, source: []const u8, offset: u64) Error!usize {
        _ = self;
        const count = pwrite(file, source.ptr, @min(source.len, transfer_max), @intCast(offset));
        if (count < 0) return fail();
        return @intCast(count);
    }

    pub fn writeVector(self: *Files, file: File, pieces: []const []const u8, offset: u64) Error!usize {
        _ = self;
        var vectors: [files.vector_max]std.posix.iovec_const = undefined;
        for (pieces, vectors[0..pieces.len]) |piece, *vector| {
            vector.* = .{ .base = piece.ptr, .len = piece.len };
        }
        const count = pwritev(file, &vectors, @intCast(pieces.len), @intCast(offset));
        if (count < 0) return fail();
        return @intCast(count);
    }

    pub fn sync(self: *Files, file: File) Error!void {
        _ = self;
        // macOS: only F_FULLFSYNC reaches the medium; some file systems know fsync alone.
        if (builtin.os.tag.isDarwin()) {
            if (c.fcntl(file, c.F.FULLFSYNC) == 0) return;
            if (c.fsync(file) != 0) return fail();
        } else {
            if (c.fdatasync(file) != 0) return fail();
        }
    }

    pub fn syncDirectory(self: *Files) Error!void {
        if (c.fsync(self.directory) != 0) return fail();
    }

    /// Calls visitor.visit(?Name) for every entry, null for a name that no store writes.
    pub fn list(self: *Files, visitor: anytype) !void {
        // A descriptor of its own: the position in a directory belongs to the open file.
        const fd = openat(self.directory, ".", .{ .CLOEXEC = true, .DIRECTORY = true });
        if (fd < 0) return fail();
        if (on_linux) {
            defer _ = c.close(fd);
            var buffer: [8192]u8 align(8) = undefined;
            while (true) {
                const result = linux.getdents64(fd, &buffer, buffer.len);
                switch (linux.errno(result)) {
                    .SUCCESS => {},
                    else => |number| return failWith(@intFromEnum(number)),
                }
                if (result == 0) return;
                var position: usize = 0;
                while (position < result) {
                    const entry: *align(1) linux.dirent64 = @ptrCast(&buffer[position]);
                    const start = position + @offsetOf(linux.dirent64, "name");
                    try visitEntry(visitor, std.mem.sliceTo(buffer[start..], 0));
                    position += entry.reclen;
                }
            }
        } else {
            const stream = c.fdopendir(fd) orelse {
                const err = fail();
                _ = c.close(fd);
                return err;
            };
            defer _ = c.closedir(stream);
            while (c.readdir(stream)) |entry| {
                try visitEntry(visitor, @as([*]u8, &entry.name)[0..entry.namlen]);
            }
        }
    }

    fn visitEntry(visitor: anytype, entry: []const u8) !void {
        if (std.mem.eql(u8, entry, ".") or std.mem.eql(u8, entry, "..")) return;
        try visitor.visit(Name.parse(entry));
    }

    /// False: another open file holds it.
    pub fn tryLock(self: *Files, file: File, kind: files.Lock) Error!bool {
        _ = self;
        const operation = @as(c_int, if (kind == .exclusive) c.LOCK.EX else c.LOCK.SH) | c.LOCK.NB;
        while (c.flock(file, operation) != 0) {
            switch (@as(c.E, @enumFromInt(c._errno().*))) {
                .AGAIN => return false,
                .INTR => continue,
                else => return fail(),
            }
        }
        return true;
    }

    pub fn unlock(self: *Files, file: File) void {
        _ = self;
        _ = c.flock(file, c.LOCK.UN);
    }

    /// A shared read-only mapping that may reach beyond the end of the file; only what the file
    /// holds may be touched. Null: refused.
    pub fn map(self: *Files, file: File, capacity: usize) ?[*]align(std.heap.page_size_min) const u8 {
        _ = self;
        var flags: c.MAP = .{ .TYPE = .SHARED };
        if (@hasField(c.MAP, "NORESERVE")) flags.NORESERVE = true;
        const address = mmap(null, capacity, .{ .READ = true }, flags, file, 0);
        if (address == c.MAP_FAILED) return null;
        // Records are read in random order: reading around each fault would fill memory with strangers.
        _ = c.madvise(@alignCast(address), capacity, std.posix.MADV.RANDOM);
        return @ptrCast(@alignCast(address));
    }

    pub fn unmap(self: *Files, mapped: [*]align(std.heap.page_size_min) const u8, capacity: usize) void {
        _ = self;
        _ = c.munmap(@ptrCast(mapped), capacity);
    }

    /// Whether a mapped extent is in the page cache. Where the platform does not tell, or not to this
    /// user, it is said to be.
    pub fn isResident(self: *Files, start: [*]const u8, extent: usize) bool {
        _ = self;
        if (!on_linux) return true;
        const page_size = std.heap.pageSize();
        const end = @intFromPtr(start) + extent;
        var position = std.mem.alignBackward(usize, @intFromPtr(start), page_size);
        var pages: [1024]u8 = undefined;
        while (position < end) {
            const part = @min(end - position, pages.len * page_size);
            if (mincore(@ptrFromInt(position), part, &pages) != 0) return true;
            var all: u8 = 1;
            for (pages[0 .. std.math.divCeil(usize, part, page_size) catch unreachable]) |page| all &= page;
            if (all == 0) return false;
            position += part;
        }
        return true;
    }

    /// Asks for the extent to be read into the page cache. A hint: failure says nothing.
    pub fn willNeed(self: *Files, file: File, offset: u64, extent: u64) void {
        _ = self;
        if (!on_linux) return;
        _ = posix_fadvise(file, @intCast(offset), @intCast(extent), 3);
    }

    pub fn processId(self: *Files) u64 {
        _ = self;
        return @intCast(c.getpid());
    }

    pub fn sleep(self: *Files, milliseconds: u32) void {
        _ = self;
        const span: c.timespec = .{ .sec = milliseconds / 1000, .nsec = (milliseconds % 1000) * std.time.ns_per_ms };
        _ = c.nanosleep(&span, null);
    }

    /// Names this start of the machine, zeros where the platform cannot. What was written under the
    /// same name survived in the page cache unless the medium lost it.
    pub fn bootId(self: *Files) [16]u8 {
        _ = self;
        var text: [64]u8 = undefined;
        var text_size: usize = 0;
        if (on_linux) {
            const fd = openat(c.AT.FDCWD, "/proc/sys/kernel/random/boot_id", .{ .CLOEXEC = true });
            if (fd < 0) return @splat(0);
            defer _ = c.close(fd);
            const count = pread(fd, &text, text.len, 0);
            if (count > 0) text_size = @intCast(count);
        } else if (builtin.os.tag.isDarwin()) {
            var capacity: usize = text.len;
            if (c.sysctlbyname("kern.bootsessionuuid", &text, &capacity, null, 0) == 0) text_size = capacity;
        }
        return parseUuid(text[0..text_size]) orelse @splat(0);
    }

    pub fn random(self: *Files, target: []u8) Error!void {
        _ = self;
        if (builtin.os.tag.isDarwin()) return arc4random_buf(target.ptr, target.len);
        const result = linux.getrandom(target.ptr, target.len, 0);
        if (linux.errno(result) != .SUCCESS) return failWith(@intFromEnum(linux.errno(result)));
        if (result != target.len) return failWith(errno_io);
    }
};

fn parseUuid(text: []const u8) ?[16]u8 {
    var id: [16]u8 = undefined;
    var nibbles: usize = 0;
    for (text) |letter| {
        if (letter == '-') continue;
        const digit = std.fmt.charToDigit(letter, 16) catch break;
        if (nibbles == 32) return null;
        id[nibbles / 2] = if (nibbles % 2 == 0) digit << 4 else id[nibbles / 2] | digit;
        nibbles += 1;
    }
    return if (nibbles == 32) id else null;
}

const Status = struct { size: u64, regular: bool };

fn status(fd: c.fd_t) Error!Status {
    if (on_linux) {
        // The system call itself: older libc versions have no statx to link against.
        var extended: linux.Statx = undefined;
        const result = linux.statx(fd, "", linux.AT.EMPTY_PATH, .{ .TYPE = true, .SIZE = true }, &extended);
        if (linux.errno(result) != .SUCCESS) return failWith(@intFromEnum(linux.errno(result)));
        return .{ .size = extended.size, .regular = linux.S.ISREG(extended.mode) };
    } else {
        var plain: c.Stat = undefined;
        if (c.fstat(fd, &plain) != 0) return fail();
        return .{ .size = @intCast(plain.size), .regular = c.S.ISREG(plain.mode) };
    }
}

fn isDirectory(path: [:0]const u8) bool {
    const fd = openat(c.AT.FDCWD, path, .{ .CLOEXEC = true, .DIRECTORY = true });
    if (fd < 0) return false;
    _ = c.close(fd);
    return true;
}

fn syncParent(path: [:0]const u8) Error!void {
    var buffer: [4096]u8 = undefined;
    const end = std.mem.lastIndexOfScalar(u8, path, '/');
    const parent = if (end) |position| path[0..@max(position, 1)] else ".";
    @memcpy(buffer[0..parent.len], parent);
    buffer[parent.len] = 0;
    const fd = openat(c.AT.FDCWD, buffer[0..parent.len :0], .{ .CLOEXEC = true, .DIRECTORY = true });
    if (fd < 0) return fail();
    defer _ = c.close(fd);
    while (c.fsync(fd) != 0) {
        const err = fail();
        if (err != error.Interrupted) return err;
    }
}

fn fail() Error {
    return failWith(c._errno().*);
}

fn failWith(number: i32) Error {
    files.last_errno = number;
    return switch (@as(c.E, @enumFromInt(number))) {
        .NOENT => error.FileNotFound,
        .EXIST => error.FileExists,
        // A link that is not followed; a folder opened for writing; a socket.
        .LOOP, .ISDIR, .NXIO => error.NotRegular,
        .ACCES, .PERM, .ROFS => error.AccessDenied,
        .NOSPC, .DQUOT => error.NoSpace,
        .INTR => error.Interrupted,
        else => error.System,
    };
}
