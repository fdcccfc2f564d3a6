/* ring.h: the ring's books, its clocks and its table of registered files, for ring.c alone. */
#ifndef GNNDRIVE_RING_H
#define GNNDRIVE_RING_H
#include <liburing.h>
#include "latency.h"
#include "reads.h"

enum { FILES = 64, DEPTH_MAX = 4096, BATCHES = 8, GIVES_WAY = 64, PAGE = 4096 };
enum { STARTING = 1, BACK_OFF_NS = 1000000 };
#define WAKE UINT64_MAX /* user_data of the eventfd's read; the others carry a block's number */

typedef struct gd_job {
    struct gd_job *next;
    gd_reads *reads;
    int64_t inflight;      /* extents whose memory the kernel may write */
    int64_t told;          /* settled rows already counted towards a notification */
    int fd, file;          /* file: its place in the registered table, or -1 */
} gd_job;

typedef struct gd_op { gd_job *job; int64_t extent, since_ns, taken_ns, bytes; } gd_op;
typedef struct gd_jobs { gd_job *head, **tail; } gd_jobs;

struct gd_ring {
    struct io_uring uring;                 /* from here on the thread's own */
    gd_op *ops;                            /* one a block */
    int32_t *idle;                         /* blocks that are not in use */
    int32_t idle_count, depth;
    int64_t inflight_bytes;                /* asked for and not there yet */
    int32_t *prepared;                     /* for `measure`: blocks not taken yet; -1: WAKE */
    int32_t prepared_count;
    gd_ring_options options;
    gd_latency latency;                    /* written by the thread, read by any */
    uint8_t *staging;
    int64_t block_bytes, report_rows, untold, now_ns;
    gd_jobs jobs;
    gd_ring_stats stats;
    int file_fd[FILES], file_users[FILES];
    int wake_fd, notify_fd, wake_posted;
    uint64_t wake_value;
    pthread_t thread;
    pthread_mutex_t lock;                  /* guards all below */
    pthread_cond_t started;
    int verdict, stopping;                 /* verdict: STARTING, 0 or -errno */
    gd_jobs incoming;
    gd_ring_stats published;
};

/* ---- how much may be in flight; giving way to a ring whose jobs are short and waited for */

/* How many more requests may be in flight. */
static inline int32_t room(const gd_ring *g)
{
    if (g->options.inflight_bytes && g->inflight_bytes >= g->options.inflight_bytes)
        return 0;
    if (!g->options.gives_way || __atomic_load_n(g->options.traffic, __ATOMIC_RELAXED) == 0)
        return g->idle_count;
    const int32_t most = g->depth / GIVES_WAY > 0 ? g->depth / GIVES_WAY : 1;
    return most - (g->depth - g->idle_count);
}

static inline void count_traffic(const gd_ring *g, int32_t jobs)
{
    if (g->options.traffic && !g->options.gives_way)
        __atomic_add_fetch(g->options.traffic, jobs, __ATOMIC_RELAXED);
}

/* ---- clocks: one a turn serves the loader; `measure` has one a request and one a submission */
static inline void note_prepared(gd_ring *g, int32_t block)
{
    if (g->options.measure)
        g->prepared[g->prepared_count++] = block;
    if (block >= 0)
        g->ops[block].since_ns = g->options.measure ? gd_clock_ns() : g->now_ns;
}

/* The kernel took the oldest `taken` of what was prepared. */
static inline void note_taken(gd_ring *g, int32_t taken)
{
    int64_t now_ns = gd_clock_ns();
    assert(taken <= g->prepared_count);
    for (int32_t i = 0; i < taken; i++) {
        if (g->prepared[i] < 0)
            continue;
        gd_op *op = &g->ops[g->prepared[i]];
        op->taken_ns = now_ns;
        gd_histogram_count(&g->latency.slat, now_ns - op->since_ns);
    }
    g->prepared_count -= taken;
    memmove(g->prepared, g->prepared + taken, (size_t)g->prepared_count * sizeof *g->prepared);
}

static inline void note_completed(gd_ring *g, const gd_op *op)
{
    gd_histogram_count(&g->latency.lat, g->now_ns - op->since_ns);
    if (g->options.measure)
        gd_histogram_count(&g->latency.clat, g->now_ns - op->taken_ns);
}

/* ---- the registered file table: a descriptor is in it while some job uses it ---- */
static inline int file_open(gd_ring *g, int fd)
{
    int empty = -1;
    for (int i = FILES - 1; g->stats.fixed_files && i >= 0; i--) {
        if (g->file_users[i] && g->file_fd[i] == fd) {
            g->file_users[i]++;
            return i;
        }
        if (!g->file_users[i])
            empty = i;
    }
    if (empty < 0 || io_uring_register_files_update(&g->uring, (unsigned)empty, &fd, 1) != 1)
        return -1;
    g->file_fd[empty] = fd;
    g->file_users[empty] = 1;
    return empty;
}

static inline void file_close(gd_ring *g, int file)
{
    int none = -1;
    if (file >= 0 && --g->file_users[file] == 0)
        io_uring_register_files_update(&g->uring, (unsigned)file, &none, 1);
}
#endif
