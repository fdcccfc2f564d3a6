/* begin.h: the beginning of a sample; see begin.c. */
#ifndef GNNDRIVE_BEGIN_H
#define GNNDRIVE_BEGIN_H
#include "sampler.h"

/* Whether the job is free of contradictions. */
int gd_valid_job(const gd_sampling *j);
/* Whether tree x nodes + node fits into 63 bits for every type. */
int gd_keys_fit(const gd_sampling *j);
/* Empty the result, make room for the job's hops, and make hash tables about as large as the last
 * batch needed. 0 or -ENOMEM. */
int gd_begin_batch(gd_sampler *s);
/* Take the seeds of one type. 0, -ENOMEM, -EOVERFLOW, or -ENXIO: the culprit is not a node. */
int gd_take_seeds(gd_sampler *s, const gd_seeds *seeds);
#endif
