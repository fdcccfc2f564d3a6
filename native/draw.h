/* draw.h: counter-based random numbers, and which of a node's in-edges they draw. Only the
 * sampler and shuffle.c, to which a place is what a node is here, include it.
 *
 * The i-th number for a node is mix(start + i * GOLDEN) with start = mix(mix(node + GOLDEN) ^
 * key): the stream of SplitMix64 (Steele, Lea, Flood, OOPSLA 2014; it passes BigCrush), begun at a
 * place that a bijective mixer of node and key chooses. So a draw depends on (key, node, i) alone,
 * never on threads, on order or on the rest of the batch. Two nodes would share numbers only if
 * their starts lay less than k steps apart: with a million nodes and k = 10, for one pair of nodes
 * in one of some 10^6 batches.
 */
#ifndef GNNDRIVE_DRAW_H
#define GNNDRIVE_DRAW_H
#include "internal.h"

enum {
    GD_SCAN_MAX = 32, /* up to this fanout "drawn already?" is a scan, above it a hash set */
    GD_CAPACITY_MIN = 4096,
    GD_SET_MIN = 128,
};
static const uint64_t GD_GOLDEN = 0x9E3779B97F4A7C15u;

/* A set of numbers >= 0, entered as number + 1; 0: empty. */
typedef struct gd_set {
    int64_t *entry;
    int64_t capacity;
} gd_set;

static inline uint64_t gd_mix(uint64_t x) {
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
    return x ^ (x >> 31);
}

static inline uint64_t gd_stream(uint64_t key, int64_t node) {
    return gd_mix(gd_mix((uint64_t)node + GD_GOLDEN) ^ key);
}

/* Uniform in [0, bound), bound > 0: Lemire's multiplication; the rejection makes it exact. */
static inline int64_t gd_below(uint64_t *stream, uint64_t bound) {
    unsigned __int128 product = (unsigned __int128)gd_mix(*stream += GD_GOLDEN) * bound;
    if (__builtin_expect((uint64_t)product < bound, 0)) {
        const uint64_t reject = -bound % bound;
        while ((uint64_t)product < reject)
            product = (unsigned __int128)gd_mix(*stream += GD_GOLDEN) * bound;
    }
    return (int64_t)(product >> 64);
}

static inline int gd_grow(void **array, int64_t count, size_t width) {
    void *larger = realloc(*array, (size_t)count * width);
    if (!larger) return -ENOMEM;
    *array = larger;
    return 0;
}

/* The least power-of-two multiple of `capacity` that holds `needed`. */
static inline int64_t gd_doubled(int64_t capacity, int64_t needed) {
    capacity = capacity ? capacity : GD_CAPACITY_MIN;
    while (capacity < needed) capacity *= 2;
    return capacity;
}

/* k numbers of [begin, begin + degree), each time any of them. */
static inline void gd_draw_replaced(uint64_t stream, int64_t begin, int64_t degree, int64_t k,
                                    int64_t *out) {
    for (int64_t n = 0; n < k; n++) out[n] = begin + gd_below(&stream, (uint64_t)degree);
}

/* Floyd's sampling (Bentley, CACM 30(9), 1987): k draws, every k-subset with the same probability.
 * */
static inline void gd_draw_few(uint64_t stream, int64_t begin, int64_t degree, int64_t k,
                               int64_t *out) {
    for (int64_t n = 0; n < k; n++) {
        const int64_t top = begin + degree - k + n;
        const int64_t pick = begin + gd_below(&stream, (uint64_t)(degree - k + n + 1));
        int seen = 0;
        for (int64_t m = 0; m < n; m++) seen |= out[m] == pick;
        out[n] = seen ? top : pick;
    }
}

/* 1 if `number` was new to the set. At most half of the entries are taken: the probe ends. */
static inline int gd_set_add(gd_set *set, uint64_t mask, int64_t number) {
    uint64_t at = ((uint64_t)number * GD_GOLDEN >> 32) & mask;
    while (set->entry[at] != 0) {
        if (set->entry[at] == number + 1) return 0;
        at = (at + 1) & mask;
    }
    set->entry[at] = number + 1;
    return 1;
}

/* The same subsets as gd_draw_few, with a hash set, so that a large k costs k and not k squared. */
static inline int gd_draw_many(gd_set *set, uint64_t stream, int64_t begin, int64_t degree,
                               int64_t k, int64_t *out) {
    const int64_t capacity = gd_doubled(GD_SET_MIN, 2 * k);
    if (capacity > set->capacity) {
        if (gd_grow((void **)&set->entry, capacity, sizeof *set->entry)) return -ENOMEM;
        set->capacity = capacity;
    }
    memset(set->entry, 0, (size_t)capacity * sizeof *set->entry);
    for (int64_t n = 0; n < k; n++) {
        const int64_t top = degree - k + n; /* no earlier draw can have reached it */
        int64_t pick = gd_below(&stream, (uint64_t)top + 1);
        if (!gd_set_add(set, (uint64_t)capacity - 1, pick)) {
            gd_set_add(set, (uint64_t)capacity - 1, top);
            pick = top;
        }
        out[n] = begin + pick;
    }
    return 0;
}
#endif
