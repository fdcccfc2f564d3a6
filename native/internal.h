/* internal.h: what several C files share and Python does not see. */
#ifndef GNNDRIVE_INTERNAL_H
#define GNNDRIVE_INTERNAL_H
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include "gnndrive.h"

/* calloc for a table with random accesses. A large table uses huge pages, because each access would
 * miss the TLB as well as the cache. Inline: bench/standby.py compiles standby.c alone. */
static inline void *gd_table(size_t count, size_t width) {
    const size_t page = 4096, huge = 2 << 20;
    char *table = calloc(count, width);
    if (table && count * width >= 2 * huge) {
        size_t ahead = -(uintptr_t)table & (page - 1);
        madvise(table + ahead, (count * width - ahead) & ~(page - 1), MADV_HUGEPAGE);
    }
    return table;
}

/* What a constructor without an `error` argument returns when it fails. */
static inline void *gd_no_object(int error) {
    errno = error;
    return NULL;
}

/* Where the in-edges of node `v` start. */
static inline int64_t gd_indptr(const gd_csc *csc, int64_t v) {
    return csc->indptr_bytes == 4 ? (int64_t)((const uint32_t *)csc->indptr)[v]
                                  : ((const int64_t *)csc->indptr)[v];
}
#endif
