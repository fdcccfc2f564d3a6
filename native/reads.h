/* reads.h: what the planner, the state machine, the ring and pread share. Python sees gnndrive.h
 * alone.
 *
 * An extent is a run of rows in sorted order, [first[e], first[e + 1]). Its first and last row say
 * where it lies in the file, so that the state of a lone row takes 21 bytes.
 */
#ifndef GNNDRIVE_READS_H
#define GNNDRIVE_READS_H
#include <pthread.h>
#include "internal.h"

enum { GD_TRIES_MAX = 1000 }; /* requests in a row without progress; then the extent is broken */
enum { GD_WAITING = 0, GD_TAKEN = 1, GD_TROUBLED = 2, GD_ENDED = 3 };

typedef struct gd_trouble {
    int32_t got;   /* bytes of the present span that have arrived, whole sectors */
    int32_t solo;  /* 0: read as one; k: read row by row after an error, row k - 1 is next */
    int16_t tries; /* requests in a row without progress */
    int16_t lost;  /* 1: a row of it has failed */
} gd_trouble;

typedef struct gd_span {
    int64_t offset; /* in the file, whole sectors */
    int64_t length; /* whole sectors; may reach beyond the end of the file */
    int64_t need;   /* where the last row ends, from offset */
} gd_span;

struct gd_reads {
    gd_geometry geometry;
    int64_t n, extents, bytes, block_bytes;
    uint64_t *row;         /* sorted, unless `separate` */
    uint64_t *pair;        /* the memory of slot and landed_slots */
    int32_t *slot;         /* of row[i] */
    int32_t *first;        /* extents + 1 */
    uint8_t *phase;        /* of each extent */
    gd_trouble *trouble;   /* for phase GD_TROUBLED; allocated once, under the lock, or NULL */
    int32_t *landed_slots; /* the log: `progress.landed` of them */
    gd_failure *failures;  /* the log: `progress.failed` of them */
    pthread_mutex_t lock;  /* held to append to the log, to take and to cancel */
    int64_t next;          /* the next extent to take; under the lock */
    gd_progress progress;  /* published after the entries of the log */
    int64_t requests, bytes_moved, retries; /* atomic, as the next two and `progress` are */
    int32_t cancelled, held;
};

static inline int64_t gd_row_begin(const gd_reads *r, int64_t i) {
    return r->geometry.data_offset + (int64_t)r->row[i] * r->geometry.row_bytes;
}

/* Rows from..to-1 of the sorted order, rounded out to sectors. */
static inline gd_span gd_span_of(const gd_reads *r, int64_t from, int64_t to) {
    int64_t mask = r->geometry.sector - 1;
    int64_t end = gd_row_begin(r, to - 1) + r->geometry.row_bytes;
    int64_t offset = gd_row_begin(r, from) & ~mask;
    return (gd_span){offset, ((end + mask) & ~mask) - offset, end - offset};
}

static inline uint8_t *gd_slot_of(const gd_reads *r, int64_t i) {
    return r->geometry.slots + r->slot[i] * r->geometry.slot_stride;
}

/* Whether row i, alone in its extent, is read into its slot without staging. */
static inline int gd_lands_direct(const gd_reads *r, int64_t i) {
    int64_t aligned =
        gd_row_begin(r, i) | r->geometry.row_bytes | (int64_t)(uintptr_t)gd_slot_of(r, i);
    return r->geometry.land_direct && r->geometry.slots &&
           (aligned & (r->geometry.sector - 1)) == 0;
}

static inline int64_t gd_extent_rows(const gd_reads *r, int64_t e) {
    return r->first[e + 1] - r->first[e];
}

/* Rows that have landed or failed so far. */
static inline int64_t gd_reads_settled(const gd_reads *r) {
    return __atomic_load_n(&r->progress.landed, __ATOMIC_ACQUIRE) +
           __atomic_load_n(&r->progress.failed, __ATOMIC_ACQUIRE);
}
#endif
