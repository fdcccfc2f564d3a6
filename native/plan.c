/* plan.c: missing rows become extents (GNNDrive's joint extraction, for rows of any size).
 *
 * Sort by row, then one read for what shares a sector, touches, or lies no further apart than
 * gap_bytes_max once rounded out to sectors: merging what touches costs no byte and saves a
 * request. O(n); the order of the rows given does not matter to the result.
 */
#include "reads.h"

enum { DIGIT_BITS = 11, BUCKETS = 1 << DIGIT_BITS, EXTENT_BYTES_LIMIT = 1 << 30 };

static int check_geometry(const gd_geometry *g, int64_t n)
{
    int64_t end;
    if (n < 0 || n >= INT32_MAX || g->row_bytes <= 0 || g->row_bytes > EXTENT_BYTES_LIMIT)
        return -EINVAL;
    if (g->data_offset < 0 || g->row_count < 0 || g->extent_bytes_max <= 0 || g->gap_bytes_max < 0)
        return -EINVAL;
    if (g->sector <= 0 || (g->sector & (g->sector - 1)) || g->sector > (1 << 20))
        return -EINVAL;
    if (g->slot_stride < g->row_bytes || (!g->slots && n))
        return -EINVAL;
    if (__builtin_mul_overflow(g->row_count, g->row_bytes, &end) ||
        __builtin_add_overflow(end, g->data_offset + g->sector, &end))
        return -EINVAL;
    return 0;
}

static int bits_of(int64_t value)
{
    return value > 0 ? 64 - __builtin_clzll((uint64_t)value) : 0;
}

/* keys[i] = row, then i in the low `shift` bits. 1: they came sorted, 0: they did not, or
 * -errno. */
static int make_keys(const gd_reads *r, const int64_t *rows, const int32_t *slots, int shift,
                     uint64_t *keys)
{
    int sorted = 1;
    for (int64_t i = 0; i < r->n; i++) {
        if (rows[i] < 0 || rows[i] >= r->g.row_count)
            return -ERANGE;
        if (slots[i] < 0)
            return -EINVAL;
        sorted &= i == 0 || rows[i - 1] < rows[i];
        keys[i] = (uint64_t)rows[i] << shift | (uint64_t)i;
    }
    return sorted;
}

/* LSD radix sort of a by the bits from `shift` to `top`; a digit in which all agree costs no
 * pass. Returns where the result is: a or b. */
static uint64_t *sort_keys(uint64_t *a, uint64_t *b, int64_t n, int shift, int top)
{
    int64_t count[BUCKETS];
    for (; shift < top; shift += DIGIT_BITS) {
        memset(count, 0, sizeof count);
        for (int64_t i = 0; i < n; i++)
            count[(a[i] >> shift) & (BUCKETS - 1)]++;
        if (count[(a[0] >> shift) & (BUCKETS - 1)] == n)
            continue;
        for (int64_t bucket = 0, sum = 0; bucket < BUCKETS; bucket++) {
            int64_t here = count[bucket];
            count[bucket] = sum;
            sum += here;
        }
        for (int64_t i = 0; i < n; i++)
            b[count[(a[i] >> shift) & (BUCKETS - 1)]++] = a[i];
        uint64_t *other = a;
        a = b;
        b = other;
    }
    return a;
}

/* Sorted rows and their slots into r, in the memory of the sort's two buffers. -EINVAL: a row
 * twice. */
static int sort_rows(gd_reads *r, const int64_t *rows, const int32_t *slots)
{
    int shift = bits_of(r->n - 1), top = shift + bits_of(r->g.row_count - 1);
    if (top > 64)
        return -EINVAL;
    int code = make_keys(r, rows, slots, shift, r->row);
    if (code < 0)
        return code;
    if (code == 0 && sort_keys(r->row, r->pair, r->n, shift, top) == r->pair) {
        uint64_t *other = r->row;
        r->row = r->pair;
        r->pair = other;
    }
    r->slot = (int32_t *)r->pair;
    r->landed_slots = r->slot + r->n;
    for (int64_t i = 0; i < r->n; i++) {
        r->slot[i] = slots[r->row[i] & ((UINT64_C(1) << shift) - 1)];
        r->row[i] >>= shift;
        if (i && r->row[i] == r->row[i - 1])
            return -EINVAL;
    }
    return 0;
}

static void close_extent(gd_reads *r, int64_t from, int64_t to)
{
    gd_span s = gd_span_of(r, from, to);
    int direct = to - from == 1 && gd_lands_direct(r, from);
    r->bytes += s.length;
    if (!direct && s.length > r->block_bytes)
        r->block_bytes = s.length;
}

static void cut_extents(gd_reads *r)
{
    int64_t limit = r->g.extent_bytes_max, start = 0, top = 0, e = 0;
    if (limit > EXTENT_BYTES_LIMIT)
        limit = EXTENT_BYTES_LIMIT;
    for (int64_t i = 0; i < r->n; i++) {
        gd_span s = gd_span_of(r, i, i + 1);
        int64_t end = s.offset + s.length;
        if (i == 0 || s.offset - top > r->g.gap_bytes_max || end - start > limit) {
            if (i)
                close_extent(r, r->first[e - 1], i);
            r->first[e++] = (int32_t)i;
            start = s.offset;
        }
        top = end;
    }
    if (r->n)
        close_extent(r, r->first[e - 1], r->n);
    r->first[e] = (int32_t)r->n;
    r->extents = e;
}

static int allocate_rows(gd_reads *r)
{
    size_t n = (size_t)r->n + 1;
    r->row = malloc(n * sizeof *r->row);
    r->pair = malloc(n * sizeof *r->pair);
    r->first = malloc(n * sizeof *r->first);
    r->failures = malloc(n * sizeof *r->failures); /* not resident until something fails */
    return r->row && r->pair && r->first && r->failures ? 0 : -ENOMEM;
}

static int allocate_extents(gd_reads *r)
{
    size_t extents = (size_t)r->extents + 1;
    int32_t *first = realloc(r->first, extents * sizeof *first);
    if (first)
        r->first = first;
    r->phase = calloc(extents, sizeof *r->phase);
    return r->phase ? 0 : -ENOMEM;
}

gd_reads *gd_reads_plan(const gd_geometry *g, const int64_t *rows, const int32_t *slots, int64_t n,
                        int *error)
{
    *error = check_geometry(g, n);
    if (*error)
        return NULL;
    gd_reads *r = calloc(1, sizeof *r);
    if (!r) {
        *error = -ENOMEM;
        return NULL;
    }
    r->g = *g;
    r->n = n;
    pthread_mutex_init(&r->lock, NULL);
    *error = allocate_rows(r);
    if (!*error)
        *error = sort_rows(r, rows, slots);
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
