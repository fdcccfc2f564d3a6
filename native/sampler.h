/* sampler.h: a sampler's scratch: the sample itself, hash tables, candidates. */
#ifndef GNNDRIVE_SAMPLER_H
#define GNNDRIVE_SAMPLER_H
#include "draw.h"
#include "places.h"

typedef struct gd_candidate {
    int64_t rank;  /* the candidates of smallest rank are drawn; */
    int64_t order; /* of equal ranks those of smallest order, which is ~position */
} gd_candidate;

typedef struct gd_candidates {
    gd_candidate *entry;
    double *sum;
    int64_t capacity;
} gd_candidates;

/* What the samples of a group have of one kind, one behind the other. */
typedef struct gd_kept {
    void *item;
    int64_t count, capacity;
} gd_kept;

/* The sample's nodes of one type: seeds first, then in the order in which they were found. */
typedef struct gd_found {
    int64_t *node; /* node[nodes] */
    int64_t *key;  /* the key of `places`: tree x nodes + node; only if disjoint */
    int32_t *tree; /* the tree of each node; only if disjoint */
    int64_t nodes, capacity;
    int64_t most;      /* more nodes are refused; 0: no limit */
    gd_places places;  /* key -> the first position with it */
    int64_t hop_first; /* the present hop expands the nodes from here */
    int64_t hop_last;  /* to before here */
    int64_t *per_hop;  /* how many nodes each hop found; the seeds are hop 0 */
    int64_t hop_capacity;
    gd_kept kept_node, kept_tree;
} gd_found;

/* The sample's edges of one type. */
typedef struct gd_drawn {
    int64_t *edge; /* edge[edges]: CSC positions; row[edges]: the place of each edge's source */
    int32_t *row;
    int64_t edges, capacity;
    int64_t most;    /* more edges are refused; 0: no limit */
    int32_t *colptr; /* colptr[expanded + 1]: where the edges of each expanded target start */
    int64_t expanded, colptr_capacity;
    int64_t placed;    /* edges whose sources have a place */
    int64_t hop_edges; /* the first edge of the present hop */
    int64_t *per_hop;
    int64_t hop_capacity;
    gd_kept kept_edge, kept_row, kept_colptr;
} gd_drawn;

/* A neighbour that a target may take (labor.c). */
typedef struct gd_offer {
    uint64_t number; /* the neighbours of smallest number are taken; */
    int64_t edge;    /* of equal numbers those of smallest CSC position */
    int64_t neighbour;
} gd_offer;

enum { GD_UNPLACED = 256 };

/* How far labor.c has come in a turn, and the indices that it waits for. */
typedef struct gd_reading {
    int64_t target;       /* the node whose list is read; it takes at least one edge */
    int64_t begin, read;  /* where its list begins, and how many in-edges of it were read, */
    int64_t degree, take; /* of how many, and how many of them it takes */
    int64_t ahead;        /* the first node whose pages were not requested */
    gd_offer *heap;       /* heap[held]: what the target takes so far; with `take` of them, the top
                             is the first to be given up */
    int64_t held, heap_capacity;
    int32_t shift;                 /* of a number to its bucket */
    int64_t unplaced[GD_UNPLACED]; /* neighbours of the edges from `placed` on */
    int64_t unplaced_count;
    int64_t *wanted; /* wanted[wants]: positions of the indices that the caller gives, */
    int32_t *until;  /* of each target from first_target on where its positions end, */
    int64_t first_target, wants, given; /* and how many of them were given */
} gd_reading;

/* All memory is kept between calls. */
struct gd_sampler {
    gd_sampling job; /* of the present or the last sample */
    int32_t hop;     /* hops that are finished */
    int32_t turn;    /* edge types that are finished in the present hop */
    int32_t waiting; /* 1: the sampler waits for the neighbours of this edge type's edges from
                        `placed` on */
    int32_t types, edge_types; /* found[types], drawn[edge_types]: the largest numbers so far */
    gd_found *found;
    gd_drawn *drawn;
    int64_t *tree_time; /* the time of each tree's seed */
    int64_t trees, tree_capacity;
    gd_candidates candidates;
    int32_t cold;        /* the indices are on disk: request pages ahead */
    int64_t faults;      /* major faults of this thread when the batch began */
    int64_t asked;       /* edges whose pages were requested */
    gd_set set;          /* for fanouts above GD_SCAN_MAX */
    gd_reading lists;    /* if the job shares numbers */
    int32_t hops;        /* of a finished sample, else 0 */
    gd_kept kept_counts; /* of a group's samples, see gd_group_counts */
    int64_t culprit;
    int32_t culprit_turn;
};

void gd_sampler_empty(gd_sampler *s);
/* The place of the target for which edge `e` of this turn was drawn. */
int64_t gd_target_of(const gd_sampler *s, int64_t e);
#endif
