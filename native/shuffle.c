/* shuffle.c: an epoch's order of seeds, made as it is wanted: Fisher and Yates' shuffle, forwards.
 * Its first thousand numbers take a thousand steps, where an order that is made at once takes
 * tenths of a second for ten million, before there is a batch.
 *
 * A place keeps its number as the difference (xor) to what is there to begin with, the place's own:
 * so zeroed pages are the beginning, and are touched when they are come to.
 */
#include "draw.h"

static inline int64_t moved_at(const void *moved, int32_t width, int64_t place) {
    return width == 4 ? ((const int32_t *)moved)[place] : ((const int64_t *)moved)[place];
}

void gd_shuffle(void *moved, int32_t width, int64_t count, int64_t key, int64_t first, int64_t n,
                int64_t *out) {
    for (int64_t place = first; place < first + n; place++) {
        uint64_t stream = gd_stream((uint64_t)key, place);
        const int64_t other = place + gd_below(&stream, (uint64_t)(count - place));
        const int64_t here = moved_at(moved, width, place) ^ place;
        out[place - first] = moved_at(moved, width, other) ^ other;
        /* nobody looks at `place` again */
        if (width == 4)
            ((int32_t *)moved)[other] = (int32_t)(here ^ other);
        else
            ((int64_t *)moved)[other] = here ^ other;
    }
}
