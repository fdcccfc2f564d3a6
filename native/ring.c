/* ring.c: one io_uring kept full by a C thread that never needs the GIL: how a ring begins and
 * ends, and what other threads call. ring_thread.c has what the thread does.
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
static void free_memory(gd_ring *ring) {
    if (ring->staging.memory && ring->staging.memory != MAP_FAILED)
        munmap(ring->staging.memory, (size_t)ring->staging.bytes);
    free(ring->staging.used);
    if (ring->wake_fd >= 0) close(ring->wake_fd);
    pthread_mutex_destroy(&ring->lock);
    pthread_cond_destroy(&ring->started);
    free(ring->ops);
    free(ring->idle);
    free(ring->arrived);
    free(ring->prepared);
    free(ring);
}

static int allocate(gd_ring *ring) {
    size_t bytes = (size_t)ring->depth * (size_t)ring->block_bytes;
    ring->staging.bytes = (int64_t)bytes;
    ring->staging.used = malloc((size_t)ring->depth * sizeof *ring->staging.used);
    ring->staging.memory =
        mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    /* the host of a virtual disk works per stretch of contiguous memory, not per read */
    madvise(ring->staging.memory, bytes, MADV_HUGEPAGE);
    ring->ops = calloc((size_t)ring->depth, sizeof *ring->ops);
    ring->idle = malloc((size_t)ring->depth * sizeof *ring->idle);
    ring->arrived = malloc((size_t)ring->depth * sizeof *ring->arrived);
    ring->prepared = malloc(((size_t)ring->depth + 1) * sizeof *ring->prepared);
    if (ring->staging.memory == MAP_FAILED || !ring->staging.used || !ring->ops || !ring->idle ||
        !ring->arrived || !ring->prepared)
        return -ENOMEM;
    while (ring->idle_count < ring->depth) {
        ring->idle[ring->idle_count] = ring->depth - 1 - ring->idle_count;
        ring->idle_count++;
    }
    /* blocking: else the ring's read of it would complete at once */
    ring->wake_fd = eventfd(0, EFD_CLOEXEC);
    return ring->wake_fd < 0 ? -errno : 0;
}

/* ---- what other threads call ---- */
static int start(gd_ring *ring) {
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before); /* Python's main thread handles signals */
    int code = -pthread_create(&ring->thread, NULL, gd_ring_main, ring);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (code < 0) return code;
    pthread_setname_np(ring->thread, "gd-ring");
    pthread_mutex_lock(&ring->lock);
    while (ring->verdict == STARTING) pthread_cond_wait(&ring->started, &ring->lock);
    code = ring->verdict;
    pthread_mutex_unlock(&ring->lock);
    if (code < 0) pthread_join(ring->thread, NULL);
    return code;
}

gd_ring *gd_ring_new(int32_t depth, int64_t block_bytes, int notify_fd, int64_t report_rows,
                     const gd_ring_options *options, int *error) {
    gd_ring *ring = NULL;
    *error = -EINVAL;
    if (options &&
        (options->submit_batch < 0 || options->complete_min < 0 || options->inflight_bytes < 0))
        return NULL;
    if (options && options->gives_way && !options->traffic) return NULL;
    if (depth < 1 || depth > DEPTH_MAX || report_rows < 1) return NULL;
    if (block_bytes < 1 || block_bytes > INT32_MAX) return NULL;
    *error = -ENOMEM;
    ring = calloc(1, sizeof *ring);
    if (!ring) return NULL;
    ring->depth = depth;
    ring->block_bytes = (block_bytes + GD_PAGE - 1) & ~(int64_t)(GD_PAGE - 1);
    ring->report_rows = report_rows;
    ring->options = options ? *options : (gd_ring_options){0};
    if (!ring->options.submit_batch)
        ring->options.submit_batch = depth / BATCHES > 0 ? depth / BATCHES : 1;
    ring->notify_fd = notify_fd;
    ring->wake_fd = -1;
    ring->verdict = STARTING;
    ring->jobs.tail = &ring->jobs.head;
    ring->incoming.tail = &ring->incoming.head;
    pthread_mutex_init(&ring->lock, NULL);
    pthread_cond_init(&ring->started, NULL);
    *error = allocate(ring);
    if (!*error) *error = start(ring);
    if (!*error) return ring;
    free_memory(ring);
    return NULL;
}

int gd_ring_enqueue(gd_ring *ring, gd_reads *r, int fd) {
    if (gd_reads_block_bytes(r) > ring->block_bytes) return -EINVAL;
    gd_job *job = calloc(1, sizeof *job);
    if (!job) return -ENOMEM;
    job->reads = r;
    job->fd = fd;
    job->file = -1;
    pthread_mutex_lock(&ring->lock);
    int stopping = ring->stopping;
    if (!stopping) {
        __atomic_store_n(&r->held, 1, __ATOMIC_RELEASE);
        gd_count_traffic(ring, 1);
        *ring->incoming.tail = job;
        ring->incoming.tail = &job->next;
    }
    pthread_mutex_unlock(&ring->lock);
    if (stopping) {
        free(job);
        return -ESHUTDOWN;
    }
    gd_signal_fd(ring->wake_fd);
    return 0;
}

void gd_ring_halt(gd_ring *ring) {
    pthread_mutex_lock(&ring->lock);
    ring->stopping = 1;
    pthread_mutex_unlock(&ring->lock);
    gd_signal_fd(ring->wake_fd);
}

void gd_ring_free(gd_ring *ring) {
    if (!ring) return;
    gd_ring_halt(ring);
    pthread_join(ring->thread, NULL);
    free_memory(ring);
}

void gd_ring_get_stats(gd_ring *ring, gd_ring_stats *out) {
    pthread_mutex_lock(&ring->lock);
    *out = ring->published;
    pthread_mutex_unlock(&ring->lock);
    out->inflight = __atomic_load_n(&ring->inflight_now, __ATOMIC_RELAXED);
}

void gd_ring_get_latency(const gd_ring *ring, gd_latency *out) {
    gd_histogram_merge(&out->slat, &ring->latency.slat);
    gd_histogram_merge(&out->clat, &ring->latency.clat);
    gd_histogram_merge(&out->lat, &ring->latency.lat);
}
