/* ring.h: what a ring consists of, for ring.c, which sets it up and talks to other threads, and
 * ring_thread.c, which runs it. */
#ifndef GNNDRIVE_RING_H
#define GNNDRIVE_RING_H
#include <liburing.h>
#include "latency.h"
#include "reads.h"
#include "staging.h"

enum { GD_RING_FILES = 64 };

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
    int32_t *prepared;      /* for `measure`: ops not taken yet; -1: the wake-up */
    int32_t prepared_count;
    gd_ring_options options;
    gd_latency latency; /* written by the thread, read by any */
    gd_staging staging;
    int64_t block_bytes, report_rows, untold, now_ns;
    gd_jobs jobs;
    gd_ring_stats stats;
    int file_fd[GD_RING_FILES], file_users[GD_RING_FILES];
    int wake_fd, notify_fd, wake_posted;
    uint64_t wake_value;
    pthread_t thread;
    pthread_mutex_t lock; /* guards all below */
    pthread_cond_t started;
    int verdict, stopping; /* verdict: 1: starting; 0 or -errno */
    gd_jobs incoming;
    gd_ring_stats published;
};

static inline void gd_count_traffic(const gd_ring *ring, int32_t jobs) {
    if (ring->options.traffic && !ring->options.gives_way)
        __atomic_add_fetch(ring->options.traffic, jobs, __ATOMIC_RELAXED);
}

/* ring.c: one more for an eventfd. */
void gd_signal_fd(int fd);
/* ring_thread.c: what the ring's thread does, from its start to its end; `ring` is a gd_ring. */
void *gd_ring_main(void *ring);
#endif
