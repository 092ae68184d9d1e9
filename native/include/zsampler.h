/* zsampler.h: the C interface of libzsampler, indices as a pure function of (seed, step).
 *
 * Conventions
 * 1. Every name starts with zs_ or ZS_. All sizes and counts are 64-bit.
 * 2. A function returns a status, ZS_OK (0) or what was wrong, and gives results through
 *    parameters whose names end in _out. On any status but ZS_OK nothing was written.
 * 3. The caller owns all memory. The library allocates nothing and keeps no pointer.
 * 4. Nothing has a state: every function may be called from any thread, at any time, with the
 *    same arguments or others.
 * 5. Call zs_abi_version() first; go on only if it returns the ZS_ABI_VERSION compiled against.
 * 6. Status values never change their meaning. They come in families: 1 to 9 the call itself,
 *    10 to 19 one field of the configuration, 20 to 29 fields that do not go together.
 */
#ifndef ZSAMPLER_H
#define ZSAMPLER_H

#include <stdint.h>

#define ZS_ABI_VERSION 1

#ifdef __cplusplus
extern "C" {
#endif

/* CFFI-BEGIN */

enum zs_status {
    ZS_OK = 0,
    ZS_NULL_POINTER = 1,    /* a pointer that must point somewhere is null */
    ZS_BAD_SIZE = 2,        /* zs_config.size is not the size of zs_config */
    ZS_BAD_KERNEL = 3,
    ZS_BAD_RESERVED = 4,    /* zs_config.reserved is not 0 */
    ZS_BAD_MODE = 10,
    ZS_BAD_REMAINDER = 11,
    ZS_BAD_LENGTH = 12,     /* 1 to 2^63; for weights 1 to 2^32 */
    ZS_BAD_BATCH_SIZE = 13, /* 1 to 2^28 */
    ZS_BAD_RANK = 14,       /* below world_size */
    ZS_BAD_WORLD_SIZE = 15, /* 1 to 2^31 */
    ZS_BAD_WEIGHTS = 16,    /* negative, not finite, all zero, or not for this mode */
    ZS_SHORT_CYCLE = 20,    /* ZS_CYCLIC with ZS_DROP: length is below batch_size * world_size */
    ZS_BAD_STEP = 21        /* the steps pass 2^64 - 1, or the indices the address space */
};

enum zs_mode {
    ZS_SEQUENTIAL = 0, /* a circular window that slides over 0 .. length - 1 */
    ZS_IID = 1,        /* independent draws with replacement */
    ZS_CYCLIC = 2      /* a fresh permutation each cycle */
};

/* What ZS_CYCLIC does with the records that do not fill a step at the end of a cycle. The other
 * modes ignore it. */
enum zs_remainder {
    ZS_DROP = 0, /* leave them out of this cycle */
    ZS_WRAP = 1  /* fill the step from the next cycle */
};

/* Every kernel gives the same indices; the choice is for tests and measurements. */
enum zs_kernel {
    ZS_BEST = 0,    /* the fastest that this processor has */
    ZS_BASELINE = 1 /* the one that every processor of the architecture has */
};

/* One column of an alias table: a uniform 64-bit word below threshold keeps the column's own
 * index, any other takes alias. */
typedef struct zs_column {
    uint64_t threshold;
    uint64_t alias;
} zs_column;

typedef struct zs_config {
    uint64_t size; /* sizeof(zs_config) */
    uint64_t length;
    uint64_t batch_size; /* of this rank */
    uint64_t rank;
    uint64_t world_size;
    uint64_t seed;
    uint32_t mode;
    uint32_t remainder;
    uint32_t kernel;
    uint32_t reserved;        /* 0 */
    const zs_column *columns; /* null, or with ZS_IID the table of zs_alias_table */
} zs_config;

/* Any thread. The version of this interface. */
uint32_t zs_abi_version(void);

/* Any thread. The kernel that ZS_BEST means here: "baseline", "x86-64-v3" or "x86-64-v4". */
const char *zs_kernel_name(void);

/* Any thread. Whether the configuration can be used: the status the others would give. */
int32_t zs_check(const zs_config *config);

/* Any thread. Steps in which every record is due once: length / (batch_size * world_size), rounded
 * down for ZS_CYCLIC with ZS_DROP and up for everything else. */
int32_t zs_steps_per_cycle(const zs_config *config, uint64_t *steps_out);

/* Any thread. The batches of step_count steps from first_step on, step_count * batch_size indices,
 * one batch after the other. The cost does not depend on first_step. */
int32_t zs_indices(const zs_config *config, uint64_t first_step, uint64_t step_count,
                   uint64_t *indices_out);

/* Any thread. The alias table of length weights, for zs_config.columns. scratch is working space
 * of length entries; what it holds afterwards means nothing. */
int32_t zs_alias_table(const double *weights, uint64_t length, zs_column *scratch,
                       zs_column *columns_out);

/* CFFI-END */

#ifdef __cplusplus
}
#endif

#endif
