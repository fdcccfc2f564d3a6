/* sample.c: neighbour sampling over CSC (GNNDrive section 4.1, the sample stage).
 *
 * The result is PyG's. The seeds come first and in order; duplicates among them stay, and each is
 * expanded. Every other node comes once, in the order in which it was found; an edge to a node that
 * was found before has the position where the node first stands. Hop h + 1 expands the nodes that
 * hop h found. With several node and edge types each hop takes the edge types in turn, and the next
 * hop expands what one of them finds. If the trees are disjoint, each seed has nodes of its own.
 *
 * The turn of an edge type has two passes. draw_turn reads index pointers only (and, if the job has
 * them, times and weights) and writes the CSC positions that it draws. gd_map_turn (mapping.c)
 * reads the neighbours at these positions and finds the place of each. With two passes the
 * addresses are known long before they are needed. A batch of a large graph is a sequence of cache
 * misses, or with mapped indices of page faults, and prefetching many at once is most of the speed.
 * If the indices are not in memory the sampler stops between the two passes, and the caller gives
 * it the neighbours.
 *
 * The draw for a node depends on (key, edge type, node, its tree if disjoint) and its fanout. The
 * nodes of a window have local ids, which differ from window to window; there the number is the
 * node's id in the store (`gd_csc.ids`). If the targets share numbers, labor.c has the turns.
 */
#include "begin.h"
#include "choose.h"
#include "guard.h"
#include "indices.h"
#include "labor.h"
#include "mapping.h"
#include "pages.h"

/* ---- first pass: draw in-edges ---- */

/* Draw k of `count` positions from `begin` on, all equally likely. 0 or -ENOMEM. */
static int draw_uniform(gd_sampler *s, uint64_t stream, int64_t begin, int64_t count, int64_t k,
                        int64_t *out) {
    if (s->job.replace) {
        gd_draw_replaced(stream, begin, count, k, out);
    } else if (k <= GD_SCAN_MAX) {
        gd_draw_few(stream, begin, count, k, out);
    } else if (gd_draw_many(&s->set, stream, begin, count, k, out)) {
        return -ENOMEM;
    }
    return 0;
}

/* Draw among the in-edges [begin, begin + degree) that are not later than `time`, or among all if
 * the type has no times; if it has weights, among those of weight above 0. Returns how many it
 * drew, or -errno. */
static int64_t draw_chosen(gd_sampler *s, uint64_t stream, int64_t begin, int64_t degree,
                           int64_t fanout, int64_t time) {
    const gd_edge_type *const type = gd_turn_type(s);
    gd_candidates *const c = &s->candidates;
    const int temporal = type->edge_time || type->node_time;
    int64_t count = degree;
    if (gd_reserve_candidates(c, degree)) return -ENOMEM;
    if (temporal)
        count = gd_find_candidates(c, type, s->job.nodes[type->source], begin, degree, time,
                                   &s->culprit);
    else
        for (int64_t i = 0; i < count; i++) c->entry[i].order = ~(begin + i);
    if (count >= 0 && type->weight) count = gd_weighing_candidates(c, type, count, &s->culprit);
    if (count < 0) return count;
    if (temporal && s->job.latest && fanout >= 0 && count > fanout) {
        gd_first_candidates(c->entry, count, fanout);
        count = fanout;
    }
    const int all = fanout < 0 || count == 0 || (!s->job.replace && count <= fanout);
    const int64_t k = all ? count : fanout;
    gd_drawn *const d = gd_turn_drawn(s);
    const int rc = gd_reserve_edges(d, k);
    if (rc) return rc;
    int64_t *const out = d->edge + d->edges;
    if (!all && type->weight) {
        gd_draw_weighted(c, type, stream, count, k, s->job.replace, out);
        return k;
    }
    if (!all && draw_uniform(s, stream, 0, count, k, out)) return -ENOMEM;
    for (int64_t i = 0; i < k; i++) out[i] = ~c->entry[all ? i : out[i]].order;
    return k;
}

/* Draw for the target at position p, whose in-edges are [begin, begin + degree), and append. */
static int draw_node(gd_sampler *s, uint64_t stream, int64_t p, int64_t begin, int64_t degree,
                     int64_t fanout, int64_t time) {
    const gd_edge_type *const type = gd_turn_type(s);
    gd_drawn *const d = gd_turn_drawn(s);
    int64_t k;
    if (type->edge_time || type->node_time || type->weight) {
        k = draw_chosen(s, stream, begin, degree, fanout, time);
        if (k < 0) return (int)k;
    } else {
        const int all = fanout < 0 || degree == 0 || (!s->job.replace && degree <= fanout);
        k = all ? degree : fanout;
        const int rc = gd_reserve_edges(d, k);
        if (rc) return rc;
        int64_t *const out = d->edge + d->edges;
        if (!all && draw_uniform(s, stream, begin, degree, k, out)) return -ENOMEM;
        if (all)
            for (int64_t i = 0; i < k; i++) out[i] = begin + i;
    }
    d->edges += k;
    d->expanded = p + 1;
    d->colptr[d->expanded] = (int32_t)d->edges;
    return 0;
}

/* Draw this turn's edges of all nodes that the hop expands. */
static int draw_turn(gd_sampler *s) {
    const gd_sampling *const j = &s->job;
    const gd_edge_type *const type = gd_turn_type(s);
    const gd_csc *const csc = type->csc;
    const gd_found *const f = &s->found[type->target];
    /* Each further type has a key of its own; so the first draws as in a graph of one type. */
    const uint64_t key = s->turn ? gd_mix(j->key + (uint64_t)s->turn * GD_GOLDEN) : j->key;
    if (gd_reserve_colptr(gd_turn_drawn(s), f->hop_last)) return -ENOMEM;
    for (int64_t p = f->hop_first; p < f->hop_last; p++) {
        if ((p - f->hop_first) % GD_STOP_EVERY == 0 && gd_stopped(j)) return -ECANCELED;
        if (p + GD_NODES_AHEAD < f->hop_last) gd_prefetch_node(csc, f->node[p + GD_NODES_AHEAD]);
        int64_t begin, end;
        int rc = gd_in_edges(s, f->node[p], &begin, &end);
        if (rc) return rc;
        uint64_t stream = gd_stream(key, gd_drawn_as(csc, f->node[p]));
        int64_t time = 0;
        if (j->disjoint) {
            stream = gd_mix(stream + (uint64_t)f->tree[p] * GD_GOLDEN);
            if (s->tree_time) time = s->tree_time[f->tree[p]];
        }
        rc = draw_node(s, stream, p, begin, end - begin, type->fanout[s->hop], time);
        if (rc) return rc;
    }
    return 0;
}

/* ---- induced subgraphs ---- */

/* Replace this turn's edges by all edges between the nodes of the sample. */
static int induce_turn(gd_sampler *s) {
    const gd_edge_type *const type = gd_turn_type(s);
    const gd_csc *const csc = type->csc;
    const gd_found *const from = &s->found[type->source], *const to = &s->found[type->target];
    gd_drawn *const d = gd_turn_drawn(s);
    d->edges = 0;
    if (gd_reserve_colptr(d, to->nodes)) return -ENOMEM;
    for (int64_t p = 0; p < to->nodes; p++) {
        if (p % GD_STOP_EVERY == 0 && gd_stopped(&s->job)) return -ECANCELED;
        int64_t begin, end;
        int rc = gd_in_edges(s, to->node[p], &begin, &end);
        if (rc) return rc;
        for (int64_t e = begin; e < end; e++) {
            int64_t source;
            gd_read_indices(csc, &e, 1, &source);
            const uint64_t *const slot = gd_places_find(&from->places, from->node, source,
                                                        gd_places_home(&from->places, source));
            if (*slot == 0) continue;
            if ((rc = gd_reserve_edges(d, 1))) return rc; /* of a hub's edges few may be kept */
            d->edge[d->edges] = e;
            d->row[d->edges++] = gd_places_position(*slot);
        }
        d->colptr[p + 1] = (int32_t)d->edges;
    }
    d->expanded = to->nodes;
    d->placed = d->edges;
    return 0;
}

/* ---- hop after hop ---- */

static void begin_hop(gd_sampler *s) {
    s->turn = 0;
    for (int32_t t = 0; t < s->job.node_type_count; t++) s->found[t].hop_last = s->found[t].nodes;
    for (int32_t r = 0; r < s->job.edge_type_count; r++) s->drawn[r].hop_edges = s->drawn[r].edges;
}

static void end_hop(gd_sampler *s) {
    for (int32_t t = 0; t < s->job.node_type_count; t++) {
        gd_found *const f = &s->found[t];
        f->per_hop[s->hop + 1] = f->nodes - f->hop_last;
        f->hop_first = f->hop_last;
    }
    for (int32_t r = 0; r < s->job.edge_type_count; r++)
        s->drawn[r].per_hop[s->hop] = s->drawn[r].edges - s->drawn[r].hop_edges;
    s->hop++;
}

/* Sample from the present turn on, to the end or until neighbours are wanted. */
static int go_on(void *sampler) {
    gd_sampler *const s = sampler;
    for (; s->hop < s->job.hops; end_hop(s)) {
        if (s->turn == 0) begin_hop(s);
        for (; s->turn < s->job.edge_type_count; s->turn++) {
            int rc = s->job.shared ? gd_labor_turn(s) : draw_turn(s);
            if (rc == 0 && gd_turn_type(s)->csc->indices) rc = gd_map_turn(s);
            if (rc) return rc;
            if (gd_turn_drawn(s)->placed < gd_turn_drawn(s)->edges) return GD_WANTS;
        }
        s->turn = 0;
    }
    return 0;
}

static int induce(void *sampler) {
    gd_sampler *const s = sampler;
    int rc = 0;
    while (s->turn < s->job.edge_type_count && (rc = induce_turn(s)) == 0) s->turn++;
    return rc;
}

/* Do `work`, which reads indices. */
static int reading(gd_sampler *s, int (*work)(void *)) {
    uintptr_t address = 0;
    const int rc = gd_guarded(work, s, &address);
    if (rc == -EIO) {
        const gd_csc *const csc = gd_turn_type(s)->csc;
        const uint64_t byte = address - (uintptr_t)csc->indices;
        s->culprit = byte < (uint64_t)(csc->edges * csc->index_bytes) ? (int64_t)byte : -1;
    }
    return rc;
}

/* Ends a step that returns rc; an error leaves no result. */
static int ended(gd_sampler *s, int rc) {
    s->waiting = rc == GD_WANTS;
    if (rc < 0) {
        s->culprit_turn = s->turn;
        gd_sampler_empty(s);
    }
    if (rc == 0) s->hops = s->job.hops;
    return rc;
}

/* ---- the interface ---- */

void gd_stop(int32_t *stop) { __atomic_store_n(stop, 1, __ATOMIC_RELAXED); }

int gd_sample(gd_sampler *s, const gd_sampling *job) {
    if (!gd_valid_job(job)) return ended(s, -EINVAL);
    if (job->disjoint && !gd_keys_fit(job)) return ended(s, -EOVERFLOW);
    s->job = *job;
    int rc = gd_stopped(job) ? -ECANCELED : gd_begin_batch(s);
    s->faults = gd_major_faults();
    for (int32_t i = 0; rc == 0 && i < job->seeds_count; i++) rc = gd_take_seeds(s, &job->seeds[i]);
    if (rc == 0) rc = reading(s, go_on);
    return ended(s, rc);
}

int gd_sample_resume(gd_sampler *s, const void *neighbours, int64_t count) {
    gd_wanted wanted;
    gd_sampler_wanted(s, &wanted);
    if (!s->waiting || count < 0 || count > wanted.count) return -EINVAL;
    int rc =
        s->job.shared ? gd_labor_given(s, neighbours, count) : gd_map_given(s, neighbours, count);
    if (rc == 0 && gd_turn_drawn(s)->placed < gd_turn_drawn(s)->edges) rc = GD_WANTS;
    if (rc == GD_WANTS) return rc;
    if (rc == 0) {
        s->turn++;
        rc = reading(s, go_on);
    }
    return ended(s, rc);
}

int gd_sampler_induce(gd_sampler *s) {
    if (s->job.disjoint || s->waiting) return -EINVAL;
    for (int32_t r = 0; r < s->job.edge_type_count; r++)
        if (!s->job.edge_types[r].csc->indices) return -EINVAL;
    s->turn = 0;
    return ended(s, reading(s, induce));
}
