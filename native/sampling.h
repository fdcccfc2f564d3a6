/* sampling.h: a part of the C core's interface to Python: graphs, the sampler, the neighbour cache,
 * the order of seeds. gnndrive.h includes it; its rules on errors and threads apply here too.
 */
#ifndef GNNDRIVE_SAMPLING_H
#define GNNDRIVE_SAMPLING_H
#include <stdint.h>

/* ---- sample.c, sampled.c: neighbour sampling over CSC ---- */
typedef struct gd_csc {
    const void *indptr;  /* nodes + 1, non-decreasing (checked when the store is opened) */
    const void *indices; /* in-neighbours; NULL: not in memory, the caller gives them to samplers */
    int32_t indptr_bytes; /* 4 (unsigned) or 8 */
    int32_t index_bytes;  /* 4 or 8: in the file, and when the caller gives them */
    int64_t nodes, edges;
    int32_t packed_bits; /* bits of an index in `indices`, which then end with 8 spare bytes; 0: not
                            packed */
    int32_t id_bytes;    /* 4 or 8 */
    const void *ids; /* the numbers that draws depend on, one for each node; NULL: the nodes' own */
} gd_csc;
enum { GD_PACKED_BITS_MAX = 56 };
/* Pack indices[count], which belong to the CSC positions from `first` on, into zeroed memory of
 * (edges * bits + 7) / 8 + 8 bytes. Indices that are packed already stay. A call reads the byte
 * where it begins and writes up to eight bytes behind its last index, so no other thread may write
 * there at the same time. -ERANGE: an index is not a node, and those before it are packed; -EINVAL:
 * a node needs more bits. */
int gd_pack_indices(const void *indices, int32_t index_bytes, int64_t first, int64_t count,
                    int64_t nodes, int32_t bits, void *packed);
/* The in-edges of one type: `csc` has the index pointers of the target type's nodes, and its
 * indices are nodes of the source type. Types are numbers below the job's counts. */
typedef struct gd_edge_type {
    const gd_csc *csc;
    int32_t source, target;
    const int64_t *fanout;    /* for each hop; -1: all in-edges */
    const int64_t *node_time; /* of the source's nodes, or NULL; requires csc->indices */
    const int64_t *edge_time; /* at CSC positions, or NULL */
    const void *weight;       /* at CSC positions, float or double; NULL: all weights are equal */
    int32_t weight_bytes;     /* 4 or 8 */
    int64_t edges_most;       /* a sample with more edges of this type is refused; 0: no limit */
} gd_edge_type;
/* Seeds of one type. A seed's tree has no edge that is later than the seed. */
typedef struct gd_seeds {
    const int64_t *node; /* duplicates stay, as in PyG */
    const int64_t *time; /* of each seed; NULL: no limit */
    int64_t count;
    int32_t type;
} gd_seeds;
/* LABOR-0: all targets share the numbers of the nodes, and take the neighbours of smallest number.
 * A node's number is weight * n + next_weight * m, where n and m are nearly normal, n depends on
 * the node (or its number in `ids`) and `key`, and m on the node and `next_key`. */
enum { GD_WEIGHT_ONE = 1 << 30 };
typedef struct gd_shared {
    uint64_t key, next_key;
    int64_t weight, next_weight; /* from 0 to GD_WEIGHT_ONE */
} gd_shared;
typedef struct gd_sampling {
    const gd_edge_type *edge_types;
    const int64_t *nodes;      /* the number of nodes of each type */
    const int64_t *nodes_most; /* of each type the most nodes of a sample, 0: no limit; or NULL */
    const gd_seeds *seeds;
    int32_t edge_type_count, node_type_count, seeds_count;
    int32_t hops;
    int32_t replace;
    int32_t disjoint; /* 1: each seed has a tree of its own, numbered from 0 in the seeds' order */
    int32_t latest;   /* 1: of edges with times draw the latest ones, not random ones */
    uint64_t key;     /* the draw depends on the key, the edge type, the node (or its number in
                         `ids`) and its tree, and on nothing else */
    const gd_shared *shared; /* the draw depends on this in place of the key; or NULL. It requires
                                one edge type without times and weights, neither replace nor
                                disjoint */
    const int32_t *stop;     /* or NULL; *stop != 0 cancels the sample */
} gd_sampling;
typedef struct gd_sampler gd_sampler; /* scratch of one sampling thread: hash tables and result */
gd_sampler *gd_sampler_new(void);     /* NULL: errno is ENOMEM */
void gd_sampler_free(gd_sampler *s);
/* Sample. The result stays in the sampler until the next call. GD_WANTS: the indices of an edge
 * type are not in memory; the caller calls gd_sample_resume until it returns something else. The
 * arrays that the job points to must stay until then, and until gd_sampler_induce if that is
 * called.
 *
 * Every error leaves the sampler without a result. -ECANCELED: stopped; -ENXIO: a seed is not a
 * node; -ERANGE: a neighbour is not a node; -EFAULT: the index pointers of a node lie outside of
 * the edges; -EDOM: the weight at a position is negative or not finite; -EIO: mapped indices cannot
 * be read at a byte (gd_sampler_culprit has the seed, neighbour, node, position or byte; -1: the
 * byte is in another array); -EOVERFLOW: more than 2^31 - 1 nodes or edges of a type; -E2BIG: more
 * than nodes_most or edges_most; -ENOMEM; -EINVAL: the job contradicts itself. */
enum { GD_WANTS = 1 };
int gd_sample(gd_sampler *s, const gd_sampling *job);
void gd_stop(int32_t *stop); /* *stop = 1, while another thread may sample */
/* Edges whose neighbours a sampler waits for, in order; valid until it is resumed. Edge i belongs
 * to node[k], where k is the first with first + i < until[k]. They are edges that it has drawn, or,
 * if the job shares numbers, whole lists that it draws from. */
typedef struct gd_wanted {
    const int64_t *edge; /* CSC positions */
    const int64_t *node;
    const int32_t *until;
    int64_t first;
    int64_t count; /* 0: the sampler does not wait */
    int32_t edge_type;
} gd_wanted;
void gd_sampler_wanted(const gd_sampler *s, gd_wanted *out);
/* Give the neighbours of the first `count` edges that the sampler waits for, index_bytes each;
 * returns what gd_sample returns. -EINVAL: it does not wait, or for fewer; then nothing has
 * changed. */
int gd_sample_resume(gd_sampler *s, const void *neighbours, int64_t count);
/* Replace the sample's edges by all edges between its nodes. -EINVAL: the sample is disjoint or not
 * finished, or indices are not in memory; then nothing has changed. Else what gd_sample returns. */
int gd_sampler_induce(gd_sampler *s);
int64_t gd_sampler_nodes(const gd_sampler *s, int32_t type);
int64_t gd_sampler_edges(const gd_sampler *s, int32_t edge_type);
/* How many targets were expanded; they are the first ones. */
int64_t gd_sampler_expanded(const gd_sampler *s, int32_t edge_type);
/* What the last error is about, and in *edge_type (or NULL) its edge type. */
int64_t gd_sampler_culprit(const gd_sampler *s, int32_t *edge_type);
/* Copy the nodes of a type: node[nodes] global ids, seeds first, then by hop; tree[nodes] if
 * disjoint; per_hop[hops + 1]. Any output may be NULL. */
void gd_sampler_found(const gd_sampler *s, int32_t type, int64_t *node, int32_t *tree,
                      int64_t *per_hop);
/* Copy the edges of a type: row[edges], the sampled neighbours as places among the nodes of the
 * source type; colptr[expanded + 1]: edges [colptr[p], colptr[p + 1]) were drawn for the p-th node
 * of the target type; edge[edges], CSC positions, int32 or int64 by edge_bytes, 4 only if the graph
 * has less than 2^31 edges; per_hop[hops]. Any output may be NULL. */
void gd_sampler_drawn(const gd_sampler *s, int32_t edge_type, int32_t *row, int32_t *colptr,
                      void *edge, int32_t edge_bytes, int64_t *per_hop);

/* ---- group.c: the batches of a group, one behind the other ---- */
typedef struct gd_batch {
    uint64_t key;
    const gd_shared *shared; /* or NULL */
    const gd_seeds *seeds;   /* [seeds_count] */
    int32_t seeds_count;
} gd_batch;
/* Sample each batch as gd_sample would sample the job with this key, shared and seeds, up to the
 * first that fails: *done of them have a result, which stays in the sampler until the next call.
 * Returns what gd_sample returns for the last; -EINVAL, too, if indices are not in memory. */
int gd_sample_group(gd_sampler *s, const gd_sampling *job, const gd_batch *batches, int64_t count,
                    int64_t *done);
/* Copy, for each batch with a result, [node types][hops + 1] numbers of new nodes in each hop, the
 * seeds first, and [edge types][1 + hops] numbers of targets that were expanded and of edges in
 * each hop. */
void gd_group_counts(const gd_sampler *s, int64_t *out);
/* Copy the nodes of a type, and the edges of a type, of all batches, one behind the other; see
 * gd_sampler_found and gd_sampler_drawn. A batch has expanded + 1 entries of colptr. */
void gd_group_found(const gd_sampler *s, int32_t type, int64_t *node, int32_t *tree);
void gd_group_drawn(const gd_sampler *s, int32_t edge_type, int32_t *row, int32_t *colptr,
                    void *edge, int32_t edge_bytes);
/* For each batch both ends of its edges of a type, as gd_edge_index gives them. */
void gd_group_ends(const gd_sampler *s, int32_t edge_type, int64_t *ends);

/* ---- filter.c: the graph of a window (HierBatching) ---- */
/* New ids below `end` and not below the end of the range before have the local id new id + add; a
 * negative sum: they are not in the window. */
typedef struct gd_id_range {
    int64_t end, add;
} gd_id_range;
/* What the codes of a partitioned store mean in a window. A code below `statics` is the rank of a
 * static node; any other is `statics` + a new id. */
typedef struct gd_codes {
    int64_t nodes, statics;
    const int32_t *of_static;  /* [statics + 1]: local ids, -1: not in the window; the last is -1 */
    const gd_id_range *ranges; /* ascending; the last ends at `nodes` */
    const int32_t *first;      /* for each 1 << shift new ids the range of the first of them */
    int32_t shift;
} gd_codes;
/* locals[i] = the local id of new_ids[i], -1: it is not in the window. -ERANGE: not a new id. */
int gd_locals(const gd_codes *map, const int64_t *new_ids, int64_t n, int32_t *locals);
/* The lists of a window while they are filtered; one thread at a time. */
typedef struct gd_filter {
    const void *store_ids;  /* [lists]: the node of each local id in the store */
    const void *pointers;   /* the store's index pointers, [nodes + 1] */
    const int32_t *empty;   /* [empty_count]: local ids whose lists are left out, ascending */
    void *indptr;           /* [lists + 1]; the first is 0 */
    int32_t *indices;       /* [room] */
    void *positions;        /* [room]: of each kept edge in the store */
    int32_t id_bytes;       /* 4 or 8, as the others */
    int32_t pointer_bytes;  /* 4: unsigned */
    int32_t indptr_bytes;   /* 4: unsigned */
    int32_t position_bytes; /* 4: unsigned */
    int64_t lists, empty_count, room;
    int64_t edges;                   /* of the store */
    int64_t list, place, next_empty; /* where the next code belongs; 0 at first */
    int64_t kept;                    /* edges so far */
    int64_t culprit;
} gd_filter;
/* Filter codes[count], code_bytes (4 or 8) each, of the lists from f->list on, but not of the list
 * `last`. Lists without codes are passed: f->list is `last` after the last code of the list before.
 * -ERANGE: *culprit is no code; -EFAULT: the node of the list *culprit, or its index pointers, are
 * out of range; -EINVAL: there are more codes than these lists have; -ENOSPC: room must exceed all
 * codes. */
int gd_filter_lists(gd_filter *f, const gd_codes *map, const void *codes, int32_t code_bytes,
                    int64_t count, int64_t last);

/* ---- neighbours.c: the neighbour cache (Ginex): in-neighbour lists that stay in memory ---- */
typedef struct gd_neighbours gd_neighbours;
/* out_degree[v] += how often v occurs in indices[n]; an index that is not a node is ignored.
 * Returns how many are ignored. */
int64_t gd_count_out_degrees(const void *indices, int32_t index_bytes, int64_t n, int64_t nodes,
                             uint32_t *out_degree);
/* Choose the nodes with the highest out-degree / in-degree whose lists and addresses fit into
 * bytes_max; gd_neighbours_fill fills their lists. NULL: *error is -ENOMEM, or -ENOSPC: not even
 * the address table fits. The index pointers of csc must outlive the cache and not change. */
gd_neighbours *gd_neighbours_new(const gd_csc *csc, const uint32_t *out_degree, int64_t bytes_max,
                                 int *error);
void gd_neighbours_free(gd_neighbours *cache);
/* The CSC position of the first index that is not filled yet; -1: all are filled. */
int64_t gd_neighbours_next(const gd_neighbours *cache);
/* Fill in the graph's indices at positions [first, first + count), which must include the next one.
 */
void gd_neighbours_fill(gd_neighbours *cache, const void *indices, int64_t first, int64_t count);
/* Serve the first `most` edges wanted: the neighbour of edge i goes to neighbours[i] if its list is
 * cached; else -1 does, and missing[position >> shift] is incremented. Returns how many are
 * missing. cache == NULL: all are. */
int64_t gd_neighbours_serve(const gd_neighbours *cache, const gd_csc *csc, const gd_wanted *wanted,
                            int64_t most, void *neighbours, int32_t shift, int64_t *missing);
/* What has to be read: `count` positions and their slots; the arrays have room for `room`. */
typedef struct gd_misses {
    int64_t *position;
    int32_t *slot;
    int64_t room, count;
} gd_misses;
/* Of the edges [from, most) add to `out` those that gd_neighbours_serve found missing and whose
 * position is in [begin, end): edge i for slot first_slot + i. Returns where to continue; `most` if
 * there was room for all. */
int64_t gd_neighbours_missing(const gd_wanted *wanted, int64_t from, int64_t most,
                              const void *neighbours, int32_t index_bytes, int64_t begin,
                              int64_t end, int32_t first_slot, gd_misses *out);
/* Nodes whose lists are cached; *bytes (or NULL): all memory of the cache. */
int64_t gd_neighbours_nodes(const gd_neighbours *cache, int64_t *bytes);
int64_t gd_neighbours_indices(const gd_neighbours *cache); /* indices in these lists */

/* ---- walks.c: a step of random walks along in-neighbours ---- */
/* The walks of one edge type. `csc` has the index pointers of its targets; its indices are not
 * used. */
typedef struct gd_walks {
    const gd_csc *csc;
    const float *now; /* [csc->nodes]: how many walks are at each target */
    float *next;      /* [sources]: how many are at each source after the step */
    int64_t sources;
    float share;      /* of the walks that take this edge type */
    int64_t position; /* of the next index, 0 at first */
    int64_t target;   /* whose list has the position, or ends before it; 0 at first */
} gd_walks;
/* The walks at targets go on along the next `count` indices, of csc->index_bytes each: those at a
 * target in equal parts to its in-neighbours. -ERANGE: an index is no source, or there are more
 * indices than lists; nothing has changed. */
int gd_walks_step(gd_walks *w, const void *indices, int64_t count);

/* ---- shuffle.c ---- */
/* The numbers 0 ... count - 1 in an order that depends on `key` alone, computed on demand: writes
 * those at places [first, first + n) to out. The first call has first == 0, each following one
 * begins where the one before ended. `moved`: zeroed memory, `width` bytes a number: 4 if
 * count < 2^31, else 8. */
void gd_shuffle(void *moved, int32_t width, int64_t count, int64_t key, int64_t first, int64_t n,
                int64_t *out);
#endif
