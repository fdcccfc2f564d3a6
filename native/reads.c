/* reads.c: planned reads, or writes, as a state machine without I/O.
 *
 * An engine takes an extent, asks gd_reads_request what to read, and hands each completion to
 * gd_reads_complete, which says whether to request the extent again. Each row is logged exactly
 * once: when it is whole in its slot, or when it has failed. The count is published after the
 * entries, so any thread may read the log without the lock.
 *
 * After an error of a sector (EIO, the end of a truncated file) the extent is read again row by
 * row, so that only the rows that touch the bad sector fail. GD_TRIES_MAX requests in a row without
 * progress are an error too, so no extent is requested forever.
 *
 * A write has the same states: its row `lands` when all of it is in the file, and until then its
 * slot must stay as it is.
 */
#include "reads.h"

void gd_reads_free(gd_reads *r) {
    if (!r || (__atomic_load_n(&r->held, __ATOMIC_ACQUIRE) &&
               !__atomic_load_n(&r->progress.let_go, __ATOMIC_ACQUIRE)))
        return; /* an engine still works on it: a leak does less harm */
    pthread_mutex_destroy(&r->lock);
    free(r->row);
    free(r->pair);
    free(r->first);
    free(r->phase);
    free(r->trouble);
    free(r->failures);
    free(r);
}

int64_t gd_reads_rows(const gd_reads *r) { return r->n; }
int64_t gd_reads_extents(const gd_reads *r) { return r->extents; }
int64_t gd_reads_bytes(const gd_reads *r) { return r->bytes; }
int64_t gd_reads_block_bytes(const gd_reads *r) { return r->block_bytes; }

void gd_reads_get_stats(const gd_reads *r, gd_reads_stats *out) {
    *out = (gd_reads_stats){.retries = __atomic_load_n(&r->retries, __ATOMIC_RELAXED)};
    *(r->geometry.write ? &out->writes : &out->requests) =
        __atomic_load_n(&r->requests, __ATOMIC_RELAXED);
    *(r->geometry.write ? &out->bytes_written : &out->bytes) =
        __atomic_load_n(&r->bytes_moved, __ATOMIC_RELAXED);
}

/* ---- the log ---- */
static void log_landed(gd_reads *r, int64_t from, int64_t to) {
    pthread_mutex_lock(&r->lock);
    int64_t landed = r->progress.landed;
    assert(landed + r->progress.failed + to - from <= r->n);
    memcpy(r->landed_slots + landed, r->slot + from, (size_t)(to - from) * sizeof *r->slot);
    __atomic_store_n(&r->progress.landed, landed + to - from, __ATOMIC_RELEASE);
    pthread_mutex_unlock(&r->lock);
}

/* The caller holds the lock. */
static void append_failures(gd_reads *r, int64_t from, int64_t to, int error, int64_t offset) {
    int64_t failed = r->progress.failed;
    assert(failed + r->progress.landed + to - from <= r->n);
    for (int64_t i = from; i < to; i++)
        r->failures[failed + i - from] = (gd_failure){r->slot[i], error, offset};
    __atomic_store_n(&r->progress.failed, failed + to - from, __ATOMIC_RELEASE);
}

static void log_failed(gd_reads *r, int64_t from, int64_t to, int error, int64_t offset) {
    pthread_mutex_lock(&r->lock);
    append_failures(r, from, to, error, offset);
    pthread_mutex_unlock(&r->lock);
}

void gd_reads_log(const gd_reads *r, gd_log *out) {
    /* before the counts: if the engine has let go, the counts read after it are final */
    int let_go = __atomic_load_n(&r->progress.let_go, __ATOMIC_ACQUIRE);
    out->landed = __atomic_load_n(&r->progress.landed, __ATOMIC_ACQUIRE);
    out->failed = __atomic_load_n(&r->progress.failed, __ATOMIC_ACQUIRE);
    out->slots = r->landed_slots;
    out->failures = r->failures;
    out->finished = let_go;
}

const gd_progress *gd_reads_progress(const gd_reads *r) { return &r->progress; }

/* ---- taking, cancelling, letting go ---- */
int64_t gd_reads_take(gd_reads *r) {
    int64_t e = -1;
    pthread_mutex_lock(&r->lock);
    if (r->next < r->extents) {
        e = r->next++;
        assert(r->phase[e] == GD_WAITING);
        r->phase[e] = GD_TAKEN;
        __atomic_store_n(&r->held, 1, __ATOMIC_RELEASE);
    }
    pthread_mutex_unlock(&r->lock);
    return e;
}

void gd_reads_cancel(gd_reads *r) {
    pthread_mutex_lock(&r->lock);
    __atomic_store_n(&r->cancelled, 1, __ATOMIC_RELAXED);
    for (; r->next < r->extents; r->next++) {
        int64_t from = r->first[r->next], to = r->first[r->next + 1];
        assert(r->phase[r->next] == GD_WAITING);
        r->phase[r->next] = GD_ENDED;
        append_failures(r, from, to, ECANCELED, gd_span_of(r, from, to).offset);
    }
    pthread_mutex_unlock(&r->lock);
}

void gd_reads_let_go(gd_reads *r) {
    assert(gd_reads_settled(r) == r->n);
    __atomic_store_n(&r->progress.let_go, 1, __ATOMIC_RELEASE);
}

/* ---- one extent ---- */
static int is_in_flight(const gd_reads *r, int64_t e) {
    return e >= 0 && e < r->extents && (r->phase[e] == GD_TAKEN || r->phase[e] == GD_TROUBLED);
}

static gd_trouble trouble_of(const gd_reads *r, int64_t e) {
    return r->phase[e] == GD_TROUBLED ? r->trouble[e] : (gd_trouble){0};
}

/* 0 or ENOMEM; the memory for the trouble of all extents is allocated with the first. */
static int set_trouble(gd_reads *r, int64_t e, gd_trouble t) {
    pthread_mutex_lock(&r->lock);
    if (!r->trouble) r->trouble = calloc((size_t)r->extents, sizeof *r->trouble);
    gd_trouble *const trouble = r->trouble;
    pthread_mutex_unlock(&r->lock);
    if (!trouble) return ENOMEM;
    trouble[e] = t;
    r->phase[e] = GD_TROUBLED;
    return 0;
}

/* The rows [from, to) that extent e reads now: all of them, or after an error a single one. */
static void present_rows(const gd_reads *r, int64_t e, const gd_trouble *t, int64_t *from,
                         int64_t *to) {
    *from = t->solo ? r->first[e] + t->solo - 1 : r->first[e];
    *to = t->solo ? *from + 1 : r->first[e + 1];
}

void gd_reads_request(const gd_reads *r, int64_t e, uint8_t *block, gd_request *out) {
    assert(is_in_flight(r, e));
    gd_trouble t = trouble_of(r, e);
    int64_t from, to;
    present_rows(r, e, &t, &from, &to);
    gd_span s = gd_span_of(r, from, to);
    int direct = gd_extent_rows(r, e) == 1 && gd_lands_direct(r, from);
    out->offset = s.offset + t.got;
    out->length = s.length - t.got;
    out->memory = (direct ? gd_slot_of(r, from) : block) + t.got;
    out->write = r->geometry.write;
}

static void land(gd_reads *r, int64_t e, int64_t from, int64_t to, const uint8_t *block) {
    int64_t offset = gd_span_of(r, from, to).offset;
    if (r->geometry.slots && (gd_extent_rows(r, e) > 1 || !gd_lands_direct(r, from)))
        for (int64_t i = from; i < to; i++)
            memcpy(gd_slot_of(r, i), block + (gd_row_begin(r, i) - offset),
                   (size_t)r->geometry.row_bytes);
    log_landed(r, from, to);
}

/* 0: the span is whole; EAGAIN: request it again; else why it is broken. */
static int judge(gd_trouble *t, const gd_span *s, int64_t res, const gd_geometry *geometry) {
    int error = geometry->write ? ENOSPC : ENODATA; /* the disk, or the file, ends within the row */
    if (res > 0) {
        int64_t total = t->got + res;
        assert(total <= s->length);
        if (total >= s->need) return 0;
        int64_t whole = total & ~(geometry->sector - 1);
        if (whole > t->got) {
            t->got = (int32_t)whole;
            t->tries = 0;
            return EAGAIN;
        }
    } else if (res == 0) {
        return error;
    } else if (res == -EAGAIN || res == -EINTR || res == -EBUSY) {
        error = res == -EAGAIN ? EBUSY : (int)-res; /* its own EAGAIN: request again */
    } else {
        return (int)-res;
    }
    return ++t->tries < GD_TRIES_MAX ? EAGAIN : error;
}

static int belongs_to_a_sector(int error) {
    return error == EIO || error == ENODATA || error == EILSEQ;
}

static int fail_rest(gd_reads *r, int64_t e, int64_t from, int64_t to, int error) {
    log_failed(r, from, r->first[e + 1], error, gd_span_of(r, from, to).offset);
    r->phase[e] = GD_ENDED;
    return GD_BROKEN;
}

/* Request extent e again in the state t; if that is not possible, fail its remaining rows. */
static int ask_again(gd_reads *r, int64_t e, gd_trouble t) {
    const int cancelled = __atomic_load_n(&r->cancelled, __ATOMIC_RELAXED);
    int error = cancelled ? ECANCELED : set_trouble(r, e, t);
    __atomic_fetch_add(&r->retries, !error, __ATOMIC_RELAXED);
    if (!error) return GD_AGAIN;
    int64_t from, to;
    present_rows(r, e, &t, &from, &to);
    return fail_rest(r, e, from, to, error);
}

int gd_reads_complete(gd_reads *r, int64_t e, int64_t res, uint8_t *block) {
    assert(is_in_flight(r, e));
    gd_trouble t = trouble_of(r, e);
    int64_t from, to;
    present_rows(r, e, &t, &from, &to);
    gd_span s = gd_span_of(r, from, to);
    __atomic_fetch_add(&r->requests, 1, __ATOMIC_RELAXED);
    if (res > 0) __atomic_fetch_add(&r->bytes_moved, res, __ATOMIC_RELAXED);
    int error = judge(&t, &s, res, &r->geometry);
    if (error == EAGAIN) return ask_again(r, e, t);
    if (to - from > 1 && belongs_to_a_sector(error))
        return ask_again(r, e, (gd_trouble){.solo = 1});
    if (error)
        log_failed(r, from, to, error, s.offset);
    else
        land(r, e, from, to, block);
    t.lost |= error != 0;
    if (to < r->first[e + 1])
        return ask_again(r, e, (gd_trouble){.solo = t.solo + 1, .lost = t.lost});
    r->phase[e] = GD_ENDED;
    return t.lost ? GD_BROKEN : GD_WHOLE;
}
