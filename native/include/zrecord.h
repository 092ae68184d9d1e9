/* zrecord.h: the C ABI of the zrecord store, version 1.
 *
 * Conventions
 *  1. Functions and types begin with zr_, constants with ZR_. Handles are opaque.
 *  2. The return value is a status, 0 is success. Results come through *_out parameters, which are
 *     written on success only.
 *  3. Sizes, counts, indices and offsets are 64-bit and count bytes unless the name says otherwise.
 *  4. Structs that may grow carry their own size first: the caller fills it with sizeof. A library
 *     that is newer than its caller writes only that many bytes.
 *  5. `error` may be NULL. It is filled when the status is not 0: numbers only, no text.
 *  6. The caller owns every buffer that it passes; the library keeps none after the call returns.
 *     A store is freed by zr_store_free, whatever zr_store_close returned.
 *  7. Each function says how it may be called:
 *       any thread              at any time from any thread, together with all others
 *       one at a time per store calls of this group wait for one another; gathers go on
 *       exclusive               waits for every running call on that store
 *     After fork the child may read and close; what writes answers ZR_FORKED.
 *  8. Paths are UTF-8 and end in NUL. All numbers on disk are little-endian.
 *  9. Between CFFI-BEGIN and CFFI-END there is no preprocessor: that region is what bindings compile.
 */
#ifndef ZRECORD_H
#define ZRECORD_H

#include <stdint.h>

#define ZR_ABI_VERSION 1

#ifdef __cplusplus
extern "C" {
#endif

/* CFFI-BEGIN */
enum zr_status {
    ZR_OK = 0,
    /* 1xx: the call's arguments */
    ZR_INVALID_ARGUMENT = 100,   /* a null pointer, an unknown constant, a struct too small */
    ZR_INDEX_OUT_OF_RANGE = 101, /* error: record = position in the request, found = the index (two's complement if
                                    signed), expected = the length */
    ZR_WRONG_KIND = 102,         /* a dense call on a ragged store or the other way round; found = the store's kind */
    ZR_IDENTITY_MISMATCH = 103,  /* kind, record width, identity or codec differ from the stored ones */
    ZR_EMPTY_RECORD = 104,       /* a record of zero bytes; record = position in the part */
    ZR_RECORD_TOO_LARGE = 105,   /* a record of 2^31 bytes or more; record = position, found = its size */
    ZR_SHAPE_MISMATCH = 106,     /* shape and size of a ragged record disagree; record = position */
    ZR_TARGET_SIZE = 107,        /* the target is too small; expected = what it must hold, found = what it holds */
    ZR_BATCH_TOO_LARGE = 108,    /* a batch over 2^46 bytes, or offsets that do not grow */
    ZR_BAD_DICTIONARY = 109,     /* absent, given where none belongs, or larger than 16 MiB */
    ZR_TOO_FEW_SAMPLES = 110,    /* dictionary training needs more or larger samples */
    /* 2xx: the handle's state */
    ZR_CLOSED = 200,
    ZR_READ_ONLY = 201,
    ZR_FORKED = 202,             /* a write through a handle that the parent process opened */
    ZR_FAILED = 203,             /* an earlier I/O error made this handle read-only */
    ZR_BUSY_WRITER = 204,        /* another handle writes to this store */
    ZR_BUSY_READERS = 205,       /* the change needs every other reader gone */
    ZR_BUSY_MAINTENANCE = 206,   /* a reader waited 10 s for a delete, compact or recovery to end */
    ZR_CHANGED = 207,            /* records were moved or deleted under a reader without lock, or since the plan */
    ZR_CANCELLED = 208,          /* a progress callback asked to stop */
    ZR_NO_APPEND = 209,          /* part, commit or abort without begin */
    /* 3xx: what lies in the folder */
    ZR_NO_STORE = 300,           /* nothing there, or an empty folder */
    ZR_STORE_EXISTS = 301,
    ZR_FOREIGN = 302,            /* the folder holds something else */
    ZR_UNFINISHED = 303,         /* a creation that never ended */
    ZR_UNSUPPORTED = 304,        /* another format version (found) or unknown feature words */
    ZR_CORRUPT_STORE = 305,      /* file_kind and file_id say where */
    ZR_CORRUPT_RECORD = 306,     /* record = its index; expected and found sums, or 0 */
    /* 4xx: the system */
    ZR_OS_ERROR = 400,           /* os_errno, file_kind, file_id */
    ZR_OUT_OF_MEMORY = 401
};

enum zr_kind { ZR_KIND_ANY = 0, ZR_DENSE = 1, ZR_RAGGED = 2 };
enum zr_codec { ZR_RAW = 0, ZR_ZSTD = 1, ZR_ZSTD_DICT = 2, ZR_CODEC_ANY = 255 };
enum zr_mode { ZR_MODE_READ = 0, ZR_MODE_WRITE = 1, ZR_MODE_CREATE = 2 };
enum zr_checksums { ZR_CHECK_DEFAULT = 0, ZR_CHECK_ALWAYS = 1, ZR_CHECK_ONCE = 2, ZR_CHECK_OFF = 3 };
enum zr_index_type { ZR_INDEX_U64 = 0, ZR_INDEX_I64 = 1 };
enum zr_file_kind {
    ZR_FILE_NONE = 0, ZR_FILE_STORE = 1, ZR_FILE_META = 2, ZR_FILE_LOCK = 3, ZR_FILE_READERS_LOCK = 4,
    ZR_FILE_JOURNAL = 5, ZR_FILE_DICT = 6, ZR_FILE_SEGMENT = 7, ZR_FILE_CHUNK = 8
};

typedef struct zr_store zr_store;

/* What went wrong, in numbers. Fields that say nothing are 0; record is UINT64_MAX then. */
typedef struct zr_error {
    uint64_t size;
    int32_t status;
    int32_t os_errno;
    uint32_t file_kind;
    uint32_t file_id;
    uint64_t record;
    uint64_t offset;
    uint64_t expected;
    uint64_t found;
} zr_error;

/* mode ZR_MODE_READ:   shared, needs no write permission.
 * mode ZR_MODE_WRITE:  open for reading and writing; creates when identity is given and nothing is there.
 * mode ZR_MODE_CREATE: must create.
 * kind, record_width, identity and codec are compared with the stored ones where given (not 0, NULL, ZR_CODEC_ANY).
 * Creation needs kind, identity, a codec (ZR_CODEC_ANY means zstd), for dense the bytes of one record in record_width
 * and for ragged the bytes of one item. */
typedef struct zr_options {
    uint64_t size;
    uint32_t mode;
    uint32_t kind;
    uint32_t codec;
    uint32_t checksums;
    uint32_t no_mapping;
    uint32_t reserved;
    uint64_t record_width;
    const void *identity;
    uint64_t identity_size;
    const void *dict;
    uint64_t dict_size;
} zr_options;

typedef struct zr_info {
    uint64_t size;
    uint32_t format_version;
    uint32_t kind;
    uint32_t codec;
    uint32_t checksums;
    uint32_t writable;
    uint32_t mapped;
    uint64_t record_width;
    uint64_t identity_size;
    uint64_t dict_size;
    uint64_t epoch;
    uint64_t length;
    uint8_t uuid[16];
} zr_info;

typedef struct zr_stats {
    uint64_t size;
    uint64_t records;
    uint64_t live_bytes;
    uint64_t chunk_bytes;
} zr_stats;

typedef struct zr_verify_report {
    uint64_t size;
    uint64_t records;
    uint64_t bytes;
    uint64_t damaged;
    uint64_t table_damaged;  /* 1 if the record table does not have its committed digest */
} zr_verify_report;

/* Return 0 to go on, anything else to stop. Called on the calling thread. done and total are bytes. */
typedef int32_t (*zr_progress)(void *context, uint64_t done, uint64_t total);
/* One damaged record; status is ZR_CORRUPT_RECORD or ZR_OS_ERROR. Called on the calling thread. */
typedef int32_t (*zr_finding)(void *context, const zr_error *finding);

/* any thread */
uint32_t zr_abi_version(void);
/* any thread. A static string: version, zstd version, target, build mode. */
const char *zr_build_info(void);

/* any thread. The number of threads that one call may use, the caller included; 1 to 1024. */
int32_t zr_set_num_threads(uint32_t count);
uint32_t zr_get_num_threads(void);

/* any thread. Reads identity and header without a lock. ZR_NO_STORE, ZR_UNFINISHED, ZR_FOREIGN, ZR_UNSUPPORTED
 * say what else is there. identity may be NULL with capacity 0; the size is in info->identity_size. */
int32_t zr_peek(const char *path, zr_info *info_out, void *identity, uint64_t capacity, zr_error *error);

/* any thread */
int32_t zr_store_open(const char *path, const zr_options *options, zr_store **store_out, zr_error *error);
/* exclusive. Makes everything durable (a writer), releases locks and files. Idempotent. On an error the handle is
 * closed all the same and the status says what was not done. */
int32_t zr_store_close(zr_store *store, zr_error *error);
/* exclusive, no other call may follow. Without zr_store_close nothing is made durable. NULL is allowed. Returns 1 if
 * the store was not closed and held records that were never synced, else 0. */
int32_t zr_store_free(zr_store *store);
/* any thread, in a child process after fork: drops the parent's locks. Also done by the child's first call. */
int32_t zr_store_after_fork(zr_store *store);

/* any thread */
int32_t zr_store_info(zr_store *store, zr_info *info_out);
int32_t zr_store_identity(zr_store *store, void *target, uint64_t capacity, uint64_t *size_out);
int32_t zr_store_dict(zr_store *store, void *target, uint64_t capacity, uint64_t *size_out);
int32_t zr_store_length(zr_store *store, uint64_t *length_out);
int32_t zr_store_stats(zr_store *store, zr_stats *stats_out);
/* any thread. A reader sees what was committed since; a writer's length is always current. */
int32_t zr_store_refresh(zr_store *store, uint64_t *length_out, zr_error *error);
/* any thread. A hint to the kernel that these records are read soon; out-of-range indices are ignored. */
int32_t zr_store_will_need(zr_store *store, const void *indices, uint32_t index_type, uint64_t count);

/* one at a time per store. What was appended before survives power loss when it returns. */
int32_t zr_store_sync(zr_store *store, zr_error *error);
/* exclusive. Every index once; record i becomes the last record, in descending index order. Atomic and durable. */
int32_t zr_store_delete(zr_store *store, const void *indices, uint32_t index_type, uint64_t count,
                        uint64_t *deleted_out, zr_error *error);
/* one at a time per store, gathers wait at commits only. Resumable: ZR_CANCELLED keeps what was done. */
int32_t zr_store_compact(zr_store *store, zr_progress progress, void *context, zr_error *error);
/* any thread. Reads everything. The status is 0 when the scan ran to its end, whatever it found. */
int32_t zr_store_verify(zr_store *store, zr_finding finding, zr_progress progress, void *context,
                        zr_verify_report *report_out, zr_error *error);

/* A staged append: begin, any number of parts, then commit or abort. Nothing is visible before commit; after an error
 * in a part only abort may follow. From begin to commit or abort the other calls of this group, sync, delete and
 * compact of other threads wait; the thread that began must not call them. */
int32_t zr_append_begin(zr_store *store, zr_error *error);
int32_t zr_append_commit(zr_store *store, uint64_t *first_index_out, zr_error *error);
int32_t zr_append_abort(zr_store *store, zr_error *error);
/* count records of record_width bytes each, one behind the other. */
int32_t zr_dense_append_part(zr_store *store, const void *source, uint64_t count, zr_error *error);
/* Record i is source[offsets[i] .. offsets[i + 1]), with ranks[i] dimensions; dims holds the dimensions of all
 * records one behind the other. */
int32_t zr_ragged_append_part(zr_store *store, const void *source, const uint64_t *offsets, const uint8_t *ranks,
                              const uint64_t *dims, uint64_t count, zr_error *error);

/* any thread. Records in request order, one behind the other. target_size must be count * record_width. */
int32_t zr_dense_gather(zr_store *store, const void *indices, uint32_t index_type, uint64_t count, void *target,
                        uint64_t target_size, zr_error *error);

/* any thread. What a packed gather will fill: offsets_out (count + 1) in items, shapes_out (count) one shape word each:
 * rank in bits 0 to 7, the first dimension above. dims_count_out: how many dimensions records of rank 3 and more have
 * together. */
int32_t zr_ragged_plan(zr_store *store, const void *indices, uint32_t index_type, uint64_t count, int64_t *offsets_out,
                       uint64_t *shapes_out, uint64_t *dims_count_out, zr_error *error);
/* any thread. The same request as the plan, with its results; target_size in bytes. dims_out takes the dimensions of the
 * records of rank 3 and more, in request order. ZR_CHANGED: the plan is out of date, plan again. */
int32_t zr_ragged_gather(zr_store *store, const void *indices, uint32_t index_type, uint64_t count,
                         const int64_t *offsets, const uint64_t *shapes, void *target, uint64_t target_size,
                         uint64_t *dims_out, uint64_t dims_count, zr_error *error);
/* any thread. Items per record, without reading payload. indices NULL: the records first .. first + count. */
int32_t zr_ragged_lengths(zr_store *store, const void *indices, uint32_t index_type, uint64_t first, uint64_t count,
                          int64_t *lengths_out, zr_error *error);

/* any thread. Trains a zstd dictionary of at most capacity bytes; sample i has sizes[i] bytes, one behind the other. */
int32_t zr_dict_train(const void *samples, const uint64_t *sizes, uint64_t count, void *dict, uint64_t capacity,
                      uint64_t *dict_size_out, zr_error *error);
/* CFFI-END */

#ifdef __cplusplus
}
#endif

#endif
