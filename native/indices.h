/* indices.h: reading the adjacency; see indices.c. Inline, because some callers read one index at a
 * time. */
#ifndef GNNDRIVE_INDICES_H
#define GNNDRIVE_INDICES_H
#include "internal.h"

/* The byte where the packed index at `position` starts, and *shift, its first bit there. */
static inline int64_t gd_packed_at(int32_t bits, int64_t position, int32_t *shift) {
    const int64_t bit = position * bits;
    *shift = (int32_t)(bit & 7);
    return bit >> 3;
}

static inline void gd_read_packed(const gd_csc *csc, const int64_t *edge, int64_t count,
                                  int64_t *out) {
    const uint64_t mask = (UINT64_C(1) << csc->packed_bits) - 1;
    for (int64_t i = 0; i < count; i++) {
        uint64_t word;
        int32_t shift;
        const int64_t byte = gd_packed_at(csc->packed_bits, edge[i], &shift);
        memcpy(&word, (const uint8_t *)csc->indices + byte, sizeof word);
        out[i] = (int64_t)(word >> shift & mask);
    }
}

/* out[i] = the index at position edge[i], for i < count. */
static inline void gd_read_indices(const gd_csc *csc, const int64_t *edge, int64_t count,
                                   int64_t *out) {
    if (csc->packed_bits) {
        gd_read_packed(csc, edge, count, out);
    } else if (csc->index_bytes == 4) {
        for (int64_t i = 0; i < count; i++) out[i] = ((const int32_t *)csc->indices)[edge[i]];
    } else {
        for (int64_t i = 0; i < count; i++) out[i] = ((const int64_t *)csc->indices)[edge[i]];
    }
}

/* out[i] = the index at position first + i, for i < count. */
static inline void gd_read_list(const gd_csc *csc, int64_t first, int64_t count, int64_t *out) {
    if (csc->packed_bits) {
        const uint64_t mask = (UINT64_C(1) << csc->packed_bits) - 1;
        int64_t bit = first * csc->packed_bits;
        for (int64_t i = 0; i < count; i++, bit += csc->packed_bits) {
            uint64_t word;
            memcpy(&word, (const uint8_t *)csc->indices + (bit >> 3), sizeof word);
            out[i] = (int64_t)(word >> (bit & 7) & mask);
        }
    } else if (csc->index_bytes == 4) {
        for (int64_t i = 0; i < count; i++) out[i] = ((const int32_t *)csc->indices)[first + i];
    } else {
        for (int64_t i = 0; i < count; i++) out[i] = ((const int64_t *)csc->indices)[first + i];
    }
}

/* Prefetch the indices at the positions edge[count]. */
void gd_prefetch_indices(const gd_csc *csc, const int64_t *edge, int64_t count);
/* out[i] = given[i], which are as wide as the graph's, for i < count. */
void gd_read_given(const gd_csc *csc, const void *given, int64_t count, int64_t *out);
#endif
