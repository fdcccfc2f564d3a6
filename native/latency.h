/* latency.h: the clock, and counting latencies on a log scale; one thread writes a histogram, any
 * number of threads read it.
 *
 * 64 buckets an octave, as in fio: a bucket is at most 1.6 % wide, and below 128 ns exact. The
 * writer stores each count with one relaxed atomic store, so that a reader needs no lock: each
 * count that it reads is one that was written, but the counts may be of different moments.
 */
#ifndef GNNDRIVE_LATENCY_H
#define GNNDRIVE_LATENCY_H
#include <time.h>
#include "internal.h"

enum { GD_STEP_BITS = 6, GD_STEPS = 1 << GD_STEP_BITS };

static inline int64_t gd_clock_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * INT64_C(1000000000) + t.tv_nsec;
}

static inline int32_t gd_bucket_of(int64_t ns) {
    if (ns < GD_STEPS) return ns < 0 ? 0 : (int32_t)ns;
    int32_t shift = 63 - GD_STEP_BITS - __builtin_clzll((uint64_t)ns);
    int32_t bucket = ((shift + 1) << GD_STEP_BITS) + (int32_t)(ns >> shift & (GD_STEPS - 1));
    return bucket < GD_LATENCY_BUCKETS ? bucket : GD_LATENCY_BUCKETS - 1;
}

static inline void gd_put(int64_t *place, int64_t value) {
    __atomic_store_n(place, value, __ATOMIC_RELAXED);
}

static inline void gd_histogram_count(gd_histogram *h, int64_t ns) {
    int64_t *bucket = &h->bucket[gd_bucket_of(ns)];
    if (h->count == 0 || ns < h->min_ns) gd_put(&h->min_ns, ns);
    if (ns > h->max_ns) gd_put(&h->max_ns, ns);
    gd_put(&h->sum_ns, h->sum_ns + ns);
    gd_put(bucket, *bucket + 1);
    gd_put(&h->count, h->count + 1);
}
#endif
