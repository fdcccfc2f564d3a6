/* places.h: the sampler's hash table from a key (a node, or tree and node) to the position where it
 * first stands. Lookups are inline because they run once an edge.
 *
 * Open addressing with linear probing, 8 bytes a slot: the node's low 32 bits, then its position +
 * 1; 0 is empty. A match of the 32 bits is confirmed in the node list, so ids may be of any size.
 * Only the first `slots` of `capacity` are in use, so that the time to clear the table depends on
 * the size of the batch.
 */
#ifndef GNNDRIVE_PLACES_H
#define GNNDRIVE_PLACES_H
#include "internal.h"

enum { GD_PLACES_MIN = 4096 };

typedef struct gd_places {
    uint64_t *slot;
    int64_t slots; /* a power of two; at most half of them are taken */
    int64_t capacity;
    int32_t shift; /* 64 - log2(slots) */
} gd_places;

/* Make it a table of `slots` empty slots. 0 or -ENOMEM. */
int gd_places_clear(gd_places *t, int64_t slots);

/* Where the search for `node` starts. */
static inline uint64_t gd_places_home(const gd_places *t, int64_t node) {
    const uint64_t odd = 0x9E3779B97F4A7C15u, x = (uint64_t)node * odd;
    return ((x ^ (x >> 32)) * odd) >> t->shift;
}

/* The slot that holds `node`, or the empty slot where it belongs; the search starts at `at`. */
static inline uint64_t *gd_places_find(const gd_places *t, const int64_t *nodes, int64_t node,
                                       uint64_t at) {
    const uint64_t mask = (uint64_t)t->slots - 1;
    for (;; at = (at + 1) & mask) {
        const uint64_t entry = t->slot[at];
        if (entry == 0) return &t->slot[at];
        if ((uint32_t)(entry >> 32) == (uint32_t)node && nodes[(uint32_t)entry - 1] == node)
            return &t->slot[at];
    }
}

static inline uint64_t gd_places_entry(int64_t node, int64_t position) {
    return (uint64_t)node << 32 | (uint64_t)(position + 1);
}

static inline int32_t gd_places_position(uint64_t entry) { return (int32_t)((uint32_t)entry - 1); }
#endif
