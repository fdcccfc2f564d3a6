/* owners.c: which of a batch's rows each rank of an exchange owns, and its numbers for them. */
#include "gnndrive.h"

/* stretch / world rounded down. `inverse` is 2^64 / world rounded up, whose product with fewer than
 * 2^32 stretches has the exact quotient above its 64 bits; a division takes ten times as long. 0:
 * `world` is 1. */
static int64_t round_of(int64_t stretch, int64_t world, uint64_t inverse) {
    if (inverse && (uint64_t)stretch >> 32 == 0)
        return (int64_t)((unsigned __int128)inverse * (uint64_t)stretch >> 64);
    return stretch / world - (stretch % world < 0);
}

void gd_split_rows(const int64_t *rows, int64_t n, int shift, int64_t world, int64_t *ends,
                   int32_t *places, int64_t *numbers) {
    const uint64_t inverse = UINT64_MAX / (uint64_t)world + 1;
    const int64_t within = ((int64_t)1 << shift) - 1;
    for (int64_t owner = 0; owner < world; owner++) ends[owner] = 0;
    for (int64_t i = 0; i < n; i++) {
        const int64_t stretch = rows[i] >> shift;
        ends[stretch - round_of(stretch, world, inverse) * world]++;
    }
    int64_t begin = 0;
    for (int64_t owner = 0; owner < world; owner++) {
        const int64_t count = ends[owner];
        ends[owner] = begin;
        begin += count;
    }
    for (int64_t i = 0; i < n; i++) {
        const int64_t stretch = rows[i] >> shift, round = round_of(stretch, world, inverse);
        const int64_t to = ends[stretch - round * world]++;
        places[to] = (int32_t)i;
        numbers[to] = (int64_t)((uint64_t)round << shift) | (rows[i] & within);
    }
}
