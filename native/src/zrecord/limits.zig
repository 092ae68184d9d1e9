//! Sizes that decide when a store rolls over, splits or gives up. Tests use tiny ones, so that ten
//! records cross every boundary, and may leave one rule of the protocol out to prove that its
//! absence is noticed.

pub const Limits = struct {
    /// A table segment holds 2^segment_bits entries.
    segment_bits: u6 = 28,
    /// A table has at most this many segments.
    segment_count_max: u32 = 1024,
    /// A chunk takes no further record that would end beyond this; a larger record has its own.
    chunk_size_max: u64 = 1 << 30,
    /// A chunk id above this is not believed.
    chunk_count_max: u32 = 1 << 22,
    /// Journal space that is allocated at creation: a change that fits needs no new space.
    journal_size: u64 = 64 << 10,
    /// Most bytes of one record.
    record_size_max: u64 = (1 << 31) - 1,
    /// Most bytes that one gather may fill.
    batch_size_max: u64 = 1 << 46,
    /// Bytes of source records that one worker takes at a time when it appends.
    append_block_size: u64 = 256 << 10,
    /// Bytes of journal entries that one group of compaction may collect.
    compact_group_size: u64 = 256 << 20,
    /// Open chunk files.
    open_files_max: u32 = 256,
    /// How long a reader waits for a delete, compact or recovery to end.
    reader_wait_ms: u32 = 10_000,
    /// How long a reader looks again at slots that a writer may be changing.
    slot_wait_ms: u32 = 250,
    /// Whether `mistake_made` counts; only ever set by tests.
    may_err: bool = false,

    /// The rule that this thread leaves out. Known at compile time, and gone, unless a test asks.
    pub inline fn mistake(comptime limits: Limits) Mistake {
        return if (limits.may_err) mistake_made else .none;
    }
};

pub threadlocal var mistake_made: Mistake = .none;

/// One rule of the protocol each.
pub const Mistake = enum {
    none,
    sync_skips_chunks,
    sync_skips_table,
    sync_skips_directory,
    sync_skips_meta,
    sync_header_first,
    sync_not_exclusive,
    delete_without_sync,
    journal_not_synced,
    journal_after_entries,
    journal_not_redone,
    entries_not_synced,
    compact_skips_chunk_sync,
    compact_skips_directory_sync,
    compact_unlinks_first,
    no_fence,
    no_orphan_removal,
    record_sum_skipped,
    table_digest_skipped,
    lost_slot_ignored,
    foreign_boot_trusted,
    stale_lazy_slot_trusted,
    append_keeps_old_tail,
    found_slot_not_synced,
    found_journal_not_synced,
    failed_sync_retried,
    poison_keeps_boot_id,
    durable_before_entries,
};
