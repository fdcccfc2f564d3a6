/* sampler.h: a sampler's scratch. */
#ifndef GNNDRIVE_SAMPLER_H
#define GNNDRIVE_SAMPLER_H
#include "draw.h"
#include "places.h"

typedef struct gd_candidate {
    int64_t rank;  /* the smallest are chosen, */
    int64_t order; /* of equal ones the smallest order; which position it is, is in it */
} gd_candidate;

typedef struct gd_candidates {
    gd_candidate *entry;
    double *sum;
    int64_t capacity;
} gd_candidates;

/* The sample's nodes of one type: seeds first, then in the order in which they were found. */
typedef struct gd_found {
    int64_t *node; /* node[nodes] */
    int64_t *key;  /* what `places` knows them by: the node, or tree and node; only if disjoint */
    int32_t *tree; /* whose tree they are in; only if disjoint */
    int64_t nodes, capacity;
    gd_places places;  /* key -> its first position */
    int64_t hop_first; /* the first node that the hop under way expands, */
    int64_t hop_last;  /* and the first behind them */
    int64_t *per_hop;  /* new nodes of each hop, the seeds first */
    int64_t hop_capacity;
} gd_found;

/* The sample's edges of one type. */
typedef struct gd_drawn {
    int64_t *edge; /* edge[edges]: CSC positions; row[edges]: the source's place among the found */
    int32_t *row;
    int64_t edges, capacity;
    int32_t *colptr; /* colptr[expanded + 1]: where each expanded target's edges start */
    int64_t expanded, colptr_capacity;
    int64_t placed;    /* edges whose sources have their places */
    int64_t hop_edges; /* the first edge of the hop under way */
    int64_t *per_hop;
    int64_t hop_capacity;
} gd_drawn;

/* Everything is kept between calls. */
struct gd_sampler {
    gd_sampling job;           /* of the sample under way, or the last */
    int32_t hop;               /* hops that are done, */
    int32_t turn;              /* and edge types that are, of the hop under way */
    int32_t waiting;           /* 1: for neighbours of that edge type's edges from `placed` on */
    int32_t types, edge_types; /* found[types], drawn[edge_types]: never fewer than there were */
    gd_found *found;
    gd_drawn *drawn;
    int64_t *tree_time; /* the time of each tree's seed */
    int64_t trees, tree_capacity;
    gd_candidates candidates;
    int32_t cold;   /* the indices come from disk: ask for pages ahead */
    int64_t faults; /* major faults of this thread when the batch began */
    int64_t asked;  /* edges whose pages were asked for */
    gd_set set;     /* behind a large fanout */
    int32_t hops;   /* of a whole result, else 0 */
    int64_t culprit;
    int32_t culprit_turn;
};

void gd_sampler_empty(gd_sampler *s);
#endif
