/* uses.c: which batches use a row, with one number a node: 0, 1 or many uses in a segment, and the
 * latest use. */
#include "internal.h"

enum { AHEAD = 16 }; /* places are read in the order of a batch's nodes, so most miss the cache */

static inline void fetch_ahead(const int32_t *table, int64_t nodes, const int64_t *ids, int64_t i,
                               int64_t n) {
    if (i + AHEAD < n && (uint64_t)ids[i + AHEAD] < (uint64_t)nodes)
        __builtin_prefetch(&table[ids[i + AHEAD]], 1);
}

int gd_uses_enter(int32_t *last, int64_t nodes, const int64_t *ids, int64_t n, int32_t batch,
                  int64_t *found) {
    for (int64_t i = 0; i < n; i++) {
        if ((uint64_t)ids[i] >= (uint64_t)nodes) return -ERANGE;
        fetch_ahead(last, nodes, ids, i, n);
        const int32_t before = last[ids[i]];
        if (before == batch) continue; /* a second use by this batch */
        assert(before < batch);
        found[before + 1]++;
        last[ids[i]] = batch;
    }
    return 0;
}

int64_t gd_uses_mark(int32_t *place, int64_t nodes, const int64_t *ids, int64_t n,
                     int64_t *shared) {
    int64_t count = 0;
    for (int64_t i = 0; i < n; i++) {
        if ((uint64_t)ids[i] >= (uint64_t)nodes) return -ERANGE;
        fetch_ahead(place, nodes, ids, i, n);
        const int32_t now = place[ids[i]];
        if (now == GD_PLACE_COLD) {
            place[ids[i]] = GD_PLACE_ONCE;
        } else if (now == GD_PLACE_ONCE) {
            place[ids[i]] = GD_PLACE_SHARED;
            shared[count++] = ids[i];
        }
    }
    return count;
}
