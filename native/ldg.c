/* ldg.c: linear deterministic greedy partitioning (LDG): each node in turn goes to the partition in
 * which it has the most neighbours, weighed by the room that the partition has left.
 *
 * A node takes time proportional to its list: only partitions of its neighbours are counted and
 * compared. Where none of these has room, the emptiest partition takes the node. A tournament over
 * the sizes, of which each inner place has the smaller of two, tells which one that is; a size that
 * changes is compared again on the way from its leaf to the root. Scores are whole numbers,
 * count * (cap - size), so every compiler finds the same partition.
 */
#include "edges.h"

enum { AHEAD = 24 };

struct gd_ldg {
    int32_t *part;
    int64_t nodes, cap, moved;
    int64_t node;  /* the next one to assign */
    int64_t left;  /* numbers of its list that are still to come; -1: its length, too */
    int64_t *size; /* of each partition, and INT64_MAX for the leaves behind them */
    int32_t
        *winner;    /* winner[1]: the emptiest partition; winner[i]: the emptier of 2i and 2i + 1 */
    int32_t *count; /* of neighbours by partition; all 0 between two nodes */
    int32_t *met;   /* the partitions whose count is not 0 */
    int32_t parts, leaves, met_count;
};

static inline int32_t emptier(const gd_ldg *l, int32_t a, int32_t b) {
    return l->size[a] <= l->size[b] ? a : b; /* a < b */
}

static inline int32_t winner_of(const gd_ldg *l, int32_t i) {
    return i < l->leaves ? l->winner[i] : i - l->leaves;
}

/* The size of p has changed. */
static void compare_again(gd_ldg *l, int32_t p) {
    for (int32_t i = (l->leaves + p) / 2; i >= 1; i /= 2) {
        const int32_t before = l->winner[i];
        l->winner[i] = emptier(l, winner_of(l, 2 * i), winner_of(l, 2 * i + 1));
        if (before != p && l->winner[i] != p) break;
    }
}

void gd_ldg_free(gd_ldg *l) {
    if (!l) return;
    free(l->size);
    free(l->winner);
    free(l->count);
    free(l->met);
    free(l);
}

static gd_ldg *refuse(gd_ldg *l, int error, int *out) {
    gd_ldg_free(l);
    *out = error;
    return NULL;
}

gd_ldg *gd_ldg_new(int32_t *part, int64_t nodes, int32_t parts, int64_t cap, int *error) {
    if (parts < 1 || parts > 1 << 30 || nodes < 0 || cap < 0 || cap > INT32_MAX)
        return refuse(NULL, -EINVAL, error);
    if (parts * cap < nodes) return refuse(NULL, -EINVAL, error);
    gd_ldg *l = calloc(1, sizeof *l);
    if (!l) return refuse(NULL, -ENOMEM, error);
    l->part = part, l->nodes = nodes, l->cap = cap, l->parts = parts, l->left = -1;
    for (l->leaves = 1; l->leaves < parts; l->leaves *= 2);
    l->size = malloc((size_t)l->leaves * sizeof *l->size);
    l->winner = malloc((size_t)l->leaves * sizeof *l->winner);
    l->count = calloc((size_t)parts, sizeof *l->count);
    l->met = malloc((size_t)parts * sizeof *l->met);
    if (!l->size || !l->winner || !l->count || !l->met) return refuse(l, -ENOMEM, error);
    for (int32_t p = 0; p < l->leaves; p++) l->size[p] = p < parts ? 0 : INT64_MAX;
    for (int64_t v = 0; v < nodes; v++) {
        if (part[v] < -1 || part[v] >= parts) return refuse(l, -ERANGE, error);
        if (part[v] >= 0) l->size[part[v]]++;
    }
    l->winner[0] = 0;
    for (int32_t i = l->leaves - 1; i >= 1; i--)
        l->winner[i] = emptier(l, winner_of(l, 2 * i), winner_of(l, 2 * i + 1));
    return l;
}

/* The partition of a neighbour that suits best, or -1: none has room. Counts are 0 afterwards. */
static int32_t best_met(gd_ldg *l) {
    int64_t most = 0;
    int32_t best = -1;
    for (int32_t i = 0; i < l->met_count; i++) {
        const int32_t p = l->met[i];
        const int64_t score = l->count[p] * (l->cap - l->size[p]);
        l->count[p] = 0;
        if (score < most || score <= 0) continue;
        const int equal = score == most;
        if (equal && l->size[p] > l->size[best]) continue;
        if (equal && l->size[p] == l->size[best] && p > best) continue;
        most = score, best = p;
    }
    l->met_count = 0;
    return best;
}

/* The list of l->node is complete. */
static void assign(gd_ldg *l) {
    const int32_t before = l->part[l->node];
    if (before >= 0) l->size[before]--;
    int32_t p = best_met(l);
    if (p < 0) {
        if (before >= 0) compare_again(l, before);
        p = l->leaves > 1 ? l->winner[1] : 0;
        assert(l->size[p] < l->cap);
    } else if (p == before) {
        l->size[p]++; /* the tournament has not seen it leave */
        l->node++;
        return;
    } else if (before >= 0) {
        compare_again(l, before);
    }
    l->size[p]++;
    compare_again(l, p);
    l->moved += p != before;
    l->part[l->node++] = p;
}

static inline int64_t feed(gd_ldg *l, const void *numbers, int64_t count, int32_t width) {
    const uint64_t nodes = (uint64_t)l->nodes;
    int32_t *const part = l->part;
    for (int64_t i = 0; i < count;) {
        if (l->left < 0) {
            l->left = gd_number(numbers, width, i++);
            if ((uint64_t)l->left >= nodes || l->node >= l->nodes) return -ERANGE;
        }
        const int64_t end = l->left < count - i ? i + l->left : count;
        l->left -= end - i;
        for (; i < end; i++) {
            if (i + AHEAD < count) {
                const int64_t soon = gd_number(numbers, width, i + AHEAD);
                if ((uint64_t)soon < nodes) __builtin_prefetch(&part[soon]);
            }
            const int64_t u = gd_number(numbers, width, i);
            if ((uint64_t)u >= nodes) return -ERANGE;
            const int32_t p = part[u];
            if (p >= 0 && !l->count[p]++) l->met[l->met_count++] = p;
        }
        if (l->left) break;
        assign(l);
        l->left = -1;
    }
    return l->node;
}

int64_t gd_ldg_feed(gd_ldg *l, const void *numbers, int64_t count, int32_t index_bytes) {
    return index_bytes == 4 ? feed(l, numbers, count, 4) : feed(l, numbers, count, 8);
}

int64_t gd_ldg_moved(const gd_ldg *l) { return l->moved; }
