/* draw.c: drawing many in-edges of a node, with a hash set of those that are drawn already. */
#include "draw.h"
#include "grow.h"

enum { SET_MIN = 128 };

/* 1 if `number` was new to the set. The search ends because at most half of the entries are taken.
 */
static int set_add(gd_set *set, uint64_t mask, int64_t number) {
    uint64_t at = ((uint64_t)number * GD_GOLDEN >> 32) & mask;
    while (set->entry[at] != 0) {
        if (set->entry[at] == number + 1) return 0;
        at = (at + 1) & mask;
    }
    set->entry[at] = number + 1;
    return 1;
}

int gd_draw_many(gd_set *set, uint64_t stream, int64_t begin, int64_t degree, int64_t k,
                 int64_t *out) {
    const int64_t capacity = gd_doubled(SET_MIN, 2 * k);
    if (capacity > set->capacity) {
        if (gd_grow((void **)&set->entry, capacity, sizeof *set->entry)) return -ENOMEM;
        set->capacity = capacity;
    }
    memset(set->entry, 0, (size_t)capacity * sizeof *set->entry);
    for (int64_t i = 0; i < k; i++) {
        const int64_t top = degree - k + i; /* no earlier draw can have drawn it */
        int64_t pick = gd_below(&stream, (uint64_t)top + 1);
        if (!set_add(set, (uint64_t)capacity - 1, pick)) {
            set_add(set, (uint64_t)capacity - 1, top);
            pick = top;
        }
        out[i] = begin + pick;
    }
    return 0;
}
