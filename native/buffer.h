/* buffer.h: the parts of a slot table, for buffer.c and rekey.c, which change them, and verify.c,
 * which checks them.
 */
#ifndef GNNDRIVE_BUFFER_H
#define GNNDRIVE_BUFFER_H
#include "slotset.h"

struct gd_buffer {
    int64_t rows, slots;
    int keeps;        /* 1: there is a slot for every row, so a valid row never leaves its slot */
    int32_t *slot_of; /* mapping table: slot + 1, or 0 */
    int64_t *row_of;  /* reverse map: row + 1, or 0 */
    int32_t *references;
    uint8_t *state;
    int64_t *key;      /* the standby key that the last admission set */
    uint16_t *code;    /* the code that came with the row last; NULL: codes are not kept */
    int32_t *returned; /* a stack of free slots that were in use before; slots in [fresh, slots)
                          never were */
    int64_t returned_count, fresh;
    int64_t kept;    /* slots whose rows never leave them */
    int64_t keeping; /* slots that load a row that will be kept */
    gd_standby *standby;
    gd_slotset let_go; /* slots that lose their last reference in a release */
    int64_t tick;
    gd_buffer_stats stats;
    gd_room room;
};

static inline int64_t gd_free_count(const gd_buffer *b) {
    return b->returned_count + b->slots - b->fresh;
}
#endif
