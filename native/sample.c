/* sample.c: uniform neighbour sampling over CSC (GNNDrive §4.1, the sample stage).
 *
 * The result is PyG's: seeds first and in order, duplicates among them kept and each expanded;
 * every other node once, in the order in which it was found; a node found again is the position
 * where it stood first; hop h + 1 expands what hop h found. Each hop has two passes. draw_hop
 * needs index pointers only and writes the CSC positions that were drawn; map_hop reads the
 * neighbours there and gives each its place. They are apart so that addresses are known long
 * before they are needed: a batch of a large graph is one cache miss, or with mapped indices one
 * page fault, after another, and asking early for many at once is most of the speed. And where the
 * indices are not in memory at all, the sampler stops between the two and is given the neighbours.
 */
#define _GNU_SOURCE /* RUSAGE_THREAD */
#include <sys/resource.h>
#include <unistd.h>
#include "indices.h"
#include "sampler.h"

enum {
    CHUNK = 256,        /* neighbours whose cache lines are asked for at once */
    AHEAD_PAGES = 8192, /* how many edges ahead pages are asked for, if from disk */
    FAULTS_COLD = 8,    /* waits for the disk in one batch after which pages are asked for */
    STOP_EVERY = 1024,  /* nodes expanded between two looks at *stop */
};

static inline int stopped(const gd_job *j) {
    return j->stop && __atomic_load_n(j->stop, __ATOMIC_RELAXED) != 0;
}

/* ---- first pass: which of its in-edges a node draws ---- */

/* Append what is drawn for the node at position p, whose in-edges are [begin, begin + degree). */
static int draw_node(gd_sampler *s, const gd_job *j, int64_t p, int64_t begin, int64_t degree,
                     int64_t fanout) {
    const int all = fanout < 0 || degree == 0 || (!j->replace && degree <= fanout);
    const int64_t k = all ? degree : fanout;
    const int rc = reserve_edges(s, k);
    if (rc) return rc;
    int64_t *const out = s->edge + s->edges;
    const uint64_t stream = gd_stream(j->key, s->node[p]);
    if (all) {
        for (int64_t n = 0; n < k; n++) out[n] = begin + n;
    } else if (j->replace) {
        gd_draw_replaced(stream, begin, degree, k, out);
    } else if (k <= GD_SCAN_MAX) {
        gd_draw_few(stream, begin, degree, k, out);
    } else if (gd_draw_many(&s->drawn, stream, begin, degree, k, out)) {
        return -ENOMEM;
    }
    s->edges += k;
    s->expanded = p + 1;
    s->colptr[s->expanded] = (int32_t)s->edges;
    return 0;
}

/* Draw for the nodes at positions [first, last). */
static int draw_hop(gd_sampler *s, const gd_job *j, int64_t first, int64_t last, int64_t fanout) {
    const gd_csc *const g = j->g;
    if (reserve_colptr(s, last)) return -ENOMEM;
    for (int64_t p = first; p < last; p++) {
        if ((p - first) % STOP_EVERY == 0 && stopped(j)) return -ECANCELED;
        if (p + GD_NODES_AHEAD < last) {
            const char *ahead = g->indptr;
            ahead += s->node[p + GD_NODES_AHEAD] * g->indptr_bytes;
            __builtin_prefetch(ahead);
            __builtin_prefetch(ahead + g->indptr_bytes);
        }
        const int64_t node = s->node[p], begin = gd_indptr(g, node), end = gd_indptr(g, node + 1);
        if (begin < 0 || end < begin || end > j->g->edges) {
            s->culprit = node;
            return -ERANGE;
        }
        const int rc = draw_node(s, j, p, begin, end - begin, fanout);
        if (rc) return rc;
    }
    return 0;
}

/* ---- second pass: the neighbours at the drawn positions get their places ---- */

static int64_t major_faults(void) {
    struct rusage usage;
    return getrusage(RUSAGE_THREAD, &usage) == 0 ? usage.ru_majflt : 0;
}

/* Have the kernel start reading the pages of edges up to `until`, so that the disk sees many
 * requests at once (a thread that page-faults has one). In memory it never comes to this; a
 * refusal costs time. */
static void ask_for_pages(gd_sampler *s, const gd_csc *g, int64_t until) {
    const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), indices = (uintptr_t)g->indices;
    uintptr_t begin = 0, end = 0; /* the run of pages collected so far */
    for (; s->asked < until; s->asked++) {
        const uintptr_t at = indices + (uintptr_t)s->edge[s->asked] * (uintptr_t)g->index_bytes;
        const uintptr_t start = at & ~(page - 1);
        if (start >= begin && start < end) continue;
        if (start != end) {
            if (end != begin) madvise((void *)begin, end - begin, MADV_WILLNEED);
            begin = start;
        }
        end = start + page;
    }
    if (end != begin) madvise((void *)begin, end - begin, MADV_WILLNEED);
}

/* Place the neighbours of the next `count` <= CHUNK edges, `given` or else in the indices. */
static int map_chunk(gd_sampler *s, const gd_csc *g, int64_t count, const void *given) {
    const int64_t first = s->placed;
    int64_t neighbour[CHUNK];
    uint64_t home[CHUNK];
    assert(count <= CHUNK);
    const int rc = reserve_nodes(s, count);
    if (rc) return rc;
    if (given)
        gd_read_given(g, given, count, neighbour);
    else
        gd_read_indices(g, s->edge + first, count, neighbour);
    for (int64_t n = 0; n < count; n++) {
        if ((uint64_t)neighbour[n] >= (uint64_t)g->nodes) {
            s->culprit = neighbour[n];
            return -ERANGE;
        }
        home[n] = gd_places_home(&s->places, neighbour[n]);
        __builtin_prefetch(&s->places.slot[home[n]], 1);
    }
    for (int64_t n = 0; n < count; n++) {
        uint64_t *slot = gd_places_find(&s->places, s->node, neighbour[n], home[n]);
        if (*slot == 0) {
            *slot = gd_places_entry(neighbour[n], s->nodes);
            s->node[s->nodes++] = neighbour[n];
        }
        s->row[first + n] = gd_places_position(*slot);
    }
    s->placed += count;
    return 0;
}

static inline int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

/* Place the neighbours of all edges from `placed` on; the indices are in memory, or mapped. */
static int map_hop(gd_sampler *s, const gd_job *j) {
    int64_t count = least(s->edges - s->placed, CHUNK);
    gd_prefetch_indices(j->g, s->edge + s->placed, count);
    s->asked = s->placed;
    while (count > 0) {
        if (stopped(j)) return -ECANCELED;
        if (!s->cold) {
            s->cold = major_faults() - s->faults > FAULTS_COLD;
            s->asked = s->placed;
        }
        if (s->cold && !j->g->packed_bits)
            ask_for_pages(s, j->g, least(s->edges, s->placed + AHEAD_PAGES));
        const int64_t next = s->placed + count, following = least(s->edges - next, CHUNK);
        gd_prefetch_indices(j->g, s->edge + next, following);
        const int rc = map_chunk(s, j->g, count, NULL);
        if (rc) return rc;
        count = following;
    }
    return 0;
}

/* Place the neighbours of the next `count` edges, which are given. */
static int map_given(gd_sampler *s, const gd_job *j, const uint8_t *given, int64_t count) {
    for (int64_t n = 0; n < count; n += CHUNK) {
        if (stopped(j)) return -ECANCELED;
        const int rc = map_chunk(s, j->g, least(count - n, CHUNK), given + n * j->g->index_bytes);
        if (rc) return rc;
    }
    return 0;
}

/* ---- hop after hop ---- */

static void end_hop(gd_sampler *s) {
    s->nodes_per_hop[s->hop + 1] = s->nodes - s->hop_last;
    s->edges_per_hop[s->hop] = s->edges - s->hop_edges;
    s->hop_first = s->hop_last;
    s->hop++;
}

/* Go on with the hop after those done: to the end, or until neighbours are wanted. */
static int go_on(gd_sampler *s) {
    const gd_job *const j = &s->job;
    while (s->hop < j->hops) {
        s->hop_last = s->nodes;
        s->hop_edges = s->edges;
        int rc = draw_hop(s, j, s->hop_first, s->hop_last, j->fanout[s->hop]);
        if (rc == 0 && j->g->indices) rc = map_hop(s, j);
        if (rc) return rc;
        if (s->placed < s->edges) return GD_WANTS;
        end_hop(s);
    }
    return 0;
}

/* What a step of a sample comes to: an error leaves nothing. */
static int ended(gd_sampler *s, int rc) {
    s->waiting = rc == GD_WANTS;
    if (rc < 0) s->nodes = s->edges = s->expanded = s->placed = 0;
    if (rc == 0) s->hops = s->job.hops;
    return rc;
}

/* ---- the interface ---- */

gd_sampler *gd_sampler_new(void) { return calloc(1, sizeof(gd_sampler)); }

void gd_sampler_free(gd_sampler *s) {
    if (!s) return;
    void *const arrays[] = {s->node,          s->edge,          s->row,
                            s->colptr,        s->places.slot,   s->drawn.entry,
                            s->nodes_per_hop, s->edges_per_hop, s};
    for (size_t n = 0; n < sizeof arrays / sizeof *arrays; n++) free(arrays[n]);
}

static int valid_arguments(const gd_csc *g, int64_t n_seeds, const int64_t *fanout, int32_t hops) {
    if (n_seeds < 0 || hops < 0 || g->nodes < 0 || g->edges < 0) return 0;
    for (int32_t h = 0; h < hops; h++)
        if (fanout[h] < -1) return 0;
    return (g->index_bytes == 4 || g->index_bytes == 8) &&
           (g->indptr_bytes == 4 || g->indptr_bytes == 8);
}

/* An empty result with room for `hops` hops, and a table about as large as the last batch needed.
 * */
static int begin_batch(gd_sampler *s, int32_t hops) {
    const int64_t had = s->places.slots ? s->places.slots : GD_PLACES_MIN;
    const int64_t slots = had > GD_PLACES_MIN && s->nodes < had / 8 ? had / 2 : had;
    s->nodes = s->edges = s->expanded = s->placed = s->hop_first = s->culprit = 0;
    s->hop = s->hops = s->cold = s->waiting = 0;
    s->faults = major_faults();
    const int64_t capacity = (int64_t)hops + 1;
    if (capacity > s->hop_capacity) {
        if (grow((void **)&s->nodes_per_hop, capacity, sizeof *s->nodes_per_hop) ||
            grow((void **)&s->edges_per_hop, capacity, sizeof *s->edges_per_hop))
            return -ENOMEM;
        s->hop_capacity = capacity;
    }
    if (reserve_colptr(s, 0)) return -ENOMEM;
    s->nodes_per_hop[0] = s->colptr[0] = 0;
    return gd_places_clear(&s->places, slots);
}

static int take_seeds(gd_sampler *s, const gd_csc *g, const int64_t *seeds, int64_t n_seeds) {
    const int rc = reserve_nodes(s, n_seeds);
    if (rc) return rc;
    for (int64_t n = 0; n < n_seeds; n++) {
        if ((uint64_t)seeds[n] >= (uint64_t)g->nodes) {
            s->culprit = seeds[n];
            return -ERANGE;
        }
        s->node[n] = seeds[n];
    }
    s->nodes = s->nodes_per_hop[0] = n_seeds;
    enter_nodes(s);
    return 0;
}

int gd_sample(gd_sampler *s, const gd_csc *g, const int64_t *seeds, int64_t n_seeds,
              const int64_t *fanout, int32_t hops, int32_t replace, uint64_t key,
              const int32_t *stop) {
    if (!valid_arguments(g, n_seeds, fanout, hops)) return -EINVAL;
    s->job = (gd_job){g, fanout, stop, key, hops, replace};
    int rc = stopped(&s->job) ? -ECANCELED : begin_batch(s, hops);
    if (rc == 0) rc = take_seeds(s, g, seeds, n_seeds);
    if (rc == 0) rc = go_on(s);
    return ended(s, rc);
}

int gd_sample_resume(gd_sampler *s, const void *neighbours, int64_t count) {
    if (!s->waiting || count < 0 || count > s->edges - s->placed) return -EINVAL;
    int rc = map_given(s, &s->job, neighbours, count);
    if (rc == 0 && s->placed < s->edges) return GD_WANTS;
    if (rc == 0) {
        end_hop(s);
        rc = go_on(s);
    }
    return ended(s, rc);
}

void gd_sampler_wanted(const gd_sampler *s, gd_wanted *out) {
    *out = (gd_wanted){.first = s->placed};
    if (!s->waiting) return;
    int64_t low = s->hop_first, high = s->hop_last; /* the node that the first edge is for */
    while (high - low > 1) {
        const int64_t middle = low + (high - low) / 2;
        if (s->colptr[middle] <= s->placed)
            low = middle;
        else
            high = middle;
    }
    out->edge = s->edge + s->placed;
    out->node = s->node + low;
    out->until = s->colptr + low + 1;
    out->count = s->edges - s->placed;
}

int64_t gd_sampler_nodes(const gd_sampler *s) { return s->nodes; }

int64_t gd_sampler_edges(const gd_sampler *s) { return s->edges; }

int64_t gd_sampler_expanded(const gd_sampler *s) { return s->expanded; }

int64_t gd_sampler_culprit(const gd_sampler *s) { return s->culprit; }

static void copy_out(void *out, const void *from, int64_t count, size_t width) {
    if (out && count > 0) memcpy(out, from, (size_t)count * width);
}

/* Positions below 2^31 take half the room. */
static void copy_edges(const gd_sampler *s, void *edge, int32_t edge_bytes) {
    assert(edge_bytes == 4 || edge_bytes == 8);
    if (edge_bytes == 8) {
        copy_out(edge, s->edge, s->edges, sizeof *s->edge);
        return;
    }
    for (int64_t e = 0; e < s->edges; e++) ((int32_t *)edge)[e] = (int32_t)s->edge[e];
}

void gd_sampler_result(const gd_sampler *s, int64_t *node, int32_t *row, int32_t *colptr,
                       void *edge, int32_t edge_bytes, int64_t *nodes_per_hop,
                       int64_t *edges_per_hop) {
    copy_out(node, s->node, s->nodes, sizeof *node);
    copy_out(row, s->row, s->edges, sizeof *row);
    copy_out(colptr, s->colptr, s->expanded + 1, sizeof *colptr);
    if (edge) copy_edges(s, edge, edge_bytes);
    copy_out(nodes_per_hop, s->nodes_per_hop, s->hops + 1, sizeof *nodes_per_hop);
    copy_out(edges_per_hop, s->edges_per_hop, s->hops, sizeof *edges_per_hop);
}
