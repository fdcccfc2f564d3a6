/* arrange.c: the order of a batch's nodes in x, so that the rows that one read brings are
 * neighbours there, and the edges renumbered to match.
 *
 * A node's sort key is, from the top bit down: the turn of its class in the hop, what orders it
 * within the class (as rows are those of distinct nodes, less than their number), its position in
 * the hop. O(n).
 */
#include "internal.h"
#include "keys.h"

enum { AHEAD = 16, CLASS_BITS = 2 };

typedef struct arranging {
    const int32_t *place;
    int64_t nodes;
    const int64_t *node;
    int64_t first, count; /* the hop's nodes */
    int32_t hop;
    uint64_t *key, *spare;
} arranging;

static int class_of(int32_t place) {
    if (place >= 0) return GD_IN_HOT;
    return place <= GD_PLACE_SHARED ? GD_IN_SHARED : GD_IN_CHUNK;
}

/* The classes' turns are chunk, shared, hot in an odd hop and the reverse in an even one. */
static int turn_of(int32_t hop, int class) { return hop & 1 ? class : GD_CLASSES - 1 - class; }

/* Sort the hop's nodes. Writes the count of each class, the sorted nodes, and what gd_arrange says
 * of order[] and row[]; the keys are cut into their parts again, which needs no access to place. */
static int arrange_hop(arranging *a, int32_t *order, int64_t *counts, int64_t *sorted,
                       int32_t *row) {
    const int64_t *const node = a->node + a->first;
    const int low = gd_bits_of(a->count - 1), middle = gd_bits_of(a->nodes - 1);
    if (low + middle + CLASS_BITS > 64) return -EOVERFLOW;
    for (int64_t i = 0; i < a->count; i++) {
        if ((uint64_t)node[i] >= (uint64_t)a->nodes) return -ERANGE;
        if (i + AHEAD < a->count && (uint64_t)node[i + AHEAD] < (uint64_t)a->nodes)
            __builtin_prefetch(&a->place[node[i + AHEAD]]);
        const int32_t place = a->place[node[i]];
        const int class = class_of(place);
        const int64_t within = class == GD_IN_HOT      ? place
                               : class == GD_IN_SHARED ? (int64_t)GD_PLACE_SHARED - place
                                                       : node[i];
        counts[class]++;
        assert(within < a->nodes);
        a->key[i] =
            ((uint64_t)turn_of(a->hop, class) << middle | (uint64_t)within) << low | (uint64_t)i;
    }
    const uint64_t *const key =
        gd_sort_keys(a->key, a->spare, a->count, low, low + middle + CLASS_BITS);
    for (int64_t i = 0; i < a->count; i++) {
        const int64_t at = (int64_t)(key[i] & ((UINT64_C(1) << low) - 1));
        const int class = turn_of(a->hop, (int)(key[i] >> low >> middle));
        order[i] = (int32_t)(a->first + at);
        sorted[i] = node[at];
        row[i] =
            class == GD_IN_CHUNK ? -1 : (int32_t)(key[i] >> low & ((UINT64_C(1) << middle) - 1));
    }
    return 0;
}

static int keep_seeds(const arranging *a, int32_t *order, int64_t *counts, int64_t *sorted,
                      int32_t *row) {
    for (int64_t i = 0; i < a->count; i++) {
        if ((uint64_t)a->node[i] >= (uint64_t)a->nodes) return -ERANGE;
        order[i] = (int32_t)i;
        sorted[i] = a->node[i];
        row[i] = -1;
    }
    counts[GD_IN_CHUNK] = a->count;
    return 0;
}

int gd_arrange(const int32_t *place, int64_t nodes, const int64_t *node, int64_t n,
               const int64_t *per_hop, int32_t hops, int32_t *order, int32_t *rank, int64_t *counts,
               int64_t *sorted, int32_t *row) {
    int64_t left = n;
    if (n < 0 || n > INT32_MAX) return -EOVERFLOW;
    for (int32_t h = 0; h < hops; h++) {
        if (per_hop[h] < 0 || per_hop[h] > left) return -EINVAL;
        left -= per_hop[h];
    }
    if (left) return -EINVAL;
    uint64_t *const keys = malloc(2 * (size_t)n * sizeof *keys + 1);
    if (!keys) return -ENOMEM;
    memset(counts, 0, (size_t)hops * GD_CLASSES * sizeof *counts);
    arranging a = {.place = place, .nodes = nodes, .node = node, .key = keys, .spare = keys + n};
    int code = 0;
    for (; a.hop < hops && !code; a.hop++) {
        int64_t *const here = counts + (int64_t)a.hop * GD_CLASSES, f = a.first;
        a.count = per_hop[a.hop];
        code = a.hop ? arrange_hop(&a, order + f, here, sorted + f, row + f)
                     : keep_seeds(&a, order, here, sorted, row);
        a.first += a.count;
    }
    free(keys);
    for (int64_t p = 0; p < n && !code; p++) {
        if (p + AHEAD < n) __builtin_prefetch(&rank[order[p + AHEAD]], 1);
        rank[order[p]] = (int32_t)p;
    }
    return code;
}

static void copy_stretch(void *out, int64_t to, const void *from, int64_t at, int64_t count,
                         int32_t width) {
    /* a list has about ten edges, so a loop is faster than memcpy */
    if (width == 4)
        for (int64_t i = 0; i < count; i++)
            ((int32_t *)out)[to + i] = ((const int32_t *)from)[at + i];
    else
        for (int64_t i = 0; i < count; i++)
            ((int64_t *)out)[to + i] = ((const int64_t *)from)[at + i];
}

int gd_renumber(const int32_t *row, const int32_t *colptr, const void *edge, int32_t edge_bytes,
                int64_t edges, int64_t expanded, const int32_t *source_rank, int64_t sources,
                const int32_t *target_order, int32_t *row_out, int32_t *colptr_out,
                void *edge_out) {
    if (edge_bytes != 4 && edge_bytes != 8) return -EINVAL;
    if (colptr[0] != 0 || colptr[expanded] != edges) return -ERANGE;
    for (int64_t p = 0; p < expanded; p++)
        if (colptr[p] > colptr[p + 1]) return -ERANGE;
    int64_t to = 0;
    colptr_out[0] = 0;
    for (int64_t p = 0; p < expanded; p++) {
        const int64_t old = target_order[p];
        if (old < 0 || old >= expanded) return -EINVAL;
        const int64_t at = colptr[old], count = colptr[old + 1] - at;
        if (to + count > edges) return -EINVAL; /* target_order is no permutation */
        for (int64_t i = 0; i < count; i++) {
            if ((uint64_t)row[at + i] >= (uint64_t)sources) return -ERANGE;
            row_out[to + i] = source_rank[row[at + i]];
        }
        copy_stretch(edge_out, to, edge, at, count, edge_bytes);
        to += count;
        colptr_out[p + 1] = (int32_t)to;
    }
    return to == edges ? 0 : -EINVAL;
}
