/* grow.c: growing a sampler's scratch, by doubling. */
#include "grow.h"

int gd_grow(void **array, int64_t count, size_t width) {
    void *larger = realloc(*array, (size_t)count * width);
    if (!larger) return -ENOMEM;
    *array = larger;
    return 0;
}

int64_t gd_doubled(int64_t capacity, int64_t needed) {
    capacity = capacity ? capacity : GD_CAPACITY_MIN;
    while (capacity < needed) capacity *= 2;
    return capacity;
}

int64_t gd_doubled_up_to(int64_t capacity, int64_t needed, int64_t most) {
    const int64_t doubled = gd_doubled(capacity, needed);
    return most >= needed && most < doubled ? most : doubled;
}

int gd_grow_edges(gd_drawn *d, int64_t more) {
    const int64_t capacity = gd_doubled_up_to(d->capacity, d->edges + more, d->most);
    if (gd_grow((void **)&d->edge, capacity, sizeof *d->edge) ||
        gd_grow((void **)&d->row, capacity, sizeof *d->row))
        return -ENOMEM;
    d->capacity = capacity;
    return 0;
}

int gd_reserve_colptr(gd_drawn *d, int64_t expanded) {
    if (expanded < d->colptr_capacity) return 0;
    const int64_t capacity = gd_doubled(d->colptr_capacity, expanded + 1);
    if (gd_grow((void **)&d->colptr, capacity, sizeof *d->colptr)) return -ENOMEM;
    d->colptr_capacity = capacity;
    return 0;
}

void gd_enter_nodes(gd_sampler *s, gd_found *f) {
    gd_places *const places = &f->places;
    const int64_t *const keys = gd_keys(s, f);
    for (int64_t p = 0; p < f->nodes; p++) {
        if (p + GD_NODES_AHEAD < f->nodes)
            __builtin_prefetch(&places->slot[gd_places_home(places, keys[p + GD_NODES_AHEAD])], 1);
        uint64_t *slot = gd_places_find(places, keys, keys[p], gd_places_home(places, keys[p]));
        if (*slot == 0) *slot = gd_places_entry(keys[p], p);
    }
}

static int grow_nodes(gd_sampler *s, gd_found *f, int64_t capacity) {
    if (gd_grow((void **)&f->node, capacity, sizeof *f->node)) return -ENOMEM;
    if ((s->job.disjoint || f->key) && (gd_grow((void **)&f->key, capacity, sizeof *f->key) ||
                                        gd_grow((void **)&f->tree, capacity, sizeof *f->tree)))
        return -ENOMEM;
    f->capacity = capacity;
    return 0;
}

int gd_reserve_nodes(gd_sampler *s, gd_found *f, int64_t more) {
    if (more > INT32_MAX - f->nodes) return -EOVERFLOW;
    if (f->most && f->nodes > f->most) return -E2BIG;
    const int64_t needed = f->nodes + more, most = f->most ? f->most + GD_NODES_MORE : 0;
    if (needed > f->capacity && grow_nodes(s, f, gd_doubled_up_to(f->capacity, needed, most)))
        return -ENOMEM;
    if (2 * needed > f->places.slots) {
        if (gd_places_clear(&f->places, gd_doubled(f->places.slots, 2 * needed))) return -ENOMEM;
        gd_enter_nodes(s, f);
    }
    return 0;
}

int gd_reserve_hops(int64_t **per_hop, int64_t *capacity, int64_t needed) {
    if (needed <= *capacity) return 0;
    if (gd_grow((void **)per_hop, needed, sizeof **per_hop)) return -ENOMEM;
    *capacity = needed;
    return 0;
}

int gd_reserve_types(gd_sampler *s) {
    const int32_t types = s->job.node_type_count, edge_types = s->job.edge_type_count;
    if (types > s->types) {
        if (gd_grow((void **)&s->found, types, sizeof *s->found)) return -ENOMEM;
        memset(s->found + s->types, 0, (size_t)(types - s->types) * sizeof *s->found);
        s->types = types;
    }
    if (edge_types > s->edge_types) {
        if (gd_grow((void **)&s->drawn, edge_types, sizeof *s->drawn)) return -ENOMEM;
        memset(s->drawn + s->edge_types, 0,
               (size_t)(edge_types - s->edge_types) * sizeof *s->drawn);
        s->edge_types = edge_types;
    }
    return 0;
}
