/* partition.c: nodes renumbered by their partitions, and their lists of in-neighbours as codes. */
#include "internal.h"

enum { AHEAD = 16, SOON = 8 };

static inline int64_t number(gd_numbers n, int64_t i) {
    return n.wide ? ((const int64_t *)n.at)[i] : ((const int32_t *)n.at)[i];
}

static inline int64_t pointer(gd_numbers n, int64_t i) {
    return n.wide ? ((const int64_t *)n.at)[i] : (int64_t)((const uint32_t *)n.at)[i];
}

static inline int outside(int64_t value, int64_t end) { return (uint64_t)value >= (uint64_t)end; }

int gd_partition_count(const int32_t *part, int64_t n, int64_t parts, gd_numbers pointers,
                       int64_t *nodes, int64_t *edges) {
    for (int64_t i = 0; i < n; i++) {
        if (outside(part[i], parts)) return -ERANGE;
        nodes[part[i]]++;
        edges[part[i]] += pointer(pointers, i + 1) - pointer(pointers, i);
    }
    return 0;
}

int gd_partition_order(const int32_t *part, int64_t n, int64_t first, int64_t parts,
                       const int64_t *end, int64_t *cursor, void *order, int32_t wide) {
    for (int64_t i = 0; i < n; i++) {
        if (outside(part[i], parts) || cursor[part[i]] >= end[part[i]]) return -ERANGE;
        const int64_t at = cursor[part[i]]++;
        if (wide)
            ((int64_t *)order)[at] = first + i;
        else
            ((int32_t *)order)[at] = (int32_t)(first + i);
    }
    return 0;
}

int64_t gd_static_starts(gd_numbers order, int64_t n, gd_numbers pointers, gd_numbers place,
                         int64_t nodes, int64_t statics, int64_t at, int64_t *starts) {
    for (int64_t i = 0; i < n; i++) {
        const int64_t node = number(order, i);
        if (outside(node, nodes)) return -ERANGE;
        const int64_t code = number(place, node);
        if (outside(code, nodes + statics)) return -ERANGE;
        if (code < statics) starts[code] = at;
        at += pointer(pointers, node + 1) - pointer(pointers, node);
    }
    return at;
}

/* The entries of a target's list that are in the part: from *low to *high - 1. */
static inline int stretch(const gd_lists *l, int64_t target, int64_t *low, int64_t *high) {
    const int64_t node = number(l->order, target);
    if (outside(node, l->nodes)) return -ERANGE;
    const int64_t last = l->first + l->count;
    *low = pointer(l->pointers, node);
    *high = pointer(l->pointers, node + 1);
    if (*low < l->first) *low = l->first;
    if (*high > last) *high = last;
    if (*high < *low) *high = *low;
    return 0;
}

int64_t gd_lists_total(const gd_lists *l) {
    int64_t total = 0, low, high;
    for (int64_t i = 0; i < l->targets; i++) {
        if (stretch(l, i, &low, &high)) return -ERANGE;
        total += high - low;
    }
    return total;
}

int64_t gd_lists_write(gd_lists *l, int64_t room, void *out) {
    int64_t written = 0, low, high;
    while (l->next < l->targets) {
        if (stretch(l, l->next, &low, &high)) return -ERANGE;
        low += l->done;
        if (l->next + SOON < l->targets) {
            const int64_t soon = number(l->order, l->next + SOON);
            if (!outside(soon, l->nodes))
                __builtin_prefetch((const char *)l->pointers.at +
                                   soon * (l->pointers.wide ? 8 : 4));
        }
        const int64_t end = high - low > room - written ? low + room - written : high;
        for (int64_t e = low - l->first; e < end - l->first; e++) {
            if (e + AHEAD < end - l->first) {
                const int64_t soon = number(l->indices, e + AHEAD);
                if (!outside(soon, l->nodes))
                    __builtin_prefetch((const char *)l->place.at + soon * (l->place.wide ? 8 : 4));
            }
            const int64_t node = number(l->indices, e);
            if (outside(node, l->nodes)) return -ERANGE;
            const int64_t code = number(l->place, node);
            if (outside(code, l->codes)) return -ERANGE;
            if (l->place.wide)
                ((int64_t *)out)[written++] = code;
            else
                ((int32_t *)out)[written++] = (int32_t)code;
        }
        if (end < high) {
            l->done += end - low;
            return written;
        }
        l->next++;
        l->done = 0;
    }
    return written;
}

void gd_copy_stretches(const uint8_t *rows, int64_t first, int64_t count, int64_t width,
                       const int64_t *from, const int64_t *length, const int64_t *to, int64_t n,
                       uint8_t *out) {
    for (int64_t i = 0; i < n; i++) {
        int64_t low = from[i], high = from[i] + length[i];
        if (low < first) low = first;
        if (high > first + count) high = first + count;
        if (low < high)
            memcpy(out + (to[i] + low - from[i]) * width, rows + (low - first) * width,
                   (size_t)((high - low) * width));
    }
}

int gd_count_inside(gd_numbers codes, int64_t n, const int64_t *home, int64_t statics,
                    int64_t nodes, int64_t hot, int64_t low, int64_t high, int64_t *found) {
    int64_t inside = 0, hottest = 0;
    for (int64_t i = 0; i < n; i++) {
        const int64_t code = number(codes, i);
        if (outside(code, nodes + statics)) return -ERANGE;
        const int64_t id = code < statics ? home[code] : code - statics;
        if (id >= low && id < high)
            inside++;
        else
            hottest += code < hot;
    }
    found[0] += inside;
    found[1] += hottest;
    return 0;
}
