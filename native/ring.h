/* ring.h: the parts of a ring. ring.c sets it up and serves other threads; ring_thread.c runs it.
 */
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
    int64_t inflight; /* extents whose memory the kernel may write, or read */
    int64_t told;     /* settled rows that `untold` has counted already */
    int fd, file;     /* file: the descriptor's place in the registered table, or -1 */
} gd_job;

typedef struct gd_op {
    gd_job *job;
    int64_t extent, begin; /* begin: where its staging begins, if it is staged */
    int64_t since_ns, taken_ns, bytes;
    int32_t res, staged; /* res: the kernel's result, once it has arrived */
} gd_op;
typedef struct gd_jobs {
    gd_job *head, **tail;
} gd_jobs;

struct gd_ring {
    struct io_uring uring; /* the fields from here to `lock` belong to the thread */
    gd_op *ops;            /* ops[depth] */
    int32_t *idle;         /* the ops that are not in use */
    int32_t *arrived;      /* the ops that have completed and have not landed yet */
    int32_t idle_count, arrived_count, depth;
    int32_t inflight_now;      /* for gd_ring_get_stats; other threads read it */
    int64_t inflight_bytes[2]; /* requested and not completed, of reads and of writes */
    int32_t *prepared; /* with `measure`: ops not taken by the kernel yet; -1: the wake-up */
    int32_t prepared_count;
    gd_ring_options options;
    gd_latency latency; /* the thread writes it, any thread reads it */
    gd_staging staging;
    int64_t block_bytes, report_rows, untold, now_ns;
    gd_jobs jobs;
    gd_ring_stats stats;
    int file_fd[GD_RING_FILES], file_users[GD_RING_FILES];
    int wake_fd, notify_fd, wake_posted;
    uint64_t wake_value;
    pthread_t thread;
    pthread_mutex_t lock; /* guards all fields below */
    pthread_cond_t started;
    int verdict, stopping; /* verdict: 1 while the thread starts, then 0 or -errno */
    gd_jobs incoming;
    gd_ring_stats published;
};

static inline void gd_count_traffic(const gd_ring *ring, int32_t jobs) {
    if (ring->options.traffic && !ring->options.gives_way)
        __atomic_add_fetch(ring->options.traffic, jobs, __ATOMIC_RELAXED);
}

/* ring.c: add 1 to an eventfd. */
void gd_signal_fd(int fd);
/* ring_thread.c: the main function of the ring's thread; `ring` is a gd_ring. */
void *gd_ring_main(void *ring);
#endif
