/* labor.h: LABOR-0 sampling: the turns of a sampler whose targets share the numbers of the nodes;
 * see labor.c. */
#ifndef GNNDRIVE_LABOR_H
#define GNNDRIVE_LABOR_H
#include "turn.h"

/* Draw this turn's edges and find the places of their sources; all of them, or, if the indices are
 * not in memory, until some are wanted. 0, GD_WANTS, or what gd_sample returns. */
int gd_labor_turn(gd_sampler *s);
/* Go on with the indices of the first `count` edges that are wanted. Returns the same. */
int gd_labor_given(gd_sampler *s, const uint8_t *given, int64_t count);
/* The edges whose indices are wanted. */
void gd_labor_wanted(const gd_sampler *s, gd_wanted *out);
#endif
