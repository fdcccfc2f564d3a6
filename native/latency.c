/* latency.c: reading and merging histograms of latencies; latency.h has the counting. */
#include "latency.h"

int64_t gd_bucket_ns(int32_t bucket) {
    if (bucket < GD_STEPS) return bucket;
    int32_t shift = (bucket >> GD_STEP_BITS) - 1;
    int64_t least = (int64_t)(GD_STEPS + (bucket & (GD_STEPS - 1))) << shift;
    return least + ((INT64_C(1) << shift) >> 1);
}

void gd_histogram_add(gd_histogram *h, int64_t ns) { gd_histogram_count(h, ns); }

void gd_histogram_merge(gd_histogram *into, const gd_histogram *from) {
    gd_histogram h;
    int64_t *to = (int64_t *)&h;
    const int64_t *place = (const int64_t *)from;
    for (size_t i = 0; i < sizeof h / sizeof *to; i++)
        to[i] = __atomic_load_n(&place[i], __ATOMIC_RELAXED);
    if (h.count == 0) return;
    if (into->count == 0 || h.min_ns < into->min_ns) into->min_ns = h.min_ns;
    if (h.max_ns > into->max_ns) into->max_ns = h.max_ns;
    into->count += h.count;
    into->sum_ns += h.sum_ns;
    for (int32_t i = 0; i < GD_LATENCY_BUCKETS; i++) into->bucket[i] += h.bucket[i];
}
