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

int gd_punch_hole(int fd, int64_t offset, int64_t length) {
    const int mode = FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE;
    return fallocate(fd, mode, offset, length) ? -errno : 0;
}
