/* staging.c: which part of the ring's staging belongs to which read.
 *
 * Each read takes as many pages as it needs, the first free ones. So the pages in use lie close
 * together and stay in the processor's cache, whatever the lengths of the reads. If each read took
 * a block of the largest length, a few megabytes in flight would be spread over three times as
 * many. The search goes through all stretches in use: as many as reads in flight, a hundred or so.
 */
#include "staging.h"

int gd_staging_fits(const gd_staging *s, int64_t bytes) {
    int64_t end = s->bytes;
    for (int32_t i = s->count - 1; i >= 0; end = s->used[i--].begin)
        if (end - s->used[i].end >= bytes) return 1;
    return end >= bytes;
}

int64_t gd_staging_take(gd_staging *s, int64_t bytes) {
    const int64_t pages = (bytes + GD_PAGE - 1) & ~(int64_t)(GD_PAGE - 1);
    int64_t begin = 0;
    int32_t i = 0;
    while (i < s->count && s->used[i].begin - begin < pages) begin = s->used[i++].end;
    if (begin + pages > s->bytes) return -1;
    memmove(&s->used[i + 1], &s->used[i], (size_t)(s->count - i) * sizeof *s->used);
    s->used[i] = (gd_stretch){begin, begin + pages};
    s->count++;
    return begin;
}

void gd_staging_give(gd_staging *s, int64_t begin) {
    int32_t low = 0, high = s->count - 1;
    while (low < high) {
        const int32_t middle = (low + high) / 2;
        if (s->used[middle].begin < begin)
            low = middle + 1;
        else
            high = middle;
    }
    assert(low < s->count && s->used[low].begin == begin);
    s->count--;
    memmove(&s->used[low], &s->used[low + 1], (size_t)(s->count - low) * sizeof *s->used);
}
