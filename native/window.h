/* window.h: what a window consists of. Only window.c, which keeps it, and buffer.c, which takes
 * keys from it, include it.
 */
#ifndef GNNDRIVE_WINDOW_H
#define GNNDRIVE_WINDOW_H
#include "internal.h"

struct gd_window {
    uint8_t *wanted; /* rows: bit k is set if the batch in place k wants the row */
    int64_t rows;
    int64_t index[GD_WINDOW_BATCHES]; /* of the batch in place k; -1: the place is free */
    int64_t came[GD_WINDOW_BATCHES];  /* how many had come before it, of all that ever did */
    int64_t all;                      /* that ever came */
    int64_t met[GD_WINDOW_BATCHES][GD_WINDOW_SETS]; /* its rows, by who wanted them as it came */
    gd_wishes wishes;
};
#endif
