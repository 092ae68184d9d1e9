//! Dense: record i is one row of the store's width. What is validated, and where it lies in a batch.

const engine_zig = @import("engine.zig");
const format = @import("format.zig");
const gather = @import("gather.zig");
const spans = @import("spans.zig");
const status = @import("status.zig");

const Error = status.Error;
const Fault = status.Fault;

pub fn appendPart(engine: anytype, bytes: []const u8, fault: *Fault) Error!void {
    try engine.appendPart(spans.Strided([]const u8){ .bytes = bytes, .width = engine.width }, fault);
}

/// `bytes` takes one record per index.
pub fn gatherInto(engine: anytype, indices: anytype, bytes: []u8, fault: *Fault) Error!void {
    if (indices.len > bytes.len / engine.width or indices.len * engine.width != bytes.len) {
        fault.* = .{ .expected = indices.len *| engine.width, .found = bytes.len };
        return error.TargetSize;
    }
    try gather.gather(engine, indices, Rows{ .bytes = bytes, .width = engine.width }, fault);
}

const Rows = struct {
    bytes: []u8,
    width: usize,

    pub inline fn at(self: Rows, ordinal: usize) []u8 {
        return self.bytes[ordinal * self.width ..][0..self.width];
    }

    pub inline fn check(self: Rows, ordinal: usize, entry: *const format.DenseEntry, index: u64, fault: *Fault) Error!void {
        _ = ordinal;
        if (entry.logical_size != self.width) {
            return fault.corruptRecord(.{ .chunk = entry.chunk }, index, self.width, entry.logical_size);
        }
    }

    pub inline fn takeDims(self: Rows, ordinal: usize, dims: []const u8, index: u64, fault: *Fault) Error!void {
        _ = .{ self, ordinal, dims, index, fault };
    }
};
