/* verify.c: reading a slot table: counters, single entries, and a check of every invariant of
 * buffer.c.
 */
#include "buffer.h"
#include "ranking.h"

int32_t gd_buffer_slot_of(const gd_buffer *b, int64_t row) {
    return (uint64_t)row < (uint64_t)b->rows ? b->slot_of[row] - 1 : -1;
}

int64_t gd_buffer_row_of(const gd_buffer *b, int32_t slot) { return b->row_of[slot] - 1; }
int gd_buffer_state_of(const gd_buffer *b, int32_t slot) { return b->state[slot]; }
int32_t gd_buffer_references(const gd_buffer *b, int32_t slot) { return b->references[slot]; }

void gd_buffer_get_stats(const gd_buffer *b, gd_buffer_stats *out) {
    *out = b->stats;
    out->rows = b->rows;
    out->slots = b->slots;
    out->free = gd_free_count(b);
    out->standby = gd_standby_count(b->standby) + b->kept;
}

static int verify_slot(const gd_buffer *b, int32_t slot) {
    int64_t row = b->row_of[slot] - 1;
    int mapped = row >= 0 && row < b->rows && b->slot_of[row] == slot + 1;
    int standby = gd_standby_holds(b->standby, slot), held = b->references[slot] > 0;
    if (b->references[slot] < 0) return -1;
    switch (b->state[slot]) {
    case GD_FREE: return row < 0 && !standby && !held ? 0 : -2;
    case GD_LOADING: return mapped && !standby ? 0 : -3;
    case GD_VALID: return mapped && !b->keeps && standby == !held ? 0 : -4;
    case GD_FAILED: return row < 0 && !standby && held ? 0 : -5;
    case GD_KEPT: return mapped && !standby && !held ? 0 : -13;
    default: return -6;
    }
}

int gd_buffer_verify(const gd_buffer *b) {
    int64_t in_use = 0, mapped = 0, standby = 0, kept = 0, keeping = 0;
    for (int64_t slot = 0; slot < b->slots; slot++) {
        int code = verify_slot(b, (int32_t)slot);
        if (code) return code;
        if (slot >= b->fresh && b->state[slot] != GD_FREE) return -7;
        in_use += b->state[slot] != GD_FREE;
        mapped += b->row_of[slot] > 0;
        standby += gd_standby_holds(b->standby, (int32_t)slot);
        kept += b->state[slot] == GD_KEPT;
        keeping += b->state[slot] == GD_LOADING && b->key[slot] == KEY_KEPT;
    }
    for (int64_t row = 0; row < b->rows; row++) {
        if (b->slot_of[row] < 0 || b->slot_of[row] > b->slots) return -8;
        mapped -= b->slot_of[row] > 0;
    }
    if (mapped != 0) return -9;
    if (in_use + gd_free_count(b) != b->slots) return -10;
    if (standby != gd_standby_count(b->standby)) return -11;
    if (kept != b->kept || keeping != b->keeping) return -14;
    return b->room.available == gd_free_count(b) + standby ? 0 : -12;
}
