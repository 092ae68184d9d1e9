/* The limits that a store is compared with: memcpy out of a mapping, and libzstd in a loop.

   A batch is split into contiguous blocks of records, one a thread. The threads persist; each
   spins for a short time before it sleeps, so that a following batch finds it awake. */

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#ifdef WITH_ZSTD
#include <zstd.h>
#endif

enum { SPINS = 20000 };

typedef struct pool pool;
typedef void (*block)(pool *p, int thread, size_t first, size_t last);

struct pool {
    int threads;
    pthread_t *ids;
    pthread_mutex_t lock;
    pthread_cond_t wake;
    atomic_uint turn, busy;
    atomic_int stop, failed;
    block run;
    size_t count, width, bound;
    const char *source;
    const uint64_t *offsets;
    const int64_t *indices;
    char *target;
    uint64_t *sizes;
    void **decoders, **encoders;
};

typedef struct { pool *p; int thread; } seat;

static void run_block(pool *p, int thread) {
    size_t first = p->count * thread / p->threads;
    size_t last = p->count * (thread + 1) / p->threads;
    p->run(p, thread, first, last);
}

static void *work(void *argument) {
    seat own = *(seat *)argument;
    free(argument);
    pool *p = own.p;
    unsigned seen = 0;
    for (;;) {
        for (int i = 0; i < SPINS && atomic_load(&p->turn) == seen; i++)
            ;
        if (atomic_load(&p->turn) == seen) {
            pthread_mutex_lock(&p->lock);
            while (atomic_load(&p->turn) == seen) pthread_cond_wait(&p->wake, &p->lock);
            pthread_mutex_unlock(&p->lock);
        }
        seen = atomic_load(&p->turn);
        if (atomic_load(&p->stop)) return NULL;
        run_block(p, own.thread);
        atomic_fetch_sub(&p->busy, 1);
    }
}

static void next_turn(pool *p) {
    pthread_mutex_lock(&p->lock);
    atomic_fetch_add(&p->turn, 1);
    pthread_cond_broadcast(&p->wake);
    pthread_mutex_unlock(&p->lock);
}

static int run_all(pool *p, block run) {
    p->run = run;
    atomic_store(&p->failed, 0);
    if (p->threads > 1) {
        atomic_store(&p->busy, p->threads - 1);
        next_turn(p);
    }
    run_block(p, 0);
    while (p->threads > 1 && atomic_load(&p->busy)) sched_yield();
    return atomic_load(&p->failed);
}

pool *pool_new(int threads, int level) {
    pool *p = calloc(1, sizeof *p);
    p->threads = threads;
    p->ids = calloc(threads, sizeof *p->ids);
    pthread_mutex_init(&p->lock, NULL);
    pthread_cond_init(&p->wake, NULL);
#ifdef WITH_ZSTD
    p->decoders = calloc(threads, sizeof(void *));
    p->encoders = calloc(threads, sizeof(void *));
    for (int i = 0; i < threads; i++) {
        p->decoders[i] = ZSTD_createDCtx();
        p->encoders[i] = ZSTD_createCCtx();
        ZSTD_CCtx_setParameter(p->encoders[i], ZSTD_c_compressionLevel, level);
    }
#else
    (void)level;
#endif
    for (int i = 1; i < threads; i++) {
        seat *own = malloc(sizeof *own);
        *own = (seat){p, i};
        pthread_create(&p->ids[i], NULL, work, own);
    }
    return p;
}

void pool_free(pool *p) {
    atomic_store(&p->stop, 1);
    next_turn(p);
    for (int i = 1; i < p->threads; i++) pthread_join(p->ids[i], NULL);
#ifdef WITH_ZSTD
    for (int i = 0; i < p->threads; i++) {
        ZSTD_freeDCtx(p->decoders[i]);
        ZSTD_freeCCtx(p->encoders[i]);
    }
#endif
    free(p->decoders);
    free(p->encoders);
    free(p->ids);
    free(p);
}

static void copy_block(pool *p, int thread, size_t first, size_t last) {
    (void)thread;
    for (size_t i = first; i < last; i++)
        memcpy(p->target + i * p->width, p->source + (size_t)p->indices[i] * p->width, p->width);
}

int copy_gather(pool *p, const char *source, size_t width, const int64_t *indices, size_t count,
                char *target) {
    p->source = source, p->width = width, p->indices = indices, p->count = count;
    p->target = target;
    return run_all(p, copy_block);
}

#ifdef WITH_ZSTD
static void decode_block(pool *p, int thread, size_t first, size_t last) {
    for (size_t i = first; i < last; i++) {
        size_t k = (size_t)p->indices[i];
        size_t done = ZSTD_decompressDCtx(p->decoders[thread], p->target + i * p->width, p->width,
                                          p->source + p->offsets[k],
                                          p->offsets[k + 1] - p->offsets[k]);
        if (done != p->width) atomic_store(&p->failed, 1);
    }
}

int zstd_gather(pool *p, const char *source, const uint64_t *offsets, size_t width,
                const int64_t *indices, size_t count, char *target) {
    p->source = source, p->offsets = offsets, p->width = width, p->indices = indices;
    p->count = count, p->target = target;
    return run_all(p, decode_block);
}

static void encode_block(pool *p, int thread, size_t first, size_t last) {
    for (size_t i = first; i < last; i++) {
        size_t done = ZSTD_compress2(p->encoders[thread], p->target + i * p->bound, p->bound,
                                     p->source + i * p->width, p->width);
        if (ZSTD_isError(done)) atomic_store(&p->failed, 1);
        p->sizes[i] = done;
    }
}

/* Frame i is at target + i * zstd_bound(width), and has sizes[i] bytes. */
int zstd_append(pool *p, const char *source, size_t width, size_t count, char *target,
                uint64_t *sizes) {
    p->source = source, p->width = width, p->count = count, p->target = target, p->sizes = sizes;
    p->bound = ZSTD_compressBound(width);
    return run_all(p, encode_block);
}

size_t zstd_bound(size_t width) { return ZSTD_compressBound(width); }
#endif
