/* sampling.h: the second half of the C core's interface to Python: graphs, the sampler, the
 * neighbour cache, the order of seeds. gnndrive.h includes it and says what holds for both.
 */
#ifndef GNNDRIVE_SAMPLING_H
#define GNNDRIVE_SAMPLING_H
#include <stdint.h>

/* ---- sample.c, sampled.c: neighbour sampling over CSC ---- */
typedef struct gd_csc {
    const void *indptr;   /* nodes + 1, non-decreasing (checked when the store is opened) */
    const void *indices;  /* in-neighbours; NULL: not in memory, samplers are given them */
    int32_t indptr_bytes; /* 4 (unsigned) or 8 */
    int32_t index_bytes;  /* 4 or 8: as in the file, and as they are given */
    int64_t nodes, edges;
    int32_t packed_bits; /* bits of an index in `indices`, 8 bytes behind the last; 0: not packed */
} gd_csc;
/* Pack indices[count], those at CSC positions from `first` on, into zeroed memory of
 * (edges * bits + 7) / 8 + 8 bytes. What others have packed stays, but a call reads the byte where
 * it begins and writes back up to eight behind its last index: nobody else may write there
 * meanwhile. -ERANGE: one is no node; -EINVAL: a node needs more bits. */
enum { GD_PACKED_BITS_MAX = 56 };
int gd_pack_indices(const void *indices, int32_t index_bytes, int64_t first, int64_t count,
                    int64_t nodes, int32_t bits, void *packed);
/* The in-edges of one type: `csc` has index pointers of the target type's nodes, and indices that
 * are nodes of the source type. Types are numbers below the job's counts. */
typedef struct gd_edge_type {
    const gd_csc *csc;
    int32_t source, target;
    const int64_t *fanout;    /* for each hop; -1: all */
    const int64_t *node_time; /* of the source's nodes; NULL: they have none. Needs csc->indices */
    const int64_t *edge_time; /* at CSC positions; NULL: they have none */
    const void *weight;       /* at CSC positions, float or double; NULL: all edges are equal */
    int32_t weight_bytes;     /* 4 or 8 */
} gd_edge_type;
/* Seeds of one type. An edge with a time above its seed's is not there. */
typedef struct gd_seeds {
    const int64_t *node; /* duplicates stay, as in PyG */
    const int64_t *time; /* of each seed; NULL: the end of time */
    int64_t count;
    int32_t type;
} gd_seeds;
typedef struct gd_sampling {
    const gd_edge_type *edge_types;
    const int64_t *nodes; /* how many there are of each node type */
    const gd_seeds *seeds;
    int32_t edge_type_count, node_type_count, seeds_count;
    int32_t hops;
    int32_t replace;
    int32_t disjoint; /* 1: each seed has a tree of its own, numbered from 0 in the seeds' order */
    int32_t latest;   /* 1: where there are times, not any edges that were there but the latest */
    uint64_t key;     /* everything the draw depends on beside edge type, node and tree */
    const int32_t *stop; /* or NULL; *stop != 0 ends it early */
} gd_sampling;
typedef struct gd_sampler gd_sampler; /* scratch of one sampling thread: hash tables and result */
gd_sampler *gd_sampler_new(void);     /* NULL: errno is ENOMEM */
void gd_sampler_free(gd_sampler *s);
/* Sample. The result stays in the sampler until the next call. GD_WANTS: an edge type's indices are
 * not in memory; go on with gd_sample_resume until it returns something else. What the job points
 * to is in use until then. Errors leave no result: -ECANCELED: stopped; -ENXIO: a seed that is no
 * node; -ERANGE: a neighbour that is none; -EFAULT: a node's index pointers lie outside of the
 * edges; -EDOM: the weight at a position is none (gd_sampler_culprit says which); -EOVERFLOW: more
 * than 2^31 - 1 nodes or edges of a type; -ENOMEM; -EINVAL: the job makes no sense. */
enum { GD_WANTS = 1 };
int gd_sample(gd_sampler *s, const gd_sampling *job);
/* Edges whose neighbours a sampler waits for, in order; valid until it is resumed. Edge i was drawn
 * for the first node[k] with first + i < until[k]. */
typedef struct gd_wanted {
    const int64_t *edge; /* CSC positions */
    const int64_t *node;
    const int32_t *until;
    int64_t first;
    int64_t count; /* 0: it does not wait */
    int32_t edge_type;
} gd_wanted;
void gd_sampler_wanted(const gd_sampler *s, gd_wanted *out);
/* Give the neighbours of the first `count` edges wanted, as wide as the graph's indices; returns
 * what gd_sample does. -EINVAL: it does not wait, or not for so many. */
int gd_sample_resume(gd_sampler *s, const void *neighbours, int64_t count);
/* Replace the sample's edges by all edges between its nodes. -EINVAL: it is disjoint, not finished,
 * or indices are not in memory; then nothing has changed. Else what gd_sample returns. */
int gd_sampler_induce(gd_sampler *s);
int64_t gd_sampler_nodes(const gd_sampler *s, int32_t type);
int64_t gd_sampler_edges(const gd_sampler *s, int32_t edge_type);
/* Targets that were drawn for: the first ones */
int64_t gd_sampler_expanded(const gd_sampler *s, int32_t edge_type);
int64_t gd_sampler_culprit(const gd_sampler *s, int32_t *edge_type);
/* Copy the nodes of a type out: node[nodes] global ids, seeds first then by hop; tree[nodes] if
 * disjoint; per_hop[hops + 1]. Any output may be NULL. */
void gd_sampler_found(const gd_sampler *s, int32_t type, int64_t *node, int32_t *tree,
                      int64_t *per_hop);
/* Copy the edges of a type out: row[edges] the sampled neighbours, as places among the nodes of the
 * source's type; colptr[expanded + 1]: edges [colptr[p], colptr[p + 1]) were drawn for the target's
 * p-th node; edge[edges] CSC positions, int32 or int64 by edge_bytes, 4 only where the graph has
 * less than 2^31 edges; per_hop[hops]. Any output may be NULL. */
void gd_sampler_drawn(const gd_sampler *s, int32_t edge_type, int32_t *row, int32_t *colptr,
                      void *edge, int32_t edge_bytes, int64_t *per_hop);

/* ---- neighbours.c: in-neighbour lists that are kept in memory (Ginex's neighbour cache) ---- */
typedef struct gd_neighbours gd_neighbours;
/* out_degree[v] += how often v comes in indices[n]; ids that are no node are left out. */
void gd_count_out_degrees(const void *indices, int32_t index_bytes, int64_t n, int64_t nodes,
                          uint32_t *out_degree);
/* Choose the nodes with the highest out-degree / in-degree whose lists and addresses fit into
 * bytes_max; their lists are empty until they are filled. NULL, *error: -ENOMEM; -ENOSPC: not even
 * the address table fits. csc's index pointers must outlive it and not change. */
gd_neighbours *gd_neighbours_new(const gd_csc *csc, const uint32_t *out_degree, int64_t bytes_max,
                                 int *error);
void gd_neighbours_free(gd_neighbours *cache);
/* The CSC position of the first index that is not filled yet, or -1: none */
int64_t gd_neighbours_next(const gd_neighbours *cache);
/* The graph's indices at positions [first, first + count), which must hold the next one. */
void gd_neighbours_fill(gd_neighbours *cache, const void *indices, int64_t first, int64_t count);
/* Serve the first `most` edges wanted: the neighbour of edge i to neighbours[i] where its list is
 * kept, else -1, and missing[position >> shift] counts one more. Returns how many are missing.
 * cache may be NULL: all are. */
int64_t gd_neighbours_serve(const gd_neighbours *cache, const gd_csc *csc, const gd_wanted *wanted,
                            int64_t most, void *neighbours, int32_t shift, int64_t *missing);
/* What is to be read: positions, and the slot of each; there is room for so many. */
typedef struct gd_misses {
    int64_t *position;
    int32_t *slot;
    int64_t room, count;
} gd_misses;
/* Of the edges [from, most) add to `out` those that gd_neighbours_serve found missing and whose
 * position is in [begin, end): edge i for slot first_slot + i. Returns where to go on, `most` if
 * there was room for all. */
int64_t gd_neighbours_missing(const gd_wanted *wanted, int64_t from, int64_t most,
                              const void *neighbours, int32_t index_bytes, int64_t begin,
                              int64_t end, int32_t first_slot, gd_misses *out);
/* Nodes whose lists are kept; *bytes (or NULL): all of its memory */
int64_t gd_neighbours_nodes(const gd_neighbours *cache, int64_t *bytes);
int64_t gd_neighbours_indices(const gd_neighbours *cache); /* in their lists */

/* ---- shuffle.c ---- */
/* The numbers 0 ... count - 1 in an order that hangs on `key` alone, made as far as it
 * is wanted: those at places [first, first + n) to out. Calls go through it from start to end.
 * `moved`: zeroed memory of `width` bytes a number, 4 where count < 2^31, else 8. */
void gd_shuffle(void *moved, int32_t width, int64_t count, int64_t key, int64_t first, int64_t n,
                int64_t *out);
#endif
