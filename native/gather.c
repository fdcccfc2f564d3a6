/* gather.c: copying rows out of the feature buffer by node alias, the last use of a batch's slots.
 *
 * Each row costs one cache and TLB miss or several, so a few threads use more of the memory's
 * bandwidth than one. They live for one call: a batch is hundreds of megabytes, and to start a
 * thread takes some tens of microseconds.
 */
#include <pthread.h>
#include <unistd.h>
#include "internal.h"

enum {
    AHEAD = 16,
    THREADS_MAX = 4,
    THREAD_BYTES = 16 << 20,
    PREFETCH_BYTES = 512,
    STEP_BYTES = 256 << 10
};

typedef struct part {
    const uint8_t *slots;
    int64_t stride;
    const int32_t *alias;
    int64_t n, row_bytes;
    uint8_t *rows;
} part;

static void copy_some(const part *p, int64_t from, int64_t to) {
    for (int64_t i = from; i < to; i++) {
        if (i + AHEAD < p->n) {
            const uint8_t *soon = p->slots + p->alias[i + AHEAD] * p->stride;
            for (int64_t at = 0; at < p->row_bytes && at < PREFETCH_BYTES; at += 64)
                __builtin_prefetch(soon + at);
        }
        memcpy(p->rows + i * p->row_bytes, p->slots + p->alias[i] * p->stride,
               (size_t)p->row_bytes);
    }
}

static void *copy_rows(void *arg) {
    const part *p = arg;
    copy_some(p, 0, p->n);
    return NULL;
}

int64_t gd_gather_threads(int64_t bytes, int64_t threads) {
    int64_t count = sysconf(_SC_NPROCESSORS_ONLN), useful = bytes / THREAD_BYTES + 1;
    count = count < THREADS_MAX ? count : THREADS_MAX;
    count = count < threads ? count : threads;
    count = count < useful ? count : useful;
    return count < 1 ? 1 : count;
}

void gd_gather(const uint8_t *slots, int64_t stride, const int32_t *alias, int64_t n,
               int64_t row_bytes, uint8_t *rows, int64_t threads) {
    int64_t count = gd_gather_threads(n * row_bytes, threads), each = (n + count - 1) / count,
            at = 0;
    pthread_t thread[THREADS_MAX];
    int started[THREADS_MAX] = {0};
    part parts[THREADS_MAX];
    for (int64_t k = 0; k < count; k++) {
        int64_t here = n - at < each ? n - at : each;
        parts[k] = (part){slots, stride, alias + at, here, row_bytes, rows + at * row_bytes};
        /* this thread copies the last part, and any part for which no thread starts */
        at += here;
        started[k] = k + 1 < count && !pthread_create(&thread[k], NULL, copy_rows, &parts[k]);
        if (!started[k]) copy_rows(&parts[k]);
    }
    for (int64_t k = 0; k < count; k++)
        if (started[k]) pthread_join(thread[k], NULL);
}

/* ---- while the caller works with the first rows ---- */

struct gd_gathering {
    part rows;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t moved;
    int64_t copied;
    int started;
};

static void *copy_in_steps(void *arg) {
    gd_gathering *const g = arg;
    const int64_t step = STEP_BYTES / g->rows.row_bytes + 1;
    for (int64_t from = 0; from < g->rows.n; from += step) {
        const int64_t to = g->rows.n - from < step ? g->rows.n : from + step;
        copy_some(&g->rows, from, to);
        pthread_mutex_lock(&g->lock);
        g->copied = to;
        pthread_cond_signal(&g->moved);
        pthread_mutex_unlock(&g->lock);
    }
    return NULL;
}

gd_gathering *gd_gather_start(const uint8_t *slots, int64_t stride, const int32_t *alias, int64_t n,
                              int64_t row_bytes, uint8_t *rows) {
    gd_gathering *const g = calloc(1, sizeof *g);
    if (!g) return gd_no_object(ENOMEM);
    g->rows = (part){slots, stride, alias, n, row_bytes, rows};
    pthread_mutex_init(&g->lock, NULL);
    pthread_cond_init(&g->moved, NULL);
    g->started = !pthread_create(&g->thread, NULL, copy_in_steps, g);
    if (!g->started) copy_in_steps(g);
    return g;
}

int64_t gd_gather_wait(gd_gathering *g, int64_t rows) {
    pthread_mutex_lock(&g->lock);
    while (g->copied < rows) pthread_cond_wait(&g->moved, &g->lock);
    const int64_t copied = g->copied;
    pthread_mutex_unlock(&g->lock);
    return copied;
}

void gd_gather_end(gd_gathering *g) {
    if (g->started) pthread_join(g->thread, NULL);
    pthread_mutex_destroy(&g->lock);
    pthread_cond_destroy(&g->moved);
    free(g);
}
