/* mapping.h: the second pass of a turn: find the places of the drawn neighbours; see mapping.c. The
 * functions return 0 or what gd_sample returns. */
#ifndef GNNDRIVE_MAPPING_H
#define GNNDRIVE_MAPPING_H
#include "turn.h"

/* Find the places of the neighbours of the next `count` <= GD_CHUNK edges. */
int gd_map_chunk(gd_sampler *s, const int64_t *neighbour, int64_t count);
/* Find the places of all neighbours from `placed` on; the indices are in memory or mapped. */
int gd_map_turn(gd_sampler *s);
/* Find the places of the next `count` edges, whose neighbours are given, index_bytes each. */
int gd_map_given(gd_sampler *s, const uint8_t *given, int64_t count);
#endif
