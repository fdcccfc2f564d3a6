/* mapping.c: the second pass of a turn: find the places of the drawn neighbours. */
#include "mapping.h"
#include "indices.h"
#include "pages.h"

enum { AHEAD_PAGES = 8192 }; /* how many edges ahead pages are requested, if they are on disk */

/* Write the keys and trees of the sources of edges [first, first + count); a source is in the tree
 * of its target. */
static void tree_keys(const gd_sampler *s, int64_t first, int64_t count, const int64_t *neighbour,
                      int64_t *key, int32_t *tree) {
    const gd_edge_type *const type = gd_turn_type(s);
    const gd_found *const targets = &s->found[type->target];
    int64_t p = gd_target_of(s, first);
    for (int64_t i = 0; i < count; i++) {
        while (gd_turn_drawn(s)->colptr[p + 1] <= first + i) p++;
        tree[i] = targets->tree[p];
        key[i] = tree[i] * s->job.nodes[type->source] + neighbour[i];
    }
}

int gd_map_chunk(gd_sampler *s, const int64_t *neighbour, int64_t count) {
    const gd_edge_type *const type = gd_turn_type(s);
    gd_found *const f = &s->found[type->source];
    gd_drawn *const d = gd_turn_drawn(s);
    const int64_t first = d->placed, sources = s->job.nodes[type->source];
    const int32_t disjoint = s->job.disjoint;
    int64_t forest[GD_CHUNK];
    const int64_t *const key = disjoint ? forest : neighbour;
    int32_t tree[GD_CHUNK];
    uint64_t home[GD_CHUNK];
    assert(count <= GD_CHUNK);
    const int rc = gd_reserve_nodes(s, f, count);
    if (rc) return rc;
    _Static_assert((int)GD_CHUNK <= (int)GD_NODES_MORE, "a chunk fits behind the most nodes");
    for (int64_t i = 0; i < count; i++) {
        if ((uint64_t)neighbour[i] >= (uint64_t)sources) {
            s->culprit = neighbour[i];
            return -ERANGE;
        }
    }
    if (disjoint) tree_keys(s, first, count, neighbour, forest, tree);
    for (int64_t i = 0; i < count; i++) {
        home[i] = gd_places_home(&f->places, key[i]);
        __builtin_prefetch(&f->places.slot[home[i]], 1);
    }
    for (int64_t i = 0; i < count; i++) {
        uint64_t *slot = gd_places_find(&f->places, gd_keys(s, f), key[i], home[i]);
        if (*slot == 0) {
            *slot = gd_places_entry(key[i], f->nodes);
            if (disjoint) {
                f->key[f->nodes] = key[i];
                f->tree[f->nodes] = tree[i];
            }
            f->node[f->nodes++] = neighbour[i];
        }
        d->row[first + i] = gd_places_position(*slot);
    }
    d->placed += count;
    return 0;
}

int gd_map_turn(gd_sampler *s) {
    const gd_csc *const csc = gd_turn_type(s)->csc;
    gd_drawn *const d = gd_turn_drawn(s);
    int64_t count = gd_least(d->edges - d->placed, GD_CHUNK);
    gd_prefetch_indices(csc, d->edge + d->placed, count);
    s->asked = d->placed;
    while (count > 0) {
        if (gd_stopped(&s->job)) return -ECANCELED;
        if (!s->cold) {
            s->cold = gd_major_faults() - s->faults > GD_FAULTS_COLD;
            s->asked = d->placed;
        }
        if (s->cold && !csc->packed_bits)
            gd_ask_for_pages(s, csc, d->edge, gd_least(d->edges, d->placed + AHEAD_PAGES));
        const int64_t next = d->placed + count, following = gd_least(d->edges - next, GD_CHUNK);
        gd_prefetch_indices(csc, d->edge + next, following);
        int64_t neighbour[GD_CHUNK];
        gd_read_indices(csc, d->edge + d->placed, count, neighbour);
        const int rc = gd_map_chunk(s, neighbour, count);
        if (rc) return rc;
        count = following;
    }
    return 0;
}

int gd_map_given(gd_sampler *s, const uint8_t *given, int64_t count) {
    const gd_csc *const csc = gd_turn_type(s)->csc;
    for (int64_t i = 0; i < count; i += GD_CHUNK) {
        if (gd_stopped(&s->job)) return -ECANCELED;
        int64_t neighbour[GD_CHUNK];
        const int64_t some = gd_least(count - i, GD_CHUNK);
        gd_read_given(csc, given + i * csc->index_bytes, some, neighbour);
        const int rc = gd_map_chunk(s, neighbour, some);
        if (rc) return rc;
    }
    return 0;
}
