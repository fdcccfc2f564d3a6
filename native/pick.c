/* pick.c: rows of a mapped file, in any order, and the numbers of a batch as int64. */
#include "guard.h"
#include "internal.h"

enum { AHEAD = 16 };

typedef struct picking {
    const uint8_t *table;
    int64_t row_bytes, row_count;
    const int64_t *row;
    int64_t n;
    uint8_t *out;
    int64_t culprit;
} picking;

/* With a constant width the compiler makes a load and a store of the copy. */
static inline int copy_rows(picking *p, int64_t width) {
    for (int64_t i = 0; i < p->n; i++) {
        if ((uint64_t)p->row[i] >= (uint64_t)p->row_count) {
            p->culprit = p->row[i];
            return -ERANGE;
        }
        if (i + AHEAD < p->n)
            __builtin_prefetch((const void *)((uintptr_t)p->table +
                                              (uint64_t)p->row[i + AHEAD] * (uint64_t)width));
        if (width) /* rows of no bytes have no address */
            memcpy(p->out + i * width, p->table + p->row[i] * width, (size_t)width);
    }
    return 0;
}

static int pick(void *argument) {
    picking *const p = argument;
    switch (p->row_bytes) {
    case 1: return copy_rows(p, 1);
    case 2: return copy_rows(p, 2);
    case 4: return copy_rows(p, 4);
    case 8: return copy_rows(p, 8);
    default: return copy_rows(p, p->row_bytes);
    }
}

int gd_pick(const void *table, int64_t row_bytes, int64_t row_count, const int64_t *row, int64_t n,
            void *out, int64_t *culprit) {
    picking p = {table, row_bytes, row_count, row, n, out, 0};
    uintptr_t address = 0;
    const int rc = gd_guarded(pick, &p, &address);
    *culprit = rc == -EIO ? (int64_t)(address - (uintptr_t)table) : p.culprit;
    return rc;
}

static inline int64_t number_at(const void *from, int32_t bytes, int64_t i) {
    switch (bytes) {
    case 1: return ((const int8_t *)from)[i];
    case 2: return ((const int16_t *)from)[i];
    case 4: return ((const int32_t *)from)[i];
    default: return ((const int64_t *)from)[i];
    }
}

/* With a constant width the compiler makes a loop over vectors. */
static inline int widen(const void *from, int32_t bytes, int64_t n, int64_t least, int64_t most,
                        int64_t *out) {
    int outside = 0;
    for (int64_t i = 0; i < n; i++) {
        out[i] = number_at(from, bytes, i);
        outside |= out[i] < least || out[i] > most;
    }
    return outside ? -ERANGE : 0;
}

int gd_widen(const void *from, int32_t bytes, int64_t n, int64_t least, int64_t most,
             int64_t *out) {
    switch (bytes) {
    case 1: return widen(from, 1, n, least, most, out);
    case 2: return widen(from, 2, n, least, most, out);
    case 4: return widen(from, 4, n, least, most, out);
    default: return widen(from, 8, n, least, most, out);
    }
}

int gd_edge_index(const int32_t *row, int64_t n, const int32_t *colptr, int64_t targets,
                  int64_t *out) {
    int64_t at = 0;
    if (targets < 0 || colptr[0] != 0 || colptr[targets] != n) return -EINVAL;
    for (int64_t i = 0; i < n; i++) out[i] = row[i];
    for (int64_t p = 0; p < targets; p++) {
        if (colptr[p + 1] < at || colptr[p + 1] > n) return -EINVAL;
        while (at < colptr[p + 1]) out[n + at++] = p;
    }
    return 0;
}
