/* walks.c: a step of random walks along in-neighbours, for a score of nodes (LSM-GNN's reverse
 * PageRank): how likely a sample around random seeds has a node.
 *
 * The lists are read once, from the start of the file to its end, and each of their entries adds to
 * a random place of `next`. Its line is prefetched, because it is in no cache.
 */
#include "internal.h"

enum { AHEAD = 64 };

static int64_t index_at(const void *indices, int32_t width, int64_t i) {
    return width == 4 ? ((const int32_t *)indices)[i] : ((const int64_t *)indices)[i];
}

static int all_below(const void *indices, int32_t width, int64_t count, int64_t limit) {
    uint64_t most = 0;
    for (int64_t i = 0; i < count; i++) {
        const uint64_t index = (uint64_t)index_at(indices, width, i);
        most = index > most ? index : most;
    }
    return count == 0 || most < (uint64_t)limit;
}

int gd_walks_step(gd_walks *w, const void *indices, int64_t count) {
    const int32_t width = w->csc->index_bytes;
    const int64_t end = w->position + count;
    if (end > w->csc->edges || !all_below(indices, width, count, w->sources)) return -ERANGE;
    for (int64_t i = 0; w->position < end; w->target++) {
        assert(w->target < w->csc->nodes); /* the index pointers end with `edges` */
        const int64_t from = gd_indptr(w->csc, w->target), to = gd_indptr(w->csc, w->target + 1);
        const int64_t last = to < end ? to : end;
        const float part = to > from ? w->share * w->now[w->target] / (float)(to - from) : 0.0F;
        for (; w->position < last; w->position++, i++) {
            if (i + AHEAD < count)
                __builtin_prefetch(&w->next[index_at(indices, width, i + AHEAD)], 1);
            w->next[index_at(indices, width, i)] += part;
        }
        if (to > end) return 0; /* the list goes on in the next call */
    }
    return 0;
}
