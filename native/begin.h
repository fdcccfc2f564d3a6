/* begin.h: how a sample begins; see begin.c. */
#ifndef GNNDRIVE_BEGIN_H
#define GNNDRIVE_BEGIN_H
#include "sampler.h"

/* Whether the job makes sense. */
int gd_valid_job(const gd_sampling *j);
/* Whether trees times nodes of any type are still numbers. */
int gd_keys_fit(const gd_sampling *j);
/* An empty result with room for the job's hops, and tables about as large as the last batch
 * needed: 0 or -ENOMEM. */
int gd_begin_batch(gd_sampler *s);
/* Take the seeds of one type: 0, -ENOMEM, -EOVERFLOW, or -ENXIO: the culprit is no node. */
int gd_take_seeds(gd_sampler *s, const gd_seeds *seeds);
#endif
