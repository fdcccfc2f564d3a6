/* staging.h: which part of the ring's staging each read has; see staging.c. */
#ifndef GNNDRIVE_STAGING_H
#define GNNDRIVE_STAGING_H
#include "internal.h"

enum { GD_PAGE = 4096 };

typedef struct gd_stretch {
    int64_t begin, end;
} gd_stretch;
typedef struct gd_staging {
    uint8_t *memory;
    int64_t bytes;
    gd_stretch *used; /* in order; room for one a read */
    int32_t count;
} gd_staging;

/* Whether there are `bytes` together that are free. */
int gd_staging_fits(const gd_staging *s, int64_t bytes);
/* The first free `bytes`, in whole pages; -1: there are none together. */
int64_t gd_staging_take(gd_staging *s, int64_t bytes);
/* Give back what begins there. */
void gd_staging_give(gd_staging *s, int64_t begin);
#endif
