/* pick.c: rows of a mapped file, in any order. */
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
