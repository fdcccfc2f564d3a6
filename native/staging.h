/* staging.h: which part of the ring's staging belongs to which read; see staging.c. */
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
    gd_stretch *used; /* sorted; room for one stretch a read */
    int32_t count;
} gd_staging;

/* Whether `bytes` are free in one stretch. */
int gd_staging_fits(const gd_staging *s, int64_t bytes);
/* Take the first free stretch of `bytes`, rounded up to pages; -1: no stretch is long enough. */
int64_t gd_staging_take(gd_staging *s, int64_t bytes);
/* Give back the stretch that begins at `begin`. */
void gd_staging_give(gd_staging *s, int64_t begin);
#endif
