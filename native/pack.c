/* pack.c: rows for packed files: gathered from a part of a table, with a checksum of their bytes.
 *
 * The checksum of an array is the sum, modulo 2^64, of one number for each row, which depends on
 * the row's position and on its bytes. So the rows may be summed in any order and in any number of
 * steps. It finds damage and mistakes; rows can be forged to have the same sum.
 *
 *   content(row) = sum over its words w[j] of w[j] + low32(w[j] ^ k[j]) * high32(w[j] ^ k[j])
 *   number(position, row) = mix(content(row) ^ mix(GOLDEN * position + bytes of a row))
 *
 * Words are 8 bytes, little-endian, the last one padded with zeros; k[j] = GOLDEN * (2 j + 1).
 */
#define _GNU_SOURCE
#include <unistd.h>
#include "internal.h"

enum { AHEAD = 16, PREFETCH_BYTES = 512 };
static const uint64_t GOLDEN = 0x9E3779B97F4A7C15;

static inline uint64_t mix(uint64_t x) {
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9;
    x = (x ^ x >> 27) * 0x94D049BB133111EB;
    return x ^ x >> 31;
}

static inline uint64_t word_sum(uint64_t word, uint64_t key) {
    const uint64_t x = word ^ key;
    return word + (x & UINT32_MAX) * (x >> 32);
}

static inline uint64_t number(const uint8_t *row, int64_t width, int64_t position) {
    uint64_t content = 0, key = GOLDEN, word;
    int64_t at = 0;
    for (; at + 8 <= width; at += 8, key += 2 * GOLDEN) {
        memcpy(&word, row + at, 8);
        content += word_sum(word, key);
    }
    if (at < width) {
        word = 0;
        memcpy(&word, row + at, (size_t)(width - at));
        content += word_sum(word, key);
    }
    return mix(content ^ mix(GOLDEN * (uint64_t)position + (uint64_t)width));
}

/* `width` is p->row_bytes, as a constant where copies of that width are worth it. */
static inline int gather(const gd_packing *p, int64_t n, uint8_t *out, int64_t width,
                         uint64_t *sum) {
    const int32_t *narrow = p->ids;
    const int64_t *wide = p->ids;
    uint64_t total = 0;
    for (int64_t i = 0; i < n; i++) {
        const int64_t at = (p->wide ? wide[i] : narrow[i]) - p->first;
        if ((uint64_t)at >= (uint64_t)p->count) return -ERANGE;
        if (i + AHEAD < n) {
            const int64_t soon = (p->wide ? wide[i + AHEAD] : narrow[i + AHEAD]) - p->first;
            if ((uint64_t)soon < (uint64_t)p->count)
                for (int64_t b = 0; b < width && b < PREFETCH_BYTES; b += 64)
                    __builtin_prefetch(p->rows + soon * width + b);
        }
        const uint8_t *const row = p->rows + at * width;
        if (out) memcpy(out + i * width, row, (size_t)width);
        total += number(row, width, p->positions ? p->positions[i] : p->position + i);
    }
    *sum += total;
    return 0;
}

int gd_pack_rows(const gd_packing *p, int64_t n, uint8_t *out, uint64_t *sum) {
    switch (p->row_bytes) {
    case 1: return gather(p, n, out, 1, sum);
    case 2: return gather(p, n, out, 2, sum);
    case 4: return gather(p, n, out, 4, sum);
    case 8: return gather(p, n, out, 8, sum);
    default: return gather(p, n, out, p->row_bytes, sum);
    }
}

uint64_t gd_pack_sum(const uint8_t *rows, int64_t n, int64_t row_bytes, int64_t position) {
    uint64_t total = 0;
    for (int64_t i = 0; i < n; i++) total += number(rows + i * row_bytes, row_bytes, position + i);
    return total;
}

int gd_sync_file_system(int fd) { return syncfs(fd) ? -errno : 0; }
