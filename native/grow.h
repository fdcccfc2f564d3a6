/* grow.h: how a sampler's scratch grows; see grow.c. Room that is there is left as it is. Functions
 * return 0, -ENOMEM, or -EOVERFLOW: it would be more than 2^31 - 1. */
#ifndef GNNDRIVE_GROW_H
#define GNNDRIVE_GROW_H
#include "sampler.h"

enum {
    GD_CAPACITY_MIN = 4096,
    GD_NODES_AHEAD = 32, /* how far ahead index pointers and hash slots are asked for */
};

/* realloc to `count` entries of `width` bytes; when it fails *array is as it was. */
int gd_grow(void **array, int64_t count, size_t width);
/* The least power-of-two multiple of `capacity` that holds `needed`. */
int64_t gd_doubled(int64_t capacity, int64_t needed);

static inline int64_t *gd_keys(const gd_sampler *s, const gd_found *f) {
    return s->job.disjoint ? f->key : f->node;
}

int gd_grow_edges(gd_drawn *d, int64_t more);
/* Room for `more` edges. */
static inline int gd_reserve_edges(gd_drawn *d, int64_t more) {
    if (more > INT32_MAX - d->edges) return -EOVERFLOW;
    return d->edges + more <= d->capacity ? 0 : gd_grow_edges(d, more);
}

/* Room for where the edges of the first `expanded` nodes start, and the last ones end. */
int gd_reserve_colptr(gd_drawn *d, int64_t expanded);
/* Room for `more` nodes, in the list and in the table. */
int gd_reserve_nodes(gd_sampler *s, gd_found *f, int64_t more);
/* Enter the found nodes into the table; of equal keys the first counts. */
void gd_enter_nodes(gd_sampler *s, gd_found *f);
int gd_reserve_hops(int64_t **per_hop, int64_t *capacity, int64_t needed);
/* Room for the job's node and edge types; what is new is zeroed. */
int gd_reserve_types(gd_sampler *s);
#endif
