/* ring.h: the ring's memory, books, clocks and table of registered files, for ring.c alone. */
#ifndef GNNDRIVE_RING_H
#define GNNDRIVE_RING_H
#include <liburing.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>
#include "latency.h"
#include "reads.h"
#include "slice.h"
#include "staging.h"

enum { FILES = 64, DEPTH_MAX = 4096, BATCHES = 8, GIVES_WAY = 64 };
enum { STARTING = 1, BACK_OFF_NS = 1000000 };
#define WAKE UINT64_MAX /* user_data of the eventfd's read; the others carry an op's number */

typedef struct gd_job {
    struct gd_job *next;
    gd_reads *reads;
    int64_t inflight; /* extents whose memory the kernel may write */
    int64_t told;     /* settled rows already counted towards a notification */
    int fd, file;     /* file: its place in the registered table, or -1 */
} gd_job;

typedef struct gd_op {
    gd_job *job;
    int64_t extent, begin; /* begin: of its stretch of staging, if it is staged */
    int64_t since_ns, taken_ns, bytes;
    int32_t res, staged; /* res: what the kernel said, once it has arrived */
} gd_op;
typedef struct gd_jobs {
    gd_job *head, **tail;
} gd_jobs;

struct gd_ring {
    struct io_uring uring; /* from here on the thread's own */
    gd_op *ops;            /* `depth` of them */
    int32_t *idle;         /* those that are not in use */
    int32_t *arrived;      /* those that were read and are not landed yet */
    int32_t idle_count, arrived_count, depth;
    int64_t inflight_bytes; /* asked for and not there yet */
    int32_t *prepared;      /* for `measure`: ops not taken yet; -1: WAKE */
    int32_t prepared_count;
    gd_ring_options options;
    gd_latency latency; /* written by the thread, read by any */
    gd_staging staging;
    int64_t block_bytes, report_rows, untold, now_ns;
    gd_jobs jobs;
    gd_ring_stats stats;
    int file_fd[FILES], file_users[FILES];
    int wake_fd, notify_fd, wake_posted;
    uint64_t wake_value;
    pthread_t thread;
    pthread_mutex_t lock; /* guards all below */
    pthread_cond_t started;
    int verdict, stopping; /* verdict: STARTING, 0 or -errno */
    gd_jobs incoming;
    gd_ring_stats published;
};

/* ---- how much may be in flight; giving way to a ring whose jobs are short and waited for */

static inline int32_t inflight(const gd_ring *g) {
    return g->depth - g->idle_count - g->arrived_count;
}

/* How many more requests may be in flight, of a window that is divided by `divisor`. */
static inline int32_t room(const gd_ring *g, int32_t divisor) {
    const int64_t bytes = g->options.inflight_bytes / divisor;
    if (g->options.inflight_bytes && g->inflight_bytes >= bytes) return 0;
    int32_t most = g->depth / divisor;
    if (g->options.gives_way && __atomic_load_n(g->options.traffic, __ATOMIC_RELAXED) != 0)
        most = g->depth / GIVES_WAY > 0 ? g->depth / GIVES_WAY : 1;
    int32_t more = most - inflight(g);
    if (more > g->idle_count) more = g->idle_count;
    return more > 0 && gd_staging_fits(&g->staging, g->block_bytes) ? more : 0;
}

static inline void count_traffic(const gd_ring *g, int32_t jobs) {
    if (g->options.traffic && !g->options.gives_way)
        __atomic_add_fetch(g->options.traffic, jobs, __ATOMIC_RELAXED);
}

/* ---- clocks: one a turn serves the loader; `measure` has one a request and one a submission */
static inline void note_prepared(gd_ring *g, int32_t number) {
    if (g->options.measure) g->prepared[g->prepared_count++] = number;
    if (number >= 0) g->ops[number].since_ns = g->options.measure ? gd_clock_ns() : g->now_ns;
}

/* The kernel took the oldest `taken` of what was prepared. */
static inline void note_taken(gd_ring *g, int32_t taken) {
    int64_t now_ns = gd_clock_ns();
    assert(taken <= g->prepared_count);
    for (int32_t i = 0; i < taken; i++) {
        if (g->prepared[i] < 0) continue;
        gd_op *op = &g->ops[g->prepared[i]];
        op->taken_ns = now_ns;
        gd_histogram_count(&g->latency.slat, now_ns - op->since_ns);
    }
    g->prepared_count -= taken;
    memmove(g->prepared, g->prepared + taken, (size_t)g->prepared_count * sizeof *g->prepared);
}

static inline void note_completed(gd_ring *g, const gd_op *op) {
    gd_histogram_count(&g->latency.lat, g->now_ns - op->since_ns);
    if (g->options.measure) gd_histogram_count(&g->latency.clat, g->now_ns - op->taken_ns);
}

/* ---- the registered file table: a descriptor is in it while some job uses it ---- */
static inline int file_open(gd_ring *g, int fd) {
    int empty = -1;
    for (int i = FILES - 1; g->stats.fixed_files && i >= 0; i--) {
        if (g->file_users[i] && g->file_fd[i] == fd) {
            g->file_users[i]++;
            return i;
        }
        if (!g->file_users[i]) empty = i;
    }
    if (empty < 0 || io_uring_register_files_update(&g->uring, (unsigned)empty, &fd, 1) != 1)
        return -1;
    g->file_fd[empty] = fd;
    g->file_users[empty] = 1;
    return empty;
}

static inline void file_close(gd_ring *g, int file) {
    int none = -1;
    if (file >= 0 && --g->file_users[file] == 0)
        io_uring_register_files_update(&g->uring, (unsigned)file, &none, 1);
}

/* ---- memory ---- */
static inline void free_memory(gd_ring *g) {
    if (g->staging.memory && g->staging.memory != MAP_FAILED)
        munmap(g->staging.memory, (size_t)g->staging.bytes);
    free(g->staging.used);
    if (g->wake_fd >= 0) close(g->wake_fd);
    pthread_mutex_destroy(&g->lock);
    pthread_cond_destroy(&g->started);
    free(g->ops);
    free(g->idle);
    free(g->arrived);
    free(g->prepared);
    free(g);
}

static inline int allocate(gd_ring *g) {
    size_t bytes = (size_t)g->depth * (size_t)g->block_bytes;
    g->staging.bytes = (int64_t)bytes;
    g->staging.used = malloc((size_t)g->depth * sizeof *g->staging.used);
    g->staging.memory =
        mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    /* a virtual disk's host pays for each stretch of contiguous memory, not for each read */
    madvise(g->staging.memory, bytes, MADV_HUGEPAGE);
    g->ops = calloc((size_t)g->depth, sizeof *g->ops);
    g->idle = malloc((size_t)g->depth * sizeof *g->idle);
    g->arrived = malloc((size_t)g->depth * sizeof *g->arrived);
    g->prepared = malloc(((size_t)g->depth + 1) * sizeof *g->prepared);
    if (g->staging.memory == MAP_FAILED || !g->staging.used || !g->ops || !g->idle || !g->arrived ||
        !g->prepared)
        return -ENOMEM;
    while (g->idle_count < g->depth) {
        g->idle[g->idle_count] = g->depth - 1 - g->idle_count;
        g->idle_count++;
    }
    g->wake_fd = eventfd(0, EFD_CLOEXEC); /* blocking, or the ring's read of it would end at once */
    return g->wake_fd < 0 ? -errno : 0;
}
#endif
