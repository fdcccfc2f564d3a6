/* roll.c: distributing the rows of a table to the batches that need them, in one pass over it.
 *
 * A batch's rows are kept as deltas: each row's distance from the row before it, less one, in 7
 * bits a byte, the lowest first, the eighth bit set in all bytes but the last (LEB128). A batch
 * that needs one row in 20 takes little more than a byte a row. A distribution has one cursor into
 * the deltas of each batch, so no batch is ever held as numbers of 8 bytes.
 */
#include "internal.h"

enum { AHEAD = 16, DIGIT_BITS = 11, ROW_BITS = 63 };

static int bits_of(uint64_t value) { return value ? 64 - __builtin_clzll(value) : 0; }

/* Sort keys[n] by the `width` bits above the lowest `from`; `scratch` has room for n. Returns the
 * sorted keys, which are in one of both. A radix sort, the lowest digit first. */
static uint64_t *sort(uint64_t *keys, uint64_t *scratch, int64_t n, int from, int width) {
    const int passes = (width + DIGIT_BITS - 1) / DIGIT_BITS;
    if (passes == 0) return keys;
    const int digit = (width + passes - 1) / passes;
    const uint64_t mask = (1u << digit) - 1;
    for (int pass = 0; pass < passes; pass++, from += digit) {
        int64_t start[(1 << DIGIT_BITS) + 1] = {0};
        for (int64_t i = 0; i < n; i++) start[(keys[i] >> from & mask) + 1]++;
        for (uint64_t d = 0; d < mask; d++) start[d + 1] += start[d];
        for (int64_t i = 0; i < n; i++) scratch[start[keys[i] >> from & mask]++] = keys[i];
        uint64_t *const sorted = scratch;
        scratch = keys;
        keys = sorted;
    }
    return keys;
}

/* ---- the rows of a batch ---- */

/* Whether this call is the first that marks the row. */
static inline int mark(uint8_t *seen, int64_t row) {
    const uint8_t bit = (uint8_t)(1 << (row & 7));
    if (__atomic_load_n(&seen[row >> 3], __ATOMIC_RELAXED) & bit) return 0;
    return !(__atomic_fetch_or(&seen[row >> 3], bit, __ATOMIC_RELAXED) & bit);
}

/* Collect the cold rows; returns how many they are, or -ERANGE. */
static int64_t collect(const int64_t *node, int64_t n, const uint8_t *classes, int64_t rows,
                       int32_t threshold, uint8_t *seen, uint64_t *cold) {
    int64_t count = 0;
    for (int64_t i = 0; i < n; i++) {
        const int64_t row = node[i];
        if ((uint64_t)row >= (uint64_t)rows) return -ERANGE;
        if (i + AHEAD < n && (uint64_t)node[i + AHEAD] < (uint64_t)rows)
            __builtin_prefetch(&classes[node[i + AHEAD]]);
        cold[count] = (uint64_t)row;
        count += classes[row] < threshold || mark(seen, row);
    }
    return count;
}

int64_t gd_cold_rows(const int64_t *node, int64_t n, const uint8_t *classes, int64_t rows,
                     int32_t threshold, uint8_t *seen, uint8_t *deltas, int64_t *count) {
    *count = 0;
    if (n == 0) return 0;
    uint64_t *const keys = malloc(2 * (size_t)n * sizeof *keys);
    if (!keys) return -ENOMEM;
    const int64_t found = collect(node, n, classes, rows, threshold, seen, keys);
    if (found <= 0) {
        free(keys);
        return found;
    }
    const uint64_t *const sorted = sort(keys, keys + n, found, 0, bits_of((uint64_t)rows - 1));
    uint8_t *at = deltas;
    uint64_t next = 0; /* the least row that may follow */
    for (int64_t i = 0; i < found; i++) {
        if (sorted[i] < next) continue; /* it comes twice */
        uint64_t gap = sorted[i] - next;
        for (; gap > 127; gap >>= 7) *at++ = (uint8_t)(gap | 128);
        *at++ = (uint8_t)gap;
        next = sorted[i] + 1;
        ++*count;
    }
    free(keys);
    return at - deltas;
}

typedef struct cursor {
    const uint8_t *at, *end;
    int64_t row;  /* where the cursor stands, while `left` > 0 */
    int64_t left; /* rows from there on */
} cursor;

/* Go to the next row. -EINVAL: the deltas are damaged. */
static inline int step(cursor *c) {
    if (--c->left == 0) return c->at == c->end ? 0 : -EINVAL;
    uint64_t gap = 0;
    for (int shift = 0; shift < ROW_BITS && c->at < c->end; shift += 7) {
        const uint8_t byte = *c->at++;
        gap |= (uint64_t)(byte & 127) << shift;
        if (byte & 128) continue;
        const uint64_t row = (uint64_t)c->row + 1 + gap;
        c->row = (int64_t)row;
        return row > INT64_MAX ? -EINVAL : 0;
    }
    return -EINVAL;
}

/* Stand on the first of `count` rows. -EINVAL: the deltas are damaged. */
static int begin(cursor *c, const uint8_t *deltas, int64_t bytes, int64_t count) {
    if (bytes < 0 || count < 0 || count > bytes) return -EINVAL; /* a row takes a byte or more */
    *c = (cursor){deltas, deltas + bytes, -1, count + 1};
    return step(c);
}

int gd_rows_decode(const uint8_t *deltas, int64_t bytes, int64_t count, int64_t *rows) {
    cursor c;
    int rc = begin(&c, deltas, bytes, count);
    while (rc == 0 && c.left) {
        *rows++ = c.row;
        rc = step(&c);
    }
    return rc;
}

int gd_rows_find(const int64_t *ids, int64_t m, const int64_t *rows, int64_t n, int64_t *found) {
    for (int64_t i = 0; i < n; i++) found[i] = -1;
    if (m == 0 || n == 0) return 0;
    if (ids[m - 1] < ids[0]) return -EINVAL;
    const int place_bits = bits_of((uint64_t)n - 1);
    const uint64_t range = (uint64_t)ids[m - 1] - (uint64_t)ids[0];
    const int row_bits = bits_of(range);
    if (row_bits + place_bits > 64) return -EOVERFLOW;
    uint64_t *const keys = malloc(2 * (size_t)n * sizeof *keys);
    if (!keys) return -ENOMEM;
    int64_t count = 0;
    for (int64_t i = 0; i < n; i++) {
        const uint64_t row = (uint64_t)rows[i] - (uint64_t)ids[0];
        keys[count] = row << place_bits | (uint64_t)i;
        count += row <= range;
    }
    const uint64_t *const sorted = sort(keys, keys + n, count, place_bits, row_bits);
    const uint64_t place = ((uint64_t)1 << place_bits) - 1;
    int64_t at = 0;
    for (int64_t i = 0; i < count; i++) {
        const uint64_t row = sorted[i] >> place_bits;
        while ((uint64_t)ids[at] - (uint64_t)ids[0] < row) at++; /* at most to m - 1 */
        if ((uint64_t)ids[at] - (uint64_t)ids[0] == row) found[sorted[i] & place] = at;
    }
    free(keys);
    return 0;
}

/* ---- from the table to the batches ---- */

typedef struct batch {
    cursor cursor;
    int32_t buffer; /* the open one, or -1 */
    int64_t filled; /* rows in it */
    int64_t blocks; /* handed out */
} batch;

struct gd_distribution {
    int64_t row_bytes, block_rows, batches;
    batch batch[];
};

gd_distribution *gd_distribution_new(int64_t row_bytes, int64_t block_rows, int64_t batches,
                                     const gd_deltas *deltas) {
    if (row_bytes < 1 || block_rows < 1 || batches < 0 || batches > INT32_MAX)
        return gd_no_object(EINVAL);
    gd_distribution *const d = calloc(1, sizeof *d + (size_t)batches * sizeof *d->batch);
    if (!d) return gd_no_object(ENOMEM);
    *d = (gd_distribution){row_bytes, block_rows, batches};
    for (int64_t b = 0; b < batches; b++) {
        d->batch[b].buffer = -1;
        if (begin(&d->batch[b].cursor, deltas[b].deltas, deltas[b].bytes, deltas[b].count)) {
            free(d);
            return gd_no_object(EINVAL);
        }
    }
    return d;
}

void gd_distribution_free(gd_distribution *d) { free(d); }

static void hand_out(batch *b, int64_t number, gd_block *out) {
    *out = (gd_block){(int32_t)number, b->buffer, b->blocks++, b->filled};
    b->buffer = -1;
    b->filled = 0;
}

/* Copy rows before row `end` until the open buffer is full. -EINVAL: the deltas are damaged. */
static int fill(const gd_distribution *d, batch *b, const uint8_t *part, int64_t first, int64_t end,
                uint8_t *buffer) {
    cursor *const c = &b->cursor;
    for (; b->filled < d->block_rows && c->left && c->row < end; b->filled++) {
        const uint8_t *const row = part + (c->row - first) * d->row_bytes;
        memcpy(buffer + b->filled * d->row_bytes, row, (size_t)d->row_bytes);
        if (step(c)) return -EINVAL;
    }
    return 0;
}

int gd_distribution_copy(gd_distribution *d, const uint8_t *part, int64_t first, int64_t count,
                         const gd_buffers *buffers, gd_block *full, int64_t *handed,
                         int64_t *taken) {
    const int64_t end = first + count;
    *handed = *taken = 0;
    for (int64_t k = 0; k < d->batches; k++) {
        batch *const b = &d->batch[k];
        if (b->cursor.left && b->cursor.row < first) return -ERANGE;
        while (b->cursor.left && b->cursor.row < end) {
            if (b->buffer < 0) {
                if (*taken == buffers->spares) return GD_WANTS_BUFFERS;
                const int32_t buffer = buffers->spare[*taken];
                if (buffer < 0 || buffer >= buffers->count) return -EINVAL;
                b->buffer = buffer;
                ++*taken;
            }
            uint8_t *const to = buffers->memory + b->buffer * buffers->stride;
            if (fill(d, b, part, first, end, to)) return -EINVAL;
            if (b->filled == d->block_rows) hand_out(b, k, &full[(*handed)++]);
        }
    }
    return 0;
}

int64_t gd_distribution_flush(gd_distribution *d, gd_block *last) {
    int64_t handed = 0;
    for (int64_t k = 0; k < d->batches; k++)
        if (d->batch[k].cursor.left) return -ENODATA;
    for (int64_t k = 0; k < d->batches; k++)
        if (d->batch[k].buffer >= 0) hand_out(&d->batch[k], k, &last[handed++]);
    return handed;
}
