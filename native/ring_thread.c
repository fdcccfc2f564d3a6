/* ring_thread.c: the thread that keeps one io_uring full and never needs the GIL. It alone talks to
 * the kernel's ring; what a completion means is reads.c's business.
 *
 * A sliding window: up to `depth` reads in flight, fewer if they are long (what lands in a few
 * megabytes of staging is copied out of the cache), refilled at every wake-up, in batches, so that
 * the device begins with the first before the last is prepared; the next job flows in when the one
 * before has nothing left to start. The thread sleeps in the kernel, for completions and for the
 * eventfd by which other threads hand over jobs. The rings live as long as the loader, staging, in
 * huge pages where there are any, and files are registered.
 */
#include <stdio.h>
#include "ring.h"
#include "slice.h"

enum { GIVES_WAY = 64, BACK_OFF_NS = 1000000 };
#define WAKE UINT64_MAX /* user_data of the eventfd's read; the others carry an op's number */

/* ---- how much may be in flight; giving way to a ring whose jobs are short and waited for */

static int32_t inflight(const gd_ring *g) { return g->depth - g->idle_count - g->arrived_count; }

/* How many more requests may be in flight, of a window that is divided by `divisor`. */
static int32_t room(const gd_ring *g, int32_t divisor) {
    const int64_t bytes = g->options.inflight_bytes / divisor;
    if (g->options.inflight_bytes && g->inflight_bytes >= bytes) return 0;
    int32_t most = g->depth / divisor;
    if (g->options.gives_way && __atomic_load_n(g->options.traffic, __ATOMIC_RELAXED) != 0)
        most = g->depth / GIVES_WAY > 0 ? g->depth / GIVES_WAY : 1;
    int32_t more = most - inflight(g);
    if (more > g->idle_count) more = g->idle_count;
    return more > 0 && gd_staging_fits(&g->staging, g->block_bytes) ? more : 0;
}

/* ---- clocks: one a turn serves the loader; `measure` has one a request and one a submission */
static void note_prepared(gd_ring *g, int32_t number) {
    if (g->options.measure) g->prepared[g->prepared_count++] = number;
    if (number >= 0) g->ops[number].since_ns = g->options.measure ? gd_clock_ns() : g->now_ns;
}

/* The kernel took the oldest `taken` of what was prepared. */
static void note_taken(gd_ring *g, int32_t taken) {
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

static void note_completed(gd_ring *g, const gd_op *op) {
    gd_histogram_count(&g->latency.lat, g->now_ns - op->since_ns);
    if (g->options.measure) gd_histogram_count(&g->latency.clat, g->now_ns - op->taken_ns);
}

/* ---- the registered file table: a descriptor is in it while some job uses it ---- */
static int file_open(gd_ring *g, int fd) {
    int empty = -1;
    for (int i = GD_RING_FILES - 1; g->stats.fixed_files && i >= 0; i--) {
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

static void file_close(gd_ring *g, int file) {
    int none = -1;
    if (file >= 0 && --g->file_users[file] == 0)
        io_uring_register_files_update(&g->uring, (unsigned)file, &none, 1);
}

/* ---- setting up, in the thread: a single issuer is what lets the kernel leave us alone until
 * we wait ---- */
static int set_up(gd_ring *g) {
    struct iovec staging = {g->staging.memory, (size_t)g->staging.bytes};
    struct io_uring_params p = {.flags = IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN |
                                         IORING_SETUP_SUBMIT_ALL};
    int code = io_uring_queue_init_params((unsigned)g->depth + 1, &g->uring, &p);
    if (code == -EINVAL) { /* before Linux 6.1 */
        memset(&p, 0, sizeof p);
        code = io_uring_queue_init_params((unsigned)g->depth + 1, &g->uring, &p);
    }
    if (code < 0) return code;
    g->stats.depth = g->depth;
    /* what the limit on locked memory refuses is done without */
    g->stats.fixed_staging = io_uring_register_buffers(&g->uring, &staging, 1) == 0;
    g->stats.fixed_files = io_uring_register_files_sparse(&g->uring, GD_RING_FILES) == 0;
    return 0;
}

/* ---- one turn of the thread ---- */
/* Take over what others left under the lock. 0: stopped, and the kernel holds nothing of ours. */
static int admit(gd_ring *g) {
    pthread_mutex_lock(&g->lock);
    gd_job *added = g->incoming.head;
    if (added) {
        *g->jobs.tail = added;
        g->jobs.tail = g->incoming.tail;
        g->incoming = (gd_jobs){NULL, &g->incoming.head};
    }
    int stopping = g->stopping;
    pthread_mutex_unlock(&g->lock);
    for (gd_job *job = added; job; job = job->next) {
        job->file = file_open(g, job->fd);
        g->stats.jobs++;
    }
    for (gd_job *job = g->jobs.head; stopping && job; job = job->next) gd_reads_cancel(job->reads);
    if (!stopping && !g->wake_posted) {
        struct io_uring_sqe *sqe = io_uring_get_sqe(&g->uring);
        assert(sqe);
        io_uring_prep_read(sqe, g->wake_fd, &g->wake_value, sizeof g->wake_value, 0);
        io_uring_sqe_set_data64(sqe, WAKE);
        note_prepared(g, -1);
        g->wake_posted = 1;
    }
    return !stopping || g->jobs.head || g->wake_posted;
}

/* Let go of jobs that have ended; tell the notify_fd if there is enough to tell. */
static void settle(gd_ring *g) {
    gd_jobs ended = {NULL, &ended.head};
    gd_job **link = &g->jobs.head;
    while (*link) {
        gd_job *job = *link;
        int64_t settled = gd_reads_settled(job->reads);
        g->untold += settled - job->told;
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
    g->jobs.tail = link;
    if (!ended.head && g->untold < g->report_rows) return;
    g->untold = 0;
    g->stats.notifies++;
    pthread_mutex_lock(&g->lock);
    g->published = g->stats;
    pthread_mutex_unlock(&g->lock);
    while (ended.head) {
        gd_job *job = ended.head;
        ended.head = job->next;
        file_close(g, job->file);
        gd_count_traffic(g, -1);
        gd_reads_let_go(job->reads); /* from here on it may be gone */
        free(job);
    }
    gd_signal_fd(g->notify_fd);
}

/* A stretch of staging for all of an op's extent, which asked again needs no more; none for a row
 * that lands in its slot, which may be longer than any. */
static void take_staging(gd_ring *g, gd_op *op) {
    gd_request whole;
    gd_reads_request(op->job->reads, op->extent, g->staging.memory, &whole);
    op->staged = whole.into == g->staging.memory;
    if (op->staged) op->begin = gd_staging_take(&g->staging, whole.length);
    assert(op->begin >= 0); /* there was room for the longest */
}

/* Ask for what an op's extent needs now. */
static void submit_op(gd_ring *g, int32_t number) {
    gd_op *op = &g->ops[number];
    struct io_uring_sqe *sqe = io_uring_get_sqe(&g->uring);
    assert(sqe); /* the queue has room for one request an op and the wake-up */
    gd_request q;
    gd_reads_request(op->job->reads, op->extent, g->staging.memory + op->begin, &q);
    g->inflight_bytes += q.length;
    op->bytes = q.length;
    int fd = op->job->file >= 0 ? op->job->file : op->job->fd;
    if (op->staged && g->stats.fixed_staging)
        io_uring_prep_read_fixed(sqe, fd, q.into, (unsigned)q.length, (uint64_t)q.offset, 0);
    else
        io_uring_prep_read(sqe, fd, q.into, (unsigned)q.length, (uint64_t)q.offset);
    if (op->job->file >= 0) sqe->flags |= IOSQE_FIXED_FILE;
    io_uring_sqe_set_data64(sqe, (uint64_t)number);
    note_prepared(g, number);
    g->stats.requests++;
}

/* Hand over what is prepared; sleep until `wait` completions are there. */
static void enter(gd_ring *g, unsigned wait) {
    g->stats.submits += io_uring_sq_ready(&g->uring) > 0;
    g->stats.wakeups += wait > 0;
    int code = wait ? io_uring_submit_and_wait(&g->uring, wait) : io_uring_submit(&g->uring);
    if (code > 0 && g->options.measure) note_taken(g, code);
    if (code >= 0 || code == -EINTR) return;
    if (code != -EAGAIN && code != -EBUSY && code != -ENOMEM) {
        fprintf(stderr, "gnndrive: io_uring_enter: %s; reads are in flight\n", strerror(-code));
        abort(); /* the kernel may still write: there is no safe way on */
    }
    /* the kernel is short of memory; what was not submitted stays queued */
    struct timespec pause = {0, BACK_OFF_NS};
    nanosleep(&pause, NULL);
}

/* Begin reads until the window, divided by `divisor`, is full. */
static void feed(gd_ring *g, int32_t divisor) {
    unsigned batch = (unsigned)g->options.submit_batch;
    for (gd_job *job = g->jobs.head; job && room(g, divisor) > 0; job = job->next) {
        int64_t e;
        while (room(g, divisor) > 0 && (e = gd_reads_take(job->reads)) >= 0) {
            int32_t number = g->idle[--g->idle_count];
            g->ops[number] = (gd_op){.job = job, .extent = e};
            take_staging(g, &g->ops[number]);
            job->inflight++;
            submit_op(g, number);
            if (io_uring_sq_ready(&g->uring) >= batch) enter(g, 0);
        }
    }
    if (inflight(g) > g->stats.inflight_max) g->stats.inflight_max = inflight(g);
}

static void submit_and_sleep(gd_ring *g) {
    int32_t wait = g->options.complete_min;
    if (wait > inflight(g)) wait = inflight(g);
    if (g->options.measure && g->prepared_count) enter(g, 0);
    enter(g, wait > 1 ? (unsigned)wait : 1);
}

/* Hand the kernel what is prepared, then copy out what has arrived. */
static void land(gd_ring *g) {
    if (io_uring_sq_ready(&g->uring)) enter(g, 0);
    for (int32_t i = 0; i < g->arrived_count; i++) {
        int32_t number = g->arrived[i];
        gd_op *op = &g->ops[number];
        uint8_t *memory = g->staging.memory + op->begin;
        if (gd_reads_complete(op->job->reads, op->extent, op->res, memory) == GD_AGAIN) {
            g->stats.retries++;
            submit_op(g, number);
            continue;
        }
        op->job->inflight--;
        op->job = NULL;
        if (op->staged) gd_staging_give(&g->staging, op->begin);
        g->idle[g->idle_count++] = number;
    }
    g->arrived_count = 0;
}

static void reap(gd_ring *g) {
    struct io_uring_cqe *cqe;
    unsigned head, seen = 0;
    g->now_ns = gd_clock_ns();
    io_uring_for_each_cqe(&g->uring, head, cqe) {
        seen++;
        if (cqe->user_data == WAKE) {
            g->wake_posted = 0;
            continue;
        }
        gd_op *op = &g->ops[cqe->user_data];
        note_completed(g, op);
        g->stats.bytes += cqe->res > 0 ? cqe->res : 0;
        g->inflight_bytes -= op->bytes;
        op->res = cqe->res;
        g->arrived[g->arrived_count++] = (int32_t)cqe->user_data;
    }
    io_uring_cq_advance(&g->uring, seen);
}

void *gd_ring_main(void *arg) {
    gd_ring *g = arg;
    gd_short_slice();
    int code = set_up(g);
    pthread_mutex_lock(&g->lock);
    g->verdict = code;
    g->published = g->stats;
    pthread_cond_signal(&g->started);
    pthread_mutex_unlock(&g->lock);
    if (code < 0) return NULL;
    while (admit(g)) {
        g->now_ns = gd_clock_ns();
        if (g->arrived_count) {
            /* A virtual disk's host tells of reads when it has none left, and then stands still.
             * It is not to wait for copying; the other half is for what is still in the cache. */
            feed(g, 2);
            land(g);
        }
        feed(g, 1);
        settle(g);
        if (g->idle_count < g->depth || g->wake_posted) /* else nothing would end the sleep */
            submit_and_sleep(g);
        reap(g);
    }
    assert(g->idle_count == g->depth && g->inflight_bytes == 0);
    io_uring_queue_exit(&g->uring);
    return NULL;
}
