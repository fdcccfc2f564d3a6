/* assigning.h: the C core's interface to Python for assigning nodes to partitions. gnndrive.h
 * includes it; its rules on errors and threads apply here too.
 */
#ifndef GNNDRIVE_ASSIGNING_H
#define GNNDRIVE_ASSIGNING_H
#include <stdint.h>

/* ---- edges.h: consecutive edges of a graph ---- */
/* The edges at the CSC positions [first, first + count); edge i comes from sources[i], which are
 * csc->index_bytes each. Calls go through a graph from its first edge to its last; `target` is then
 * 0 before the first of them, and each one leaves it at the target of its last edge. */
typedef struct gd_edges {
    const gd_csc *csc; /* its `indices` are not used */
    const void *sources;
    int64_t first, count;
    int64_t target;
} gd_edges;

/* ---- symmetric.c: the symmetric lists of consecutive nodes: of each node its length and its
 * distinct neighbours in both directions without the node itself, in the order of the edges;
 * numbers of csc->index_bytes each ---- */
/* count[v]++ for both ends of each edge that is no self loop; -ERANGE: a source is not a node;
 * -EOVERFLOW: a node has 2^32 - 1 edges. */
int gd_symmetric_count(gd_edges *edges, uint32_t *count);
/* Where the longest run of nodes from `first` on ends whose lists take at most `most` numbers
 * together; most < 2^32. */
int64_t gd_symmetric_fitting(const uint32_t *count, int64_t nodes, int64_t first, int64_t most);
/* count[v] becomes the place of the first neighbour of v, for first <= v < last; returns how many
 * numbers the lists of these nodes take. */
int64_t gd_symmetric_places(uint32_t *count, int64_t first, int64_t last);
/* Append the ends of each edge to each other's lists, if they are in [first_node, last_node), at
 * place[v]++ of lists[numbers]. -ERANGE: a source is not a node, or the edges are not those that
 * were counted. */
int gd_symmetric_fill(gd_edges *edges, int64_t first_node, int64_t last_node, uint32_t *place,
                      void *lists, int64_t numbers);
/* Write the lengths, drop duplicates and close the gaps. seen[(nodes + 7) / 8] is zeroed, and is so
 * again afterwards, unless the call fails. Returns how many numbers are left; -ERANGE: the edges
 * were not those that were counted. */
int64_t gd_symmetric_close(const uint32_t *place, int64_t first_node, int64_t last_node,
                           int64_t nodes, int32_t index_bytes, uint8_t *seen, void *lists,
                           int64_t numbers);

/* ---- ldg.c: linear deterministic greedy partitioning ---- */
typedef struct gd_ldg gd_ldg;
/* A pass over all nodes. part[nodes], which must outlive it, is where each node is, -1: nowhere;
 * the pass updates it. No partition gets more than `cap` nodes. NULL: *error is -ENOMEM, -ERANGE:
 * part[] has another number, or -EINVAL: parts * cap < nodes, or `parts` or `nodes` are out of
 * range. */
gd_ldg *gd_ldg_new(int32_t *part, int64_t nodes, int32_t parts, int64_t cap, int *error);
void gd_ldg_free(gd_ldg *l);
/* The next `count` numbers of the symmetric lists, see above; a list may be cut anywhere. Returns
 * how many nodes the pass has assigned, or -ERANGE: a number is out of range, and the pass has to
 * be freed. */
int64_t gd_ldg_feed(gd_ldg *l, const void *numbers, int64_t count, int32_t index_bytes);
int64_t gd_ldg_moved(const gd_ldg *l); /* how many nodes are in another partition than before */
#endif
