/* inside.c: which edges stay within a partition; sampling inside of partitions loses the others. */
#include "edges.h"

enum { AHEAD = 16 };

static inline int count_inside(gd_edges *edges, const int32_t *part, const uint8_t *level,
                               int64_t *found, int32_t width) {
    const uint64_t nodes = (uint64_t)edges->csc->nodes;
    for (int64_t i = 0; i < edges->count;) {
        const int64_t end = gd_edges_of_target(edges, i);
        const int32_t here = part[edges->target];
        for (; i < end; i++) {
            if (i + AHEAD < edges->count) {
                const int64_t soon = gd_number(edges->sources, width, i + AHEAD);
                if ((uint64_t)soon < nodes) {
                    __builtin_prefetch(&part[soon]);
                    __builtin_prefetch(&level[soon]);
                }
            }
            const int64_t source = gd_number(edges->sources, width, i);
            if ((uint64_t)source >= nodes) return -ERANGE;
            found[part[source] == here ? 0 : 1 + level[source]]++;
        }
    }
    return 0;
}

int gd_edges_inside(gd_edges *edges, const int32_t *part, const uint8_t *level, int64_t *found) {
    return edges->csc->index_bytes == 4 ? count_inside(edges, part, level, found, 4)
                                        : count_inside(edges, part, level, found, 8);
}
