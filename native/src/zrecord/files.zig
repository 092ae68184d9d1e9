//! The names of a store's files and the calls made on them.
//!
//! This file and the one it picks for the platform are all that touches the operating system. The
//! engine is generic over `Files`: a second implementation lives in memory and loses, tears and
//! fails on request. Both have the declarations that `check` lists. Each call is one attempt; the
//! loops that turn short and interrupted calls into whole ones stand below and serve both.

const std = @import("std");
const builtin = @import("builtin");

const platform = if (builtin.os.tag == .windows)
    @import("files_windows.zig")
else
    @import("files_posix.zig");

pub const Files = platform.Files;

/// Errors that decide what happens next have names; every other one is `System`. The error number
/// of each lies in `last_errno` of the thread that met it.
pub const Error = error{
    /// ENOENT
    FileNotFound,
    /// EEXIST
    FileExists,
    /// Not a regular file, or a symbolic link.
    NotRegular,
    /// EACCES, EPERM, EROFS
    AccessDenied,
    /// ENOSPC, EDQUOT
    NoSpace,
    /// EINTR: only between a single call and the loops below.
    Interrupted,
    System,
};

pub threadlocal var last_errno: i32 = 0;

pub const Access = enum { read, write };
pub const Lock = enum { shared, exclusive };

pub const Name = union(enum) {
    store,
    store_new,
    meta,
    lock,
    readers_lock,
    journal,
    dict,
    segment: u32,
    chunk: u32,

    /// Large enough for every name and its terminating zero.
    pub const Buffer = [24]u8;

    pub fn text(name: Name, buffer: *Buffer) [:0]const u8 {
        return switch (name) {
            .segment => |id| std.fmt.bufPrintZ(buffer, "{d}.loc", .{id}) catch unreachable,
            .chunk => |id| std.fmt.bufPrintZ(buffer, "{d}.chunk", .{id}) catch unreachable,
            else => std.fmt.bufPrintZ(buffer, "{s}", .{fixedText(name)}) catch unreachable,
        };
    }

    /// Null for everything that no store writes. Numbers have one spelling: no sign, no leading zero.
    pub fn parse(given: []const u8) ?Name {
        inline for (.{ .store, .store_new, .meta, .lock, .readers_lock, .journal, .dict }) |name| {
            if (std.mem.eql(u8, given, fixedText(name))) return name;
        }
        if (number(given, ".loc")) |id| return .{ .segment = id };
        if (number(given, ".chunk")) |id| return .{ .chunk = id };
        return null;
    }

    fn fixedText(name: Name) []const u8 {
        return switch (name) {
            .store => "store.zr",
            .store_new => "store.new",
            .meta => "meta.zr",
            .lock => "lock",
            .readers_lock => "readers.lock",
            .journal => "journal.zr",
            .dict => "dict.zr",
            .segment, .chunk => unreachable,
        };
    }

    fn number(given: []const u8, suffix: []const u8) ?u32 {
        if (!std.mem.endsWith(u8, given, suffix)) return null;
        const digits = given[0 .. given.len - suffix.len];
        if (digits.len == 0 or (digits.len > 1 and digits[0] == '0')) return null;
        for (digits) |digit| if (!std.ascii.isDigit(digit)) return null;
        return std.fmt.parseInt(u32, digits, 10) catch null;
    }
};

/// A compile error names what an implementation of the medium lacks.
pub fn check(comptime Medium: type) void {
    inline for (.{
        "File",      "open",     "create", "close",  "rename",        "unlink",
        "size",      "truncate", "read",   "write",  "writeVector",   "sync",
        "list",      "tryLock",  "unlock", "map",    "unmap",         "willNeed",
        "processId", "sleep",    "bootId", "random", "syncDirectory", "isResident",
    }) |declaration| {
        if (!@hasDecl(Medium, declaration)) {
            @compileError(@typeName(Medium) ++ " lacks " ++ declaration);
        }
    }
}

/// A call that is interrupted this often in a row is not going to succeed.
const interruptions_max = 1000;

/// Fills `target` from `offset` on; less only at the end of the file.
pub fn readAll(medium: anytype, file: anytype, target: []u8, offset: u64) Error!usize {
    var done: usize = 0;
    var interruptions: u32 = 0;
    while (done < target.len) {
        const count = medium.read(file, target[done..], offset + done) catch |err| {
            try retry(err, &interruptions);
            continue;
        };
        if (count == 0) break;
        interruptions = 0;
        done += count;
    }
    return done;
}

pub fn writeAll(medium: anytype, file: anytype, source: []const u8, offset: u64) Error!void {
    var done: usize = 0;
    var interruptions: u32 = 0;
    while (done < source.len) {
        const count = medium.write(file, source[done..], offset + done) catch |err| {
            try retry(err, &interruptions);
            continue;
        };
        if (count == 0) return stuck();
        interruptions = 0;
        done += count;
    }
}

/// The most pieces that one vectored write takes.
pub const vector_max = 256;

/// Writes the pieces one behind the other. The slices in `pieces` are consumed.
pub fn writeVectorAll(medium: anytype, file: anytype, pieces: [][]const u8, offset: u64) Error!void {
    var rest = pieces;
    var position = offset;
    var interruptions: u32 = 0;
    while (rest.len > 0) {
        if (rest[0].len == 0) {
            rest = rest[1..];
            continue;
        }
        const batch = rest[0..@min(rest.len, vector_max)];
        var count = medium.writeVector(file, batch, position) catch |err| {
            try retry(err, &interruptions);
            continue;
        };
        if (count == 0) return stuck();
        interruptions = 0;
        position += count;
        while (count > 0) {
            const taken = @min(count, rest[0].len);
            rest[0] = rest[0][taken..];
            count -= taken;
            if (rest[0].len == 0) rest = rest[1..];
        }
    }
}

pub fn syncFile(medium: anytype, file: anytype) Error!void {
    var interruptions: u32 = 0;
    while (true) return medium.sync(file) catch |err| {
        try retry(err, &interruptions);
        continue;
    };
}

pub fn syncDirectory(medium: anytype) Error!void {
    var interruptions: u32 = 0;
    while (true) return medium.syncDirectory() catch |err| {
        try retry(err, &interruptions);
        continue;
    };
}

fn retry(err: Error, interruptions: *u32) Error!void {
    if (err != error.Interrupted) return err;
    interruptions.* += 1;
    if (interruptions.* > interruptions_max) return error.System;
}

/// A write that takes nothing and reports nothing: as good as an I/O error.
fn stuck() Error {
    last_errno = platform.errno_io;
    return error.System;
}

test "names" {
    var buffer: Name.Buffer = undefined;
    for ([_]Name{ .store, .store_new, .meta, .lock, .readers_lock, .journal, .dict, .{ .segment = 0 }, .{ .chunk = 4294967295 } }) |name| {
        try std.testing.expectEqual(name, Name.parse(name.text(&buffer)).?);
    }
    for ([_][]const u8{ "", ".loc", "01.chunk", "+1.chunk", "1_0.loc", "4294967296.loc", "1.chunk2", "Store.zr" }) |foreign| {
        try std.testing.expectEqual(null, Name.parse(foreign));
    }
}

test {
    check(Files);
}
