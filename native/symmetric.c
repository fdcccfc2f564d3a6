/* symmetric.c: the symmetric lists of a graph, by counting sort: the ends of all edges are counted;
 * then, for as many nodes at a time as fit in memory, each edge is appended to the lists of its two
 * ends. A bit for each node tells which neighbours a list has already.
 */
#include "edges.h"

enum { AHEAD = 16 };

static inline int count_ends(gd_edges *edges, uint32_t *count, int32_t width) {
    const uint64_t nodes = (uint64_t)edges->csc->nodes;
    for (int64_t i = 0; i < edges->count;) {
        const int64_t end = gd_edges_of_target(edges, i), target = edges->target;
        uint32_t others = 0;
        for (; i < end; i++) {
            if (i + AHEAD < edges->count) {
                const int64_t soon = gd_number(edges->sources, width, i + AHEAD);
                if ((uint64_t)soon < nodes) __builtin_prefetch(&count[soon], 1);
            }
            const int64_t source = gd_number(edges->sources, width, i);
            if ((uint64_t)source >= nodes) return -ERANGE;
            if (source == target) continue;
            if (++count[source] == UINT32_MAX || ++others == UINT32_MAX) return -EOVERFLOW;
        }
        if (count[target] >= UINT32_MAX - others) return -EOVERFLOW;
        count[target] += others;
    }
    return 0;
}

int gd_symmetric_count(gd_edges *edges, uint32_t *count) {
    return edges->csc->index_bytes == 4 ? count_ends(edges, count, 4) : count_ends(edges, count, 8);
}

int64_t gd_symmetric_fitting(const uint32_t *count, int64_t nodes, int64_t first, int64_t most) {
    assert(most <= UINT32_MAX);
    for (int64_t left = most; first < nodes; first++) {
        left -= 1 + (int64_t)count[first];
        if (left < 0) break;
    }
    return first;
}

int64_t gd_symmetric_places(uint32_t *count, int64_t first, int64_t last) {
    int64_t numbers = 0;
    for (int64_t v = first; v < last; v++) {
        const int64_t length = count[v];
        count[v] = (uint32_t)(numbers + 1);
        numbers += 1 + length;
    }
    assert(numbers <= UINT32_MAX);
    return numbers;
}

static inline int fill(gd_edges *edges, int64_t first, int64_t last, uint32_t *place, void *lists,
                       int64_t numbers, int32_t width) {
    const uint64_t nodes = (uint64_t)edges->csc->nodes, within = (uint64_t)(last - first);
    for (int64_t i = 0; i < edges->count;) {
        const int64_t end = gd_edges_of_target(edges, i), target = edges->target;
        const int target_within = (uint64_t)(target - first) < within;
        for (; i < end; i++) {
            if (i + 2 * AHEAD < edges->count) {
                const int64_t later = gd_number(edges->sources, width, i + 2 * AHEAD);
                if ((uint64_t)(later - first) < within) __builtin_prefetch(&place[later], 1);
                const int64_t soon = gd_number(edges->sources, width, i + AHEAD);
                if ((uint64_t)(soon - first) < within)
                    __builtin_prefetch((char *)lists + (int64_t)place[soon] * width, 1);
            }
            const int64_t source = gd_number(edges->sources, width, i);
            if ((uint64_t)source >= nodes) return -ERANGE;
            if (source == target) continue;
            if (target_within) {
                if (place[target] >= numbers) return -ERANGE;
                gd_put_number(lists, width, place[target]++, source);
            }
            if ((uint64_t)(source - first) < within) {
                if (place[source] >= numbers) return -ERANGE;
                gd_put_number(lists, width, place[source]++, target);
            }
        }
    }
    return 0;
}

int gd_symmetric_fill(gd_edges *edges, int64_t first_node, int64_t last_node, uint32_t *place,
                      void *lists, int64_t numbers) {
    return edges->csc->index_bytes == 4
               ? fill(edges, first_node, last_node, place, lists, numbers, 4)
               : fill(edges, first_node, last_node, place, lists, numbers, 8);
}

static inline int64_t close_gaps(const uint32_t *place, int64_t first, int64_t last, int64_t nodes,
                                 uint8_t *seen, void *lists, int64_t numbers, int32_t width) {
    int64_t from = 0, to = 0;
    for (int64_t v = first; v < last; v++) {
        const int64_t end = place[v], length_at = to++;
        if (end <= from || end > numbers) return -ERANGE;
        for (from++; from < end; from++) {
            const int64_t u = gd_number(lists, width, from);
            if ((uint64_t)u >= (uint64_t)nodes) return -ERANGE;
            if (seen[u >> 3] >> (u & 7) & 1) continue;
            seen[u >> 3] |= (uint8_t)(1 << (u & 7));
            gd_put_number(lists, width, to++, u);
        }
        gd_put_number(lists, width, length_at, to - length_at - 1);
        for (int64_t i = length_at + 1; i < to; i++) seen[gd_number(lists, width, i) >> 3] = 0;
    }
    return to;
}

int64_t gd_symmetric_close(const uint32_t *place, int64_t first_node, int64_t last_node,
                           int64_t nodes, int32_t index_bytes, uint8_t *seen, void *lists,
                           int64_t numbers) {
    return index_bytes == 4
               ? close_gaps(place, first_node, last_node, nodes, seen, lists, numbers, 4)
               : close_gaps(place, first_node, last_node, nodes, seen, lists, numbers, 8);
}
