/* ring.c: one io_uring kept full by a C thread that never needs the GIL: its memory, its beginning
 * and end, and what other threads ask of it. What the thread does is in ring_thread.c.
 */
#define _GNU_SOURCE
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>
#include "ring.h"

enum { DEPTH_MAX = 4096, BATCHES = 8, STARTING = 1 };

void gd_signal_fd(int fd) {
    const uint64_t one = 1;
    /* EAGAIN: the counter is full, and its reader wakes all the same. */
    while (write(fd, &one, sizeof one) < 0 && errno == EINTR) continue;
}

/* ---- memory ---- */
static void free_memory(gd_ring *g) {
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

static int allocate(gd_ring *g) {
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

/* ---- what other threads call ---- */
static int start(gd_ring *g) {
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before); /* signals are Python's main thread's */
    int code = -pthread_create(&g->thread, NULL, gd_ring_main, g);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (code < 0) return code;
    pthread_setname_np(g->thread, "gd-ring");
    pthread_mutex_lock(&g->lock);
    while (g->verdict == STARTING) pthread_cond_wait(&g->started, &g->lock);
    code = g->verdict;
    pthread_mutex_unlock(&g->lock);
    if (code < 0) pthread_join(g->thread, NULL);
    return code;
}

gd_ring *gd_ring_new(int32_t depth, int64_t block_bytes, int notify_fd, int64_t report_rows,
                     const gd_ring_options *options, int *error) {
    gd_ring *g = NULL;
    *error = -EINVAL;
    if (options &&
        (options->submit_batch < 0 || options->complete_min < 0 || options->inflight_bytes < 0))
        return NULL;
    if (options && options->gives_way && !options->traffic) return NULL;
    if (depth < 1 || depth > DEPTH_MAX || report_rows < 1) return NULL;
    if (block_bytes < 1 || block_bytes > INT32_MAX) return NULL;
    *error = -ENOMEM;
    g = calloc(1, sizeof *g);
    if (!g) return NULL;
    g->depth = depth;
    g->block_bytes = (block_bytes + GD_PAGE - 1) & ~(int64_t)(GD_PAGE - 1);
    g->report_rows = report_rows;
    g->options = options ? *options : (gd_ring_options){0};
    if (!g->options.submit_batch)
        g->options.submit_batch = depth / BATCHES > 0 ? depth / BATCHES : 1;
    g->notify_fd = notify_fd;
    g->wake_fd = -1;
    g->verdict = STARTING;
    g->jobs.tail = &g->jobs.head;
    g->incoming.tail = &g->incoming.head;
    pthread_mutex_init(&g->lock, NULL);
    pthread_cond_init(&g->started, NULL);
    *error = allocate(g);
    if (!*error) *error = start(g);
    if (!*error) return g;
    free_memory(g);
    return NULL;
}

int gd_ring_enqueue(gd_ring *g, gd_reads *r, int fd) {
    if (gd_reads_block_bytes(r) > g->block_bytes) return -EINVAL;
    gd_job *job = calloc(1, sizeof *job);
    if (!job) return -ENOMEM;
    job->reads = r;
    job->fd = fd;
    job->file = -1;
    pthread_mutex_lock(&g->lock);
    int stopping = g->stopping;
    if (!stopping) {
        atomic_store(&r->held, 1);
        gd_count_traffic(g, 1);
        *g->incoming.tail = job;
        g->incoming.tail = &job->next;
    }
    pthread_mutex_unlock(&g->lock);
    if (stopping) {
        free(job);
        return -ESHUTDOWN;
    }
    gd_signal_fd(g->wake_fd);
    return 0;
}

void gd_ring_halt(gd_ring *g) {
    pthread_mutex_lock(&g->lock);
    g->stopping = 1;
    pthread_mutex_unlock(&g->lock);
    gd_signal_fd(g->wake_fd);
}

void gd_ring_free(gd_ring *g) {
    if (!g) return;
    gd_ring_halt(g);
    pthread_join(g->thread, NULL);
    free_memory(g);
}

void gd_ring_get_stats(gd_ring *g, gd_ring_stats *out) {
    pthread_mutex_lock(&g->lock);
    *out = g->published;
    pthread_mutex_unlock(&g->lock);
}

void gd_ring_get_latency(const gd_ring *g, gd_latency *out) {
    gd_histogram_merge(&out->slat, &g->latency.slat);
    gd_histogram_merge(&out->clat, &g->latency.clat);
    gd_histogram_merge(&out->lat, &g->latency.lat);
}
