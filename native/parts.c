/* parts.c: dividing the missing rows of a sweep into parts that are admitted one after the other.
 *
 * A counting sort by the place of a row in the file, with 4,096 equal stretches as keys. It need
 * not sort within a stretch, because each part is sorted when its reads are planned.
 */
#include "internal.h"

/* The first part is small because the disk may idle until its reads are requested. Small parts also
 * find room in the slots that other batches leave free, and are read while those batches are
 * gathered.
 */
enum { STRETCHES = 4096, FIRST_SHARE = 8 };

int32_t gd_parts(const int64_t *rows, const int32_t *alias, int64_t n, int64_t part_rows,
                 int32_t *order, gd_part *parts) {
    int64_t low = INT64_MAX, high = INT64_MIN, counts[STRETCHES + 1] = {0};
    int64_t distinct[STRETCHES] = {0};
    if (part_rows < 1 || n > INT32_MAX) return -EINVAL;
    for (int64_t i = 0; i < n; i++) {
        if (alias[i] >= 0) continue;
        if (rows[i] < low) low = rows[i];
        if (rows[i] > high) high = rows[i];
    }
    if (low > high) return 0; /* no row is missing */
    int shift = 0;
    while ((uint64_t)(high - low) >> shift >= STRETCHES) shift++;
    for (int64_t i = 0; i < n; i++) {
        if (alias[i] >= 0) continue;
        counts[((rows[i] - low) >> shift) + 1]++;
        distinct[(rows[i] - low) >> shift] += alias[i] == -1;
    }
    int32_t count = 0;
    int64_t start = 0, end = 0, slots = 0, enough = part_rows / FIRST_SHARE;
    for (int s = 0; s < STRETCHES; s++) {
        slots += distinct[s];
        end += counts[s + 1];
        counts[s + 1] = end; /* where the next stretch begins */
        if (end - start < enough || end == start) continue;
        parts[count++] = (gd_part){end, slots};
        start = end;
        slots = 0;
        enough = end < part_rows ? end : part_rows;
    }
    if (end > start) parts[count++] = (gd_part){end, slots};
    for (int64_t i = 0; i < n; i++)
        if (alias[i] < 0) order[counts[(rows[i] - low) >> shift]++] = (int32_t)i;
    return count;
}

void gd_part_take(const int64_t *rows, const int32_t *order, int64_t n, int64_t *part) {
    for (int64_t i = 0; i < n; i++) part[i] = rows[order[i]];
}

void gd_part_put(const int32_t *part, const int32_t *order, int64_t n, int32_t *alias) {
    for (int64_t i = 0; i < n; i++) alias[order[i]] = part[i];
}
