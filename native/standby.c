/* standby.c: the standby list, one structure for every policy (GNNDrive section 4.2; Ginex section
 * 5 for look-ahead keys).
 *
 * Slots of equal key form a bucket, a doubly linked list, oldest first; a binary heap orders the
 * buckets. Under LRU all slots of one release share its tick, so a push appends to the bucket of
 * the last push and a pop takes the head of the smallest bucket: constant time, some tens of
 * nanoseconds. Other policies pay the logarithm of the number of distinct keys.
 *
 * A small cache of recent keys finds the bucket of a key. If the cache has lost a key that is still
 * in use, a push makes a second bucket of that key. The second bucket is younger, so slots of equal
 * keys still leave oldest first.
 */
#include "internal.h"

#define CACHE_BITS 12 /* a policy may interleave some hundreds of keys */
#define CACHE_SIZE (1u << CACHE_BITS)
#define NONE (-1)

typedef struct bucket {
    int64_t key;
    int64_t age; /* the order in which buckets were made; decides between buckets of one key */
    int32_t head, tail; /* slots; head == NONE: the bucket is not in use */
    int32_t heap_index;
    int32_t next_free;
} bucket;

struct gd_standby {
    int64_t slots, count;
    int32_t *next, *previous; /* by slot */
    int32_t *bucket_of;       /* by slot: bucket + 1; 0: the slot is not on standby */
    bucket *buckets;          /* at most one a slot; a page takes memory when it is first used */
    int32_t buckets_made, free_bucket;
    int32_t *heap, heap_count; /* behind the buckets */
    int64_t ages;
    int32_t recent[CACHE_SIZE]; /* bucket of a recently pushed key, or NONE */
};

/* Bytes of the buckets and the heap, which have a mapping of their own: memory from malloc may have
 * been in use before, or lie in huge pages, and then takes more than the pages in use. */
static size_t ordered_bytes(int64_t slots) {
    return ((size_t)slots + 1) * (sizeof(bucket) + sizeof(int32_t));
}

gd_standby *gd_standby_new(int64_t slots) {
    if (slots < 0 || slots >= INT32_MAX) return gd_no_object(EINVAL);
    gd_standby *s = calloc(1, sizeof *s);
    if (!s) return gd_no_object(ENOMEM);
    size_t n = (size_t)slots + 1;
    s->slots = slots;
    s->free_bucket = NONE;
    s->next = gd_table(n, sizeof *s->next);
    s->previous = gd_table(n, sizeof *s->previous);
    s->bucket_of = gd_table(n, sizeof *s->bucket_of);
    void *ordered = mmap(NULL, ordered_bytes(slots), PROT_READ | PROT_WRITE,
                         MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    s->buckets = ordered == MAP_FAILED ? NULL : ordered;
    if (s->buckets) s->heap = (int32_t *)(s->buckets + n);
    for (unsigned i = 0; i < CACHE_SIZE; i++) s->recent[i] = NONE;
    if (s->next && s->previous && s->bucket_of && s->buckets) return s;
    gd_standby_free(s);
    return gd_no_object(ENOMEM);
}

void gd_standby_free(gd_standby *s) {
    if (!s) return;
    free(s->next);
    free(s->previous);
    free(s->bucket_of);
    if (s->buckets) munmap(s->buckets, ordered_bytes(s->slots));
    free(s);
}

static int before(const bucket *a, const bucket *b) {
    return a->key != b->key ? a->key < b->key : a->age < b->age;
}

static void heap_set(gd_standby *s, int32_t index, int32_t b) {
    s->heap[index] = b;
    s->buckets[b].heap_index = index;
}

static void sift_up(gd_standby *s, int32_t index) {
    int32_t b = s->heap[index];
    while (index > 0) {
        int32_t parent = (index - 1) / 2;
        if (!before(&s->buckets[b], &s->buckets[s->heap[parent]])) break;
        heap_set(s, index, s->heap[parent]);
        index = parent;
    }
    heap_set(s, index, b);
}

static void sift_down(gd_standby *s, int32_t index) {
    int32_t b = s->heap[index];
    for (;;) {
        int32_t child = 2 * index + 1;
        if (child >= s->heap_count) break;
        if (child + 1 < s->heap_count &&
            before(&s->buckets[s->heap[child + 1]], &s->buckets[s->heap[child]]))
            child++;
        if (!before(&s->buckets[s->heap[child]], &s->buckets[b])) break;
        heap_set(s, index, s->heap[child]);
        index = child;
    }
    heap_set(s, index, b);
}

static unsigned cache_index(int64_t key) {
    return (unsigned)(((uint64_t)key * 0x9E3779B97F4A7C15ull) >> (64 - CACHE_BITS));
}

static int32_t bucket_for(gd_standby *s, int64_t key) {
    int32_t *recent = &s->recent[cache_index(key)];
    if (*recent != NONE && s->buckets[*recent].head != NONE && s->buckets[*recent].key == key)
        return *recent;
    int32_t b = s->free_bucket;
    if (b != NONE)
        s->free_bucket = s->buckets[b].next_free;
    else
        b = s->buckets_made++;
    s->buckets[b] =
        (bucket){.key = key, .age = s->ages++, .head = NONE, .tail = NONE, .next_free = NONE};
    heap_set(s, s->heap_count, b);
    sift_up(s, s->heap_count++);
    *recent = b;
    return b;
}

static void drop_bucket(gd_standby *s, int32_t b) {
    int32_t index = s->buckets[b].heap_index;
    int32_t last = s->heap[--s->heap_count];
    if (last != b) {
        heap_set(s, index, last);
        sift_up(s, index);
        sift_down(s, s->buckets[last].heap_index);
    }
    s->buckets[b].next_free = s->free_bucket;
    s->free_bucket = b;
}

void gd_standby_push(gd_standby *s, int32_t slot, int64_t key) {
    assert(slot >= 0 && slot < s->slots && !s->bucket_of[slot]);
    int32_t b = bucket_for(s, key);
    bucket *list = &s->buckets[b];
    s->next[slot] = NONE;
    s->previous[slot] = list->tail;
    if (list->tail == NONE)
        list->head = slot;
    else
        s->next[list->tail] = slot;
    list->tail = slot;
    s->bucket_of[slot] = b + 1;
    s->count++;
}

void gd_standby_remove(gd_standby *s, int32_t slot) {
    assert(slot >= 0 && slot < s->slots && s->bucket_of[slot]);
    int32_t b = s->bucket_of[slot] - 1, next = s->next[slot], previous = s->previous[slot];
    bucket *list = &s->buckets[b];
    if (previous == NONE)
        list->head = next;
    else
        s->next[previous] = next;
    if (next == NONE)
        list->tail = previous;
    else
        s->previous[next] = previous;
    s->bucket_of[slot] = 0;
    s->count--;
    if (list->head == NONE) drop_bucket(s, b);
}

int32_t gd_standby_pop(gd_standby *s) {
    if (s->heap_count == 0) return NONE;
    int32_t slot = s->buckets[s->heap[0]].head;
    gd_standby_remove(s, slot);
    return slot;
}

int32_t gd_standby_first(const gd_standby *s) {
    return s->heap_count ? s->buckets[s->heap[0]].head : NONE;
}

int64_t gd_standby_count(const gd_standby *s) { return s->count; }

int gd_standby_holds(const gd_standby *s, int32_t slot) {
    return slot >= 0 && slot < s->slots && s->bucket_of[slot] != 0;
}

int64_t gd_standby_key(const gd_standby *s, int32_t slot) {
    return s->buckets[s->bucket_of[slot] - 1].key;
}
