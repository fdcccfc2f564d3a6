/* window.h: the parts of a window, for window.c, which changes them, and ranking.h, which
 * reads cases.
 */
#ifndef GNNDRIVE_WINDOW_H
#define GNNDRIVE_WINDOW_H
#include "internal.h"

struct gd_window {
    uint8_t *wanted; /* wanted[rows]: bit k is set if the batch in place k requests the row */
    int64_t rows;
    int64_t index[GD_WINDOW_BATCHES]; /* the index of the batch in place k; -1: the place is free */
    int64_t came[GD_WINDOW_BATCHES];  /* how many batches were announced before it */
    int64_t all;                      /* how many batches were announced */
    int64_t met[GD_WINDOW_BATCHES][GD_WINDOW_SETS]; /* its rows, by the set of batches that
                                                       requested them when it was announced */
    int64_t next[GD_WINDOW_SETS];                   /* see gd_window_next_uses */
};
#endif
