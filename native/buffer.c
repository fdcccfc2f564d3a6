/* buffer.c: the slot table of the feature buffer (GNNDrive section 4.2, Algorithm 1); each call
 * serves a whole batch.
 *
 * mapping table   row -> slot            int32 a row
 * reverse map     slot -> row            int64 a slot
 * ref counts      leases holding a slot  int32 a slot
 * state           free, loading, valid, failed, kept
 * standby         valid slots that no lease holds, by key (standby.c)
 *
 * A slot is in exactly one place: free (holds no row), standby (valid, no references), referenced
 * (valid, loading or failed), kept, or loading without references. In the last case no lease wants
 * the row any more, but the kernel may still write it, so the slot stays out of use until its read
 * has ended (docs/architecture.md, law 3 and rule 6). The slots of one release enter standby in the
 * order of slots, and admissions take them in that order for rows in the order of the file. So
 * walks over standby and slots go through memory in one direction.
 *
 * A table with a slot for every row never gives up one: a valid row is kept for good. So are rows
 * of high classes if a ranking says so (`keep_from`), and then all others leave at their release.
 * Nothing is counted of kept rows, an admission only looks up their slots. Rows that are loading or
 * have failed are referenced as in any table, and their references end when they become valid.
 *
 * An admission takes all of a batch or nothing. gd_buffer_hold is for the head of the admission
 * queue alone, which may be admitted by parts (rule 3). Only one thread, the pipeline's event loop,
 * calls these functions, so there is no lock.
 */
#include "buffer.h"
#include "ranking.h"

#define AHEAD 16       /* ids ahead that loops prefetch: the tables are far larger than the cache */
#define SEEN 0x80      /* marks a state while a probe counts distinct rows */
#define SEEN_MISS (-1) /* marks an entry of the mapping table, where 0 is "not mapped" */

gd_buffer *gd_buffer_new(int64_t rows, int64_t slots) {
    if (rows < 0 || slots < 1 || slots >= INT32_MAX) return gd_no_object(EINVAL);
    gd_buffer *b = calloc(1, sizeof *b);
    if (!b) return gd_no_object(ENOMEM);
    b->rows = rows;
    b->slots = slots;
    b->keeps = slots >= rows;
    b->room.available = slots;
    b->slot_of = gd_table((size_t)rows + 1, sizeof *b->slot_of);
    b->row_of = gd_table((size_t)slots, sizeof *b->row_of);
    b->references = gd_table((size_t)slots, sizeof *b->references);
    b->state = gd_table((size_t)slots, sizeof *b->state);
    b->key = gd_table((size_t)slots, sizeof *b->key);
    b->returned = malloc((size_t)slots * sizeof *b->returned);
    b->standby = gd_standby_new(slots);
    const int no_set = gd_slotset_make(&b->let_go, slots);
    if (b->slot_of && b->row_of && b->references && b->state && b->key && b->returned &&
        b->standby && !no_set)
        return b;
    gd_buffer_free(b);
    return gd_no_object(ENOMEM);
}

void gd_buffer_free(gd_buffer *b) {
    if (!b) return;
    free(b->slot_of);
    free(b->row_of);
    free(b->references);
    free(b->state);
    free(b->key);
    free(b->code);
    free(b->returned);
    gd_standby_free(b->standby);
    gd_slotset_free(&b->let_go);
    free(b);
}

const gd_room *gd_buffer_room(const gd_buffer *b) { return &b->room; }

/* Prefetch the table entries of a row that comes soon. */
static void expect(const gd_buffer *b, const gd_ranking *r, int64_t row) {
    if ((uint64_t)row >= (uint64_t)b->rows) return;
    __builtin_prefetch(&b->slot_of[row], 1);
    gd_expect_key(r, row);
}

static int is_kept(const gd_buffer *b, int32_t slot) {
    return b->kept > 0 && b->state[slot] == GD_KEPT;
}

/* ---- probe: count distinct rows and mark them ---- */

typedef struct marked {
    int64_t ids;     /* how many ids were looked at */
    int64_t standby; /* rows among them that are on standby */
    int64_t kept;    /* rows among them that are kept, or will be */
} marked;

/* Count the distinct rows of `ids` and mark them. most >= 0: stop as soon as it is known whether
 * there are more than that; -ENOSPC if so. */
static int mark(gd_buffer *b, const int64_t *ids, int64_t n, int64_t most, gd_admission *a,
                marked *found) {
    int code = 0;
    int64_t i = 0;
    *found = (marked){0};
    for (; i < n; i++) {
        const int64_t distinct = a->hits + a->waits + a->loads;
        if (most >= 0 && (distinct > most || distinct + n - i <= most)) break;
        if (i + AHEAD < n) expect(b, NULL, ids[i + AHEAD]);
        if ((uint64_t)ids[i] >= (uint64_t)b->rows) {
            code = -ERANGE;
            break;
        }
        int32_t *entry = &b->slot_of[ids[i]];
        if (*entry == 0) {
            *entry = SEEN_MISS;
            a->loads++;
        } else if (*entry > 0 && !(b->state[*entry - 1] & SEEN)) {
            int32_t slot = *entry - 1;
            if (is_kept(b, slot)) {
                a->hits++;
                found->kept++;
            } else if (b->state[slot] == GD_VALID) {
                a->hits++;
                found->standby += b->references[slot] == 0;
            } else {
                a->waits++;
                found->kept += b->key[slot] == KEY_KEPT;
            }
            b->state[slot] |= SEEN;
        }
    }
    found->ids = i;
    return code == 0 && most >= 0 && a->hits + a->waits + a->loads > most ? -ENOSPC : code;
}

static void unmark(gd_buffer *b, const int64_t *ids, int64_t n) {
    for (int64_t i = 0; i < n; i++) {
        int32_t *entry = &b->slot_of[ids[i]];
        if (*entry == SEEN_MISS)
            *entry = 0;
        else if (*entry > 0)
            b->state[*entry - 1] &= (uint8_t)~SEEN;
    }
}

/* Whether a batch can be admitted, all of it or, unless `whole`, the rows that are valid or
 * loading. After 0 the marks stay, and take_present removes them. */
static int judge(gd_buffer *b, const int64_t *ids, int64_t n, int whole, gd_admission *a) {
    marked found;
    *a = (gd_admission){0};
    int code = mark(b, ids, n, -1, a, &found);
    if (code == 0) {
        int64_t needed = a->hits + a->waits + a->loads - found.kept;
        int64_t usable = b->room.available - found.standby;
        int64_t most = b->slots - b->kept - b->keeping;
        if (needed > most) {
            a->deficit = needed - most;
            code = -ENOSPC;
        } else if (whole && a->loads > usable) {
            a->deficit = a->loads - usable;
            code = -EAGAIN;
        }
    }
    a->pending = a->loads + a->waits;
    if (code) unmark(b, ids, found.ids);
    return code;
}

int gd_buffer_probe(gd_buffer *b, const int64_t *ids, int64_t n, gd_admission *a) {
    int code = judge(b, ids, n, 1, a);
    if (code == 0) unmark(b, ids, n);
    return code;
}

int gd_buffer_holds(gd_buffer *b, const int64_t *ids, int64_t n) {
    gd_admission a = {0};
    marked found;
    int code = mark(b, ids, n, b->slots, &a, &found);
    unmark(b, ids, found.ids);
    return code;
}

/* ---- admission ---- */

static unsigned code_at(const uint16_t *codes, int64_t i) { return codes ? codes[i] : 0; }

/* Set what the row of a slot is ranked by. */
static void rank(gd_buffer *b, const gd_ranking *r, int32_t slot, int64_t row, unsigned code) {
    if (b->state[slot] == GD_LOADING && b->key[slot] == KEY_KEPT) return; /* `keeping` counts it */
    b->key[slot] = gd_key_of(r, row, code);
    b->keeping += b->state[slot] == GD_LOADING && b->key[slot] == KEY_KEPT;
    if (b->code) b->code[slot] = (uint16_t)code;
}

/* The first pass of an admission takes every row that has a slot, also from standby, so that the
 * second pass cannot evict it. Returns how many entries of `pending` it wrote. */
static int64_t take_present(gd_buffer *b, const gd_ranking *r, const int64_t *ids,
                            const uint16_t *codes, int64_t n, int32_t *alias, int32_t *pending) {
    int64_t pending_count = 0;
    assert(!r || !r->window || r->window->rows == b->rows);
    for (int64_t i = 0; i < n; i++) {
        if (i + AHEAD < n) expect(b, r, ids[i + AHEAD]);
        int32_t entry = b->slot_of[ids[i]];
        if (entry == SEEN_MISS) {
            alias[i] = -1;
            continue;
        }
        int32_t slot = entry - 1;
        int first = b->state[slot] & SEEN;
        b->state[slot] &= (uint8_t)~SEEN;
        alias[i] = slot;
        if (is_kept(b, slot)) continue;
        if (b->state[slot] == GD_LOADING) {
            if (first) pending[pending_count++] = slot;
        } else if (b->references[slot] == 0) {
            gd_standby_remove(b->standby, slot);
            b->room.available--;
        }
        b->references[slot]++;
        rank(b, r, slot, ids[i], code_at(codes, i));
    }
    return pending_count;
}

int gd_buffer_hold(gd_buffer *b, const gd_ranking *r, const int64_t *ids, const uint16_t *codes,
                   int64_t n, int32_t *alias, int32_t *pending, gd_admission *a) {
    const int code = judge(b, ids, n, 0, a);
    if (code) return code;
    a->pending = take_present(b, r, ids, codes, n, alias, pending);
    for (int64_t i = 0; i < n; i++) {
        if (alias[i] >= 0) continue;
        alias[i] = b->slot_of[ids[i]] == SEEN_MISS ? -1 : -2;
        b->slot_of[ids[i]] = 0;
    }
    b->stats.hits += a->hits;
    b->stats.waits += a->waits;
    return 0;
}

/* What is known of the next use of a row in a slot. */
static uint16_t known_of(const gd_buffer *b, const gd_ranking *r, int32_t slot, int64_t row) {
    if (r && r->window) return r->window->wanted[row];
    return b->code ? b->code[slot] : 0;
}

/* Take `n` slots to load into, as many as there must be: free ones first, then from standby. Unless
 * NULL, left[] gets the rows that leave them. Returns how many leave. */
static int64_t take_slots(gd_buffer *b, const gd_ranking *r, int64_t n, int32_t *slots,
                          gd_evicted *left) {
    int64_t i = 0;
    while (i < n && b->returned_count > 0) slots[i++] = b->returned[--b->returned_count];
    while (i < n && b->fresh < b->slots) slots[i++] = (int32_t)b->fresh++;
    const int64_t first = i;
    for (; i < n; i++) {
        slots[i] = gd_standby_pop(b->standby);
        assert(slots[i] >= 0);
    }
    b->room.available -= n;
    b->stats.evictions += n - first;
    for (i = first; i < n; i++) {
        if (i + AHEAD < n) __builtin_prefetch(&b->slot_of[b->row_of[slots[i + AHEAD]] - 1], 1);
        const int32_t slot = slots[i];
        const int64_t row = b->row_of[slot] - 1;
        assert(b->state[slot] == GD_VALID && b->references[slot] == 0);
        b->slot_of[row] = 0;
        if (left)
            left[i - first] = (gd_evicted){
                .row = row, .key = b->key[slot], .slot = slot, .known = known_of(b, r, slot, row)};
    }
    return n - first;
}

int gd_buffer_admit(gd_buffer *b, const gd_ranking *r, const int64_t *ids, const uint16_t *codes,
                    int64_t n, int32_t *alias, int32_t *pending, int64_t *load_rows,
                    int32_t *load_slots, gd_evicted *evicted, gd_admission *a) {
    int code = judge(b, ids, n, 1, a);
    if (code) {
        b->stats.refused++;
        return code;
    }
    int64_t pending_count = take_present(b, r, ids, codes, n, alias, pending), loads = 0;
    a->evicted = take_slots(b, r, a->loads, load_slots, evicted);
    for (int64_t i = 0; i < n; i++) {
        if (alias[i] >= 0) continue;
        int32_t *entry = &b->slot_of[ids[i]];
        if (*entry == SEEN_MISS) {
            int32_t slot = load_slots[loads];
            *entry = slot + 1;
            b->row_of[slot] = ids[i] + 1;
            b->references[slot] = 0;
            b->state[slot] = GD_LOADING;
            b->key[slot] = KEY_AT_RELEASE;
            pending[pending_count++] = slot;
            load_rows[loads++] = ids[i];
        }
        alias[i] = *entry - 1;
        b->references[alias[i]]++;
        rank(b, r, alias[i], ids[i], code_at(codes, i));
    }
    assert(loads == a->loads && pending_count == a->pending);
    b->stats.admitted++;
    b->stats.hits += a->hits;
    b->stats.waits += a->waits;
    b->stats.loads += a->loads;
    return 0;
}

/* ---- the end of a load, the end of a lease ---- */

static void to_free(gd_buffer *b, int32_t slot) {
    b->state[slot] = GD_FREE;
    b->row_of[slot] = 0;
    b->returned[b->returned_count++] = slot;
    b->room.available++;
}

/* No lease holds the valid row of a slot any more. */
static void let_go(gd_buffer *b, int32_t slot) {
    const int64_t key = b->key[slot];
    if (key == KEY_LEAVES) {
        b->stats.evictions++;
        b->slot_of[b->row_of[slot] - 1] = 0;
        to_free(b, slot);
        return;
    }
    gd_standby_push(b->standby, slot, key == KEY_AT_RELEASE ? b->tick : key);
    b->room.available++;
}

/* Change the state of all these slots from loading to `state`, or of none: -EINVAL, one was not
 * loading. */
static int end_loading(gd_buffer *b, const int32_t *slots, int64_t n, uint8_t state) {
    for (int64_t i = 0; i < n; i++) {
        const int32_t slot = slots[i];
        if (slot < 0 || slot >= b->slots || b->state[slot] != GD_LOADING) {
            while (i-- > 0) b->state[slots[i]] = GD_LOADING;
            return -EINVAL;
        }
        b->state[slot] = state;
        __builtin_prefetch(&b->references[slot]);
    }
    return 0;
}

/* A slot that no lease wants any more is reusable from here on, not before (rule 6). */
int gd_buffer_commit(gd_buffer *b, const int32_t *slots, int64_t n) {
    if (end_loading(b, slots, n, GD_VALID)) return -EINVAL;
    b->tick++;
    b->stats.commits += n;
    for (int64_t i = 0; i < n; i++) {
        const int32_t slot = slots[i];
        if (b->keeps || b->key[slot] == KEY_KEPT) {
            b->keeping -= !b->keeps;
            b->references[slot] = 0;
            b->state[slot] = GD_KEPT;
            b->kept++;
        } else if (b->references[slot] == 0) {
            let_go(b, slot);
        }
    }
    return 0;
}

/* The row is unmapped; a slot without references is free now (rules 6 and 8). */
int gd_buffer_fail(gd_buffer *b, const int32_t *slots, int64_t n) {
    if (end_loading(b, slots, n, GD_FAILED)) return -EINVAL;
    b->stats.failures += n;
    for (int64_t i = 0; i < n; i++) {
        const int32_t slot = slots[i];
        b->slot_of[b->row_of[slot] - 1] = 0; /* the next lease of the row loads it again */
        b->row_of[slot] = 0;
        b->keeping -= b->key[slot] == KEY_KEPT;
        if (b->references[slot] == 0) to_free(b, slot);
    }
    return 0;
}

/* Restore the references that a release dropped before it was refused. */
static void restore_references(gd_buffer *b, const int32_t *alias, int64_t n) {
    for (int64_t i = 0; i < n; i++) b->references[alias[i]] += !is_kept(b, alias[i]);
    while (gd_slotset_take(&b->let_go) >= 0) continue;
}

/* A loading slot stays out of use (rule 6); a failed one is free at its last release (rule 8). */
int gd_buffer_release(gd_buffer *b, const int32_t *alias, int64_t n) {
    int32_t slot;
    for (int64_t i = 0; i < n; i++) {
        if (i + AHEAD < n) __builtin_prefetch(&b->references[alias[i + AHEAD]], 1);
        slot = alias[i];
        const int is_slot = slot >= 0 && slot < b->slots;
        if (is_slot && is_kept(b, slot)) continue;
        if (!is_slot || b->references[slot] < 1) {
            restore_references(b, alias, i);
            return -EINVAL;
        }
        if (--b->references[slot] == 0) gd_slotset_add(&b->let_go, slot);
    }
    b->tick++;
    b->stats.releases++;
    while ((slot = gd_slotset_take(&b->let_go)) >= 0) {
        if (b->state[slot] == GD_VALID)
            let_go(b, slot);
        else if (b->state[slot] == GD_FAILED)
            to_free(b, slot);
    }
    return 0;
}

int gd_buffer_settled(const gd_buffer *b, const int32_t *pending, int64_t n, int64_t *position) {
    int64_t i = *position;
    while (i < n && b->state[pending[i]] != GD_LOADING) i++;
    *position = i;
    return i == n;
}

int64_t gd_buffer_first_failed(const gd_buffer *b, const int32_t *alias, int64_t n) {
    for (int64_t i = 0; i < n; i++)
        if (b->state[alias[i]] == GD_FAILED) return i;
    return -1;
}
