/* gnndrive.h: the C core's interface to Python; more of it is in sampling.h, packing.h,
 * assigning.h and partition.h. The core is mechanism only: what happens per node, per row, per
 * read.
 *
 * build_ext.py hands these files to cffi without their preprocessor lines, so they are the single
 * source of the declarations: plain C, no macros.
 *
 * Errors: a function that can fail returns -errno. A constructor that fails returns NULL and writes
 * -errno to *error; a constructor without that argument sets errno (`ffi.errno` in Python) to
 * EINVAL, an argument is out of range, or to ENOMEM. After -EINVAL nothing has changed, unless
 * a comment says otherwise.
 *
 * Threads: unless a comment says otherwise one thread at a time uses an object. No function calls
 * Python. A call through cffi's `lib` drops the GIL; a call through `holding_gil` of
 * gnndrive/common/ffi.py keeps it.
 */
#ifndef GNNDRIVE_H
#define GNNDRIVE_H
#include <stdint.h>
#include <stddef.h>

/* ---- standby.c: the standby list: slots by key. The slot with the smallest key leaves first; of
 * slots with equal keys the one that entered first. ---- */
typedef struct gd_standby gd_standby;
/* 0 <= slots < 2^31 - 1. NULL: errno is EINVAL or ENOMEM. */
gd_standby *gd_standby_new(int64_t slots);
void gd_standby_free(gd_standby *s);
/* The slot must not be on standby. */
void gd_standby_push(gd_standby *s, int32_t slot, int64_t key);
/* The slot must be on standby. */
void gd_standby_remove(gd_standby *s, int32_t slot);
/* Removes the first slot and returns it; -1: standby is empty. */
int32_t gd_standby_pop(gd_standby *s);
/* The slot that gd_standby_pop would return. */
int32_t gd_standby_first(const gd_standby *s);
int64_t gd_standby_count(const gd_standby *s);
int gd_standby_holds(const gd_standby *s, int32_t slot);
/* The slot must be on standby. */
int64_t gd_standby_key(const gd_standby *s, int32_t slot);

/* ---- window.c: look-ahead: the rows of batches that are known but not admitted yet ---- */
enum { GD_WINDOW_BATCHES = 8, GD_WINDOW_SETS = 256 };
typedef struct gd_window gd_window;
/* rows >= 0; takes 1 byte a row. NULL: errno is EINVAL or ENOMEM. */
gd_window *gd_window_new(int64_t rows);
void gd_window_free(gd_window *w);
/* Announce batch `index` >= 0, which will request `ids`; an id may come twice. -ENOSPC: the window
 * has eight batches already; -EINVAL: it has this one; -ERANGE: an id is out of range. After an
 * error nothing has changed. */
int gd_window_add(gd_window *w, int64_t index, const int64_t *ids, int64_t n);
/* Withdraw batch `index`; `ids` as they were announced. -ENOENT: the window does not have it. */
int gd_window_drop(gd_window *w, int64_t index, const int64_t *ids, int64_t n);
int32_t gd_window_count(const gd_window *w); /* batches in the window */
/* Distinct rows that these batches request together. -ENOENT: the window lacks one of them. */
int64_t gd_window_together(const gd_window *w, const int64_t *indices, int64_t n);
/* The batches that request `row`, one bit for each place; -ERANGE. */
int gd_window_wanted(const gd_window *w, int64_t row);
/* next[GD_WINDOW_SETS], indexed by a set of batches, one bit for each place in the window: the
 * smallest batch index of the set; INT64_MAX: the empty set. It changes with each gd_window_add and
 * gd_window_drop. */
const int64_t *gd_window_next_uses(const gd_window *w);

/* ---- the standby keys of rows: base[case] + (class_of[row] & mask[case]) ----
 * What is known of a row's next use is its case. With a window it is the set of announced batches
 * that request the row. Else it is the code that comes with the row at its admission, or 0 if none
 * comes. A policy computes keys for the cases that there are, not for rows. */
enum { GD_CODES = 65536, GD_NO_CODE = 65535 }; /* GD_NO_CODE: no next use is known */
typedef struct gd_ranking {
    const int64_t *base;     /* [cases] */
    const uint8_t *mask;     /* [cases] */
    const uint8_t *class_of; /* [rows]: the class of each row; NULL: all have class 0 */
    const gd_window *window; /* NULL: cases are codes */
    int32_t keep_from;       /* rows of this class and above never leave their slots, others leave
                                them at their release; 0: the keys decide */
} gd_ranking;

/* ---- trace.c: when the rows of a superbatch are needed next ---- */
enum { GD_NEAR = 8 };
/* Give the rows ids[n] of a batch the codes of their next uses, from last[rows], and make this
 * batch their next use there. Batches come from the last to the first; `last` is GD_NO_CODE at
 * first. A row may come several times. near[0]: how many distinct rows there are; near[d], 0 < d <
 * GD_NEAR: how many of these the d-th batch behind this one needs next. -ERANGE: nothing is
 * changed. */
int gd_trace_codes(uint16_t *last, int64_t rows, const int64_t *ids, int64_t n, int32_t code,
                   uint16_t *codes, int64_t *near);
/* Replace the codes of ids[n] that are GD_NO_CODE by those of later[]; returns how many there were.
 */
int64_t gd_trace_patch(uint16_t *codes, const int64_t *ids, int64_t n, const uint16_t *later);
/* For rows that several ranks need: first[rows][ranks] has the code of the first batch of each rank
 * that needs the row and is yet to be admitted. Ids that are no row are passed over.
 *
 * A batch of a rank is admitted, or not any more if `back`: exchange the rank's codes of its rows
 * ids[n] for codes[n], of the rank's next uses of them. */
void gd_first_exchange(uint16_t *first, int64_t rows, int32_t ranks, int32_t rank,
                       const int64_t *ids, int64_t n, uint16_t *codes, int back);
/* codes[n]: of the rank that needs each of ids[n] first, seen from the batch with code `now`; ids
 * NULL: of rows 0 to n - 1. */
void gd_first_least(const uint16_t *first, int64_t rows, int32_t ranks, const int64_t *ids,
                    int64_t n, int32_t now, uint16_t *codes);
/* Give the blocks of a part of a file back to the file system; the part reads as zeros. -errno. */
int gd_punch_hole(int fd, int64_t offset, int64_t length);

/* ---- buffer.c, rekey.c, verify.c: the slot table: mapping table, reverse map, reference counts,
 * slot states, standby ---- */
enum { GD_FREE = 0, GD_LOADING = 1, GD_VALID = 2, GD_FAILED = 3, GD_KEPT = 4 };
typedef struct gd_buffer gd_buffer;
typedef struct gd_admission {
    int64_t hits;    /* distinct rows that are valid */
    int64_t waits;   /* distinct rows that another lease loads */
    int64_t loads;   /* distinct rows that this lease has to load */
    int64_t pending; /* entries written to pending[]: loads + waits; gd_buffer_hold: waits */
    int64_t deficit; /* after a refusal: how many slots were missing */
    int64_t evicted; /* rows that left the buffer: entries written to evicted[] */
} gd_admission;
/* A row that an admission took out of its slot. */
typedef struct gd_evicted {
    int64_t row;
    int64_t key;    /* its standby key; INT64_MIN without a ranking */
    int32_t slot;   /* where its bytes are until the slot is written */
    uint16_t known; /* its case, see gd_ranking; 0 if there is none */
    uint16_t unused;
} gd_evicted;
typedef struct gd_buffer_stats {
    int64_t rows, slots, free;
    int64_t standby; /* slots whose row is valid and that no lease holds; all valid ones if there is
                        a slot for every row, which then stay as they are */
    int64_t admitted, refused, hits, waits, loads, evictions, commits, failures, releases;
} gd_buffer_stats;
/* rows >= 0, 1 <= slots < 2^31 - 1; takes 4 bytes a row, 38 bytes a slot under LRU. NULL: errno is
 * EINVAL or ENOMEM. */
gd_buffer *gd_buffer_new(int64_t rows, int64_t slots);
void gd_buffer_free(gd_buffer *b);
/* Whether gd_buffer_admit would admit `ids` now. Fills `a` and changes nothing. 0: yes; -EAGAIN:
 * not now; -ENOSPC: never, as there are a->deficit more distinct rows than slots; -ERANGE: an id is
 * out of range. */
int gd_buffer_probe(gd_buffer *b, const int64_t *ids, int64_t n, gd_admission *a);
/* Whether an empty buffer would admit `ids`: 0, or the error that is found first: -ENOSPC or
 * -ERANGE. It stops as soon as the answer is known. */
int gd_buffer_holds(gd_buffer *b, const int64_t *ids, int64_t n);
/* Probe, then admit the whole batch or nothing; returns what gd_buffer_probe returns. The rows get
 * their standby keys from `ranking`; NULL: the tick of their release (LRU). codes[n]: the code of
 * each id, of which the last counts where an id comes again; NULL: none come.
 * Writes alias[n] (the slot of each id), pending[] (each slot that is not valid yet, once),
 * load_rows[] and load_slots[] (what this lease has to load), and unless NULL evicted[] (the rows
 * that left some of load_slots, the one with the smallest key first). Every output has room for n.
 */
int gd_buffer_admit(gd_buffer *b, const gd_ranking *ranking, const int64_t *ids,
                    const uint16_t *codes, int64_t n, int32_t *alias, int32_t *pending,
                    int64_t *load_rows, int32_t *load_slots, gd_evicted *evicted, gd_admission *a);
/* Take the rows that are valid or loading; they need no new slot. Every other row gets the alias
 * -1, and -2 where it comes again; a->loads counts these rows. The caller admits them later, before
 * any other admission that loads. -ENOSPC, -ERANGE: as gd_buffer_probe, and nothing is taken. */
int gd_buffer_hold(gd_buffer *b, const gd_ranking *ranking, const int64_t *ids,
                   const uint16_t *codes, int64_t n, int32_t *alias, int32_t *pending,
                   gd_admission *a);
/* Loading -> valid. -EINVAL: one of the slots was not loading. */
int gd_buffer_commit(gd_buffer *b, const int32_t *slots, int64_t n);
/* Loading -> failed, and their rows are unmapped. -EINVAL: one of the slots was not loading. */
int gd_buffer_fail(gd_buffer *b, const int32_t *slots, int64_t n);
/* Drop one reference for each alias, except of valid rows that stay for good. Slots that lose their
 * last reference enter standby, or become free if they have failed, in the order of slots. -EINVAL:
 * an alias had no reference left. */
int gd_buffer_release(gd_buffer *b, const int32_t *alias, int64_t n);
/* Move *position past the slots of `pending` that are no longer loading. 1: past all of them;
 * else 0. */
int gd_buffer_settled(const gd_buffer *b, const int32_t *pending, int64_t n, int64_t *position);
/* The first position whose slot has failed, or -1. */
int64_t gd_buffer_first_failed(const gd_buffer *b, const int32_t *alias, int64_t n);
/* Give those of `ids` that have a slot the keys that `ranking`, which has a window, has for them
 * now. -ERANGE: an id is out of range, and no key has changed. */
int gd_buffer_rekey(gd_buffer *b, const gd_ranking *ranking, const int64_t *ids, int64_t n);
/* Have slots keep the codes of their rows, GD_NO_CODE at first; takes 2 bytes a slot. -ENOMEM. */
int gd_buffer_keep_codes(gd_buffer *b);
/* Give the rows in slots whose code is GD_NO_CODE, or all if `all`, the codes later[rows], or
 * GD_NO_CODE if later is NULL; and their keys. -EINVAL: slots keep no codes. */
int gd_buffer_recode(gd_buffer *b, const gd_ranking *ranking, const uint16_t *later, int all);
/* Give the rows in slots whose code is marked in changed[GD_CODES] their keys anew. -EINVAL: slots
 * keep no codes. */
int gd_buffer_rekey_codes(gd_buffer *b, const gd_ranking *ranking, const uint8_t *changed);
/* Slots that an admission may take: free ones and those on standby. The caller may read it at any
 * time without a call until gd_buffer_free. */
typedef struct gd_room {
    int64_t available;
} gd_room;
const gd_room *gd_buffer_room(const gd_buffer *b);
int32_t gd_buffer_slot_of(const gd_buffer *b, int64_t row); /* -1: the row has no slot */
int64_t gd_buffer_row_of(const gd_buffer *b, int32_t slot); /* -1: the slot has no row */
int gd_buffer_state_of(const gd_buffer *b, int32_t slot);
int32_t gd_buffer_references(const gd_buffer *b, int32_t slot);
void gd_buffer_get_stats(const gd_buffer *b, gd_buffer_stats *out);
/* 0, or the number (< 0) of an invariant that is broken; the numbers are in verify.c. */
int gd_buffer_verify(const gd_buffer *b);

/* ---- victim.c: rows that left the feature buffer, in places of host memory ---- */
typedef struct gd_victims gd_victims;
/* rows and places: as gd_buffer_new, and 2 bytes a place more. queue_rows 0: one order of keys
 * decides what stays; else queues of so many rows do. NULL: errno is EINVAL or ENOMEM. */
gd_victims *gd_victims_new(int64_t rows, int64_t places, int64_t queue_rows);
void gd_victims_free(gd_victims *v);
/* The table of the places, until gd_victims_free. For gd_buffer_commit, when the copies to places
 * have ended; gd_buffer_rekey, _recode and _rekey_codes if there are no queues; and for reading. */
gd_buffer *gd_victims_table(const gd_victims *v);
/* Offer rows, the smallest key first, and the batches >= 0 that need them next (INT64_MAX: no known
 * one does); at most `most` are kept. The places of batches before `now` may be given up if there
 * are queues. Writes the slots of rows that are kept, and their places, which are loading until
 * they are committed; returns how many, or -EINVAL, and then nothing may be used any more. */
int64_t gd_victims_offer(gd_victims *v, const gd_evicted *rows, const int64_t *next_use, int64_t n,
                         int64_t most, int64_t now, int32_t *slots, int32_t *places);
/* Take back an offer of which no copy was begun and no row taken. -EINVAL: a place does not load.
 */
int gd_victims_withdraw(gd_victims *v, const int32_t *places, int64_t n);
/* The place of each row, loading or valid, or -1. -ERANGE: a row is out of range; -EINVAL: a row
 * that has a place comes twice. */
int gd_victims_find(gd_victims *v, const int64_t *rows, int64_t n, int32_t *places);
/* Hold these places, which were just found; returns how many of them are loading. */
int64_t gd_victims_take(gd_victims *v, const int32_t *places, int64_t n);
/* The rows of these places were copied back; other references to a place are dropped later.
 * -EINVAL: a place is not held, or its row is not valid. */
int gd_victims_drop(gd_victims *v, const int32_t *places, int64_t n);

/* ---- gather.c ---- */
/* rows[i] = slots[alias[i]] for i < n, in up to `threads` threads; the rows of the feature buffer
 * are `stride` bytes apart. */
void gd_gather(const uint8_t *slots, int64_t stride, const int32_t *alias, int64_t n,
               int64_t row_bytes, uint8_t *rows, int64_t threads);
/* How many threads a gather of so many bytes runs in, the caller's included: up to `threads`, four,
 * and the number of processors. */
int64_t gd_gather_threads(int64_t bytes, int64_t threads);
/* Start copying rows as gd_gather does, in one thread, the first ones first. What the pointers
 * point to must stay until gd_gather_end. NULL: errno is ENOMEM. */
typedef struct gd_gathering gd_gathering;
gd_gathering *gd_gather_start(const uint8_t *slots, int64_t stride, const int32_t *alias, int64_t n,
                              int64_t row_bytes, uint8_t *rows);
/* Wait until the first `rows` rows are copied, of at most n; returns how many are. */
int64_t gd_gather_wait(gd_gathering *g, int64_t rows);
void gd_gather_end(gd_gathering *g); /* waits for all rows, and frees g */

/* ---- pick.c ---- */
/* out[i] = row row[i] of a table in a mapped file, for i < n. -ERANGE: the table has no row
 * *culprit; -EIO: the byte *culprit of the table cannot be read. */
int gd_pick(const void *table, int64_t row_bytes, int64_t row_count, const int64_t *row, int64_t n,
            void *out, int64_t *culprit);
/* out[i] = from[i], integers of `bytes` 1, 2, 4 or 8 each, for i < n. -ERANGE: one is below `least`
 * or above `most`. */
int gd_widen(const void *from, int32_t bytes, int64_t n, int64_t least, int64_t most, int64_t *out);
/* Both ends of edges whose sources are row[n], and of which colptr[p] to colptr[p + 1] go to place
 * p < targets: out[i] and out[n + i]. -EINVAL: colptr does not run from 0 to n. */
int gd_edge_index(const int32_t *row, int64_t n, const int32_t *colptr, int64_t targets,
                  int64_t *out);

/* ---- parts.c: dividing the missing rows of a sweep into parts ---- */
typedef struct gd_part {
    int64_t end;   /* where its places end in `order` */
    int64_t slots; /* its distinct rows: the slots that its admission takes */
} gd_part;
/* rows[i] >= 0 is missing where gd_buffer_hold left alias[i] < 0. Writes the places of the missing
 * rows to order[n], sorted by part, and the parts to parts[n / part_rows + 5]; returns how many
 * parts there are, or -EINVAL. A part has part_rows rows or slightly more; the first has an eighth
 * of that, and each following one as many as all before it until part_rows is reached. Equal rows
 * are in the same part, and the rows of a part lie before those of the next in the file. */
int32_t gd_parts(const int64_t *rows, const int32_t *alias, int64_t n, int64_t part_rows,
                 int32_t *order, gd_part *parts);
/* part[i] = rows[order[i]]: the rows of the part whose places begin at `order`. */
void gd_part_take(const int64_t *rows, const int32_t *order, int64_t n, int64_t *part);
/* alias[order[i]] = part[i]: the aliases of the part go back to their places. */
void gd_part_put(const int32_t *part, const int32_t *order, int64_t n, int32_t *alias);

/* ---- latency.h, latency.c: latencies on a log scale, 64 buckets an octave ---- */
enum { GD_LATENCY_BUCKETS = 1856 };
typedef struct gd_histogram {
    int64_t count, sum_ns, min_ns, max_ns; /* all 0 while the histogram is empty */
    int64_t bucket[GD_LATENCY_BUCKETS];    /* the last one also counts everything above 17 s */
} gd_histogram;
/* The middle of a bucket, 0 <= bucket < GD_LATENCY_BUCKETS. */
int64_t gd_bucket_ns(int32_t bucket);
/* One thread at a time. */
void gd_histogram_add(gd_histogram *h, int64_t ns);
/* into += from; another thread may add to `from` at the same time. */
void gd_histogram_merge(gd_histogram *into, const gd_histogram *from);

/* ---- plan.c, reads.c: missing rows become extents; extents are a state machine without I/O. With
 * `write` the same machine writes rows to the file ---- */
typedef struct gd_geometry {
    int64_t data_offset; /* where row 0 starts in the file, bytes */
    int64_t row_bytes;   /* rows lie this far apart in the file, without holes */
    int64_t row_count;
    int64_t sector; /* alignment of a direct read: offset, length and memory, a power of two */
    int64_t extent_bytes_max; /* no extent is longer, unless one row rounded out to sectors is */
    int64_t gap_bytes_max; /* two rows at most this far apart share a read; 0: only rows that touch
                              or share a sector */
    uint8_t *slots;        /* where rows land: slot s starts at slots + s * slot_stride */
    int64_t slot_stride;
    int32_t land_direct; /* 1: a lone row of whole aligned sectors is read into its slot without
                            staging */
    int32_t separate;    /* 1, for benchmarks: one request a row in the caller's order, nothing is
                            sorted or merged; a row may come twice; with slots == NULL a row is read
                            into staging and dropped */
    int32_t repeats;     /* 1: a row may be requested several times, for several slots */
    int32_t write;       /* 1: each row is written from its slot, with a request of its own, in the
                            order of the file; it `lands` in the file. Needs land_direct,
                            extent_bytes_max <= row_bytes, and data_offset, row_bytes, slots and
                            slot_stride of whole sectors */
} gd_geometry;
typedef struct gd_request {
    int64_t offset;
    int64_t length;
    uint8_t *memory; /* the bytes go there, or come from there */
    int32_t write;   /* as in the geometry */
} gd_request;
typedef struct gd_failure {
    int32_t slot;
    int32_t error; /* positive errno */
    int64_t offset;
} gd_failure;
enum { GD_AGAIN = 0, GD_WHOLE = 1, GD_BROKEN = 2 };
typedef struct gd_reads gd_reads;
/* Plan reads for n rows, in any order, each once (unless `separate` or `repeats`). NULL: *error is
 * -ENOMEM, -ERANGE or -EINVAL. */
gd_reads *gd_reads_plan(const gd_geometry *geometry, const int64_t *rows, const int32_t *slots,
                        int64_t n, int *error);
/* Only after `finished`, or if no engine has taken an extent. */
void gd_reads_free(gd_reads *r);
int64_t gd_reads_rows(const gd_reads *r);
int64_t gd_reads_extents(const gd_reads *r);
/* The sum of the extents' lengths. */
int64_t gd_reads_bytes(const gd_reads *r);
/* The length of the longest extent that is staged: a staging block must be at least this long. */
int64_t gd_reads_block_bytes(const gd_reads *r);
/* Takes the next extent; -1: all are taken. Any thread. */
int64_t gd_reads_take(gd_reads *r);
/* What to request from the device for extent e now: the whole extent, or after a short read the
 * rest. `block` is the extent's staging until it is whole or broken. */
void gd_reads_request(const gd_reads *r, int64_t e, uint8_t *block, gd_request *out);
/* A completion of extent e: res bytes, or -errno. GD_AGAIN: request it again; GD_WHOLE: its rows
 * have landed and are logged; GD_BROKEN: its failed rows are logged as failed, the others as
 * landed. Several threads may call it for different extents. */
int gd_reads_complete(gd_reads *r, int64_t e, int64_t res, uint8_t *block);
/* Extents that are not taken yet fail with ECANCELED. Any thread. */
void gd_reads_cancel(gd_reads *r);
/* The slots that have landed and the failures so far; valid until gd_reads_free. */
typedef struct gd_log {
    const int32_t *slots;
    const gd_failure *failures;
    int64_t landed, failed;
    int32_t finished; /* 1: each row has landed or failed AND the engine has let go of the reads;
                         the log is complete */
} gd_log;
void gd_reads_log(const gd_reads *r, gd_log *out); /* any thread */
/* The same counts. The caller may poll them without a call until gd_reads_free; to read the entries
 * that they count it has to call gd_reads_log. */
typedef struct gd_progress {
    int64_t landed, failed;
    int32_t let_go;
} gd_progress;
const gd_progress *gd_reads_progress(const gd_reads *r);
/* An engine's last call. */
void gd_reads_let_go(gd_reads *r);
/* Completions of reads, the bytes that they brought, and how many extents were requested again; the
 * completions of writes, and the bytes that they wrote. */
typedef struct gd_reads_stats {
    int64_t requests, bytes, retries, writes, bytes_written;
} gd_reads_stats;
void gd_reads_get_stats(const gd_reads *r, gd_reads_stats *out); /* any thread */

/* ---- probe.c: what this machine allows ---- */
/* 0, or why io_uring cannot be used: -ENOSYS, -EPERM, -ENOMEM ... */
int gd_ring_probe(void);
/* What a direct read of fd requires, in bytes: the alignment of memory, and of offset and length.
 * -EOPNOTSUPP: fd allows no direct reads. */
int gd_dio_alignment(int fd, int64_t *memory, int64_t *offset);

/* ---- pread.c: the inner loop of the threads engine ---- */
/* Read, or write, extents of r until all are taken (returns 0) or some thousand rows are (returns
 * 1: report progress and call again). -EINVAL: the block is too small. `latency` (or NULL) counts
 * how long each read took. Several threads may share r, each with its own block and latency. */
int gd_reads_pread(gd_reads *r, int fd, uint8_t *block, int64_t block_bytes, gd_histogram *latency);

/* ---- ring.c, ring_thread.c: one io_uring kept full by a C thread ---- */
typedef struct gd_ring gd_ring;
typedef struct gd_ring_stats {
    int64_t requests, bytes, submits, wakeups, retries, inflight_max, jobs, notifies;
    int64_t writes, bytes_written; /* `requests` and `bytes` count reads */
    int32_t fixed_staging, fixed_files, depth;
    int32_t inflight; /* requests that the kernel has now */
} gd_ring_stats;
/* How requests are submitted. By default the thread submits in batches of an eighth of the depth,
 * so that the device begins before all requests of a turn are prepared; the last batch's system
 * call also waits for the first completion. */
typedef struct gd_ring_options {
    int32_t submit_batch; /* submit after so many prepared requests; 0: depth / 8 */
    int32_t complete_min; /* wait for so many completions, fewer if fewer are in flight; 0: one */
    int32_t measure;      /* 1: submitting and waiting are two system calls, and each request has
                             its own timestamps, so that slat and clat can be told apart */
    int32_t gives_way;    /* 1: at most depth / 64 reads are in flight while *traffic is not 0 */
    int32_t *traffic; /* or NULL; rings that share it and do not give way count their jobs in it */
    int64_t inflight_bytes; /* begin no read while so many bytes of reads are in flight, and no
                               write while so many of writes are; 0: no limit */
} gd_ring_options;
typedef struct gd_latency {
    gd_histogram slat; /* from preparing a request until the kernel has taken it */
    gd_histogram clat; /* from there until its completion */
    gd_histogram lat;  /* both; the only one that is counted without `measure` */
} gd_latency;
/* The thread writes to notify_fd, an eventfd, when a job is finished or `report_rows` more rows
 * have landed. `options` may be NULL: all 0. */
gd_ring *gd_ring_new(int32_t depth, int64_t block_bytes, int notify_fd, int64_t report_rows,
                     const gd_ring_options *options, int *error);
/* Hand over reads on an open O_DIRECT descriptor. The ring works on r until r's log is `finished`.
 * -EINVAL: an extent is longer than block_bytes; -ESHUTDOWN: the ring stops; -ENOMEM. Any thread.
 */
int gd_ring_enqueue(gd_ring *ring, gd_reads *r, int fd);
/* Begin to stop: cancel the reads that are not taken yet. notify_fd reports the end. */
void gd_ring_halt(gd_ring *ring);
/* Halt the ring, wait until the kernel has completed every request, end the thread. */
void gd_ring_free(gd_ring *ring);
void gd_ring_get_stats(gd_ring *ring, gd_ring_stats *out);
/* *out += the latencies so far, with all of those of finished jobs. Any thread. */
void gd_ring_get_latency(const gd_ring *ring, gd_latency *out);

/* ---- owners.c: the rows that each rank of an exchange owns ---- */
/* Stretches of 2^shift rows are dealt to `world` owners, up to 2^31, in turn; each numbers its
 * own from 0. Writes to places[n] which of rows[n] are each owner's, one owner after the other, to
 * numbers[n] their numbers, and to ends[world] where each owner's end. A negative row has a
 * negative number. */
void gd_split_rows(const int64_t *rows, int64_t n, int shift, int64_t world, int64_t *ends,
                   int32_t *places, int64_t *numbers);

#include "packing.h"
#include "partition.h"
#include "sampling.h"
#include "assigning.h"
#endif
