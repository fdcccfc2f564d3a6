/* choose.c: which in-edges of a node are drawn if they are not all equally likely: only those that
 * are not later than the seed, the latest of them, or by weight.
 *
 * Time: an edge is a candidate if its own time, or its source's, is at most the seed's. The whole
 * list is read, so its order does not matter.
 *
 * Weight: an edge of weight 0 is no candidate. Without replacement: each candidate arrives after an
 * exponential time whose rate is its weight, and the first k to arrive are drawn (Efraimidis,
 * Spirakis, IPL 97(5), 2006). That equals drawing one after the other, each by weight among those
 * left. With replacement: k times a uniform number selects the first of the running sums that is
 * greater.
 */
#include <math.h>
#include "choose.h"
#include "grow.h"
#include "indices.h"

int gd_reserve_candidates(gd_candidates *c, int64_t needed) {
    if (needed <= c->capacity) return 0;
    const int64_t capacity = gd_doubled(c->capacity, needed);
    if (gd_grow((void **)&c->entry, capacity, sizeof *c->entry) ||
        gd_grow((void **)&c->sum, capacity, sizeof *c->sum))
        return -ENOMEM;
    c->capacity = capacity;
    return 0;
}

static int before(gd_candidate a, gd_candidate b) {
    return a.rank < b.rank || (a.rank == b.rank && a.order < b.order);
}

/* Let entry[at] sink in a heap whose top is the last candidate of all. */
static void sink(gd_candidate *entry, int64_t count, int64_t at) {
    for (int64_t child; (child = 2 * at + 1) < count; at = child) {
        if (child + 1 < count && before(entry[child], entry[child + 1])) child++;
        if (!before(entry[at], entry[child])) return;
        const gd_candidate swap = entry[at];
        entry[at] = entry[child];
        entry[child] = swap;
    }
}

void gd_first_candidates(gd_candidate *entry, int64_t count, int64_t k) {
    for (int64_t at = k / 2; at-- > 0;) sink(entry, k, at);
    for (int64_t i = k; i < count; i++) {
        if (k == 0 || !before(entry[i], entry[0])) continue;
        entry[0] = entry[i];
        sink(entry, k, 0);
    }
    for (int64_t last = k - 1; last > 0; last--) {
        const gd_candidate swap = entry[0];
        entry[0] = entry[last];
        entry[last] = swap;
        sink(entry, last, 0);
    }
}

int64_t gd_find_candidates(gd_candidates *c, const gd_edge_type *type, int64_t sources,
                           int64_t begin, int64_t degree, int64_t time, int64_t *culprit) {
    int64_t count = 0;
    for (int64_t e = begin; e < begin + degree; e++) {
        int64_t since, source;
        if (type->edge_time) {
            since = type->edge_time[e];
        } else {
            gd_read_indices(type->csc, &e, 1, &source);
            if ((uint64_t)source >= (uint64_t)sources) {
                *culprit = source;
                return -ERANGE;
            }
            since = type->node_time[source];
        }
        if (since <= time) c->entry[count++] = (gd_candidate){~since, ~e};
    }
    return count;
}

static double weight_of(const gd_edge_type *type, int64_t position) {
    return type->weight_bytes == 4 ? (double)((const float *)type->weight)[position]
                                   : ((const double *)type->weight)[position];
}

/* Uniform, above 0 and below 1. */
static double next_unit(uint64_t *stream) {
    return ((double)(gd_mix(*stream += GD_GOLDEN) >> 11) + 0.5) * 0x1p-53;
}

int64_t gd_weighing_candidates(gd_candidates *c, const gd_edge_type *type, int64_t count,
                               int64_t *culprit) {
    int64_t weighing = 0;
    for (int64_t i = 0; i < count; i++) {
        const gd_candidate entry = c->entry[i];
        const double weight = weight_of(type, ~entry.order);
        if (!(weight >= 0) || isinf(weight)) {
            *culprit = ~entry.order;
            return -EDOM;
        }
        if (weight > 0) c->entry[weighing++] = entry;
    }
    return weighing;
}

void gd_draw_weighted(gd_candidates *c, const gd_edge_type *type, uint64_t stream, int64_t count,
                      int64_t k, int32_t replace, int64_t *out) {
    double sum = 0;
    for (int64_t i = 0; i < count; i++) {
        gd_candidate *const entry = &c->entry[i];
        const double weight = weight_of(type, ~entry->order), unit = next_unit(&stream);
        /* bit patterns of positive doubles are in the order of their values */
        const double arrival = -log(unit) / weight;
        memcpy(&entry->rank, &arrival, sizeof entry->rank);
        c->sum[i] = sum += weight;
    }
    if (!replace) {
        gd_first_candidates(c->entry, count, k);
        for (int64_t i = 0; i < k; i++) out[i] = ~c->entry[i].order;
        return;
    }
    for (int64_t i = 0; i < k; i++) {
        const double target = next_unit(&stream) * sum;
        int64_t low = 0,
                high = count - 1; /* search the first candidate whose sum is above the target */
        while (low < high) {
            const int64_t middle = low + (high - low) / 2;
            if (c->sum[middle] > target)
                high = middle;
            else
                low = middle + 1;
        }
        out[i] = ~c->entry[low].order;
    }
}
