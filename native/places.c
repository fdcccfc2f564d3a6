/* places.c: clearing and growing the sampler's hash table. */
#include "places.h"

enum { HUGE_PAGE = 2 << 20 };

int gd_places_clear(gd_places *t, int64_t slots) {
    assert(slots >= GD_PLACES_MIN && (slots & (slots - 1)) == 0);
    const size_t bytes = (size_t)slots * sizeof *t->slot;
    if (slots > t->capacity) {
        free(t->slot);
        t->slots = t->capacity = 0;
        void *memory = NULL;
        if (posix_memalign(&memory, bytes < HUGE_PAGE ? 64 : HUGE_PAGE, bytes) != 0) memory = NULL;
        t->slot = memory;
        if (!memory) return -ENOMEM;
        if (bytes >= HUGE_PAGE)
            madvise(memory, bytes, MADV_HUGEPAGE); /* fewer TLB misses; a refusal does no harm */
        t->capacity = slots;
    }
    memset(t->slot, 0, bytes);
    t->slots = slots;
    t->shift = 64 - __builtin_ctzll((uint64_t)slots);
    return 0;
}
