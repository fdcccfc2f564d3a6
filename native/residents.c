/* residents.c: rows that stay in memory. In the feature buffer residents have the slots of their
 * own numbers, and a batch's other rows get the slots of its place one after another. Rows that are
 * kept in host memory are copied to where they were asked for. */
#include <errno.h>
#include <string.h>
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

void gd_spread(const uint8_t *rows, const int64_t *row, int64_t n, int64_t row_bytes,
               const int32_t *place, int64_t stride, uint8_t *to) {
    for (int64_t i = 0; i < n; i++)
        memcpy(to + place[i] * stride, rows + row[i] * row_bytes, (size_t)row_bytes);
}
