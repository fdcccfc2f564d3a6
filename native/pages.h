/* pages.h: requesting pages of mapped indices ahead of their use; see pages.c. */
#ifndef GNNDRIVE_PAGES_H
#define GNNDRIVE_PAGES_H
#include "sampler.h"

/* This thread's page faults so far that waited for the disk. */
int64_t gd_major_faults(void);
/* Let the kernel start reading the pages of edges up to `until`, so that the disk sees many
 * requests at once; page faults of one thread are one request at a time. The sampler calls it only
 * after several major faults. If the kernel refuses, sampling is slower. */
void gd_ask_for_pages(gd_sampler *s, const gd_csc *csc, const int64_t *edge, int64_t until);
/* The same for all indices from position `begin` to before `end`. */
void gd_ask_for_list(const gd_csc *csc, int64_t begin, int64_t end);
#endif
