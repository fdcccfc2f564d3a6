/* turn.h: a turn of a sampler, in which it draws the edges of one type for the nodes of one hop:
 * what the files that take part in it share. sample.c has the order of turns.
 */
#ifndef GNNDRIVE_TURN_H
#define GNNDRIVE_TURN_H
#include "grow.h"

enum {
    GD_CHUNK = 256,       /* neighbours whose cache lines are prefetched at once */
    GD_FAULTS_COLD = 8,   /* major faults in one batch after which pages are requested ahead */
    GD_STOP_EVERY = 1024, /* nodes expanded between two reads of *stop */
};

static inline int gd_stopped(const gd_sampling *j) {
    return j->stop && __atomic_load_n(j->stop, __ATOMIC_RELAXED) != 0;
}

static inline gd_drawn *gd_turn_drawn(const gd_sampler *s) { return &s->drawn[s->turn]; }

static inline const gd_edge_type *gd_turn_type(const gd_sampler *s) {
    return &s->job.edge_types[s->turn];
}

/* Where the node's in-edges of this turn's type lie. 0 or -EFAULT. */
static inline int gd_in_edges(gd_sampler *s, int64_t node, int64_t *begin, int64_t *end) {
    const gd_csc *const csc = gd_turn_type(s)->csc;
    *begin = gd_indptr(csc, node);
    *end = gd_indptr(csc, node + 1);
    if (*begin >= 0 && *end >= *begin && *end <= csc->edges) return 0;
    s->culprit = node;
    return -EFAULT;
}

/* The number of a node that its draws depend on. */
static inline int64_t gd_drawn_as(const gd_csc *csc, int64_t node) {
    if (!csc->ids) return node;
    return csc->id_bytes == 4 ? ((const int32_t *)csc->ids)[node]
                              : ((const int64_t *)csc->ids)[node];
}

static inline void gd_prefetch_id(const gd_csc *csc, int64_t node) {
    __builtin_prefetch((const char *)csc->ids + node * csc->id_bytes);
}

static inline void gd_prefetch_node(const gd_csc *csc, int64_t node) {
    const char *const at = (const char *)csc->indptr + node * csc->indptr_bytes;
    __builtin_prefetch(at);
    __builtin_prefetch(at + csc->indptr_bytes);
    if (csc->ids) gd_prefetch_id(csc, node);
}

static inline int64_t gd_least(int64_t a, int64_t b) { return a < b ? a : b; }
#endif
