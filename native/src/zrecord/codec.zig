//! Raw, zstd, zstd with a dictionary: encodes and decodes one record at a time.
//!
//! What is set up once is kept: the digested dictionary for the life of the store, a context for
//! each worker that runs at the same time. Frames carry their content size and no checksum (the sum
//! in the record's table entry covers the stored bytes).

const std = @import("std");
const format = @import("format.zig");
const locks = @import("locks.zig");

const CCtx = opaque {};
const DCtx = opaque {};
const CDict = opaque {};
const DDict = opaque {};

const CustomMemory = extern struct {
    allocate: ?*const fn (?*anyopaque, usize) callconv(.c) ?*anyopaque,
    free: ?*const fn (?*anyopaque, ?*anyopaque) callconv(.c) void,
    context: ?*anyopaque,
};
const CompressionParameters = extern struct {
    window_log: c_uint,
    chain_log: c_uint,
    hash_log: c_uint,
    search_log: c_uint,
    min_match: c_uint,
    target_length: c_uint,
    strategy: c_uint,
};
const DictTrainParameters = extern struct {
    compression_level: c_int = 0,
    notification_level: c_uint = 0,
    dict_id: c_uint = 0,
};
const FastCoverParameters = extern struct {
    k: c_uint = 0,
    d: c_uint = 8,
    f: c_uint = 20,
    steps: c_uint = 4,
    thread_count: c_uint = 1,
    split_point: f64 = 0,
    accel: c_uint = 1,
    shrink_dict: c_uint = 0,
    shrink_dict_max_regression: c_uint = 0,
    general: DictTrainParameters = .{},
};

extern fn ZSTD_createCCtx_advanced(CustomMemory) ?*CCtx;
extern fn ZSTD_freeCCtx(*CCtx) usize;
extern fn ZSTD_CCtx_setParameter(*CCtx, c_int, c_int) usize;
extern fn ZSTD_CCtx_refCDict(*CCtx, ?*const CDict) usize;
extern fn ZSTD_compress2(*CCtx, [*]u8, usize, [*]const u8, usize) usize;
extern fn ZSTD_compressBound(usize) usize;
extern fn ZSTD_createDCtx_advanced(CustomMemory) ?*DCtx;
extern fn ZSTD_freeDCtx(*DCtx) usize;
extern fn ZSTD_decompressDCtx(*DCtx, [*]u8, usize, [*]const u8, usize) usize;
extern fn ZSTD_decompress_usingDDict(*DCtx, [*]u8, usize, [*]const u8, usize, *const DDict) usize;
extern fn ZSTD_getFrameContentSize([*]const u8, usize) c_ulonglong;
extern fn ZSTD_getCParams(c_int, c_ulonglong, usize) CompressionParameters;
extern fn ZSTD_createCDict_advanced([*]const u8, usize, c_int, c_int, CompressionParameters, CustomMemory) ?*CDict;
extern fn ZSTD_freeCDict(*CDict) usize;
extern fn ZSTD_createDDict_advanced([*]const u8, usize, c_int, c_int, CustomMemory) ?*DDict;
extern fn ZSTD_freeDDict(*DDict) usize;
extern fn ZSTD_isError(usize) c_uint;
extern fn ZSTD_getErrorCode(usize) c_int;
extern fn ZSTD_versionString() [*:0]const u8;
extern fn ZDICT_optimizeTrainFromBuffer_fastCover([*]u8, usize, [*]const u8, [*]const usize, c_uint, *FastCoverParameters) usize;
extern fn ZDICT_isError(usize) c_uint;

const c_compression_level = 100;
const c_checksum_flag = 201;
const c_dict_id_flag = 202;
const load_by_reference = 1;
const content_auto = 0;
const error_memory_allocation = 64;

const level_plain = 3;
const level_dict = 19;

/// The largest record that these stored bytes can produce. A zstd block of 4 bytes can stand for
/// 128 KiB; nothing expands more.
pub fn logicalSizeMax(codec: format.Codec, stored_size: u64) u64 {
    return switch (codec) {
        .raw => stored_size,
        .zstd, .zstd_dict => (stored_size / 4 + 1) * (128 << 10),
    };
}

/// Room for the stored bytes of a record of that size.
pub fn storedSizeMax(codec: format.Codec, logical_size: usize) usize {
    return switch (codec) {
        .raw => logical_size,
        .zstd, .zstd_dict => ZSTD_compressBound(logical_size),
    };
}

/// What is linked in; a test compares it with what the library says.
pub const zstd_version = "1.5.7";

/// The codec of one store, with contexts lent to the workers that run at the same time.
pub const Codecs = struct {
    gpa: std.mem.Allocator,
    codec: format.Codec,
    /// Owned; the digested dictionaries refer to it.
    dict: []const u8 = &.{},
    compressing: ?*CDict = null,
    decompressing: ?*DDict = null,
    mutex: locks.Mutex = .init,
    encoders: std.ArrayList(*CCtx) = .empty,
    decoders: std.ArrayList(*DCtx) = .empty,

    /// `dict` is copied. A writer digests it for compression as well.
    pub fn init(self: *Codecs, gpa: std.mem.Allocator, codec: format.Codec, dict: []const u8, writer: bool) error{OutOfMemory}!void {
        self.* = .{ .gpa = gpa, .codec = codec };
        if (codec != .zstd_dict) return;
        errdefer self.deinit();
        self.dict = try gpa.dupe(u8, dict);
        self.decompressing = ZSTD_createDDict_advanced(
            self.dict.ptr,
            self.dict.len,
            load_by_reference,
            content_auto,
            self.memory(),
        ) orelse return error.OutOfMemory;
        if (writer) self.compressing = ZSTD_createCDict_advanced(
            self.dict.ptr,
            self.dict.len,
            load_by_reference,
            content_auto,
            ZSTD_getCParams(level_dict, 0, self.dict.len),
            self.memory(),
        ) orelse return error.OutOfMemory;
    }

    pub fn deinit(self: *Codecs) void {
        for (self.encoders.items) |context| _ = ZSTD_freeCCtx(context);
        for (self.decoders.items) |context| _ = ZSTD_freeDCtx(context);
        self.encoders.deinit(self.gpa);
        self.decoders.deinit(self.gpa);
        if (self.compressing) |digested| _ = ZSTD_freeCDict(digested);
        if (self.decompressing) |digested| _ = ZSTD_freeDDict(digested);
        self.gpa.free(self.dict);
        self.* = .{ .gpa = self.gpa, .codec = self.codec };
    }

    pub fn encoder(self: *Codecs) error{OutOfMemory}!Encoder {
        if (self.codec == .raw) return .{ .context = null };
        {
            self.mutex.lock();
            defer self.mutex.unlock();
            if (self.encoders.pop()) |context| return .{ .context = context };
        }
        const context = ZSTD_createCCtx_advanced(self.memory()) orelse return error.OutOfMemory;
        errdefer _ = ZSTD_freeCCtx(context);
        const level: c_int = if (self.codec == .zstd_dict) level_dict else level_plain;
        if (ZSTD_isError(ZSTD_CCtx_setParameter(context, c_compression_level, level)) != 0) return error.OutOfMemory;
        if (ZSTD_isError(ZSTD_CCtx_setParameter(context, c_checksum_flag, 0)) != 0) return error.OutOfMemory;
        if (ZSTD_isError(ZSTD_CCtx_setParameter(context, c_dict_id_flag, 0)) != 0) return error.OutOfMemory;
        if (self.compressing) |digested| {
            if (ZSTD_isError(ZSTD_CCtx_refCDict(context, digested)) != 0) return error.OutOfMemory;
        }
        return .{ .context = context };
    }

    pub fn returnEncoder(self: *Codecs, given: Encoder) void {
        const context = given.context orelse return;
        self.mutex.lock();
        defer self.mutex.unlock();
        self.encoders.append(self.gpa, context) catch {
            _ = ZSTD_freeCCtx(context);
        };
    }

    pub fn decoder(self: *Codecs) error{OutOfMemory}!Decoder {
        if (self.codec == .raw) return .{ .context = null, .dict = null };
        {
            self.mutex.lock();
            defer self.mutex.unlock();
            if (self.decoders.pop()) |context| return .{ .context = context, .dict = self.decompressing };
        }
        const context = ZSTD_createDCtx_advanced(self.memory()) orelse return error.OutOfMemory;
        return .{ .context = context, .dict = self.decompressing };
    }

    pub fn returnDecoder(self: *Codecs, given: Decoder) void {
        const context = given.context orelse return;
        self.mutex.lock();
        defer self.mutex.unlock();
        self.decoders.append(self.gpa, context) catch {
            _ = ZSTD_freeDCtx(context);
        };
    }

    /// zstd allocates through the store's allocator, so that tests see its failures and leaks.
    fn memory(self: *Codecs) CustomMemory {
        return .{ .allocate = allocate, .free = free, .context = self };
    }

    // zstd frees without a size: it stands before each block.
    const block_prefix = 16;

    fn allocate(context: ?*anyopaque, size: usize) callconv(.c) ?*anyopaque {
        const self: *Codecs = @ptrCast(@alignCast(context.?));
        const block = self.gpa.alignedAlloc(u8, .@"16", size + block_prefix) catch return null;
        std.mem.writeInt(usize, block[0..@sizeOf(usize)], size + block_prefix, .little);
        return block.ptr + block_prefix;
    }

    fn free(context: ?*anyopaque, address: ?*anyopaque) callconv(.c) void {
        const self: *Codecs = @ptrCast(@alignCast(context.?));
        const start: [*]align(16) u8 = @alignCast(@as([*]u8, @ptrCast(address orelse return)) - block_prefix);
        self.gpa.free(start[0..std.mem.readInt(usize, start[0..@sizeOf(usize)], .little)]);
    }
};

pub const Encoder = struct {
    context: ?*CCtx,

    /// `target` holds storedSizeMax bytes. Returns the bytes used.
    pub fn encode(self: Encoder, source: []const u8, target: []u8) error{OutOfMemory}!usize {
        const result = ZSTD_compress2(self.context.?, target.ptr, target.len, source.ptr, source.len);
        // The target is large enough for whatever comes out, so only memory can be short.
        if (ZSTD_isError(result) != 0) return error.OutOfMemory;
        return result;
    }
};

pub const Decoder = struct {
    context: ?*DCtx,
    dict: ?*DDict,

    /// The frame must produce exactly `target.len` bytes.
    pub fn decode(self: Decoder, stored: []const u8, target: []u8) error{ OutOfMemory, BadFrame }!void {
        if (ZSTD_getFrameContentSize(stored.ptr, stored.len) != target.len) return error.BadFrame;
        const result = if (self.dict) |dict|
            ZSTD_decompress_usingDDict(self.context.?, target.ptr, target.len, stored.ptr, stored.len, dict)
        else
            ZSTD_decompressDCtx(self.context.?, target.ptr, target.len, stored.ptr, stored.len);
        if (ZSTD_isError(result) != 0) {
            return if (ZSTD_getErrorCode(result) == error_memory_allocation) error.OutOfMemory else error.BadFrame;
        }
        if (result != target.len) return error.BadFrame;
    }
};

/// Trains a dictionary (zstd's fast COVER) into `target`; returns its size.
pub fn trainDict(gpa: std.mem.Allocator, samples: []const u8, sizes: []const u64, target: []u8) error{ OutOfMemory, TooFewSamples }!usize {
    const native_sizes = try gpa.alloc(usize, sizes.len);
    defer gpa.free(native_sizes);
    for (sizes, native_sizes) |size, *native| native.* = @intCast(size);
    const count = std.math.cast(c_uint, sizes.len) orelse return error.TooFewSamples;
    var parameters: FastCoverParameters = .{};
    const result = ZDICT_optimizeTrainFromBuffer_fastCover(target.ptr, target.len, samples.ptr, native_sizes.ptr, count, &parameters);
    if (ZDICT_isError(result) != 0) {
        return if (ZSTD_getErrorCode(result) == error_memory_allocation) error.OutOfMemory else error.TooFewSamples;
    }
    return result;
}

test "the linked zstd is the pinned one" {
    try std.testing.expectEqualStrings(zstd_version, std.mem.span(ZSTD_versionString()));
}
