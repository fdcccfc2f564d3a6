/* indices.c: reading and packing the adjacency. Indices are int32 or int64, from a mapped file or
 * given by the caller, or packed with as many bits as the largest node needs.
 *
 * Packed indices of 10 million nodes take 24 bits each, of 100 million 27. To read one is still a
 * single load: the eight bytes from the byte where it starts, shifted.
 */
#include "indices.h"

void gd_prefetch_indices(const gd_csc *csc, const int64_t *edge, int64_t count) {
    const uint8_t *const indices = csc->indices;
    const int64_t bits = csc->packed_bits ? csc->packed_bits : 8 * csc->index_bytes;
    for (int64_t i = 0; i < count; i++) __builtin_prefetch(indices + (edge[i] * bits >> 3));
}

void gd_read_given(const gd_csc *csc, const void *given, int64_t count, int64_t *out) {
    if (csc->index_bytes == 4)
        for (int64_t i = 0; i < count; i++) out[i] = ((const int32_t *)given)[i];
    else
        for (int64_t i = 0; i < count; i++) out[i] = ((const int64_t *)given)[i];
}

static inline int64_t index_at(const void *indices, int32_t index_bytes, int64_t i) {
    return index_bytes == 4 ? ((const int32_t *)indices)[i] : ((const int64_t *)indices)[i];
}

/* Pack the last indices of a call; indices that are packed behind them stay. */
static int pack_among(const void *indices, int32_t index_bytes, int64_t first, int64_t count,
                      int64_t nodes, int32_t bits, uint8_t *packed) {
    for (int64_t i = 0; i < count; i++) {
        const int64_t node = index_at(indices, index_bytes, i);
        if ((uint64_t)node >= (uint64_t)nodes) return -ERANGE;
        uint64_t word;
        int32_t shift;
        uint8_t *const at = packed + gd_packed_at(bits, first + i, &shift);
        memcpy(&word, at, sizeof word);
        word |= (uint64_t)node << shift;
        memcpy(at, &word, sizeof word);
    }
    return 0;
}

/* Pack indices that are followed by at least 64 more of this call. It writes eight bytes an index
 * and does not read, because a read would wait for the write of the index before. */
static inline int pack_ahead(const void *indices, int32_t index_bytes, int64_t first, int64_t count,
                             int64_t nodes, int32_t bits, uint8_t *packed) {
    int32_t filled;
    uint8_t *at = packed + gd_packed_at(bits, first, &filled);
    uint64_t word = *at & ((UINT64_C(1) << filled) - 1);
    for (int64_t i = 0; i < count; i++) {
        const int64_t node = index_at(indices, index_bytes, i);
        if ((uint64_t)node >= (uint64_t)nodes) return -ERANGE;
        word |= (uint64_t)node << filled;
        memcpy(at, &word, sizeof word);
        filled += bits;
        at += filled >> 3;
        word >>= filled & ~7;
        filled &= 7;
    }
    return 0;
}

int gd_pack_indices(const void *indices, int32_t index_bytes, int64_t first, int64_t count,
                    int64_t nodes, int32_t bits, void *packed) {
    if (bits < 1 || bits > GD_PACKED_BITS_MAX || nodes > INT64_C(1) << bits) return -EINVAL;
    const int64_t ahead = count > 64 ? count - 64 : 0;
    const int code = index_bytes == 4 ? pack_ahead(indices, 4, first, ahead, nodes, bits, packed)
                                      : pack_ahead(indices, 8, first, ahead, nodes, bits, packed);
    if (code) return code;
    return pack_among((const uint8_t *)indices + ahead * index_bytes, index_bytes, first + ahead,
                      count - ahead, nodes, bits, packed);
}
