/* draw.h: counter-based random numbers, and drawing a node's in-edges with them. The drawing is
 * inline because the sampler calls it once a node. shuffle.c uses the numbers with a place for a
 * node.
 *
 * The i-th number for a node is mix(start + i * GOLDEN) with start = mix(mix(node + GOLDEN) ^ key).
 * That is the stream of SplitMix64 (Steele, Lea, Flood, OOPSLA 2014; it passes BigCrush) from a
 * start that a bijective mixer chooses by node and key. So a draw depends on (key, node, i) alone,
 * never on threads, on order or on the rest of the batch. Two nodes would share numbers only if
 * their starts lay less than k steps apart: with a million nodes and k = 10, for one pair of nodes
 * in one of some 10^6 batches.
 */
#ifndef GNNDRIVE_DRAW_H
#define GNNDRIVE_DRAW_H
#include "internal.h"

/* Up to this fanout a scan finds what is drawn already, above it a hash set. */
enum { GD_SCAN_MAX = 32 };
static const uint64_t GD_GOLDEN = 0x9E3779B97F4A7C15u;

/* A set of numbers >= 0; an entry is number + 1, or 0: empty. */
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

/* Draw k numbers of [begin, begin + degree) with replacement. */
static inline void gd_draw_replaced(uint64_t stream, int64_t begin, int64_t degree, int64_t k,
                                    int64_t *out) {
    for (int64_t i = 0; i < k; i++) out[i] = begin + gd_below(&stream, (uint64_t)degree);
}

/* Draw k numbers of [begin, begin + degree) without replacement: Floyd's sampling (Bentley, CACM
 * 30(9), 1987), k draws, every k-subset with the same probability. */
static inline void gd_draw_few(uint64_t stream, int64_t begin, int64_t degree, int64_t k,
                               int64_t *out) {
    for (int64_t i = 0; i < k; i++) {
        const int64_t top = begin + degree - k + i;
        const int64_t pick = begin + gd_below(&stream, (uint64_t)(degree - k + i + 1));
        int seen = 0;
        for (int64_t j = 0; j < i; j++) seen |= out[j] == pick;
        out[i] = seen ? top : pick;
    }
}

/* Draws what gd_draw_few would; with a hash set, so that it takes time k, not k squared. 0 or
 * -ENOMEM. */
int gd_draw_many(gd_set *set, uint64_t stream, int64_t begin, int64_t degree, int64_t k,
                 int64_t *out);
#endif
