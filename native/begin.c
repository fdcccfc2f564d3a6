/* begin.c: the beginning of a sample: check the job, empty the scratch, take the seeds. */
#include "begin.h"
#include "grow.h"

static int valid_edge_type(const gd_sampling *j, const gd_edge_type *type) {
    const gd_csc *const csc = type->csc;
    for (int32_t h = 0; h < j->hops; h++)
        if (type->fanout[h] < -1) return 0;
    if (type->edges_most < 0) return 0;
    if (type->source < 0 || type->source >= j->node_type_count) return 0;
    if (type->target < 0 || type->target >= j->node_type_count) return 0;
    if ((type->node_time || type->edge_time) && !j->disjoint) return 0; /* only a tree has a time */
    if (type->node_time && !csc->indices) return 0; /* source unknown, so no time */
    return csc->edges >= 0 && csc->nodes >= j->nodes[type->target] &&
           (csc->index_bytes == 4 || csc->index_bytes == 8) &&
           (csc->indptr_bytes == 4 || csc->indptr_bytes == 8) &&
           (!type->weight || type->weight_bytes == 4 || type->weight_bytes == 8);
}

static int valid_shared(const gd_sampling *j) {
    const gd_shared *const shared = j->shared;
    if (j->replace || j->disjoint || j->edge_type_count > 1 || j->node_type_count > 1) return 0;
    for (int32_t r = 0; r < j->edge_type_count; r++)
        if (j->edge_types[r].weight) return 0;
    return shared->weight >= 0 && shared->weight <= GD_WEIGHT_ONE && shared->next_weight >= 0 &&
           shared->next_weight <= GD_WEIGHT_ONE;
}

int gd_valid_job(const gd_sampling *j) {
    if (j->shared && !valid_shared(j)) return 0;
    if (j->hops < 0 || j->node_type_count < 0 || j->edge_type_count < 0) return 0;
    for (int32_t t = 0; t < j->node_type_count; t++)
        if (j->nodes[t] < 0 || (j->nodes_most && j->nodes_most[t] < 0)) return 0;
    for (int32_t r = 0; r < j->edge_type_count; r++)
        if (!valid_edge_type(j, &j->edge_types[r])) return 0;
    for (int32_t i = 0; i < j->seeds_count; i++) {
        const gd_seeds *const seeds = &j->seeds[i];
        if (seeds->count < 0 || seeds->type < 0 || seeds->type >= j->node_type_count) return 0;
    }
    return 1;
}

int gd_begin_batch(gd_sampler *s) {
    const int32_t hops = s->job.hops;
    if (gd_reserve_types(s)) return -ENOMEM;
    for (int32_t t = 0; t < s->job.node_type_count; t++) {
        gd_found *const f = &s->found[t];
        const int64_t had = f->places.slots ? f->places.slots : GD_PLACES_MIN;
        const int64_t slots = had > GD_PLACES_MIN && f->nodes < had / 8 ? had / 2 : had;
        f->nodes = f->hop_first = f->hop_last = 0;
        f->most = s->job.nodes_most ? s->job.nodes_most[t] : 0;
        if (s->job.disjoint && !f->key) f->capacity = 0; /* grow all three together */
        if (gd_reserve_hops(&f->per_hop, &f->hop_capacity, hops + 1)) return -ENOMEM;
        memset(f->per_hop, 0, (size_t)(hops + 1) * sizeof *f->per_hop);
        const int rc = gd_places_clear(&f->places, slots);
        if (rc) return rc;
    }
    for (int32_t r = 0; r < s->job.edge_type_count; r++) {
        gd_drawn *const d = &s->drawn[r];
        d->edges = d->expanded = d->placed = d->hop_edges = 0;
        d->most = s->job.edge_types[r].edges_most;
        if (gd_reserve_hops(&d->per_hop, &d->hop_capacity, hops + 1) || gd_reserve_colptr(d, 0))
            return -ENOMEM;
        d->colptr[0] = 0;
    }
    s->trees = s->culprit = 0;
    s->hop = s->hops = s->turn = s->cold = s->waiting = 0;
    return 0;
}

/* Make room for `more` trees and the times of their seeds. */
static int reserve_trees(gd_sampler *s, int64_t more) {
    if (more > INT32_MAX - s->trees) return -EOVERFLOW;
    if (s->trees + more <= s->tree_capacity) return 0;
    const int64_t capacity = gd_doubled(s->tree_capacity, s->trees + more);
    if (gd_grow((void **)&s->tree_time, capacity, sizeof *s->tree_time)) return -ENOMEM;
    s->tree_capacity = capacity;
    return 0;
}

/* Begin a tree for each seed. */
static int plant(gd_sampler *s, const gd_seeds *seeds) {
    const int64_t nodes = s->job.nodes[seeds->type];
    gd_found *const f = &s->found[seeds->type];
    const int rc = reserve_trees(s, seeds->count);
    if (rc) return rc;
    for (int64_t i = 0; i < seeds->count; i++) {
        s->tree_time[s->trees] = seeds->time ? seeds->time[i] : INT64_MAX;
        f->tree[f->nodes + i] = (int32_t)s->trees;
        f->key[f->nodes + i] = s->trees++ * nodes + seeds->node[i];
    }
    return 0;
}

int gd_take_seeds(gd_sampler *s, const gd_seeds *seeds) {
    const int64_t nodes = s->job.nodes[seeds->type];
    gd_found *const f = &s->found[seeds->type];
    int rc = gd_reserve_nodes(s, f, seeds->count);
    if (rc) return rc;
    for (int64_t i = 0; i < seeds->count; i++) {
        if ((uint64_t)seeds->node[i] >= (uint64_t)nodes) {
            s->culprit = seeds->node[i];
            return -ENXIO;
        }
        f->node[f->nodes + i] = seeds->node[i];
    }
    if (s->job.disjoint && (rc = plant(s, seeds))) return rc;
    f->nodes += seeds->count;
    f->per_hop[0] = f->nodes;
    gd_enter_nodes(s, f);
    return 0;
}

int gd_keys_fit(const gd_sampling *j) {
    int64_t trees = 0;
    for (int32_t i = 0; i < j->seeds_count; i++)
        if (__builtin_add_overflow(trees, j->seeds[i].count, &trees)) return 0;
    for (int32_t t = 0; t < j->node_type_count; t++) {
        int64_t keys;
        if (__builtin_mul_overflow(trees, j->nodes[t], &keys)) return 0;
    }
    return 1;
}
