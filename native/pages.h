/* pages.h: asking the kernel early for the pages of mapped indices; see pages.c. */
#ifndef GNNDRIVE_PAGES_H
#define GNNDRIVE_PAGES_H
#include "sampler.h"

/* Page faults of this thread that waited for the disk. */
int64_t gd_major_faults(void);
/* Have the kernel start reading the pages of edges up to `until`, so that the disk sees many
 * requests at once (a thread that page-faults has one). In memory it never comes to this; a
 * refusal costs time. */
void gd_ask_for_pages(gd_sampler *s, const gd_csc *csc, const int64_t *edge, int64_t until);
#endif
