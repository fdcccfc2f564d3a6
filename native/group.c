/* group.c: sampling the batches of a group, one behind the other, in one call. */
#include "grow.h"

static int keep(gd_kept *kept, const void *from, int64_t count, size_t width) {
    const int64_t needed = kept->count + count;
    if (needed > kept->capacity) {
        if (gd_grow(&kept->item, needed, width)) return -ENOMEM;
        kept->capacity = needed;
    }
    if (count) memcpy((uint8_t *)kept->item + kept->count * width, from, (size_t)count * width);
    kept->count = needed;
    return 0;
}

/* Keep the sample behind those of the batches before. */
static int keep_sample(gd_sampler *s) {
    const gd_sampling *const job = &s->job;
    int rc = 0;
    for (int32_t t = 0; rc == 0 && t < job->node_type_count; t++) {
        gd_found *const f = &s->found[t];
        rc = keep(&s->kept_counts, f->per_hop, job->hops + 1, sizeof *f->per_hop);
        if (rc == 0) rc = keep(&f->kept_node, f->node, f->nodes, sizeof *f->node);
        if (rc == 0 && job->disjoint) rc = keep(&f->kept_tree, f->tree, f->nodes, sizeof *f->tree);
    }
    for (int32_t r = 0; rc == 0 && r < job->edge_type_count; r++) {
        gd_drawn *const d = &s->drawn[r];
        rc = keep(&s->kept_counts, &d->expanded, 1, sizeof d->expanded);
        if (rc == 0) rc = keep(&s->kept_counts, d->per_hop, job->hops, sizeof *d->per_hop);
        if (rc == 0) rc = keep(&d->kept_edge, d->edge, d->edges, sizeof *d->edge);
        if (rc == 0) rc = keep(&d->kept_row, d->row, d->edges, sizeof *d->row);
        if (rc == 0) rc = keep(&d->kept_colptr, d->colptr, d->expanded + 1, sizeof *d->colptr);
    }
    return rc;
}

static void forget_samples(gd_sampler *s) {
    s->kept_counts.count = 0;
    for (int32_t t = 0; t < s->types; t++)
        s->found[t].kept_node.count = s->found[t].kept_tree.count = 0;
    for (int32_t r = 0; r < s->edge_types; r++) {
        gd_drawn *const d = &s->drawn[r];
        d->kept_edge.count = d->kept_row.count = d->kept_colptr.count = 0;
    }
}

int gd_sample_group(gd_sampler *s, const gd_sampling *job, const gd_batch *batches, int64_t count,
                    int64_t *done) {
    int rc = 0;
    forget_samples(s);
    for (*done = 0; *done < count; ++*done) {
        gd_sampling each = *job;
        each.key = batches[*done].key;
        each.shared = batches[*done].shared;
        each.seeds = batches[*done].seeds;
        each.seeds_count = batches[*done].seeds_count;
        rc = gd_sample(s, &each);
        if (rc == GD_WANTS) rc = -EINVAL;
        if (rc) return rc;
        if ((rc = keep_sample(s))) { /* part of it may be there */
            forget_samples(s);
            *done = 0;
            return rc;
        }
    }
    return rc;
}

static void copy_kept(void *out, const gd_kept *kept, size_t width) {
    if (out && kept->count) memcpy(out, kept->item, (size_t)kept->count * width);
}

/* Whether a batch has a result; else there may be no `found` and `drawn` of the job's types. */
static int kept_any(const gd_sampler *s) { return s->kept_counts.count > 0; }

void gd_group_counts(const gd_sampler *s, int64_t *out) {
    copy_kept(out, &s->kept_counts, sizeof *out);
}

void gd_group_found(const gd_sampler *s, int32_t type, int64_t *node, int32_t *tree) {
    if (!kept_any(s)) return;
    copy_kept(node, &s->found[type].kept_node, sizeof *node);
    if (s->job.disjoint) copy_kept(tree, &s->found[type].kept_tree, sizeof *tree);
}

void gd_group_ends(const gd_sampler *s, int32_t edge_type, int64_t *ends) {
    if (!kept_any(s)) return;
    const gd_sampling *const job = &s->job;
    const gd_drawn *const d = &s->drawn[edge_type];
    const int64_t of_type = job->hops + 1, types = job->node_type_count;
    const int64_t of_batch = (types + job->edge_type_count) * of_type;
    const int64_t *counts = s->kept_counts.item;
    const int32_t *row = d->kept_row.item, *colptr = d->kept_colptr.item;
    for (int64_t at = 0; at < s->kept_counts.count; at += of_batch) {
        const int64_t *const count = counts + at + (types + edge_type) * of_type;
        int64_t edges = 0;
        for (int32_t hop = 1; hop < of_type; hop++) edges += count[hop];
        const int rc = gd_edge_index(row, edges, colptr, count[0], ends);
        assert(rc == 0);
        (void)rc;
        row += edges;
        colptr += count[0] + 1;
        ends += 2 * edges;
    }
}

void gd_group_drawn(const gd_sampler *s, int32_t edge_type, int32_t *row, int32_t *colptr,
                    void *edge, int32_t edge_bytes) {
    if (!kept_any(s)) return;
    const gd_drawn *const d = &s->drawn[edge_type];
    copy_kept(row, &d->kept_row, sizeof *row);
    copy_kept(colptr, &d->kept_colptr, sizeof *colptr);
    if (edge_bytes == 8) copy_kept(edge, &d->kept_edge, sizeof *d->edge);
    for (int64_t e = 0; edge_bytes == 4 && e < d->kept_edge.count; e++)
        ((int32_t *)edge)[e] = (int32_t)((const int64_t *)d->kept_edge.item)[e];
}
