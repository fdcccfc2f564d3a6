/* rekey.c: standby keys that are set again because more is known of the rows' next uses.
 *
 * With a window, the rows of a batch that is announced or withdrawn get other keys. With codes, a
 * superbatch that was inspected says when rows are needed next that no earlier batch needs, and a
 * policy may rank a code otherwise as its batch comes nearer.
 */
#include "buffer.h"
#include "ranking.h"

enum { AHEAD = 16 };

static void rekey_slot(gd_buffer *b, int32_t slot, int64_t key) {
    if (b->key[slot] == key) return;
    b->key[slot] = key;
    if (!gd_standby_holds(b->standby, slot)) return;
    gd_standby_remove(b->standby, slot);
    gd_standby_push(b->standby, slot, key);
}

int gd_buffer_rekey(gd_buffer *b, const gd_ranking *r, const int64_t *ids, int64_t n) {
    assert(r->window && r->window->rows == b->rows);
    for (int64_t i = 0; i < n; i++)
        if ((uint64_t)ids[i] >= (uint64_t)b->rows) return -ERANGE;
    for (int64_t i = 0; i < n; i++) {
        if (i + AHEAD < n) {
            __builtin_prefetch(&b->slot_of[ids[i + AHEAD]]);
            gd_expect_key(r, ids[i + AHEAD]);
        }
        const int32_t slot = b->slot_of[ids[i]] - 1;
        if (slot >= 0) rekey_slot(b, slot, gd_key_of(r, ids[i], 0));
    }
    return 0;
}

int gd_buffer_keep_codes(gd_buffer *b) {
    if (!b->code) b->code = malloc((size_t)b->slots * sizeof *b->code);
    if (!b->code) return -ENOMEM;
    for (int64_t slot = 0; slot < b->slots; slot++) b->code[slot] = GD_NO_CODE;
    return 0;
}

int gd_buffer_recode(gd_buffer *b, const gd_ranking *r, const uint16_t *later, int all) {
    if (!b->code) return -EINVAL;
    for (int64_t slot = 0; slot < b->fresh; slot++) {
        if (later && slot + AHEAD < b->fresh && b->row_of[slot + AHEAD])
            __builtin_prefetch(&later[b->row_of[slot + AHEAD] - 1]);
        const int64_t row = b->row_of[slot] - 1;
        if (row < 0 || !(all || b->code[slot] == GD_NO_CODE)) continue;
        b->code[slot] = later ? later[row] : GD_NO_CODE;
        rekey_slot(b, (int32_t)slot, gd_key_of(r, row, b->code[slot]));
    }
    return 0;
}

int gd_buffer_rekey_codes(gd_buffer *b, const gd_ranking *r, const uint8_t *changed) {
    if (!b->code) return -EINVAL;
    for (int64_t slot = 0; slot < b->fresh; slot++)
        if (changed[b->code[slot]] && b->row_of[slot])
            rekey_slot(b, (int32_t)slot, gd_key_of(r, b->row_of[slot] - 1, b->code[slot]));
    return 0;
}
