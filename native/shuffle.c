/* shuffle.c: the order of an epoch's seeds, computed on demand: Fisher and Yates' shuffle,
 * forwards. The first thousand numbers take a thousand steps. To compute the order of ten million
 * at once would take tenths of a second before the first batch.
 *
 * Each place stores its number xor its own place, the number that it begins with. So zeroed memory
 * is the initial state, and a page takes memory when the shuffle first touches it.
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
        /* no later step reads `place`, so it is not updated */
        if (width == 4)
            ((int32_t *)moved)[other] = (int32_t)(here ^ other);
        else
            ((int64_t *)moved)[other] = here ^ other;
    }
}
