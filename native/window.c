/* window.c: look-ahead: the batches that are known but not admitted yet, for keys by Belady's rule
 * as far as the sampled batches reach.
 *
 * One byte a row has one bit for each of up to eight batches. So one look tells a row's next use
 * and the key that a policy gives it, whatever the order in which samples arrive, and a policy
 * computes keys for 256 sets of batches, not for rows.
 *
 * When a batch is announced its rows are counted by the set of batches that requested them before.
 * From these counts gd_window_together computes how many distinct rows any of the batches request,
 * without another pass over the rows.
 */
#include "window.h"

enum { BATCHES = GD_WINDOW_BATCHES, SETS = GD_WINDOW_SETS, AHEAD = 16 };

/* next[m]: the smallest index among the batches whose bits are set in m */
static void tabulate(gd_window *w) {
    int64_t *next = w->next;
    next[0] = INT64_MAX;
    for (int m = 1; m < SETS; m++) {
        int64_t index = w->index[__builtin_ctz((unsigned)m)], rest = next[m & (m - 1)];
        next[m] = index >= 0 && index < rest ? index : rest;
    }
}

gd_window *gd_window_new(int64_t rows) {
    if (rows < 0) return gd_no_object(EINVAL);
    gd_window *w = calloc(1, sizeof *w);
    if (!w) return gd_no_object(ENOMEM);
    w->wanted = gd_table((size_t)rows + 1, 1);
    w->rows = rows;
    for (int k = 0; k < BATCHES; k++) w->index[k] = -1;
    tabulate(w);
    if (w->wanted) return w;
    gd_window_free(w);
    return gd_no_object(ENOMEM);
}

void gd_window_free(gd_window *w) {
    if (!w) return;
    free(w->wanted);
    free(w);
}

static int place_of(const gd_window *w, int64_t index) {
    for (int k = 0; k < BATCHES; k++)
        if (w->index[k] == index) return k;
    return -1;
}

int gd_window_add(gd_window *w, int64_t index, const int64_t *ids, int64_t n) {
    int place = place_of(w, -1);
    if (index < 0 || place_of(w, index) >= 0) return -EINVAL;
    if (place < 0) return -ENOSPC;
    for (int64_t i = 0; i < n; i++)
        if ((uint64_t)ids[i] >= (uint64_t)w->rows) return -ERANGE;
    memset(w->met[place], 0, sizeof w->met[place]);
    for (int64_t i = 0; i < n; i++) {
        if (i + AHEAD < n) __builtin_prefetch(&w->wanted[ids[i + AHEAD]], 1);
        uint8_t *const wanted = &w->wanted[ids[i]];
        w->met[place][*wanted]++;
        *wanted |= (uint8_t)(1u << place);
    }
    w->index[place] = index;
    w->came[place] = w->all++;
    tabulate(w);
    return 0;
}

int gd_window_drop(gd_window *w, int64_t index, const int64_t *ids, int64_t n) {
    int place = index < 0 ? -1 : place_of(w, index);
    if (place < 0) return -ENOENT;
    for (int64_t i = 0; i < n; i++)
        if ((uint64_t)ids[i] < (uint64_t)w->rows) w->wanted[ids[i]] &= (uint8_t)~(1u << place);
    w->index[place] = -1;
    tabulate(w);
    return 0;
}

int64_t gd_window_together(const gd_window *w, const int64_t *indices, int64_t n) {
    unsigned places = 0;
    for (int64_t i = 0; i < n; i++) {
        const int place = indices[i] < 0 ? -1 : place_of(w, indices[i]);
        if (place < 0) return -ENOENT;
        places |= 1u << place;
    }
    int64_t rows = 0;
    for (int k = 0; k < BATCHES; k++) {
        if (!(places >> k & 1)) continue;
        unsigned counted = 1u << k; /* an earlier occurrence of a row in batch k itself */
        for (int j = 0; j < BATCHES; j++)
            if (w->came[j] < w->came[k]) counted |= places & 1u << j;
        for (unsigned m = 0; m < SETS; m++)
            if (!(m & counted)) rows += w->met[k][m];
    }
    return rows;
}

int32_t gd_window_count(const gd_window *w) {
    int32_t count = 0;
    for (int k = 0; k < BATCHES; k++) count += w->index[k] >= 0;
    return count;
}

int gd_window_wanted(const gd_window *w, int64_t row) {
    return (uint64_t)row < (uint64_t)w->rows ? w->wanted[row] : -ERANGE;
}

const int64_t *gd_window_next_uses(const gd_window *w) { return w->next; }
