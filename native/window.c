/* window.c: the batches that are known but not admitted yet, for look-ahead keys (Belady's rule, as
 * far as the queue of samples reaches).
 *
 * One byte a row holds one bit for each of up to eight batches, so that a row's next use costs one
 * look, whatever the order in which samples arrive.
 */
#include "internal.h"

enum { BATCHES = GD_WINDOW_BATCHES, AHEAD = 16 };

struct gd_window {
    uint8_t *wanted; /* rows: bit k is set if the batch in place k wants the row */
    int64_t rows;
    int64_t index[BATCHES]; /* of the batch in place k; -1: the place is free */
};

gd_window *gd_window_new(int64_t rows)
{
    gd_window *w = rows < 0 ? NULL : calloc(1, sizeof *w);
    if (!w)
        return NULL;
    w->wanted = gd_table((size_t)rows + 1, 1);
    w->rows = rows;
    for (int k = 0; k < BATCHES; k++)
        w->index[k] = -1;
    if (w->wanted)
        return w;
    free(w);
    return NULL;
}

void gd_window_free(gd_window *w)
{
    if (!w)
        return;
    free(w->wanted);
    free(w);
}

static int place_of(const gd_window *w, int64_t index)
{
    for (int k = 0; k < BATCHES; k++)
        if (w->index[k] == index)
            return k;
    return -1;
}

int gd_window_add(gd_window *w, int64_t index, const int64_t *ids, int64_t n)
{
    int place = place_of(w, -1);
    if (index < 0 || place_of(w, index) >= 0)
        return -EINVAL;
    if (place < 0)
        return -ENOSPC;
    for (int64_t i = 0; i < n; i++)
        if ((uint64_t)ids[i] >= (uint64_t)w->rows)
            return -ERANGE;
    for (int64_t i = 0; i < n; i++) {
        if (i + AHEAD < n)
            __builtin_prefetch(&w->wanted[ids[i + AHEAD]], 1);
        w->wanted[ids[i]] |= (uint8_t)(1u << place);
    }
    w->index[place] = index;
    return 0;
}

int gd_window_drop(gd_window *w, int64_t index, const int64_t *ids, int64_t n)
{
    int place = index < 0 ? -1 : place_of(w, index);
    if (place < 0)
        return -ENOENT;
    for (int64_t i = 0; i < n; i++)
        if ((uint64_t)ids[i] < (uint64_t)w->rows)
            w->wanted[ids[i]] &= (uint8_t)~(1u << place);
    w->index[place] = -1;
    return 0;
}

int32_t gd_window_count(const gd_window *w)
{
    int32_t count = 0;
    for (int k = 0; k < BATCHES; k++)
        count += w->index[k] >= 0;
    return count;
}

/* soonest[m]: the smallest index among the batches whose bits are set in m */
static void tabulate(const gd_window *w, int64_t soonest[1 << BATCHES])
{
    soonest[0] = INT64_MAX;
    for (int m = 1; m < 1 << BATCHES; m++) {
        int64_t index = w->index[__builtin_ctz((unsigned)m)], rest = soonest[m & (m - 1)];
        soonest[m] = index >= 0 && index < rest ? index : rest;
    }
}

int gd_window_next(const gd_window *w, const int64_t *ids, int64_t n, int64_t *next)
{
    int64_t soonest[1 << BATCHES];
    tabulate(w, soonest);
    for (int64_t i = 0; i < n; i++) {
        if (i + AHEAD < n && (uint64_t)ids[i + AHEAD] < (uint64_t)w->rows)
            __builtin_prefetch(&w->wanted[ids[i + AHEAD]]);
        if ((uint64_t)ids[i] >= (uint64_t)w->rows)
            return -ERANGE;
        next[i] = soonest[w->wanted[ids[i]]];
    }
    return 0;
}
