/* labor.c: LABOR-0 sampling (Balin, Catalyurek, "Layer-Neighbor Sampling", NeurIPS 2023, section
 * 3.2), in its sequential Poisson form: each target takes min(fanout, degree) neighbours.
 *
 * Each node has one random number in a batch, and a target takes those of its neighbours whose
 * numbers are smallest. The numbers of a list are independent and equally distributed, so each
 * neighbour of a node is taken with probability fanout / degree, as in uniform sampling. But two
 * targets with a common neighbour tend to take it both or not at all, so a batch has fewer distinct
 * nodes. A node has the same number in all hops, because a node that an earlier hop found costs a
 * later one nothing. Several edges between the same two nodes have the same number; of these a
 * target takes the first ones of its list.
 *
 * In dependent batches the number moves from one nearly normal number to another while batches go
 * by, on a quarter of a circle, so that its distribution stays. Nearly normal is the sum of four
 * numbers of 16 bits. Only integers are calculated, so all compilers and machines give one result.
 * The nodes' numbers remain independent of each other, so each single batch is as random as ever.
 *
 * A target must see its whole list. If the indices are in memory they are read from there, one list
 * behind the other. If not, the sampler asks the caller for the indices of a part of the lists
 * after the other. A list may be cut: the target keeps the neighbours that it takes so far.
 */
#include "labor.h"
#include "indices.h"
#include "mapping.h"
#include "pages.h"

enum {
    SUM_BITS = 18,        /* of a nearly normal number */
    TIE_BITS = 14,        /* bits of a node that decide between equal sums */
    LISTS_AHEAD = 8,      /* how many nodes ahead the beginnings of lists are prefetched */
    LINES_AHEAD = 4,      /* cache lines of a list that are prefetched */
    LISTS_ASKED = 256,    /* how many nodes ahead pages are requested, if they are on disk */
    WANTED_MAX = 1 << 17, /* indices that are wanted at once */
    LINE = 64,            /* bytes of a cache line */
    BUCKET_BITS = 7,      /* of a histogram of the numbers of a list */
    BUCKETS = 1 << BUCKET_BITS,
};
_Static_assert((int)GD_UNPLACED == (int)GD_CHUNK, "the neighbours that wait fill a chunk");

/* ---- numbers ---- */

/* The sum of four numbers of 16 bits: below 2^18. */
static inline int64_t nearly_normal(uint64_t bits) {
    const uint64_t mask = 0x0000FFFF0000FFFFu, pair = (bits & mask) + (bits >> 16 & mask);
    return (int64_t)((pair & 0xFFFFFFFFu) + (pair >> 32));
}

/* The number of node `id`; with both weights at most GD_WEIGHT_ONE it fits. */
static inline uint64_t number_of(const gd_shared *shared, int64_t id) {
    const uint64_t place = (uint64_t)id * GD_GOLDEN, bits = gd_mix(shared->key + place);
    int64_t sum = shared->weight * nearly_normal(bits);
    if (shared->next_weight)
        sum += shared->next_weight * nearly_normal(gd_mix(shared->next_key + place));
    return (uint64_t)sum << TIE_BITS | (bits & ((1 << TIE_BITS) - 1));
}

/* How far a number is shifted to its bucket. */
static int32_t bucket_shift(const gd_shared *shared) {
    const uint64_t sums = (uint64_t)(shared->weight + shared->next_weight) << SUM_BITS;
    const int32_t bits = sums ? 64 - __builtin_clzll(sums << TIE_BITS) : TIE_BITS;
    return bits - BUCKET_BITS;
}

/* Write the numbers of count <= GD_CHUNK neighbours. 0 or -ERANGE: the culprit is not a node. */
static int numbers_of(gd_sampler *s, const int64_t *neighbour, int64_t count, uint64_t *number) {
    const gd_csc *const csc = gd_turn_type(s)->csc;
    const gd_shared shared = *s->job.shared;
    if (!csc->ids) {
        for (int64_t i = 0; i < count; i++) number[i] = number_of(&shared, neighbour[i]);
        return 0;
    }
    for (int64_t i = 0; i < count; i++) {
        if ((uint64_t)neighbour[i] >= (uint64_t)csc->nodes) {
            s->culprit = neighbour[i];
            return -ERANGE;
        }
        gd_prefetch_id(csc, neighbour[i]);
    }
    for (int64_t i = 0; i < count; i++)
        number[i] = number_of(&shared, gd_drawn_as(csc, neighbour[i]));
    return 0;
}

/* ---- what a target takes ---- */

static inline int given_up_before(const gd_offer *a, const gd_offer *b) {
    return a->number > b->number || (a->number == b->number && a->edge > b->edge);
}

/* Let `offer` sink from the top of a heap of `count` offers. */
static inline void sink(gd_offer *heap, int64_t count, gd_offer offer, int64_t at) {
    for (int64_t child; (child = 2 * at + 1) < count; at = child) {
        if (child + 1 < count && given_up_before(&heap[child + 1], &heap[child])) child++;
        if (!given_up_before(&heap[child], &offer)) break;
        heap[at] = heap[child];
    }
    heap[at] = offer;
}

/* Offer the target the next `count` neighbours of its list. 0 or -ERANGE. */
static int offer(gd_sampler *s, const int64_t *neighbour, int64_t count) {
    gd_reading *const l = &s->lists;
    gd_offer *const heap = l->heap;
    uint64_t number[GD_CHUNK];
    const int rc = numbers_of(s, neighbour, count, number);
    if (rc) return rc;
    int64_t i = 0;
    const int64_t edge = l->begin + l->read;
    for (; i < count && l->held < l->take; i++) {
        heap[l->held++] = (gd_offer){number[i], edge + i, neighbour[i]};
        if (l->held < l->take) continue;
        for (int64_t at = l->take / 2; at-- > 0;) sink(heap, l->take, heap[at], at);
    }
    for (; i < count; i++)
        if (number[i] < heap[0].number) /* of equal numbers the earlier one stays */
            sink(heap, l->take, (gd_offer){number[i], edge + i, neighbour[i]}, 0);
    return 0;
}

static int place_all(gd_sampler *s) {
    gd_reading *const l = &s->lists;
    const int64_t count = l->unplaced_count;
    l->unplaced_count = 0;
    return count ? gd_map_chunk(s, l->unplaced, count) : 0;
}

/* Append an edge, for which there is room. */
static inline int append(gd_sampler *s, int64_t edge, int64_t neighbour) {
    gd_reading *const l = &s->lists;
    gd_drawn *const d = gd_turn_drawn(s);
    d->edge[d->edges++] = edge;
    l->unplaced[l->unplaced_count++] = neighbour;
    return l->unplaced_count == GD_UNPLACED ? place_all(s) : 0;
}

static int by_edge(const void *one, const void *other) {
    const int64_t a = ((const gd_offer *)one)->edge, b = ((const gd_offer *)other)->edge;
    return (a > b) - (a < b);
}

/* Append what the target takes, in the order of its list. */
static int take_held(gd_sampler *s) {
    gd_reading *const l = &s->lists;
    gd_offer *const heap = l->heap;
    int rc = gd_reserve_edges(gd_turn_drawn(s), l->held);
    qsort(heap, (size_t)l->held, sizeof *heap, by_edge);
    for (int64_t i = 0; rc == 0 && i < l->held; i++)
        rc = append(s, heap[i].edge, heap[i].neighbour);
    return rc;
}

/* The `place`-th smallest, from 0, of `count` numbers, of which few are given. */
static uint64_t smallest(uint64_t *number, int64_t count, int64_t place) {
    for (int64_t i = 1; i < count; i++) {
        const uint64_t moved = number[i];
        int64_t at = i;
        for (; at > 0 && number[at - 1] > moved; at--) number[at] = number[at - 1];
        number[at] = moved;
    }
    return number[place];
}

/* The largest of the `take` smallest of count <= GD_CHUNK numbers, of which *equal may be taken
 * that are equal to it. A histogram finds it: in short lists a heap would mispredict most of its
 * branches. */
static uint64_t last_taken(const uint64_t *number, int64_t count, int64_t take, int32_t shift,
                           int64_t *equal) {
    uint16_t counts[BUCKETS] = {0};
    uint64_t among[GD_CHUNK];
    for (int64_t i = 0; i < count; i++) counts[number[i] >> shift]++;
    int64_t below = 0, bucket = 0, some = 0;
    while (below + counts[bucket] < take) below += counts[bucket++];
    for (int64_t i = 0; i < count; i++) {
        among[some] = number[i];
        some += number[i] >> shift == (uint64_t)bucket;
    }
    const uint64_t last = smallest(among, some, take - below - 1);
    *equal = take - below;
    for (int64_t i = 0; i < some; i++) *equal -= among[i] < last;
    return last;
}

/* Append what the target takes of its list, all of which is given. 0, or what gd_sample returns. */
static int take_of_list(gd_sampler *s, const int64_t *neighbour, int64_t count) {
    gd_reading *const l = &s->lists;
    uint64_t number[GD_CHUNK];
    int32_t taken_at[GD_CHUNK];
    int rc = numbers_of(s, neighbour, count, number);
    if (rc == 0) rc = gd_reserve_edges(gd_turn_drawn(s), l->take);
    if (rc) return rc;
    int64_t equal, some = 0;
    const uint64_t last = last_taken(number, count, l->take, l->shift, &equal);
    for (int64_t i = 0; i < count; i++) {
        const int tie = number[i] == last;
        taken_at[some] = (int32_t)i;
        some += number[i] < last || (tie && equal > 0);
        equal -= tie;
    }
    assert(some == l->take);
    for (int64_t i = 0; rc == 0 && i < some; i++)
        rc = append(s, l->begin + taken_at[i], neighbour[taken_at[i]]);
    return rc;
}

/* ---- one list after the other ---- */

static void end_target(gd_sampler *s) {
    gd_drawn *const d = gd_turn_drawn(s);
    d->expanded = ++s->lists.target;
    d->colptr[d->expanded] = (int32_t)d->edges;
}

/* How many of its in-edges a node takes. */
static inline int64_t taken(const gd_sampler *s, int64_t degree) {
    const int64_t fanout = gd_turn_type(s)->fanout[s->hop];
    return fanout < 0 ? degree : gd_least(fanout, degree);
}

/* Prefetch what the nodes behind the target need. */
static void look_ahead(gd_sampler *s, const gd_found *f) {
    const gd_csc *const csc = gd_turn_type(s)->csc;
    gd_reading *const l = &s->lists;
    int64_t begin, end, p = l->target + GD_NODES_AHEAD;
    if (p < f->hop_last) gd_prefetch_node(csc, f->node[p]);
    p = l->target + LISTS_AHEAD;
    if (!csc->indices || p >= f->hop_last || gd_in_edges(s, f->node[p], &begin, &end)) return;
    const int64_t bits = csc->packed_bits ? csc->packed_bits : 8 * csc->index_bytes;
    const char *const first = (const char *)csc->indices + (begin * bits >> 3);
    const int64_t bytes = gd_least((end - begin) * bits >> 3, LINES_AHEAD * LINE);
    for (int64_t i = 0; i < bytes; i += LINE) __builtin_prefetch(first + i);
    if (!s->cold || csc->packed_bits) return;
    if (l->ahead < l->target) l->ahead = l->target;
    for (; l->ahead < gd_least(f->hop_last, l->target + LISTS_ASKED); l->ahead++)
        if (gd_in_edges(s, f->node[l->ahead], &begin, &end) == 0) gd_ask_for_list(csc, begin, end);
}

/* Begin with the list of the first node from `target` on that takes an edge. 0, or -errno. */
static int next_list(gd_sampler *s) {
    gd_reading *const l = &s->lists;
    const gd_found *const f = &s->found[gd_turn_type(s)->target];
    for (; l->target < f->hop_last; end_target(s)) {
        if ((l->target - f->hop_first) % GD_STOP_EVERY == 0) {
            if (gd_stopped(&s->job)) return -ECANCELED;
            if (!s->cold) s->cold = gd_major_faults() - s->faults > GD_FAULTS_COLD;
        }
        int64_t end;
        look_ahead(s, f);
        const int rc = gd_in_edges(s, f->node[l->target], &l->begin, &end);
        if (rc) return rc;
        l->degree = end - l->begin;
        l->take = taken(s, l->degree);
        l->read = l->held = 0;
        if (l->take == 0) continue;
        if (l->take < l->degree && l->take > l->heap_capacity) {
            const int64_t capacity = gd_doubled(l->heap_capacity, l->take);
            if (gd_grow((void **)&l->heap, capacity, sizeof *l->heap)) return -ENOMEM;
            l->heap_capacity = capacity;
        }
        return 0;
    }
    return 0;
}

/* Read the next `count` neighbours of the target's list. 0, or what gd_sample returns. */
static int read_some(gd_sampler *s, const int64_t *neighbour, int64_t count) {
    gd_reading *const l = &s->lists;
    int rc = 0;
    const int chooses = l->take < l->degree, whole = count == l->degree;
    if (chooses && whole) {
        rc = take_of_list(s, neighbour, count);
    } else if (chooses) {
        rc = offer(s, neighbour, count);
    } else {
        rc = gd_reserve_edges(gd_turn_drawn(s), count);
        const int64_t edge = l->begin + l->read;
        for (int64_t i = 0; rc == 0 && i < count; i++) rc = append(s, edge + i, neighbour[i]);
    }
    l->read += count;
    if (rc || l->read < l->degree) return rc;
    if (chooses && !whole && (rc = take_held(s))) return rc;
    end_target(s);
    return next_list(s);
}

/* ---- indices that are not in memory ---- */

/* Want the indices of the lists from `target` on. GD_WANTS, or -errno. */
static int want(gd_sampler *s) {
    gd_reading *const l = &s->lists;
    const gd_found *const f = &s->found[gd_turn_type(s)->target];
    if (!l->wanted && gd_grow((void **)&l->wanted, WANTED_MAX, sizeof *l->wanted)) return -ENOMEM;
    if (!l->until && gd_grow((void **)&l->until, WANTED_MAX, sizeof *l->until)) return -ENOMEM;
    l->first_target = l->target;
    l->wants = l->given = 0;
    int64_t p = l->target;
    for (; p < f->hop_last && p - l->target < WANTED_MAX && l->wants < WANTED_MAX; p++) {
        int64_t begin, end;
        const int rc = gd_in_edges(s, f->node[p], &begin, &end);
        if (rc) return rc;
        if (taken(s, end - begin) == 0) end = begin;
        if (p == l->target) begin += l->read;
        end = begin + gd_least(end - begin, WANTED_MAX - l->wants);
        for (int64_t edge = begin; edge < end; edge++) l->wanted[l->wants++] = edge;
        l->until[p - l->target] = (int32_t)l->wants;
    }
    assert(l->wants > 0);
    return GD_WANTS;
}

/* Go on: more lists are wanted, or the turn ends. */
static int want_more(gd_sampler *s) {
    const gd_found *const f = &s->found[gd_turn_type(s)->target];
    return s->lists.target < f->hop_last ? want(s) : place_all(s);
}

void gd_labor_wanted(const gd_sampler *s, gd_wanted *out) {
    const gd_reading *const l = &s->lists;
    const int64_t done = l->target - l->first_target;
    *out = (gd_wanted){.edge_type = s->turn, .first = l->given, .count = l->wants - l->given};
    out->edge = l->wanted + l->given;
    out->node = s->found[gd_turn_type(s)->target].node + l->target;
    out->until = l->until + done;
}

int gd_labor_given(gd_sampler *s, const uint8_t *given, int64_t count) {
    const gd_csc *const csc = gd_turn_type(s)->csc;
    gd_reading *const l = &s->lists;
    int64_t neighbour[GD_CHUNK];
    for (int64_t done = 0, some; done < count; done += some) {
        some = gd_least(gd_least(l->degree - l->read, count - done), GD_CHUNK);
        gd_read_given(csc, given + done * csc->index_bytes, some, neighbour);
        const int rc = read_some(s, neighbour, some);
        if (rc) return rc;
    }
    l->given += count;
    return l->given < l->wants ? GD_WANTS : want_more(s);
}

/* ---- the turn ---- */

int gd_labor_turn(gd_sampler *s) {
    const gd_csc *const csc = gd_turn_type(s)->csc;
    const gd_found *const f = &s->found[gd_turn_type(s)->target];
    gd_reading *const l = &s->lists;
    int64_t neighbour[GD_CHUNK];
    if (gd_reserve_colptr(gd_turn_drawn(s), f->hop_last)) return -ENOMEM;
    l->target = l->ahead = f->hop_first;
    l->unplaced_count = 0;
    l->shift = bucket_shift(s->job.shared);
    int rc = next_list(s);
    if (rc) return rc;
    if (!csc->indices) return want_more(s);
    while (l->target < f->hop_last) {
        const int64_t count = gd_least(l->degree - l->read, GD_CHUNK);
        gd_read_list(csc, l->begin + l->read, count, neighbour);
        rc = read_some(s, neighbour, count);
        if (rc) return rc;
    }
    return place_all(s);
}
