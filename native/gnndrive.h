/* gnndrive.h: the C core's interface to Python; its second half is sampling.h. Mechanism only: what
 * happens per node, per row, per read.
 *
 * build_ext.py hands both files to cffi without their preprocessor lines, so they are the single
 * source of the declarations: plain C, no macros. Functions that can fail return -errno.
 * Constructors return NULL when they fail and write -errno to *error; those without such an
 * argument set errno (`ffi.errno` in Python): EINVAL, an argument is out of range, or ENOMEM. No
 * function calls Python; cffi drops the GIL around each of them, `_ffi.quick` does not. Unless a
 * comment says otherwise an object is used by one thread at a time.
 */
#ifndef GNNDRIVE_H
#define GNNDRIVE_H
#include <stdint.h>
#include <stddef.h>

/* ---- standby.c: retired slots by key; the smallest is given up first, equal ones oldest first */
typedef struct gd_standby gd_standby;
/* 0 <= slots < 2^31 - 1. NULL: errno is EINVAL or ENOMEM */
gd_standby *gd_standby_new(int64_t slots);
void gd_standby_free(gd_standby *s);
/* The slot to push must not be in it, the one to remove must */
void gd_standby_push(gd_standby *s, int32_t slot, int64_t key);
void gd_standby_remove(gd_standby *s, int32_t slot);
/* The slot given up, or -1: empty */
int32_t gd_standby_pop(gd_standby *s);
int64_t gd_standby_count(const gd_standby *s);
int gd_standby_holds(const gd_standby *s, int32_t slot);
/* Only for a slot that it holds */
int64_t gd_standby_key(const gd_standby *s, int32_t slot);

/* ---- window.c: batches known but not admitted yet; a row's next use among them ---- */
enum { GD_WINDOW_BATCHES = 8, GD_WINDOW_SETS = 256 };
typedef struct gd_window gd_window;
/* By the set of batches that want a row, a bit each */
typedef struct gd_wishes {
    int64_t next[GD_WINDOW_SETS]; /* the smallest index among them; INT64_MAX: there is none */
    int64_t key[GD_WINDOW_SETS];  /* the row's standby key, which the caller makes of `next` after
                                     each gd_window_add and gd_window_drop */
} gd_wishes;
/* rows >= 0; 1 B a row. NULL: errno is EINVAL or ENOMEM */
gd_window *gd_window_new(int64_t rows);
void gd_window_free(gd_window *w);
/* Batch `index` (from 0) will want `ids` (duplicates allowed). -ENOSPC: there are eight batches in
 * it; -EINVAL: this one is; -ERANGE: an id out of range. When refused nothing has changed. */
int gd_window_add(gd_window *w, int64_t index, const int64_t *ids, int64_t n);
/* `ids` as they were added. -ENOENT: it is not in it */
int gd_window_drop(gd_window *w, int64_t index, const int64_t *ids, int64_t n);
int32_t gd_window_count(const gd_window *w); /* batches in it */
/* Distinct rows that these batches want together; -ENOENT: one of them is not in it */
int64_t gd_window_together(const gd_window *w, const int64_t *indices, int64_t n);
/* Which of its batches want `row`, a bit each; -ERANGE */
int gd_window_wanted(const gd_window *w, int64_t row);
gd_wishes *gd_window_wishes(gd_window *w);

/* ---- buffer.c: mapping table, reverse map, ref counts, states, standby ---- */
enum { GD_FREE = 0, GD_LOADING = 1, GD_VALID = 2, GD_FAILED = 3 };
typedef struct gd_buffer gd_buffer;
typedef struct gd_admission {
    int64_t hits;    /* distinct rows found valid */
    int64_t waits;   /* distinct rows that another lease is loading */
    int64_t loads;   /* distinct rows that are this lease's to load */
    int64_t pending; /* entries written to `pending`: loads (none of a hold) + waits */
    int64_t deficit; /* when refused: how many more slots it would have needed */
} gd_admission;
typedef struct gd_buffer_stats {
    int64_t rows, slots, free, standby;
    int64_t admitted, refused, hits, waits, loads, evictions, commits, failures, releases;
} gd_buffer_stats;
/* rows >= 0, 1 <= slots < 2^31 - 1; 4 B a row, 38 B a slot under LRU. NULL: errno is EINVAL or
 * ENOMEM */
gd_buffer *gd_buffer_new(int64_t rows, int64_t slots);
void gd_buffer_free(gd_buffer *b);
/* Would `ids` be admitted now? Fills `a`, changes nothing. 0: yes; -EAGAIN: not now; -ENOSPC:
 * never, it has more distinct rows than there are slots (a->deficit says by how many); -ERANGE: an
 * id out of range. */
int gd_buffer_probe(gd_buffer *b, const int64_t *ids, int64_t n, gd_admission *a);
/* Whether an empty buffer would admit `ids`: 0, -ENOSPC or -ERANGE, whichever is known first. */
int gd_buffer_holds(gd_buffer *b, const int64_t *ids, int64_t n);
/* Probe, then admit the whole batch or nothing. Its rows get the standby keys that `window` has for
 * them; NULL: the tick of their release (LRU). Writes alias[n] (the slot of each id), pending[]
 * (slots not valid yet, each once), load_rows[] and load_slots[] (what is this lease's to load).
 * Every output has room for n. */
int gd_buffer_admit(gd_buffer *b, const gd_window *window, const int64_t *ids, int64_t n,
                    int32_t *alias, int32_t *pending, int64_t *load_rows, int32_t *load_slots,
                    gd_admission *a);
/* Take only the rows that are there or being loaded, for which no slot is needed; what is not gets
 * the alias -1, where it comes again -2, and is to be admitted later, by nobody else first.
 * a->loads counts those rows. -ENOSPC, -ERANGE: as gd_buffer_probe, and nothing is taken. */
int gd_buffer_hold(gd_buffer *b, const gd_window *window, const int64_t *ids, int64_t n,
                   int32_t *alias, int32_t *pending, gd_admission *a);
/* Loading -> valid. -EINVAL: one of the slots was not loading; then none has changed. */
int gd_buffer_commit(gd_buffer *b, const int32_t *slots, int64_t n);
/* Loading -> failed, and their rows unmapped. -EINVAL: as gd_buffer_commit. */
int gd_buffer_fail(gd_buffer *b, const int32_t *slots, int64_t n);
/* Take one reference from the slot of each alias; slots without references enter standby, or become
 * free if they failed, in the order of slots. -EINVAL: one had no reference to take; then none has
 * changed. */
int gd_buffer_release(gd_buffer *b, const int32_t *alias, int64_t n);
/* Advance *position past slots of `pending` that are no longer loading; 1 when all are settled,
 * else 0. */
int gd_buffer_settled(const gd_buffer *b, const int32_t *pending, int64_t n, int64_t *position);
int64_t gd_buffer_first_failed(const gd_buffer *b, const int32_t *alias, int64_t n); /* or -1 */
/* Give those of `ids` that have a slot the keys that `window` has for them now. -ERANGE: an id out
 * of range; then no key has changed. */
int gd_buffer_rekey(gd_buffer *b, const gd_window *window, const int64_t *ids, int64_t n);
/* What an admission may take, free and standby: to look at without a call, valid until free */
typedef struct gd_room {
    int64_t available;
} gd_room;
const gd_room *gd_buffer_room(const gd_buffer *b);
int32_t gd_buffer_slot_of(const gd_buffer *b, int64_t row); /* -1: not mapped */
int64_t gd_buffer_row_of(const gd_buffer *b, int32_t slot); /* -1: holds none */
int gd_buffer_state_of(const gd_buffer *b, int32_t slot);
int32_t gd_buffer_references(const gd_buffer *b, int32_t slot);
void gd_buffer_get_stats(const gd_buffer *b, gd_buffer_stats *out);
/* 0, or the number (< 0) of the broken invariant */
int gd_buffer_verify(const gd_buffer *b);
/* gather.c: rows[i] = slots[alias[i]] for i < n, in a few threads; the feature buffer's rows are
 * `stride` bytes apart. */
void gd_gather(const uint8_t *slots, int64_t stride, const int32_t *alias, int64_t n,
               int64_t row_bytes, uint8_t *rows);

/* parts.c: what is missing of `rows` (0 or larger) is where gd_buffer_hold left alias < 0. Its
 * places, in the order of the file as far as needed, into `order` (n); parts of `part_rows` or
 * little more into `parts` (n / part_rows + 5). The first is an eighth of that, each as large as
 * all before it until that is reached; equal rows are in one part. Returns how many there are. */
typedef struct gd_part {
    int64_t end;   /* of its places in `order` */
    int64_t slots; /* what it takes to admit it: its distinct rows */
} gd_part;
int32_t gd_parts(const int64_t *rows, const int32_t *alias, int64_t n, int64_t part_rows,
                 int32_t *order, gd_part *parts);
/* The rows of a part, whose places begin at `order`; and its aliases, back to their places */
void gd_part_take(const int64_t *rows, const int32_t *order, int64_t n, int64_t *part);
void gd_part_put(const int32_t *part, const int32_t *order, int64_t n, int32_t *alias);

/* ---- latency.h, latency.c: latencies on a log scale, 64 buckets an octave ---- */
enum { GD_LATENCY_BUCKETS = 1856 };
typedef struct gd_histogram {
    int64_t count, sum_ns, min_ns, max_ns; /* all 0 when none was counted */
    int64_t bucket[GD_LATENCY_BUCKETS];    /* the last one also counts all beyond it, 17 s */
} gd_histogram;
/* The middle of a bucket, 0 <= bucket < GD_LATENCY_BUCKETS */
int64_t gd_bucket_ns(int32_t bucket);
/* One thread at a time */
void gd_histogram_add(gd_histogram *h, int64_t ns);
/* into += from; another thread may be adding to `from` */
void gd_histogram_merge(gd_histogram *into, const gd_histogram *from);

/* ---- plan.c, reads.c: missing rows become extents, extents a state machine without I/O ---- */
typedef struct gd_geometry {
    int64_t data_offset; /* where row 0 starts in the file, bytes */
    int64_t row_bytes;   /* rows lie this far apart in the file, without holes */
    int64_t row_count;
    int64_t sector; /* alignment of a direct read: offset, length and memory, a power of two */
    int64_t extent_bytes_max; /* no extent is longer, unless one row rounded out to sectors is */
    int64_t gap_bytes_max; /* two rows at most this far apart are read as one; 0: only what shares a
                              sector or touches */
    uint8_t *slots;        /* the landing: slot s starts at slots + s * slot_stride */
    int64_t slot_stride;
    int32_t land_direct; /* 1: a lone row of whole aligned sectors is read into its slot without
                            staging */
    int32_t separate;    /* 1: one request a row in the caller's order, nothing sorted or merged,
                            for benchmarks; a row may come twice, and with slots == NULL it lands
                            nowhere: it is read into staging and dropped */
    int32_t repeats;     /* 1: a row may be asked for several times, for several slots */
} gd_geometry;
typedef struct gd_request {
    int64_t offset;
    int64_t length;
    uint8_t *into;
} gd_request;
typedef struct gd_failure {
    int32_t slot;
    int32_t error;
    int64_t offset;
} gd_failure; /* error: positive errno */
enum { GD_AGAIN = 0, GD_WHOLE = 1, GD_BROKEN = 2 };
typedef struct gd_reads gd_reads;
/* Plan reads for n rows (any order; each once, unless separate or they repeat). *error:
 * -ENOMEM, -ERANGE or -EINVAL when NULL. */
gd_reads *gd_reads_plan(const gd_geometry *geometry, const int64_t *rows, const int32_t *slots,
                        int64_t n, int *error);
/* Only when finished, or never enqueued */
void gd_reads_free(gd_reads *r);
int64_t gd_reads_rows(const gd_reads *r);
int64_t gd_reads_extents(const gd_reads *r);
/* The sum of the extents' lengths */
int64_t gd_reads_bytes(const gd_reads *r);
/* The longest extent that is staged: a staging block has at least this */
int64_t gd_reads_block_bytes(const gd_reads *r);
/* The next extent to start, or -1: none (thread-safe) */
int64_t gd_reads_take(gd_reads *r);
/* What to ask of the device for extent e now: all of it, or after a short read the rest. `block` is
 * the extent's staging until it is whole or broken. */
void gd_reads_request(const gd_reads *r, int64_t e, uint8_t *block, gd_request *out);
/* A completion of extent e: res bytes, or -errno. GD_AGAIN: request it again; GD_WHOLE: its rows
 * are landed and logged; GD_BROKEN: its rows are logged as failed. Thread-safe for different
 * extents. */
int gd_reads_complete(gd_reads *r, int64_t e, int64_t res, uint8_t *block);
/* Extents not taken yet will not be: they fail with ECANCELED (thread-safe) */
void gd_reads_cancel(gd_reads *r);
/* The log, from any thread: slots landed so far and failures so far, valid until free. `finished`:
 * each row is landed or failed AND the engine has let go of it; then the log is whole. */
typedef struct gd_log {
    const int32_t *slots;
    const gd_failure *failures;
    int64_t landed, failed;
    int32_t finished;
} gd_log;
void gd_reads_log(const gd_reads *r, gd_log *out);
/* The same counts to look at without a call, valid until free: for whether there is news. What they
 * count is to be had from gd_reads_log. */
typedef struct gd_progress {
    int64_t landed, failed;
    int32_t let_go;
} gd_progress;
const gd_progress *gd_reads_progress(const gd_reads *r);
/* Engines call it last */
void gd_reads_let_go(gd_reads *r);
/* completions, the bytes they brought, and how often something was asked for again */
typedef struct gd_reads_stats {
    int64_t requests, bytes, retries;
} gd_reads_stats;
/* Any thread */
void gd_reads_get_stats(const gd_reads *r, gd_reads_stats *out);

/* ---- probe.c: what this machine allows ---- */
/* 0, or why io_uring can't be used: -ENOSYS, -EPERM, -ENOMEM ... */
int gd_ring_probe(void);
/* What fd asks of a direct read, in bytes: alignment of memory, of offset and length. -EOPNOTSUPP:
 * it can do none. */
int gd_dio_alignment(int fd, int64_t *memory, int64_t *offset);

/* ---- pread.c: the threads engine's inner loop; several threads may share r ---- */
/* 0: none left to take; 1: a thousand rows or so were read, tell of them and call again; -EINVAL: a
 * block is too small. `latency` (or NULL) counts how long each read took. */
int gd_reads_pread(gd_reads *r, int fd, uint8_t *block, int64_t block_bytes, gd_histogram *latency);

/* ---- ring.c: one io_uring kept full by a C thread ---- */
typedef struct gd_ring gd_ring;
typedef struct gd_ring_stats {
    int64_t requests, bytes, submits, wakeups, retries, inflight_max, jobs, notifies;
    int32_t fixed_staging, fixed_files, depth;
} gd_ring_stats;
/* How requests are handed over. By default: in batches of an eighth of the depth,
 * so that the device begins before a turn of the thread has prepared all; the last batch's system
 * call also waits for the first completion. */
typedef struct gd_ring_options {
    int32_t submit_batch; /* hand over after each so many prepared requests; 0: depth / 8 */
    int32_t complete_min; /* wait for so many completions, fewer if fewer are in flight; 0: one */
    int32_t measure;      /* 1: handing over and waiting are two system calls and each request has a
                             clock of its own, so that slat and clat can be told apart */
    int32_t gives_way;    /* 1: while *traffic is not 0 no more than depth / 64 are in flight */
    int32_t *traffic;     /* rings that share it and do not give way count their jobs in it; NULL */
    int64_t inflight_bytes; /* begin no read while so many bytes are in flight; 0: however many */
} gd_ring_options;
typedef struct gd_latency {
    gd_histogram slat; /* from preparing a request to the kernel's having taken it */
    gd_histogram clat; /* from there to its completion */
    gd_histogram lat;  /* both; the only one counted unless `measure` */
} gd_latency;
/* notify_fd: an eventfd that is written when a job is finished or `report_rows` more rows have
 * landed. `options` may be NULL: all 0. */
gd_ring *gd_ring_new(int32_t depth, int64_t block_bytes, int notify_fd, int64_t report_rows,
                     const gd_ring_options *options, int *error);
/* Hand over reads on an open O_DIRECT descriptor; the ring owns r's progress until
 * `finished`. Any thread. */
int gd_ring_enqueue(gd_ring *ring, gd_reads *r, int fd);
/* Begin to stop: cancel what is not submitted; notify_fd tells of the end */
void gd_ring_halt(gd_ring *ring);
/* Halt it, drain the kernel, end the thread */
void gd_ring_free(gd_ring *ring);
void gd_ring_get_stats(gd_ring *ring, gd_ring_stats *out);
/* *out += the latencies so far, those of finished jobs whole; any thread */
void gd_ring_get_latency(const gd_ring *ring, gd_latency *out);

#include "sampling.h"
#endif
