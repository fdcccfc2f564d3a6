/* edges.h: going through the edges of a graph in the order of their CSC positions. */
#ifndef GNNDRIVE_EDGES_H
#define GNNDRIVE_EDGES_H
#include "internal.h"

static inline int64_t gd_number(const void *numbers, int32_t width, int64_t i) {
    return width == 4 ? ((const int32_t *)numbers)[i] : ((const int64_t *)numbers)[i];
}

static inline void gd_put_number(void *numbers, int32_t width, int64_t i, int64_t number) {
    if (width == 4)
        ((int32_t *)numbers)[i] = (int32_t)number;
    else
        ((int64_t *)numbers)[i] = number;
}

/* Where in sources[] the in-edges of edges->target end that are among these edges; moves on to the
 * target of edge i first. */
static inline int64_t gd_edges_of_target(gd_edges *edges, int64_t i) {
    const int64_t position = edges->first + i;
    while (gd_indptr(edges->csc, edges->target + 1) <= position) edges->target++;
    const int64_t end = gd_indptr(edges->csc, edges->target + 1) - edges->first;
    return end < edges->count ? end : edges->count;
}
#endif
