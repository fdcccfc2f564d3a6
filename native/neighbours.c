/* neighbours.c: the neighbour cache (Ginex, VLDB 2022, section 4.2): in-neighbour lists in memory.
 *
 * A list costs memory by its length, the in-degree of its node, and is read as often as its node is
 * a neighbour, the out-degree. So the cache keeps the lists with the highest out-degree /
 * in-degree. It compares only the leading bits of these ratios (exponent and 7 bits), so that a
 * histogram replaces a sort. Lists lie one after the other in one array. The address table has one
 * bit a node, one count for every 64 nodes and one offset for each cached list: 12 bytes for 64
 * nodes and 8 for a list.
 */
#include "internal.h"

enum {
    NODES_A_WORD = 64,
    RATIO_BITS = 15, /* a positive float's exponent and 7 bits of its fraction */
    RATIOS = 1 << RATIO_BITS,
    COUNT_AHEAD = 64, /* how many indices ahead counters are prefetched */
    MISSING = -1, /* in place of a neighbour; a damaged index of this value is only read again */
};

struct gd_neighbours {
    const gd_csc *csc;
    uint64_t *member; /* one bit a node: its list is cached */
    uint32_t *before; /* members before each group of 64 nodes */
    int64_t *start;   /* start[members + 1]: where lists start in `list`, in indices */
    uint8_t *list;
    int64_t words, members, entries;
    int64_t filled;        /* indices in `list` that are filled in */
    int64_t filling, node; /* the member that is filled next: its number and its node */
};

int64_t gd_count_out_degrees(const void *indices, int32_t index_bytes, int64_t n, int64_t nodes,
                             uint32_t *out_degree) {
    const int32_t *narrow = indices;
    const int64_t *wide = indices;
    int64_t ignored = 0;
    for (int64_t i = 0; i < n; i++) {
        if (i + COUNT_AHEAD < n) {
            const int64_t soon = index_bytes == 4 ? narrow[i + COUNT_AHEAD] : wide[i + COUNT_AHEAD];
            if ((uint64_t)soon < (uint64_t)nodes) __builtin_prefetch(&out_degree[soon], 1);
        }
        const int64_t node = index_bytes == 4 ? narrow[i] : wide[i];
        if ((uint64_t)node >= (uint64_t)nodes)
            ignored++;
        else if (out_degree[node] < UINT32_MAX)
            out_degree[node]++;
    }
    return ignored;
}

/* ---- which lists are cached ---- */

typedef struct gd_walk { /* a walk over the nodes in order */
    const gd_csc *csc;
    const uint32_t *out_degree;
    int64_t reach; /* where the last valid list ends */
} gd_walk;

/* The degree of `node` if its list lies behind those of the nodes before it, as in an undamaged
 * graph; else 0. */
static int64_t good_degree(gd_walk *walk, int64_t node) {
    const int64_t begin = gd_indptr(walk->csc, node), end = gd_indptr(walk->csc, node + 1);
    if (begin < walk->reach || end < begin || end > walk->csc->edges) return 0;
    walk->reach = end;
    return end - begin;
}

static int64_t ratio_of(const gd_walk *walk, int64_t node, int64_t degree) {
    const float ratio = (float)walk->out_degree[node] / (float)degree;
    uint32_t bits;
    memcpy(&bits, &ratio, sizeof bits);
    return bits >> (32 - 1 - RATIO_BITS); /* without the sign, which is 0 */
}

static int64_t cost_of(const gd_csc *csc, int64_t degree) {
    return degree * csc->index_bytes + (int64_t)sizeof(int64_t);
}

/* The ratio above which all lists fit into *room; *room becomes what is left for lists of that
 * ratio. */
static int64_t least_ratio(const gd_csc *csc, const uint32_t *out_degree, int64_t *cost,
                           int64_t *room) {
    gd_walk walk = {csc, out_degree, 0};
    for (int64_t node = 0; node < csc->nodes; node++) {
        const int64_t degree = good_degree(&walk, node);
        if (degree > 0) cost[ratio_of(&walk, node, degree)] += cost_of(csc, degree);
    }
    int64_t ratio = RATIOS - 1;
    for (; ratio >= 0 && cost[ratio] <= *room; ratio--) *room -= cost[ratio];
    return ratio;
}

static void choose_members(gd_neighbours *cache, const uint32_t *out_degree, int64_t least,
                           int64_t room) {
    gd_walk walk = {cache->csc, out_degree, 0};
    for (int64_t node = 0; node < cache->csc->nodes && cache->members < UINT32_MAX; node++) {
        const int64_t degree = good_degree(&walk, node);
        if (degree == 0) continue;
        const int64_t ratio = ratio_of(&walk, node, degree), cost = cost_of(cache->csc, degree);
        if (ratio < least || (ratio == least && cost > room)) continue;
        room -= ratio == least ? cost : 0;
        cache->member[node / NODES_A_WORD] |= UINT64_C(1) << node % NODES_A_WORD;
        cache->members++;
        cache->entries += degree;
    }
}

/* The first member from `node` on; the number of nodes if there is none. */
static int64_t member_from(const gd_neighbours *cache, int64_t node) {
    int64_t word = node / NODES_A_WORD;
    uint64_t bits =
        word < cache->words ? cache->member[word] & (~UINT64_C(0) << node % NODES_A_WORD) : 0;
    while (bits == 0 && ++word < cache->words) bits = cache->member[word];
    return bits ? word * NODES_A_WORD + __builtin_ctzll(bits) : cache->csc->nodes;
}

static void write_addresses(gd_neighbours *cache) {
    int64_t rank = 0, entry = 0;
    for (int64_t word = 0; word < cache->words; word++) {
        cache->before[word] = (uint32_t)rank;
        rank += __builtin_popcountll(cache->member[word]);
    }
    rank = 0;
    for (int64_t v = member_from(cache, 0); v < cache->csc->nodes; v = member_from(cache, v + 1)) {
        cache->start[rank++] = entry;
        entry += gd_indptr(cache->csc, v + 1) - gd_indptr(cache->csc, v);
    }
    assert(rank == cache->members && entry == cache->entries);
    cache->start[rank] = entry;
    cache->node = member_from(cache, 0);
}

static int64_t table_bytes(int64_t words) {
    return words * (int64_t)(sizeof(uint64_t) + sizeof(uint32_t)) + (int64_t)sizeof(int64_t);
}

/* 0 or -errno; after an error the caller frees the cache. */
static int make(gd_neighbours *cache, const uint32_t *out_degree, int64_t bytes_max) {
    int64_t room = bytes_max - (int64_t)sizeof *cache - table_bytes(cache->words);
    if (room < 0) return -ENOSPC;
    cache->member = calloc((size_t)cache->words + 1, sizeof *cache->member);
    int64_t *const cost = calloc(RATIOS, sizeof *cost);
    if (cache->member && cost) {
        const int64_t least = least_ratio(cache->csc, out_degree, cost, &room);
        choose_members(cache, out_degree, least, room);
    }
    free(cost);
    cache->before = malloc(((size_t)cache->words + 1) * sizeof *cache->before);
    cache->start = malloc(((size_t)cache->members + 1) * sizeof *cache->start);
    cache->list = malloc((size_t)cache->entries * (size_t)cache->csc->index_bytes + 1);
    if (!cache->member || !cost || !cache->before || !cache->start || !cache->list) return -ENOMEM;
    write_addresses(cache);
    return 0;
}

gd_neighbours *gd_neighbours_new(const gd_csc *csc, const uint32_t *out_degree, int64_t bytes_max,
                                 int *error) {
    gd_neighbours *const cache = calloc(1, sizeof *cache);
    *error = cache ? 0 : -ENOMEM;
    if (!cache) return NULL;
    cache->csc = csc;
    cache->words = (csc->nodes + NODES_A_WORD - 1) / NODES_A_WORD;
    *error = make(cache, out_degree, bytes_max);
    if (*error == 0) return cache;
    gd_neighbours_free(cache);
    return NULL;
}

void gd_neighbours_free(gd_neighbours *cache) {
    if (!cache) return;
    free(cache->member);
    free(cache->before);
    free(cache->start);
    free(cache->list);
    free(cache);
}

int64_t gd_neighbours_nodes(const gd_neighbours *cache, int64_t *bytes) {
    if (bytes)
        *bytes = (int64_t)sizeof *cache + table_bytes(cache->words) +
                 cache->entries * cache->csc->index_bytes +
                 cache->members * (int64_t)sizeof *cache->start;
    return cache->members;
}

int64_t gd_neighbours_indices(const gd_neighbours *cache) { return cache->entries; }

/* ---- filling the lists, from the start of the graph to its end ---- */

int64_t gd_neighbours_next(const gd_neighbours *cache) {
    if (cache->filling == cache->members) return -1;
    return gd_indptr(cache->csc, cache->node) + cache->filled - cache->start[cache->filling];
}

void gd_neighbours_fill(gd_neighbours *cache, const void *indices, int64_t first, int64_t count) {
    const int64_t width = cache->csc->index_bytes;
    while (cache->filling < cache->members) {
        const int64_t at = gd_neighbours_next(cache);
        const int64_t left = cache->start[cache->filling + 1] - cache->filled;
        if (at < first || at >= first + count) return;
        const int64_t n = left < first + count - at ? left : first + count - at;
        memcpy(cache->list + cache->filled * width, (const uint8_t *)indices + (at - first) * width,
               (size_t)(n * width));
        cache->filled += n;
        if (n < left) return;
        cache->filling++;
        cache->node = member_from(cache, cache->node + 1);
    }
}

/* ---- serving ---- */

/* Where the list of `node` starts in `list`, and its length; -1: it is not cached. */
static int64_t find(const gd_neighbours *cache, int64_t node, int64_t *length) {
    const int64_t word = node / NODES_A_WORD;
    const uint64_t bit = UINT64_C(1) << node % NODES_A_WORD;
    if (!cache || !(cache->member[word] & bit)) return -1;
    const int64_t rank =
        cache->before[word] + __builtin_popcountll(cache->member[word] & (bit - 1));
    *length = cache->start[rank + 1] - cache->start[rank];
    return cache->start[rank];
}

static int64_t get(const void *list, int32_t width, int64_t i) {
    return width == 4 ? ((const int32_t *)list)[i] : ((const int64_t *)list)[i];
}

static void put(void *list, int32_t width, int64_t i, int64_t neighbour) {
    if (width == 4)
        ((int32_t *)list)[i] = (int32_t)neighbour;
    else
        ((int64_t *)list)[i] = neighbour;
}

int64_t gd_neighbours_serve(const gd_neighbours *cache, const gd_csc *csc, const gd_wanted *wanted,
                            int64_t most, void *neighbours, int32_t shift, int64_t *missing) {
    int64_t misses = 0, begin = -1, length = 0;
    assert(most <= wanted->count);
    for (int64_t i = 0, target = 0, found = -1; i < most; i++) {
        while (wanted->first + i >= wanted->until[target]) target++;
        const int64_t position = wanted->edge[i], node = wanted->node[target];
        if (target != found) {
            found = target;
            begin = find(cache, node, &length);
        }
        const int64_t at = position - gd_indptr(csc, node);
        if (begin >= 0 && at >= 0 && at < length) {
            put(neighbours, csc->index_bytes, i, get(cache->list, csc->index_bytes, begin + at));
            continue;
        }
        put(neighbours, csc->index_bytes, i, MISSING);
        missing[position >> shift]++;
        misses++;
    }
    return misses;
}

int64_t gd_neighbours_missing(const gd_wanted *wanted, int64_t from, int64_t most,
                              const void *neighbours, int32_t index_bytes, int64_t begin,
                              int64_t end, int32_t first_slot, gd_misses *out) {
    int64_t i = from;
    for (; i < most; i++) {
        const int64_t position = wanted->edge[i];
        if (position < begin || position >= end) continue;
        if (get(neighbours, index_bytes, i) != MISSING) continue;
        if (out->count == out->room) break;
        out->position[out->count] = position;
        out->slot[out->count++] = first_slot + (int32_t)i;
    }
    return i;
}
