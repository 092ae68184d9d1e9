//! What can go wrong: the engine's error set, its numbers in the C ABI, and the place of a failure.

const std = @import("std");
const files = @import("files.zig");

pub const Error = files.Error || error{
    OutOfMemory,
    InvalidArgument,
    IndexOutOfRange,
    WrongKind,
    IdentityMismatch,
    EmptyRecord,
    RecordTooLarge,
    ShapeMismatch,
    TargetSize,
    BatchTooLarge,
    BadDictionary,
    TooFewSamples,
    Closed,
    ReadOnly,
    Forked,
    Failed,
    BusyWriter,
    BusyReaders,
    BusyMaintenance,
    Changed,
    Cancelled,
    NoAppend,
    NoStore,
    StoreExists,
    Foreign,
    Unfinished,
    Unsupported,
    CorruptStore,
    CorruptRecord,
};

pub const Status = enum(c_int) {
    ok = 0,
    invalid_argument = 100,
    index_out_of_range = 101,
    wrong_kind = 102,
    identity_mismatch = 103,
    empty_record = 104,
    record_too_large = 105,
    shape_mismatch = 106,
    target_size = 107,
    batch_too_large = 108,
    bad_dictionary = 109,
    too_few_samples = 110,
    closed = 200,
    read_only = 201,
    forked = 202,
    failed = 203,
    busy_writer = 204,
    busy_readers = 205,
    busy_maintenance = 206,
    changed = 207,
    cancelled = 208,
    no_append = 209,
    no_store = 300,
    store_exists = 301,
    foreign = 302,
    unfinished = 303,
    unsupported = 304,
    corrupt_store = 305,
    corrupt_record = 306,
    os_error = 400,
    out_of_memory = 401,
};

/// No `else`: an error that is not mapped does not compile.
pub fn of(err: Error) Status {
    return switch (err) {
        error.FileNotFound,
        error.FileExists,
        error.NotRegular,
        error.AccessDenied,
        error.NoSpace,
        error.Interrupted,
        error.System,
        => .os_error,
        error.OutOfMemory => .out_of_memory,
        error.InvalidArgument => .invalid_argument,
        error.IndexOutOfRange => .index_out_of_range,
        error.WrongKind => .wrong_kind,
        error.IdentityMismatch => .identity_mismatch,
        error.EmptyRecord => .empty_record,
        error.RecordTooLarge => .record_too_large,
        error.ShapeMismatch => .shape_mismatch,
        error.TargetSize => .target_size,
        error.BatchTooLarge => .batch_too_large,
        error.BadDictionary => .bad_dictionary,
        error.TooFewSamples => .too_few_samples,
        error.Closed => .closed,
        error.ReadOnly => .read_only,
        error.Forked => .forked,
        error.Failed => .failed,
        error.BusyWriter => .busy_writer,
        error.BusyReaders => .busy_readers,
        error.BusyMaintenance => .busy_maintenance,
        error.Changed => .changed,
        error.Cancelled => .cancelled,
        error.NoAppend => .no_append,
        error.NoStore => .no_store,
        error.StoreExists => .store_exists,
        error.Foreign => .foreign,
        error.Unfinished => .unfinished,
        error.Unsupported => .unsupported,
        error.CorruptStore => .corrupt_store,
        error.CorruptRecord => .corrupt_record,
    };
}

/// Where a call failed and what it found there. Each call, and each worker of a call, has its own;
/// whoever meets the failure fills it.
pub const Fault = struct {
    os_errno: i32 = 0,
    file: ?files.Name = null,
    record: u64 = no_record,
    offset: u64 = 0,
    expected: u64 = 0,
    found: u64 = 0,

    pub const no_record = std.math.maxInt(u64);

    /// Notes the file that a failed call was made on; passes the error through.
    pub fn in(fault: *Fault, file: files.Name, err: anytype) @TypeOf(err) {
        fault.file = file;
        fault.os_errno = files.last_errno;
        return err;
    }

    /// A file that a store always has could not be opened: without it the store is damaged.
    pub fn missing(fault: *Fault, file: files.Name, err: files.Error) Error {
        return switch (err) {
            error.FileNotFound, error.NotRegular => fault.corruptStore(file, 0, 0),
            else => fault.in(file, err),
        };
    }

    pub fn corruptStore(fault: *Fault, file: files.Name, expected: u64, found: u64) error{CorruptStore} {
        fault.* = .{ .file = file, .expected = expected, .found = found };
        return error.CorruptStore;
    }

    pub fn corruptRecord(fault: *Fault, file: ?files.Name, record: u64, expected: u64, found: u64) error{CorruptRecord} {
        fault.* = .{ .file = file, .record = record, .expected = expected, .found = found };
        return error.CorruptRecord;
    }
};
