/* sampled.c: making and freeing a sampler, what it waits for, and copying out the last sample. */
#include "labor.h"

gd_sampler *gd_sampler_new(void) {
    gd_sampler *const s = calloc(1, sizeof *s);
    return s ? s : gd_no_object(ENOMEM);
}

void gd_sampler_free(gd_sampler *s) {
    if (!s) return;
    for (int32_t t = 0; t < s->types; t++) {
        gd_found *const f = &s->found[t];
        void *const arrays[] = {f->node,          f->key,     f->tree,
                                f->places.slot,   f->per_hop, f->kept_node.item,
                                f->kept_tree.item};
        for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++) free(arrays[i]);
    }
    for (int32_t r = 0; r < s->edge_types; r++) {
        gd_drawn *const d = &s->drawn[r];
        void *const arrays[] = {d->edge,           d->row,           d->colptr,          d->per_hop,
                                d->kept_edge.item, d->kept_row.item, d->kept_colptr.item};
        for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++) free(arrays[i]);
    }
    void *const arrays[] = {s->found,
                            s->drawn,
                            s->tree_time,
                            s->candidates.entry,
                            s->candidates.sum,
                            s->set.entry,
                            s->lists.heap,
                            s->lists.wanted,
                            s->lists.until,
                            s->kept_counts.item,
                            s};
    for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++) free(arrays[i]);
}

void gd_sampler_empty(gd_sampler *s) {
    for (int32_t t = 0; t < s->types; t++) s->found[t].nodes = 0;
    for (int32_t r = 0; r < s->edge_types; r++)
        s->drawn[r].edges = s->drawn[r].expanded = s->drawn[r].placed = 0;
    s->hops = 0;
}

int64_t gd_sampler_culprit(const gd_sampler *s, int32_t *edge_type) {
    if (edge_type) *edge_type = s->culprit_turn;
    return s->culprit;
}

int64_t gd_target_of(const gd_sampler *s, int64_t e) {
    const gd_drawn *const d = &s->drawn[s->turn];
    const gd_found *const f = &s->found[s->job.edge_types[s->turn].target];
    int64_t low = f->hop_first, high = f->hop_last;
    while (high - low > 1) {
        const int64_t middle = low + (high - low) / 2;
        if (d->colptr[middle] <= e)
            low = middle;
        else
            high = middle;
    }
    return low;
}

void gd_sampler_wanted(const gd_sampler *s, gd_wanted *out) {
    *out = (gd_wanted){.edge_type = s->turn};
    if (!s->waiting) return;
    if (s->job.shared) {
        gd_labor_wanted(s, out);
        return;
    }
    const gd_drawn *const d = &s->drawn[s->turn];
    const int64_t low = gd_target_of(s, d->placed);
    out->first = d->placed;
    out->edge = d->edge + d->placed;
    out->node = s->found[s->job.edge_types[s->turn].target].node + low;
    out->until = d->colptr + low + 1;
    out->count = d->edges - d->placed;
}

int64_t gd_sampler_nodes(const gd_sampler *s, int32_t type) {
    return type < s->types ? s->found[type].nodes : 0;
}

int64_t gd_sampler_edges(const gd_sampler *s, int32_t edge_type) {
    return edge_type < s->edge_types ? s->drawn[edge_type].edges : 0;
}

int64_t gd_sampler_expanded(const gd_sampler *s, int32_t edge_type) {
    return edge_type < s->edge_types ? s->drawn[edge_type].expanded : 0;
}

static void copy_out(void *out, const void *from, int64_t count, size_t width) {
    if (out && count > 0) memcpy(out, from, (size_t)count * width);
}

/* As int32 positions take half the memory. */
static void copy_edges(const gd_drawn *d, void *edge, int32_t edge_bytes) {
    assert(edge_bytes == 4 || edge_bytes == 8);
    if (edge_bytes == 8) {
        copy_out(edge, d->edge, d->edges, sizeof *d->edge);
        return;
    }
    for (int64_t e = 0; e < d->edges; e++) ((int32_t *)edge)[e] = (int32_t)d->edge[e];
}

void gd_sampler_found(const gd_sampler *s, int32_t type, int64_t *node, int32_t *tree,
                      int64_t *per_hop) {
    const gd_found *const f = &s->found[type];
    copy_out(node, f->node, f->nodes, sizeof *node);
    if (s->job.disjoint) copy_out(tree, f->tree, f->nodes, sizeof *tree);
    copy_out(per_hop, f->per_hop, s->hops + 1, sizeof *per_hop);
}

void gd_sampler_drawn(const gd_sampler *s, int32_t edge_type, int32_t *row, int32_t *colptr,
                      void *edge, int32_t edge_bytes, int64_t *per_hop) {
    const gd_drawn *const d = &s->drawn[edge_type];
    copy_out(row, d->row, d->edges, sizeof *row);
    copy_out(colptr, d->colptr, d->expanded + 1, sizeof *colptr);
    if (edge) copy_edges(d, edge, edge_bytes);
    copy_out(per_hop, d->per_hop, s->hops, sizeof *per_hop);
}
