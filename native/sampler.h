/* sampler.h: a sampler's scratch, and how it grows. Only sample.c includes it. */
#ifndef GNNDRIVE_SAMPLER_H
#define GNNDRIVE_SAMPLER_H
#include "draw.h"
#include "places.h"

enum { GD_NODES_AHEAD = 32 }; /* how far ahead index pointers and hash slots are asked for */

typedef struct gd_job { /* what all hops of one sample share */
    const gd_csc *g;
    const int64_t *fanout;
    const int32_t *stop;
    uint64_t key;
    int32_t hops, replace;
} gd_job;

struct gd_sampler {
    gd_job job;        /* of the sample under way, or the last */
    int32_t hop;       /* hops that are done */
    int32_t waiting;   /* 1: for neighbours of the edges from `placed` on */
    int64_t hop_first; /* the first node of the hop under way, */
    int64_t hop_last;  /* the first node behind it, */
    int64_t hop_edges; /* and its first edge */
    int64_t placed;    /* edges whose neighbours have their places */
    int64_t *node;     /* node[nodes] */
    int64_t nodes, node_capacity;
    int64_t *edge; /* edge[edges], row[edges] */
    int32_t *row;
    int64_t edges, edge_capacity;
    int32_t *colptr; /* colptr[expanded + 1]: where each expanded node's edges start */
    int64_t expanded, colptr_capacity;
    gd_places places; /* node -> its first position */
    int32_t cold;     /* the indices come from disk: ask for pages ahead */
    int64_t faults;   /* major faults of this thread when the batch began */
    int64_t asked;    /* edges whose pages were asked for */
    gd_set drawn;     /* behind a large fanout */
    int64_t *nodes_per_hop, *edges_per_hop;
    int64_t hop_capacity;
    int32_t hops; /* of a whole result, else 0 */
    int64_t culprit;
};

/* ---- memory: everything is kept between calls and grows by doubling ---- */

static int grow(void **array, int64_t count, size_t width) {
    void *larger = realloc(*array, (size_t)count * width);
    if (!larger) return -ENOMEM;
    *array = larger;
    return 0;
}

static int reserve_edges(gd_sampler *s, int64_t more) {
    if (more > INT32_MAX - s->edges) return -EOVERFLOW;
    if (s->edges + more <= s->edge_capacity) return 0;
    const int64_t capacity = gd_doubled(s->edge_capacity, s->edges + more);
    if (grow((void **)&s->edge, capacity, sizeof *s->edge) ||
        grow((void **)&s->row, capacity, sizeof *s->row))
        return -ENOMEM;
    s->edge_capacity = capacity;
    return 0;
}

/* Room for where the edges of the first `expanded` nodes start, and the last ones end. */
static int reserve_colptr(gd_sampler *s, int64_t expanded) {
    if (expanded < s->colptr_capacity) return 0;
    const int64_t capacity = gd_doubled(s->colptr_capacity, expanded + 1);
    if (grow((void **)&s->colptr, capacity, sizeof *s->colptr)) return -ENOMEM;
    s->colptr_capacity = capacity;
    return 0;
}

/* Enter the nodes at positions [0, s->nodes); of equal nodes the first counts. */
static void enter_nodes(gd_sampler *s) {
    gd_places *const places = &s->places;
    for (int64_t p = 0; p < s->nodes; p++) {
        if (p + GD_NODES_AHEAD < s->nodes)
            __builtin_prefetch(&places->slot[gd_places_home(places, s->node[p + GD_NODES_AHEAD])],
                               1);
        const int64_t node = s->node[p];
        uint64_t *slot = gd_places_find(places, s->node, node, gd_places_home(places, node));
        if (*slot == 0) *slot = gd_places_entry(node, p);
    }
}

/* Room for `more` nodes, in the list and in the table. */
static int reserve_nodes(gd_sampler *s, int64_t more) {
    if (more > INT32_MAX - s->nodes) return -EOVERFLOW;
    const int64_t needed = s->nodes + more;
    if (needed > s->node_capacity) {
        const int64_t capacity = gd_doubled(s->node_capacity, needed);
        if (grow((void **)&s->node, capacity, sizeof *s->node)) return -ENOMEM;
        s->node_capacity = capacity;
    }
    if (2 * needed > s->places.slots) {
        if (gd_places_clear(&s->places, gd_doubled(s->places.slots, 2 * needed))) return -ENOMEM;
        enter_nodes(s);
    }
    return 0;
}
#endif
