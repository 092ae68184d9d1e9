//! Files on Windows. The folder is held by its handle and every file is opened relative to it, so
//! a folder that is renamed meanwhile stays the same store. Every handle shares reading, writing
//! and deletion: names can be unlinked and replaced while files are open. No call here retries.

const std = @import("std");
const files = @import("files.zig");

const Error = files.Error;
const Name = files.Name;

pub const errno_io: i32 = 5;

const Handle = *anyopaque;
const invalid_handle: Handle = @ptrFromInt(std.math.maxInt(usize));
const transfer_max = 0x7ffff000;

const access_list = 0x0001;
const access_traverse = 0x0020;
const access_attributes = 0x0080;
const access_delete = 0x0001_0000;
const access_synchronize = 0x0010_0000;
const generic_read = 0x8000_0000;
const generic_write = 0x4000_0000;
const share_all = 0x1 | 0x2 | 0x4;
const open_existing = 3;
const flag_backup_semantics = 0x0200_0000;

/// What NtCreateFile does about a name.
const disposition_open = 1;
const disposition_create = 2;
const option_directory = 0x1;
const option_synchronous = 0x20;
const option_not_directory = 0x40;
/// A symbolic link is opened itself, never what it points to.
const option_reparse_point = 0x0020_0000;

const attribute_directory = 0x10;
const attribute_normal = 0x80;
const attribute_reparse_point = 0x400;
const file_type_disk = 1;

/// Classes of NtSetInformationFile: the call that renames relative to a folder's handle.
const nt_rename = 10;
const nt_rename_extended = 65;

/// Classes of SetFileInformationByHandle and GetFileInformationByHandleEx.
const info_disposition = 4;
const info_end_of_file = 6;
const info_directory = 10;
const info_directory_restart = 11;
const info_disposition_extended = 21;

/// Delete: gone from the folder at once, even while open; read-only files too.
const disposition_flags = 0x1 | 0x2 | 0x10;
/// Rename: replace the target, even while it is open.
const rename_flags = 0x1 | 0x2;

const lock_fail_immediately = 0x1;
const lock_exclusive = 0x2;
/// The locked byte: a lock on Windows keeps others from reading the range, so it lies beyond any content.
const lock_offset_high = 0x4000_0000;

const Overlapped = extern struct {
    internal: usize = 0,
    internal_high: usize = 0,
    offset: u32,
    offset_high: u32,
    event: ?Handle = null,
};

const UnicodeString = extern struct { size: u16, capacity: u16, text: [*]const u16 };

const ObjectAttributes = extern struct {
    size: u32 = @sizeOf(ObjectAttributes),
    root: ?Handle,
    name: *const UnicodeString,
    attributes: u32 = 0,
    security: ?*anyopaque = null,
    quality: ?*anyopaque = null,
};

const StatusBlock = extern struct { status: usize = 0, information: usize = 0 };

const FileInformation = extern struct {
    attributes: u32,
    times: [6]u32,
    volume: u32,
    size_high: u32,
    size_low: u32,
    links: u32,
    index_high: u32,
    index_low: u32,
};

const RenameInformation = extern struct {
    flags: u32,
    root: ?Handle,
    name_size: u32,
    name: [name_max]u16,
};

/// The fixed part of an entry of the class info_directory; the name follows.
const DirectoryEntry = extern struct {
    next: u32,
    file_index: u32,
    times: [4]i64,
    end: i64,
    allocation: i64,
    attributes: u32,
    name_size: u32,
    extended_size: u32,
    short_name_size: i8,
    short_name: [12]u16,
    file_id: i64,

    const name_offset = @offsetOf(DirectoryEntry, "file_id") + 8;
};

extern "kernel32" fn CreateFileW([*:0]const u16, u32, u32, ?*anyopaque, u32, u32, ?Handle) callconv(.winapi) Handle;
extern "kernel32" fn CreateDirectoryW([*:0]const u16, ?*anyopaque) callconv(.winapi) c_int;
extern "kernel32" fn GetFullPathNameW([*:0]const u16, u32, [*]u16, ?*?[*]u16) callconv(.winapi) u32;
extern "kernel32" fn CloseHandle(Handle) callconv(.winapi) c_int;
extern "kernel32" fn GetFileType(Handle) callconv(.winapi) u32;
extern "kernel32" fn GetFileInformationByHandle(Handle, *FileInformation) callconv(.winapi) c_int;
extern "kernel32" fn GetFileInformationByHandleEx(Handle, c_int, *anyopaque, u32) callconv(.winapi) c_int;
extern "kernel32" fn SetFileInformationByHandle(Handle, c_int, *const anyopaque, u32) callconv(.winapi) c_int;
extern "kernel32" fn ReadFile(Handle, [*]u8, u32, *u32, *Overlapped) callconv(.winapi) c_int;
extern "kernel32" fn WriteFile(Handle, [*]const u8, u32, *u32, *Overlapped) callconv(.winapi) c_int;
extern "kernel32" fn FlushFileBuffers(Handle) callconv(.winapi) c_int;
extern "kernel32" fn LockFileEx(Handle, u32, u32, u32, u32, *Overlapped) callconv(.winapi) c_int;
extern "kernel32" fn UnlockFileEx(Handle, u32, u32, u32, *Overlapped) callconv(.winapi) c_int;
extern "kernel32" fn GetCurrentProcessId() callconv(.winapi) u32;
extern "kernel32" fn Sleep(u32) callconv(.winapi) void;
extern "kernel32" fn GetLastError() callconv(.winapi) u32;
extern "ntdll" fn NtCreateFile(*Handle, u32, *const ObjectAttributes, *StatusBlock, ?*i64, u32, u32, u32, u32, ?*anyopaque, u32) callconv(.winapi) u32;
extern "ntdll" fn NtSetInformationFile(Handle, *StatusBlock, *const anyopaque, u32, c_int) callconv(.winapi) u32;
extern "ntdll" fn RtlNtStatusToDosError(u32) callconv(.winapi) u32;
/// RtlGenRandom by the name that the library exports.
extern "advapi32" fn SystemFunction036([*]u8, u32) callconv(.winapi) u8;

const path_max = 4096;
const name_max = @typeInfo(Name.Buffer).array.len;
const PathBuffer = [path_max]u16;

pub const Files = struct {
    directory: Handle,

    pub const File = Handle;

    pub fn openDirectory(path: [*:0]const u8) Error!Files {
        var buffer: PathBuffer = undefined;
        const wide = try widePath(path, &buffer);
        const handle = CreateFileW(
            wide,
            access_list | access_traverse | access_synchronize,
            share_all,
            null,
            open_existing,
            flag_backup_semantics,
            null,
        );
        if (handle == invalid_handle) return fail();
        errdefer _ = CloseHandle(handle);
        if ((try information(handle)).attributes & attribute_directory == 0) return failWith(error_directory);
        return .{ .directory = handle };
    }

    /// Makes the folder and its missing parents. NTFS keeps its folders in a journal of its own.
    pub fn makeDirectory(path: [*:0]const u8) Error!void {
        var buffer: PathBuffer = undefined;
        const wide = try widePath(path, &buffer);
        try makePath(buffer[0..wide.len :0]);
    }

    fn makePath(path: [:0]u16) Error!void {
        if (CreateDirectoryW(path, null) != 0) return;
        switch (GetLastError()) {
            error_already_exists => return,
            error_path_not_found => {
                const end = std.mem.lastIndexOfScalar(u16, path, '\\') orelse return failWith(error_path_not_found);
                path[end] = 0;
                const made = makePath(path[0..end :0]);
                path[end] = '\\';
                try made;
                if (CreateDirectoryW(path, null) == 0 and GetLastError() != error_already_exists) return fail();
            },
            else => |number| return failWith(number),
        }
    }

    pub fn closeDirectory(self: *Files) void {
        _ = CloseHandle(self.directory);
    }

    pub fn open(self: *Files, name: Name, access: files.Access) Error!File {
        const rights: u32 = if (access == .write) generic_read | generic_write else generic_read;
        return self.openName(name, rights, disposition_open);
    }

    pub fn create(self: *Files, name: Name) Error!File {
        return self.openName(name, generic_read | generic_write, disposition_create);
    }

    fn openName(self: *Files, name: Name, rights: u32, disposition: u32) Error!File {
        var text: [name_max]u16 = undefined;
        const wide = wideName(name, &text);
        const handle = try self.openRelative(wide, rights, disposition, option_not_directory);
        errdefer _ = CloseHandle(handle);
        const found = try information(handle);
        if (found.attributes & (attribute_directory | attribute_reparse_point) != 0 or
            GetFileType(handle) != file_type_disk)
        {
            files.last_errno = 22;
            return error.NotRegular;
        }
        return handle;
    }

    /// An empty name opens the folder once more.
    fn openRelative(self: *Files, name: []const u16, rights: u32, disposition: u32, option: u32) Error!Handle {
        const size_bytes: u16 = @intCast(name.len * 2);
        const string: UnicodeString = .{ .size = size_bytes, .capacity = size_bytes, .text = name.ptr };
        const attributes: ObjectAttributes = .{ .root = self.directory, .name = &string };
        var handle: Handle = undefined;
        var block: StatusBlock = .{};
        const status = NtCreateFile(
            &handle,
            rights | access_attributes | access_synchronize,
            &attributes,
            &block,
            null,
            attribute_normal,
            share_all,
            disposition,
            option | option_synchronous | option_reparse_point,
            null,
            0,
        );
        if (status == status_is_directory) {
            files.last_errno = 22;
            return error.NotRegular;
        }
        if (status != 0) return failWith(RtlNtStatusToDosError(status));
        return handle;
    }

    pub fn close(self: *Files, file: File) void {
        _ = self;
        _ = CloseHandle(file);
    }

    pub fn rename(self: *Files, from: Name, to: Name) Error!void {
        var text: [name_max]u16 = undefined;
        const handle = try self.openRelative(wideName(from, &text), access_delete, disposition_open, option_not_directory);
        defer _ = CloseHandle(handle);
        var request: RenameInformation = .{ .flags = rename_flags, .root = self.directory, .name_size = 0, .name = @splat(0) };
        request.name_size = @intCast(wideName(to, &request.name).len * 2);
        var block: StatusBlock = .{};
        var status = NtSetInformationFile(handle, &block, &request, @sizeOf(RenameInformation), nt_rename_extended);
        if (status != 0 and unknownRequest(RtlNtStatusToDosError(status))) {
            // An older system or another file system: replaces the target unless it is open.
            request.flags = 1;
            status = NtSetInformationFile(handle, &block, &request, @sizeOf(RenameInformation), nt_rename);
        }
        if (status != 0) return failWith(RtlNtStatusToDosError(status));
    }

    pub fn unlink(self: *Files, name: Name) Error!void {
        var text: [name_max]u16 = undefined;
        const handle = try self.openRelative(wideName(name, &text), access_delete, disposition_open, option_not_directory);
        defer _ = CloseHandle(handle);
        const flags: u32 = disposition_flags;
        if (SetFileInformationByHandle(handle, info_disposition_extended, &flags, @sizeOf(u32)) != 0) return;
        if (!unknownRequest(GetLastError())) return fail();
        // The name then goes when the last handle closes.
        const delete: u8 = 1;
        if (SetFileInformationByHandle(handle, info_disposition, &delete, @sizeOf(u8)) == 0) return fail();
    }

    pub fn size(self: *Files, file: File) Error!u64 {
        _ = self;
        const found = try information(file);
        return @as(u64, found.size_high) << 32 | found.size_low;
    }

    pub fn truncate(self: *Files, file: File, size_new: u64) Error!void {
        _ = self;
        const end: i64 = @intCast(size_new);
        if (SetFileInformationByHandle(file, info_end_of_file, &end, @sizeOf(i64)) == 0) return fail();
    }

    pub fn read(self: *Files, file: File, target: []u8, offset: u64) Error!usize {
        _ = self;
        var position = overlapped(offset);
        var count: u32 = 0;
        if (ReadFile(file, target.ptr, @intCast(@min(target.len, transfer_max)), &count, &position) == 0) {
            if (GetLastError() == error_handle_eof) return 0;
            return fail();
        }
        return count;
    }

    pub fn write(self: *Files, file: File, source: []const u8, offset: u64) Error!usize {
        _ = self;
        var position = overlapped(offset);
        var count: u32 = 0;
        if (WriteFile(file, source.ptr, @intCast(@min(source.len, transfer_max)), &count, &position) == 0) return fail();
        return count;
    }

    /// Windows gathers whole pages without its cache only: one piece a call.
    pub fn writeVector(self: *Files, file: File, pieces: []const []const u8, offset: u64) Error!usize {
        return self.write(file, pieces[0], offset);
    }

    pub fn sync(self: *Files, file: File) Error!void {
        _ = self;
        if (FlushFileBuffers(file) == 0) return fail();
    }

    /// NTFS journals names, and flushing a file flushes the journal up to its creation.
    pub fn syncDirectory(self: *Files) Error!void {
        _ = self;
    }

    /// Calls visitor.visit(?Name) for every entry, null for a name that no store writes.
    pub fn list(self: *Files, visitor: anytype) !void {
        // A handle of its own: the position in a directory belongs to the open file.
        const handle = try self.openRelative(&.{}, access_list, disposition_open, option_directory);
        defer _ = CloseHandle(handle);
        var buffer: [8192]u8 align(8) = undefined;
        var class: c_int = info_directory_restart;
        while (true) : (class = info_directory) {
            if (GetFileInformationByHandleEx(handle, class, &buffer, buffer.len) == 0) {
                if (GetLastError() == error_no_more_files) return;
                return fail();
            }
            var position: usize = 0;
            while (true) {
                const entry: *align(1) const DirectoryEntry = @ptrCast(&buffer[position]);
                const start = position + DirectoryEntry.name_offset;
                const bytes = buffer[start..][0..entry.name_size];
                try visitEntry(visitor, @alignCast(std.mem.bytesAsSlice(u16, bytes)));
                if (entry.next == 0) break;
                position += entry.next;
            }
        }
    }

    fn visitEntry(visitor: anytype, entry: []const u16) !void {
        var text: [name_max]u8 = undefined;
        // Our names are ASCII and short.
        if (entry.len > text.len) return visitor.visit(null);
        for (entry, text[0..entry.len]) |unit, *letter| {
            if (unit >= 0x80) return visitor.visit(null);
            letter.* = @intCast(unit);
        }
        const name = text[0..entry.len];
        if (std.mem.eql(u8, name, ".") or std.mem.eql(u8, name, "..")) return;
        try visitor.visit(Name.parse(name));
    }

    /// False: another open file holds it. A lock that this file already has is given up first, as
    /// it is elsewhere.
    pub fn tryLock(self: *Files, file: File, kind: files.Lock) Error!bool {
        self.unlock(file);
        var range: Overlapped = .{ .offset = 0, .offset_high = lock_offset_high };
        const flags: u32 = lock_fail_immediately | @as(u32, if (kind == .exclusive) lock_exclusive else 0);
        if (LockFileEx(file, flags, 0, 1, 0, &range) != 0) return true;
        return switch (GetLastError()) {
            error_lock_violation, error_io_pending => false,
            else => |number| failWith(number),
        };
    }

    pub fn unlock(self: *Files, file: File) void {
        _ = self;
        var range: Overlapped = .{ .offset = 0, .offset_high = lock_offset_high };
        _ = UnlockFileEx(file, 0, 1, 0, &range);
    }

    /// A mapped file can be neither cut nor replaced here: reading is positional.
    pub fn map(self: *Files, file: File, capacity: usize) ?[*]align(std.heap.page_size_min) const u8 {
        _ = self;
        _ = file;
        _ = capacity;
        return null;
    }

    pub fn unmap(self: *Files, mapped: [*]align(std.heap.page_size_min) const u8, capacity: usize) void {
        _ = self;
        _ = mapped;
        _ = capacity;
        unreachable; // map never returned one
    }

    pub fn isResident(self: *Files, start: [*]const u8, extent: usize) bool {
        _ = self;
        _ = start;
        _ = extent;
        unreachable; // nothing is mapped
    }

    pub fn willNeed(self: *Files, file: File, offset: u64, extent: u64) void {
        _ = self;
        _ = file;
        _ = offset;
        _ = extent;
    }

    pub fn processId(self: *Files) u64 {
        _ = self;
        return GetCurrentProcessId();
    }

    pub fn sleep(self: *Files, milliseconds: u32) void {
        _ = self;
        Sleep(milliseconds);
    }

    /// Windows has no name for a start of the machine: zeros, so that recovery checks what it finds.
    pub fn bootId(self: *Files) [16]u8 {
        _ = self;
        return @splat(0);
    }

    pub fn random(self: *Files, target: []u8) Error!void {
        _ = self;
        if (SystemFunction036(target.ptr, @intCast(target.len)) == 0) {
            files.last_errno = errno_io;
            return error.System;
        }
    }
};

fn overlapped(offset: u64) Overlapped {
    return .{ .offset = @truncate(offset), .offset_high = @intCast(offset >> 32) };
}

fn information(handle: Handle) Error!FileInformation {
    var found: FileInformation = undefined;
    if (GetFileInformationByHandle(handle, &found) == 0) return fail();
    return found;
}

fn wideName(name: Name, target: *[name_max]u16) []const u16 {
    var buffer: Name.Buffer = undefined;
    const text = name.text(&buffer);
    for (text, target[0..text.len]) |letter, *unit| unit.* = letter;
    return target[0..text.len];
}

/// The absolute path in the form that has no limit of 260 characters.
fn widePath(path: [*:0]const u8, target: *PathBuffer) Error![:0]const u16 {
    var given: PathBuffer = undefined;
    const text = std.mem.span(path);
    if (text.len >= given.len) return failWith(error_name_too_long);
    const given_size = std.unicode.utf8ToUtf16Le(&given, text) catch return failWith(error_invalid_name);
    given[given_size] = 0;
    var full: PathBuffer = undefined;
    const count = GetFullPathNameW(given[0..given_size :0], full.len, &full, null);
    if (count == 0) return fail();
    if (count >= full.len) return failWith(error_name_too_long);
    var absolute: []const u16 = full[0..count];
    while (absolute.len > 3 and absolute[absolute.len - 1] == '\\') absolute = absolute[0 .. absolute.len - 1];

    const network = std.mem.startsWith(u16, absolute, &.{ '\\', '\\' });
    const special = network and absolute.len > 2 and (absolute[2] == '?' or absolute[2] == '.');
    const prefix: []const u8 = if (special) "" else if (network) "\\\\?\\UNC" else "\\\\?\\";
    const rest = if (network and !special) absolute[1..] else absolute;
    const whole_size = prefix.len + rest.len;
    if (whole_size >= target.len) return failWith(error_name_too_long);
    for (prefix, target[0..prefix.len]) |letter, *unit| unit.* = letter;
    @memcpy(target[prefix.len..whole_size], rest);
    target[whole_size] = 0;
    return target[0..whole_size :0];
}

const error_path_not_found = 3;
const error_no_more_files = 18;
const error_lock_violation = 33;
const error_handle_eof = 38;
const error_invalid_name = 123;
const error_already_exists = 183;
const error_name_too_long = 206;
const error_directory = 267;
const error_io_pending = 997;
const status_is_directory = 0xc000_00ba;

/// ERROR_INVALID_FUNCTION, ERROR_NOT_SUPPORTED, ERROR_INVALID_PARAMETER
fn unknownRequest(number: u32) bool {
    return number == 1 or number == 50 or number == 87;
}

fn fail() Error {
    return failWith(GetLastError());
}

/// Errors leave here under the numbers that C gives them on Windows too.
fn failWith(number: u32) Error {
    const Meaning = struct { i32, Error };
    const meaning: Meaning = switch (number) {
        2, error_path_not_found, error_invalid_name => .{ 2, error.FileNotFound },
        80, error_already_exists => .{ 17, error.FileExists },
        5, 32, error_lock_violation => .{ 13, error.AccessDenied },
        19 => .{ 30, error.AccessDenied },
        39, 112, 1295 => .{ 28, error.NoSpace },
        995 => .{ 4, error.Interrupted },
        4 => .{ 24, error.System },
        8, 14, 1450 => .{ 12, error.System },
        error_directory => .{ 20, error.System },
        error_name_too_long => .{ 38, error.System },
        else => .{ errno_io, error.System },
    };
    files.last_errno = meaning[0];
    return meaning[1];
}
