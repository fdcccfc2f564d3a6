/* filter.c: the graph of a window (HierBatching): of the lists of some partitions and of the static
 * nodes, the edges that begin in them, in local ids.
 *
 * The codes of a window are many and come in no order, and a prediction of which are kept would
 * fail for one in three. So the loop over a list has no branch that depends on a code, except for a
 * code out of range and for the end of a range. It writes each edge and moves on if it is kept.
 */
#include "internal.h"

enum { LISTS_AHEAD = 16 };

static inline int64_t number_at(const void *array, int32_t width, int64_t i) {
    return width == 4 ? ((const int32_t *)array)[i] : ((const int64_t *)array)[i];
}

static inline int64_t pointer_at(const gd_filter *f, int64_t i) {
    return f->pointer_bytes == 4 ? (int64_t)((const uint32_t *)f->pointers)[i]
                                 : ((const int64_t *)f->pointers)[i];
}

/* The local id of the node whose new id is `id` >= 0, which is below codes->nodes; < 0: dropped. */
static inline int64_t local_of(const gd_codes *codes, int64_t id) {
    const gd_id_range *range = codes->ranges + codes->first[id >> codes->shift];
    while (__builtin_expect(range->end <= id, 0)) range++;
    return id + range->add;
}

/* Filter `count` codes from codes[from] on, the first of which is at `position` in the store.
 * Returns how many edges are kept with those before, or -ERANGE. */
static inline int64_t filter_list(gd_filter *f, const gd_codes *map, const void *codes,
                                  int32_t code_bytes, int64_t from, int64_t count, int64_t position,
                                  int32_t position_bytes) {
    const int64_t statics = map->statics;
    const uint64_t bound = (uint64_t)(statics + map->nodes);
    int32_t *const indices = f->indices;
    void *const positions = f->positions;
    int64_t kept = f->kept;
    for (int64_t i = 0; i < count; i++) {
        const int64_t code = number_at(codes, code_bytes, from + i);
        if (__builtin_expect((uint64_t)code >= bound, 0)) {
            f->culprit = code;
            return -ERANGE;
        }
        const int64_t is_static = code < statics ? -1 : 0;
        const int64_t moving = local_of(map, (code - statics) & ~is_static);
        const int64_t fixed = map->of_static[is_static ? code : statics];
        const int64_t local = (fixed & is_static) | (moving & ~is_static);
        indices[kept] = (int32_t)local;
        if (position_bytes == 4)
            ((uint32_t *)positions)[kept] = (uint32_t)(position + i);
        else
            ((int64_t *)positions)[kept] = position + i;
        kept += local >= 0;
    }
    return kept;
}

/* With constant widths the compiler makes one loop of each. */
static int64_t filter_some(gd_filter *f, const gd_codes *map, const void *codes, int32_t code_bytes,
                           int64_t from, int64_t count, int64_t position) {
    if (f->position_bytes == 4)
        return code_bytes == 4 ? filter_list(f, map, codes, 4, from, count, position, 4)
                               : filter_list(f, map, codes, 8, from, count, position, 4);
    return code_bytes == 4 ? filter_list(f, map, codes, 4, from, count, position, 8)
                           : filter_list(f, map, codes, 8, from, count, position, 8);
}

/* Where the list of the local id f->list lies in the store. 0 or -EFAULT. */
static int store_list(gd_filter *f, const gd_codes *map, int64_t *begin, int64_t *end) {
    f->culprit = f->list;
    const int64_t node = number_at(f->store_ids, f->id_bytes, f->list);
    if ((uint64_t)node >= (uint64_t)map->nodes) return -EFAULT;
    *begin = pointer_at(f, node);
    *end = pointer_at(f, node + 1);
    return *begin >= 0 && *end >= *begin && *end <= f->edges ? 0 : -EFAULT;
}

static void prefetch_list(const gd_filter *f, int64_t list) {
    if (list >= f->lists) return;
    const int64_t node = number_at(f->store_ids, f->id_bytes, list);
    __builtin_prefetch(
        (const void *)((uintptr_t)f->pointers + (uint64_t)node * (uint64_t)f->pointer_bytes));
}

/* The list f->list is complete. */
static void end_list(gd_filter *f, int left_out) {
    f->next_empty += left_out;
    f->place = 0;
    f->list++;
    if (f->indptr_bytes == 4)
        ((uint32_t *)f->indptr)[f->list] = (uint32_t)f->kept;
    else
        ((int64_t *)f->indptr)[f->list] = f->kept;
}

int gd_filter_lists(gd_filter *f, const gd_codes *map, const void *codes, int32_t code_bytes,
                    int64_t count, int64_t last) {
    assert(last <= f->lists);
    if (f->kept + count >= f->room) return -ENOSPC;
    int64_t done = 0;
    while (f->list < last) {
        int64_t begin, end;
        const int rc = store_list(f, map, &begin, &end);
        if (rc) return rc;
        prefetch_list(f, f->list + LISTS_AHEAD);
        const int64_t left = end - begin - f->place, more = count - done;
        const int64_t now = left < more ? left : more;
        const int left_out = f->next_empty < f->empty_count && f->empty[f->next_empty] == f->list;
        if (!left_out) {
            const int64_t kept =
                filter_some(f, map, codes, code_bytes, done, now, begin + f->place);
            if (kept < 0) return (int)kept;
            f->kept = kept;
        }
        f->place += now;
        done += now;
        if (now < left) return 0;
        end_list(f, left_out);
    }
    return done == count ? 0 : -EINVAL;
}

int gd_locals(const gd_codes *map, const int64_t *new_ids, int64_t n, int32_t *locals) {
    for (int64_t i = 0; i < n; i++) {
        if ((uint64_t)new_ids[i] >= (uint64_t)map->nodes) return -ERANGE;
        const int64_t local = local_of(map, new_ids[i]);
        locals[i] = local < 0 ? -1 : (int32_t)local;
    }
    return 0;
}
