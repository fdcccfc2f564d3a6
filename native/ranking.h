/* ranking.h: the standby key of a row, for buffer.c, which sets it at admissions, and rekey.c,
 * which sets it anew.
 */
#ifndef GNNDRIVE_RANKING_H
#define GNNDRIVE_RANKING_H
#include "window.h"

#define KEY_AT_RELEASE INT64_MIN   /* LRU: the key is the tick of the release */
#define KEY_LEAVES (INT64_MIN + 1) /* the row leaves its slot at its release */
#define KEY_KEPT INT64_MAX         /* the row never leaves its slot */

/* A policy's key with one of these meanings is replaced by its neighbour. */
static inline int64_t gd_key_of(const gd_ranking *r, int64_t row, unsigned code) {
    if (!r) return KEY_AT_RELEASE;
    if (r->keep_from) return r->class_of[row] < r->keep_from ? KEY_LEAVES : KEY_KEPT;
    const unsigned known = r->window ? r->window->wanted[row] : code;
    const uint8_t mask = r->mask[known];
    const int64_t key = r->base[known] + (mask && r->class_of ? r->class_of[row] & mask : 0);
    return key <= KEY_LEAVES ? KEY_LEAVES + 1 : key == KEY_KEPT ? key - 1 : key;
}

/* Prefetch what the key of a row depends on. */
static inline void gd_expect_key(const gd_ranking *r, int64_t row) {
    if (r && r->window) __builtin_prefetch(&r->window->wanted[row]);
    if (r && r->class_of) __builtin_prefetch(&r->class_of[row]);
}
#endif
