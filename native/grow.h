/* grow.h: growing a sampler's scratch; see grow.c. A function that makes room does nothing if there
 * is enough. It returns 0, -ENOMEM, -E2BIG: there would be more than the job allows, or -EOVERFLOW:
 * there would be more than 2^31 - 1. */
#ifndef GNNDRIVE_GROW_H
#define GNNDRIVE_GROW_H
#include "sampler.h"

enum {
    GD_CAPACITY_MIN = 4096,
    GD_NODES_MORE = 256, /* room beyond the most nodes: for sources that may all be new */
    GD_NODES_AHEAD = 32, /* how many nodes ahead index pointers and hash slots are prefetched */
};

/* realloc to `count` entries of `width` bytes. 0, or -ENOMEM: *array is unchanged. */
int gd_grow(void **array, int64_t count, size_t width);
/* The least power-of-two multiple of `capacity` that is at least `needed`. */
int64_t gd_doubled(int64_t capacity, int64_t needed);
/* The same, but at most `most` if `needed` is not more; most == 0: no limit. */
int64_t gd_doubled_up_to(int64_t capacity, int64_t needed, int64_t most);

static inline int64_t *gd_keys(const gd_sampler *s, const gd_found *f) {
    return s->job.disjoint ? f->key : f->node;
}

int gd_grow_edges(gd_drawn *d, int64_t more);
/* Make room for `more` edges. Inline: called once a node. */
static inline int gd_reserve_edges(gd_drawn *d, int64_t more) {
    if (more > INT32_MAX - d->edges) return -EOVERFLOW;
    if (d->most && d->edges + more > d->most) return -E2BIG;
    return d->edges + more <= d->capacity ? 0 : gd_grow_edges(d, more);
}

/* Make room for the edge offsets of the first `expanded` nodes. */
int gd_reserve_colptr(gd_drawn *d, int64_t expanded);
/* Make room for `more` nodes, in the list and in the hash table. */
int gd_reserve_nodes(gd_sampler *s, gd_found *f, int64_t more);
/* Enter all found nodes into the hash table; of equal keys the first one. */
void gd_enter_nodes(gd_sampler *s, gd_found *f);
int gd_reserve_hops(int64_t **per_hop, int64_t *capacity, int64_t needed);
/* Make room for the job's node and edge types; new entries are zeroed. */
int gd_reserve_types(gd_sampler *s);
#endif
