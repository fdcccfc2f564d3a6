/* plan.c: missing rows become extents (GNNDrive's joint extraction, for rows of any size).
 *
 * The planner sorts the rows and makes one read of neighbours that share a sector, touch, or lie at
 * most gap_bytes_max apart once they are rounded out to sectors. To merge rows that touch costs no
 * byte and saves a request. O(n); the order of the given rows does not change the result.
 *
 * gap_bytes_max is the number of bytes that cost as much as one request. As long as no extent
 * reaches extent_bytes_max each gap is independent of the others, and bridging exactly the gaps up
 * to gap_bytes_max minimises requests x seconds a request + bytes x seconds a byte. Where an extent
 * does reach it, each bridged gap still saves a request, so no plan costs more than one without
 * bridges.
 */
#include "keys.h"
#include "reads.h"

enum { EXTENT_BYTES_LIMIT = 1 << 30 };

static int check_geometry(const gd_geometry *geometry, int64_t n) {
    int64_t end;
    if (n < 0 || n >= INT32_MAX || geometry->row_bytes <= 0 ||
        geometry->row_bytes > EXTENT_BYTES_LIMIT)
        return -EINVAL;
    if (geometry->data_offset < 0 || geometry->row_count < 0 || geometry->extent_bytes_max <= 0 ||
        geometry->gap_bytes_max < 0)
        return -EINVAL;
    if (geometry->sector <= 0 || (geometry->sector & (geometry->sector - 1)) ||
        geometry->sector > (1 << 20))
        return -EINVAL;
    if (geometry->slot_stride < geometry->row_bytes ||
        (!geometry->slots && n && !geometry->separate))
        return -EINVAL;
    if (geometry->write) { /* no extent has two rows, and none is staged */
        int64_t aligned = geometry->data_offset | geometry->row_bytes | geometry->slot_stride |
                          (int64_t)(uintptr_t)geometry->slots;
        if ((aligned & (geometry->sector - 1)) || !geometry->slots || !geometry->land_direct ||
            geometry->repeats || geometry->extent_bytes_max > geometry->row_bytes)
            return -EINVAL;
    }
    if (__builtin_mul_overflow(geometry->row_count, geometry->row_bytes, &end) ||
        __builtin_add_overflow(end, geometry->data_offset + geometry->sector, &end))
        return -EINVAL;
    return 0;
}

static int check_row(const gd_reads *r, int64_t row, int32_t slot) {
    if (row < 0 || row >= r->geometry.row_count) return -ERANGE;
    return slot < 0 ? -EINVAL : 0;
}

/* keys[i] = row, then i in the low `shift` bits. 1: the rows were sorted; 0: they were not; or
 * -errno. */
static int make_keys(const gd_reads *r, const int64_t *rows, const int32_t *slots, int shift,
                     uint64_t *keys) {
    int sorted = 1;
    for (int64_t i = 0; i < r->n; i++) {
        int code = check_row(r, rows[i], slots[i]);
        if (code) return code;
        sorted &= i == 0 || rows[i - 1] < rows[i];
        keys[i] = (uint64_t)rows[i] << shift | (uint64_t)i;
    }
    return sorted;
}

/* Write the sorted rows and their slots to r, in the memory of the sort's two buffers. -EINVAL: a
 * row comes twice, and `repeats` is 0. */
static int sort_rows(gd_reads *r, const int64_t *rows, const int32_t *slots) {
    int shift = gd_bits_of(r->n - 1), top = shift + gd_bits_of(r->geometry.row_count - 1);
    if (top > 64) return -EINVAL;
    int code = make_keys(r, rows, slots, shift, r->row);
    if (code < 0) return code;
    if (code == 0 && gd_sort_keys(r->row, r->pair, r->n, shift, top) == r->pair) {
        uint64_t *other = r->row;
        r->row = r->pair;
        r->pair = other;
    }
    r->slot = (int32_t *)r->pair;
    r->landed_slots = r->slot + r->n;
    for (int64_t i = 0; i < r->n; i++) {
        r->slot[i] = slots[r->row[i] & ((UINT64_C(1) << shift) - 1)];
        r->row[i] >>= shift;
        if (i && r->row[i] == r->row[i - 1] && !r->geometry.repeats) return -EINVAL;
    }
    return 0;
}

/* Write the rows to r in the order given, for `separate`. */
static int keep_rows(gd_reads *r, const int64_t *rows, const int32_t *slots) {
    r->slot = (int32_t *)r->pair;
    r->landed_slots = r->slot + r->n;
    for (int64_t i = 0; i < r->n; i++) {
        int code = check_row(r, rows[i], slots[i]);
        if (code) return code;
        r->row[i] = (uint64_t)rows[i];
        r->slot[i] = slots[i];
    }
    return 0;
}

/* Cut extents of rows that share a sector or touch, none longer than `limit`. */
static void cut_runs(gd_reads *r, int64_t limit) {
    int64_t start = 0, top = 0, e = 0;
    for (int64_t i = 0; i < r->n; i++) {
        gd_span s = gd_span_of(r, i, i + 1);
        int64_t end = s.offset + s.length;
        if (i == 0 || s.offset > top || end - start > limit || r->geometry.separate) {
            r->first[e++] = (int32_t)i;
            start = s.offset;
        }
        top = end;
    }
    r->first[e] = (int32_t)r->n;
    r->extents = e;
}

/* Join neighbouring extents over gaps of up to gap_bytes_max. An extent is joined whole or not at
 * all: if the limit cut it in two, the joint would cost the gap and save no request. */
static void bridge_gaps(gd_reads *r, int64_t limit) {
    int64_t last = 0;
    for (int64_t e = 1; e < r->extents; e++) {
        int64_t at = r->first[e];
        gd_span before = gd_span_of(r, at - 1, at), after = gd_span_of(r, at, at + 1);
        gd_span joined = gd_span_of(r, r->first[last], r->first[e + 1]);
        int64_t gap = after.offset - before.offset - before.length;
        if (gap > r->geometry.gap_bytes_max || joined.length > limit)
            r->first[++last] = (int32_t)at;
    }
    if (r->extents) r->first[r->extents = last + 1] = (int32_t)r->n;
}

static void cut_extents(gd_reads *r) {
    int64_t limit = r->geometry.extent_bytes_max;
    if (limit > EXTENT_BYTES_LIMIT) limit = EXTENT_BYTES_LIMIT;
    cut_runs(r, limit);
    if (r->geometry.gap_bytes_max && !r->geometry.separate) bridge_gaps(r, limit);
    for (int64_t e = 0; e < r->extents; e++) {
        gd_span s = gd_span_of(r, r->first[e], r->first[e + 1]);
        int direct = gd_extent_rows(r, e) == 1 && gd_lands_direct(r, r->first[e]);
        r->bytes += s.length;
        if (!direct && s.length > r->block_bytes) r->block_bytes = s.length;
    }
}

static int allocate_rows(gd_reads *r) {
    size_t n = (size_t)r->n + 1;
    r->row = malloc(n * sizeof *r->row);
    r->pair = malloc(n * sizeof *r->pair);
    r->first = malloc(n * sizeof *r->first);
    r->failures = malloc(n * sizeof *r->failures); /* takes no memory until a row fails */
    return r->row && r->pair && r->first && r->failures ? 0 : -ENOMEM;
}

static int allocate_extents(gd_reads *r) {
    size_t extents = (size_t)r->extents + 1;
    int32_t *first = realloc(r->first, extents * sizeof *first);
    if (first) r->first = first;
    r->phase = calloc(extents, sizeof *r->phase);
    return r->phase ? 0 : -ENOMEM;
}

gd_reads *gd_reads_plan(const gd_geometry *geometry, const int64_t *rows, const int32_t *slots,
                        int64_t n, int *error) {
    *error = check_geometry(geometry, n);
    if (*error) return NULL;
    gd_reads *r = calloc(1, sizeof *r);
    if (!r) {
        *error = -ENOMEM;
        return NULL;
    }
    r->geometry = *geometry;
    r->n = n;
    pthread_mutex_init(&r->lock, NULL);
    *error = allocate_rows(r);
    if (!*error)
        *error = geometry->separate ? keep_rows(r, rows, slots) : sort_rows(r, rows, slots);
    if (!*error) {
        cut_extents(r);
        *error = allocate_extents(r);
    }
    if (*error) {
        gd_reads_free(r);
        return NULL;
    }
    return r;
}
