/* trace.c: when each row of a superbatch is needed next, and room that replayed samples give back.
 *
 * The samples of a superbatch are known before the first of them is extracted (Ginex, section 4).
 * gd_trace_codes is called for them from the last to the first, so that a single pass gives each
 * row of each batch its next use, and leaves the first use of every row.
 */
#define _GNU_SOURCE /* fallocate */
#include <fcntl.h>
#include "internal.h"

enum { AHEAD = 16 };

int gd_trace_codes(uint16_t *last, int64_t rows, const int64_t *ids, int64_t n, int32_t code,
                   uint16_t *codes, int64_t *near) {
    assert(0 <= code && code < GD_NO_CODE);
    for (int64_t i = 0; i < n; i++)
        if ((uint64_t)ids[i] >= (uint64_t)rows) return -ERANGE;
    /* First all are read, because an id that comes twice must not find this batch itself. */
    for (int64_t i = 0; i < n; i++) {
        if (i + AHEAD < n) __builtin_prefetch(&last[ids[i + AHEAD]], 1);
        codes[i] = last[ids[i]];
    }
    memset(near, 0, GD_NEAR * sizeof *near);
    for (int64_t i = 0; i < n; i++) {
        if (i + AHEAD < n) __builtin_prefetch(&last[ids[i + AHEAD]], 1);
        const int32_t next = last[ids[i]];
        if (next == code) continue;
        near[0]++;
        const int32_t distance = (next - code + GD_NO_CODE) % GD_NO_CODE;
        if (next != GD_NO_CODE && distance < GD_NEAR) near[distance]++;
        last[ids[i]] = (uint16_t)code;
    }
    return 0;
}

int64_t gd_trace_patch(uint16_t *codes, const int64_t *ids, int64_t n, const uint16_t *later) {
    int64_t patched = 0;
    for (int64_t i = 0; i < n; i++) {
        if (codes[i] != GD_NO_CODE) continue;
        codes[i] = later[ids[i]];
        patched++;
    }
    return patched;
}

void gd_first_exchange(uint16_t *first, int64_t rows, int32_t ranks, int32_t rank,
                       const int64_t *ids, int64_t n, uint16_t *codes, int back) {
    for (int64_t k = 0; k < n; k++) { /* backwards undoes it, also for an id that comes twice */
        const int64_t i = back ? n - 1 - k : k, ahead = back ? i - AHEAD : i + AHEAD;
        if (0 <= ahead && ahead < n && (uint64_t)ids[ahead] < (uint64_t)rows)
            __builtin_prefetch(&first[ids[ahead] * ranks + rank], 1);
        if ((uint64_t)ids[i] >= (uint64_t)rows) continue;
        uint16_t *at = &first[ids[i] * ranks + rank];
        const uint16_t before = *at;
        *at = codes[i];
        codes[i] = before;
    }
}

void gd_first_least(const uint16_t *first, int64_t rows, int32_t ranks, const int64_t *ids,
                    int64_t n, int32_t now, uint16_t *codes) {
    for (int64_t i = 0; i < n; i++) {
        if (ids && i + AHEAD < n && (uint64_t)ids[i + AHEAD] < (uint64_t)rows)
            __builtin_prefetch(&first[ids[i + AHEAD] * ranks]);
        const int64_t row = ids ? ids[i] : i;
        int32_t least = GD_NO_CODE;
        for (int32_t r = 0; (uint64_t)row < (uint64_t)rows && r < ranks; r++) {
            const int32_t code = first[row * ranks + r];
            const int32_t distance = (code - now + GD_NO_CODE) % GD_NO_CODE;
            if (code != GD_NO_CODE && distance < least) least = distance;
        }
        codes[i] = (uint16_t)(least == GD_NO_CODE ? GD_NO_CODE : (now + least) % GD_NO_CODE);
    }
}

int gd_punch_hole(int fd, int64_t offset, int64_t length) {
    const int mode = FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE;
    return fallocate(fd, mode, offset, length) ? -errno : 0;
}
