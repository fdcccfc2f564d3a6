/* ring_thread.c: the thread that keeps one io_uring full and never needs the GIL. No other file
 * submits requests to a ring; reads.c decides what a completion means. What is said of reads holds
 * for writes, which are never staged.
 *
 * The thread keeps a sliding window of up to `depth` reads in flight; fewer if the reads are long,
 * because reads that land in only a few megabytes of staging are copied out while they are still in
 * the cache. It refills the window at every wake-up, in batches, so that the device begins with the
 * first reads before the last are prepared. When a job has no read left to start, the thread goes
 * on with the next job. It sleeps in the kernel until a read completes or another thread hands over
 * a job through the eventfd. The ring lives as long as its loader. Staging is registered with the
 * kernel and in huge pages where the machine has them; files are registered too.
 */
#include <stdio.h>
#include "ring.h"
#include "slice.h"

enum { GIVES_WAY = 64, BACK_OFF_NS = 1000000 };
#define WAKE UINT64_MAX /* user_data of the eventfd's read; of other requests: the op's number */

/* ---- how much may be in flight; a ring that gives way leaves the disk to rings with short jobs */

static int32_t inflight(const gd_ring *ring) {
    return ring->depth - ring->idle_count - ring->arrived_count;
}

/* How many more requests may be in flight, if the window were 1 / `divisor` of its size. */
static int32_t room(const gd_ring *ring, int32_t divisor, int write) {
    const int64_t bytes = ring->options.inflight_bytes / divisor;
    if (ring->options.inflight_bytes && ring->inflight_bytes[write] >= bytes) return 0;
    int32_t most = ring->depth / divisor;
    if (ring->options.gives_way && __atomic_load_n(ring->options.traffic, __ATOMIC_RELAXED) != 0)
        most = ring->depth / GIVES_WAY > 0 ? ring->depth / GIVES_WAY : 1;
    int32_t more = most - inflight(ring);
    if (more > ring->idle_count) more = ring->idle_count;
    return more > 0 && gd_staging_fits(&ring->staging, ring->block_bytes) ? more : 0;
}

/* ---- clocks: usually one reading a turn; with `measure` one a request and one a submission */
static void note_prepared(gd_ring *ring, int32_t number) {
    if (ring->options.measure) ring->prepared[ring->prepared_count++] = number;
    if (number >= 0)
        ring->ops[number].since_ns = ring->options.measure ? gd_clock_ns() : ring->now_ns;
}

/* The kernel has taken the oldest `taken` of the prepared requests. */
static void note_taken(gd_ring *ring, int32_t taken) {
    int64_t now_ns = gd_clock_ns();
    assert(taken <= ring->prepared_count);
    for (int32_t i = 0; i < taken; i++) {
        if (ring->prepared[i] < 0) continue;
        gd_op *op = &ring->ops[ring->prepared[i]];
        op->taken_ns = now_ns;
        gd_histogram_count(&ring->latency.slat, now_ns - op->since_ns);
    }
    ring->prepared_count -= taken;
    memmove(ring->prepared, ring->prepared + taken,
            (size_t)ring->prepared_count * sizeof *ring->prepared);
}

static void note_completed(gd_ring *ring, const gd_op *op) {
    gd_histogram_count(&ring->latency.lat, ring->now_ns - op->since_ns);
    if (ring->options.measure) gd_histogram_count(&ring->latency.clat, ring->now_ns - op->taken_ns);
}

/* ---- the registered file table: it holds a descriptor while a job uses it ---- */
static int file_open(gd_ring *ring, int fd) {
    int empty = -1;
    for (int i = GD_RING_FILES - 1; ring->stats.fixed_files && i >= 0; i--) {
        if (ring->file_users[i] && ring->file_fd[i] == fd) {
            ring->file_users[i]++;
            return i;
        }
        if (!ring->file_users[i]) empty = i;
    }
    if (empty < 0 || io_uring_register_files_update(&ring->uring, (unsigned)empty, &fd, 1) != 1)
        return -1;
    ring->file_fd[empty] = fd;
    ring->file_users[empty] = 1;
    return empty;
}

static void file_close(gd_ring *ring, int file) {
    int none = -1;
    if (file >= 0 && --ring->file_users[file] == 0)
        io_uring_register_files_update(&ring->uring, (unsigned)file, &none, 1);
}

/* ---- setting up, in the ring's thread: as the ring's single issuer it has completions handled
 * only when it enters the kernel ---- */
static int set_up(gd_ring *ring) {
    struct iovec staging = {ring->staging.memory, (size_t)ring->staging.bytes};
    struct io_uring_params p = {.flags = IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN |
                                         IORING_SETUP_SUBMIT_ALL};
    int code = io_uring_queue_init_params((unsigned)ring->depth + 1, &ring->uring, &p);
    if (code == -EINVAL) { /* before Linux 6.1 */
        memset(&p, 0, sizeof p);
        code = io_uring_queue_init_params((unsigned)ring->depth + 1, &ring->uring, &p);
    }
    if (code < 0) return code;
    ring->stats.depth = ring->depth;
    /* if the limit on locked memory refuses to register staging, the ring works without */
    ring->stats.fixed_staging = io_uring_register_buffers(&ring->uring, &staging, 1) == 0;
    ring->stats.fixed_files = io_uring_register_files_sparse(&ring->uring, GD_RING_FILES) == 0;
    return 0;
}

/* ---- one turn of the thread ---- */
/* Take over the jobs that other threads have handed over. 0: the ring stops, and the kernel has
 * completed every request. */
static int admit(gd_ring *ring) {
    pthread_mutex_lock(&ring->lock);
    gd_job *added = ring->incoming.head;
    if (added) {
        *ring->jobs.tail = added;
        ring->jobs.tail = ring->incoming.tail;
        ring->incoming = (gd_jobs){NULL, &ring->incoming.head};
    }
    int stopping = ring->stopping;
    pthread_mutex_unlock(&ring->lock);
    for (gd_job *job = added; job; job = job->next) {
        job->file = file_open(ring, job->fd);
        ring->stats.jobs++;
    }
    for (gd_job *job = ring->jobs.head; stopping && job; job = job->next)
        gd_reads_cancel(job->reads);
    if (!stopping && !ring->wake_posted) {
        struct io_uring_sqe *sqe = io_uring_get_sqe(&ring->uring);
        assert(sqe);
        io_uring_prep_read(sqe, ring->wake_fd, &ring->wake_value, sizeof ring->wake_value, 0);
        io_uring_sqe_set_data64(sqe, WAKE);
        note_prepared(ring, -1);
        ring->wake_posted = 1;
    }
    return !stopping || ring->jobs.head || ring->wake_posted;
}

/* Let go of finished jobs; write to notify_fd if a job is finished or enough rows have landed. */
static void settle(gd_ring *ring) {
    gd_jobs ended = {NULL, &ended.head};
    gd_job **link = &ring->jobs.head;
    while (*link) {
        gd_job *job = *link;
        int64_t settled = gd_reads_settled(job->reads);
        ring->untold += settled - job->told;
        job->told = settled;
        if (job->inflight || settled < gd_reads_rows(job->reads)) {
            link = &job->next;
            continue;
        }
        *link = job->next;
        job->next = NULL;
        *ended.tail = job;
        ended.tail = &job->next;
    }
    ring->jobs.tail = link;
    if (!ended.head && ring->untold < ring->report_rows) return;
    ring->untold = 0;
    ring->stats.notifies++;
    pthread_mutex_lock(&ring->lock);
    ring->published = ring->stats;
    pthread_mutex_unlock(&ring->lock);
    while (ended.head) {
        gd_job *job = ended.head;
        ended.head = job->next;
        file_close(ring, job->file);
        gd_count_traffic(ring, -1);
        gd_reads_let_go(job->reads); /* from here on another thread may free it */
        free(job);
    }
    gd_signal_fd(ring->notify_fd);
}

/* Take staging for the whole extent of an op, enough for its retries too. A row that lands in its
 * slot, which may be longer than any staging block, takes none. */
static void take_staging(gd_ring *ring, gd_op *op) {
    gd_request whole;
    gd_reads_request(op->job->reads, op->extent, ring->staging.memory, &whole);
    op->staged = whole.memory == ring->staging.memory;
    if (op->staged) op->begin = gd_staging_take(&ring->staging, whole.length);
    assert(op->begin >= 0); /* room() has checked that the longest extent fits */
}

/* Prepare the request that the extent of an op needs now. */
static void submit_op(gd_ring *ring, int32_t number) {
    gd_op *op = &ring->ops[number];
    struct io_uring_sqe *sqe = io_uring_get_sqe(&ring->uring);
    assert(sqe); /* the queue has room for one request for each op and the wake-up */
    gd_request q;
    gd_reads_request(op->job->reads, op->extent, ring->staging.memory + op->begin, &q);
    ring->inflight_bytes[q.write] += q.length;
    op->bytes = q.length;
    int fd = op->job->file >= 0 ? op->job->file : op->job->fd;
    if (q.write)
        io_uring_prep_write(sqe, fd, q.memory, (unsigned)q.length, (uint64_t)q.offset);
    else if (op->staged && ring->stats.fixed_staging)
        io_uring_prep_read_fixed(sqe, fd, q.memory, (unsigned)q.length, (uint64_t)q.offset, 0);
    else
        io_uring_prep_read(sqe, fd, q.memory, (unsigned)q.length, (uint64_t)q.offset);
    if (op->job->file >= 0) sqe->flags |= IOSQE_FIXED_FILE;
    io_uring_sqe_set_data64(sqe, (uint64_t)number);
    note_prepared(ring, number);
    (*(q.write ? &ring->stats.writes : &ring->stats.requests))++;
}

/* Submit the prepared requests; sleep until `wait` completions have arrived. */
static void enter(gd_ring *ring, unsigned wait) {
    ring->stats.submits += io_uring_sq_ready(&ring->uring) > 0;
    ring->stats.wakeups += wait > 0;
    int code = wait ? io_uring_submit_and_wait(&ring->uring, wait) : io_uring_submit(&ring->uring);
    if (code > 0 && ring->options.measure) note_taken(ring, code);
    if (code >= 0 || code == -EINTR) return;
    if (code != -EAGAIN && code != -EBUSY && code != -ENOMEM) {
        fprintf(stderr, "gnndrive: io_uring_enter: %s; reads are in flight\n", strerror(-code));
        abort(); /* the kernel may still write to our memory: there is no safe way to go on */
    }
    /* the kernel is short of memory; requests that were not submitted stay queued */
    struct timespec pause = {0, BACK_OFF_NS};
    nanosleep(&pause, NULL);
}

/* Begin reads until the window, divided by `divisor`, is full. */
static void feed(gd_ring *ring, int32_t divisor) {
    unsigned batch = (unsigned)ring->options.submit_batch;
    for (gd_job *job = ring->jobs.head; job; job = job->next) {
        const int write = job->reads->geometry.write;
        int64_t e;
        while (room(ring, divisor, write) > 0 && (e = gd_reads_take(job->reads)) >= 0) {
            int32_t number = ring->idle[--ring->idle_count];
            ring->ops[number] = (gd_op){.job = job, .extent = e};
            take_staging(ring, &ring->ops[number]);
            job->inflight++;
            submit_op(ring, number);
            if (io_uring_sq_ready(&ring->uring) >= batch) enter(ring, 0);
        }
    }
    if (inflight(ring) > ring->stats.inflight_max) ring->stats.inflight_max = inflight(ring);
}

static void submit_and_sleep(gd_ring *ring) {
    int32_t wait = ring->options.complete_min;
    if (wait > inflight(ring)) wait = inflight(ring);
    if (ring->options.measure && ring->prepared_count) enter(ring, 0);
    enter(ring, wait > 1 ? (unsigned)wait : 1);
}

/* Submit the prepared requests, then copy out what has arrived. */
static void land(gd_ring *ring) {
    if (io_uring_sq_ready(&ring->uring)) enter(ring, 0);
    for (int32_t i = 0; i < ring->arrived_count; i++) {
        int32_t number = ring->arrived[i];
        gd_op *op = &ring->ops[number];
        uint8_t *memory = ring->staging.memory + op->begin;
        if (gd_reads_complete(op->job->reads, op->extent, op->res, memory) == GD_AGAIN) {
            ring->stats.retries++;
            submit_op(ring, number);
            continue;
        }
        op->job->inflight--;
        op->job = NULL;
        if (op->staged) gd_staging_give(&ring->staging, op->begin);
        ring->idle[ring->idle_count++] = number;
    }
    ring->arrived_count = 0;
}

static void reap(gd_ring *ring) {
    struct io_uring_cqe *cqe;
    unsigned head, seen = 0;
    ring->now_ns = gd_clock_ns();
    io_uring_for_each_cqe(&ring->uring, head, cqe) {
        seen++;
        if (cqe->user_data == WAKE) {
            ring->wake_posted = 0;
            continue;
        }
        gd_op *op = &ring->ops[cqe->user_data];
        note_completed(ring, op);
        *(op->job->reads->geometry.write ? &ring->stats.bytes_written : &ring->stats.bytes) +=
            cqe->res > 0 ? cqe->res : 0;
        ring->inflight_bytes[op->job->reads->geometry.write] -= op->bytes;
        op->res = cqe->res;
        ring->arrived[ring->arrived_count++] = (int32_t)cqe->user_data;
    }
    io_uring_cq_advance(&ring->uring, seen);
}

void *gd_ring_main(void *arg) {
    gd_ring *ring = arg;
    gd_short_slice();
    int code = set_up(ring);
    pthread_mutex_lock(&ring->lock);
    ring->verdict = code;
    ring->published = ring->stats;
    pthread_cond_signal(&ring->started);
    pthread_mutex_unlock(&ring->lock);
    if (code < 0) return NULL;
    while (admit(ring)) {
        ring->now_ns = gd_clock_ns();
        if (ring->arrived_count) {
            /* The host of a virtual disk reports reads when it has none left, and then idles.
             * So half of the window is refilled before the copying; the other half waits, so
             * that the copying finds its data in the cache. */
            feed(ring, 2);
            land(ring);
        }
        feed(ring, 1);
        __atomic_store_n(&ring->inflight_now, inflight(ring), __ATOMIC_RELAXED);
        settle(ring);
        const int will_wake = ring->idle_count < ring->depth || ring->wake_posted;
        if (will_wake) submit_and_sleep(ring);
        reap(ring);
    }
    assert(ring->idle_count == ring->depth && !ring->inflight_bytes[0] && !ring->inflight_bytes[1]);
    io_uring_queue_exit(&ring->uring);
    return NULL;
}
