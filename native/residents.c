/* residents.c: the slots of a replayed batch's rows: residents have the slots of their own numbers,
 * the others get the slots of the batch's place one after another. */
#include <errno.h>
#include "packing.h"

int64_t gd_place_rows(const int64_t *rows, int64_t n, int64_t row_count, int64_t residents,
                      int32_t slot, int64_t place_rows, int32_t *alias, int64_t *load_rows,
                      int32_t *load_slots) {
    int64_t loads = 0;
    for (int64_t i = 0; i < n; i++) {
        const int64_t row = rows[i];
        if (row < 0 || row >= row_count) return -ERANGE;
        if (row < residents) {
            alias[i] = (int32_t)row;
            continue;
        }
        if (loads == place_rows) return -ENOSPC;
        alias[i] = load_slots[loads] = slot + (int32_t)loads;
        load_rows[loads++] = row;
    }
    return loads;
}
