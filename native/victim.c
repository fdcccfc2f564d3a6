/* victim.c: a victim buffer's table: which rows that have left the feature buffer are kept in host
 * memory, and where (the host level below a device; LSM-GNN's victim buffer).
 *
 * It is a slot table (buffer.c) whose slots are places of the victim buffer:
 *
 * loading      the copy out of the device is under way
 * standby      the row is there; its place may be given up
 * referenced   the row is being copied back; then it leaves, because the feature buffer has it
 *
 * A place is given up only while it is on standby, so no copy from it or to it is ever under way
 * then (law 3 of docs/architecture.md). Two rules say what stays when no place is free:
 *
 * one order    Standby keys are those of the feature buffer. A row that is offered takes the place
 *              of the row with the smallest key if its own is larger. Without a ranking it is:
 *              rows leave the feature buffer, and then this one, in the order of their last use.
 * queues       Each batch to come has a queue of the rows that it needs next. A row whose queue is
 *              full, or that no known batch needs, is dropped, and the only places that are given
 * up are those of queues whose batch has passed. The key is the next use.
 */
#include "buffer.h"
#include "ranking.h"

struct gd_victims {
    gd_buffer *table;
    int64_t queue_rows; /* 0: one order */
    int32_t *queued;    /* rows of each queue; NULL: one order. A place's queue is its code. */
};

gd_victims *gd_victims_new(int64_t rows, int64_t places, int64_t queue_rows) {
    if (queue_rows < 0) return gd_no_object(EINVAL);
    gd_buffer *table = gd_buffer_new(rows, places);
    if (!table) return NULL;
    table->keeps = 0; /* rows leave for the feature buffer */
    gd_victims *v = calloc(1, sizeof *v);
    if (v) {
        *v = (gd_victims){.table = table, .queue_rows = queue_rows};
        if (queue_rows) v->queued = calloc(GD_NO_CODE, sizeof *v->queued);
        if ((!queue_rows || v->queued) && gd_buffer_keep_codes(table) == 0) return v;
    }
    gd_buffer_free(table);
    if (v) free(v->queued);
    free(v);
    return gd_no_object(ENOMEM);
}

void gd_victims_free(gd_victims *v) {
    if (!v) return;
    gd_buffer_free(v->table);
    free(v->queued);
    free(v);
}

gd_buffer *gd_victims_table(const gd_victims *v) { return v->table; }

/* The row of a place leaves the table. */
static void forget(gd_victims *v, int32_t place) {
    gd_buffer *b = v->table;
    b->slot_of[b->row_of[place] - 1] = 0;
    b->row_of[place] = 0;
    if (v->queued) v->queued[b->code[place]]--;
}

/* A place for a row: a free one, or the first on standby if its key is below `key`; or -1. */
static int32_t place_for(gd_victims *v, int64_t key) {
    gd_buffer *b = v->table;
    int32_t place;
    if (b->returned_count > 0) {
        place = b->returned[--b->returned_count];
    } else if (b->fresh < b->slots) {
        place = (int32_t)b->fresh++;
    } else {
        place = gd_standby_first(b->standby);
        if (place < 0 || gd_standby_key(b->standby, place) >= key) return -1;
        gd_standby_remove(b->standby, place);
        forget(v, place);
        b->stats.evictions++;
    }
    b->room.available--;
    return place;
}

int64_t gd_victims_offer(gd_victims *v, const gd_evicted *rows, const int64_t *next_use, int64_t n,
                         int64_t most, int64_t now, int32_t *slots, int32_t *places) {
    gd_buffer *b = v->table;
    int64_t kept = 0;
    for (int64_t i = 0; i < n; i++) /* before the first change */
        if ((uint64_t)rows[i].row >= (uint64_t)b->rows || next_use[i] < 0) return -EINVAL;
    for (int64_t i = 0; i < n && kept < most; i++) {
        /* In one order the largest key comes first, so that it drives out the smallest. */
        const int64_t k = v->queued ? i : n - 1 - i;
        const gd_evicted *e = &rows[k];
        const int64_t queue = next_use[k] % GD_NO_CODE;
        if (b->slot_of[e->row]) continue;
        if (v->queued && (next_use[k] == INT64_MAX || v->queued[queue] >= v->queue_rows)) continue;
        const int64_t key = e->key == KEY_AT_RELEASE ? INT64_MAX : e->key;
        const int32_t place = place_for(v, v->queued ? now : key);
        if (place < 0) {
            if (!v->queued) break; /* the others have smaller keys */
            continue;
        }
        b->slot_of[e->row] = place + 1;
        b->row_of[place] = e->row + 1;
        b->references[place] = 0;
        b->state[place] = GD_LOADING;
        b->key[place] = v->queued ? next_use[k] : e->key;
        b->code[place] = v->queued ? (uint16_t)queue : e->known;
        if (v->queued) v->queued[queue]++;
        slots[kept] = e->slot;
        places[kept++] = place;
    }
    /* Of equal keys, and without a ranking, the row that left the device first leaves first. */
    for (int64_t i = 0; !v->queued && i < kept / 2; i++) {
        const int32_t slot = slots[i], place = places[i];
        slots[i] = slots[kept - 1 - i];
        places[i] = places[kept - 1 - i];
        slots[kept - 1 - i] = slot;
        places[kept - 1 - i] = place;
    }
    b->stats.loads += kept;
    b->stats.refused += n - kept;
    return kept;
}

int gd_victims_withdraw(gd_victims *v, const int32_t *places, int64_t n) {
    gd_buffer *b = v->table;
    for (int64_t i = 0; i < n; i++) {
        if (b->state[places[i]] != GD_LOADING) return -EINVAL;
        forget(v, places[i]);
        b->state[places[i]] = GD_FREE;
        b->returned[b->returned_count++] = places[i];
        b->room.available++;
    }
    b->stats.failures += n;
    return 0;
}

int gd_victims_find(gd_victims *v, const int64_t *rows, int64_t n, int32_t *places) {
    enum { SEEN = 0x80 };
    gd_buffer *b = v->table;
    int64_t i = 0;
    int code = 0;
    for (; i < n && code == 0; i++) {
        if ((uint64_t)rows[i] >= (uint64_t)b->rows) {
            code = -ERANGE;
            break;
        }
        places[i] = b->slot_of[rows[i]] - 1;
        if (places[i] < 0) continue;
        if (b->state[places[i]] & SEEN) {
            code = -EINVAL;
            break;
        }
        b->state[places[i]] |= SEEN;
    }
    while (i-- > 0)
        if (places[i] >= 0) b->state[places[i]] &= (uint8_t)~SEEN;
    return code;
}

int64_t gd_victims_take(gd_victims *v, const int32_t *places, int64_t n) {
    gd_buffer *b = v->table;
    int64_t arriving = 0;
    for (int64_t i = 0; i < n; i++) {
        const int32_t place = places[i];
        assert(b->state[place] == GD_LOADING || b->state[place] == GD_VALID);
        if (b->state[place] == GD_LOADING) {
            arriving++;
        } else if (b->references[place] == 0) {
            gd_standby_remove(b->standby, place);
            b->room.available--;
        }
        b->references[place]++;
    }
    b->stats.hits += n;
    return arriving;
}

int gd_victims_drop(gd_victims *v, const int32_t *places, int64_t n) {
    gd_buffer *b = v->table;
    for (int64_t i = 0; i < n; i++) {
        const int32_t place = places[i];
        if (place < 0 || place >= b->slots || b->references[place] < 1 ||
            b->state[place] != GD_VALID)
            return -EINVAL;
        if (--b->references[place]) continue;
        forget(v, place);
        b->state[place] = GD_FREE;
        b->returned[b->returned_count++] = place;
        b->room.available++;
    }
    b->stats.releases++;
    return 0;
}
