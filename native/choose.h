/* choose.h: which in-edges are drawn if they are not all equally likely; see choose.c. */
#ifndef GNNDRIVE_CHOOSE_H
#define GNNDRIVE_CHOOSE_H
#include "sampler.h"

/* Make room for `needed` candidates. 0 or -ENOMEM. */
int gd_reserve_candidates(gd_candidates *c, int64_t needed);
/* Bring the k first of `count` candidates to the front, in order. */
void gd_first_candidates(gd_candidate *entry, int64_t count, int64_t k);
/* Make candidates of those of the in-edges [begin, begin + degree) that are not later than `time`;
 * the latest rank first. Returns how many, or -ERANGE: *culprit is not a node. */
int64_t gd_find_candidates(gd_candidates *c, const gd_edge_type *type, int64_t sources,
                           int64_t begin, int64_t degree, int64_t time, int64_t *culprit);
/* Keep those of `count` candidates whose weight is above 0, in order. Returns how many, or -EDOM:
 * the weight at position *culprit is negative or not finite. */
int64_t gd_weighing_candidates(gd_candidates *c, const gd_edge_type *type, int64_t count,
                               int64_t *culprit);
/* Draw k of `count` candidates, whose weights are above 0, by weight into out[]; without
 * replacement k is at most `count`. */
void gd_draw_weighted(gd_candidates *c, const gd_edge_type *type, uint64_t stream, int64_t count,
                      int64_t k, int32_t replace, int64_t *out);
#endif
