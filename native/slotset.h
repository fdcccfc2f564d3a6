/* slotset.h: a set of slots; slots are added in any order and taken in ascending order. Its
 * functions are inline because buffer.c calls them once for each slot of a release.
 */
#ifndef GNNDRIVE_SLOTSET_H
#define GNNDRIVE_SLOTSET_H
#include "internal.h"

typedef struct gd_slotset {
    uint64_t *words;            /* one bit a slot */
    uint64_t *groups;           /* one bit a word: the word is not 0 */
    int64_t group_count, group; /* all groups before `group` are empty */
} gd_slotset;

static inline int gd_slotset_make(gd_slotset *s, int64_t slots) {
    s->group_count = slots / 4096 + 1;
    s->words = calloc((size_t)s->group_count * 64, sizeof *s->words);
    s->groups = calloc((size_t)s->group_count, sizeof *s->groups);
    return s->words && s->groups ? 0 : -ENOMEM;
}

static inline void gd_slotset_free(gd_slotset *s) {
    free(s->words);
    free(s->groups);
}

/* Do not call it between two takes, unless the last take returned -1. */
static inline void gd_slotset_add(gd_slotset *s, int32_t slot) {
    s->words[slot >> 6] |= 1ull << (slot & 63);
    s->groups[slot >> 12] |= 1ull << (slot >> 6 & 63);
}

/* Removes the smallest slot and returns it; -1: the set is empty. */
static inline int32_t gd_slotset_take(gd_slotset *s) {
    while (s->group < s->group_count && !s->groups[s->group]) s->group++;
    if (s->group == s->group_count) {
        s->group = 0;
        return -1;
    }
    const int64_t word = s->group * 64 + __builtin_ctzll(s->groups[s->group]);
    const int32_t slot = (int32_t)(word * 64) + __builtin_ctzll(s->words[word]);
    s->words[word] &= s->words[word] - 1;
    if (!s->words[word]) s->groups[s->group] &= s->groups[s->group] - 1;
    return slot;
}
#endif
