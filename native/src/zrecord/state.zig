//! The committed state of a store, as slots and journals say it.

const format = @import("format.zig");

/// A place in the chunks behind which nothing is stored yet.
pub const Tail = packed struct(u64) {
    offset: u32,
    chunk: u32,
};

/// What a commit makes true, all at once.
pub const State = struct {
    epoch: u64,
    length: u64,
    live_bytes: u64,
    table_digest: u64,
    chunk_bytes: u64,
    tail: Tail,

    pub fn of(slot: format.Slot) State {
        return .{
            .epoch = slot.epoch,
            .length = slot.length,
            .live_bytes = slot.live_bytes,
            .table_digest = slot.table_digest,
            .chunk_bytes = slot.chunk_bytes,
            .tail = .{ .chunk = slot.tail_chunk, .offset = slot.tail_offset },
        };
    }

    pub fn into(state: State, slot: *format.Slot) void {
        slot.epoch = state.epoch;
        slot.length = state.length;
        slot.live_bytes = state.live_bytes;
        slot.table_digest = state.table_digest;
        slot.chunk_bytes = state.chunk_bytes;
        slot.tail_chunk = state.tail.chunk;
        slot.tail_offset = state.tail.offset;
    }
};
