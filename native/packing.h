/* packing.h: the C core's interface to Python for packing batches on disk (DiskGNN). gnndrive.h
 * includes it; its rules on errors and threads apply here too.
 */
#ifndef GNNDRIVE_PACKING_H
#define GNNDRIVE_PACKING_H
#include <stdint.h>

/* ---- uses.c: which batches use a row ---- */
/* Batch `batch` uses `ids`. last[id] is the latest batch that used it, -1: none. For each distinct
 * id, found[last[id] + 1]++ and last[id] = batch; found[] has room for batch + 1. -ERANGE: an id is
 * out of range, and the ids before it are entered. */
int gd_uses_enter(int32_t *last, int64_t nodes, const int64_t *ids, int64_t n, int32_t batch,
                  int64_t *found);
/* What place[] says of a node while a segment is packed. A value >= 0 is the slot of a hot node.
 * A value <= GD_PLACE_SHARED is the row GD_PLACE_SHARED - value of the segment's shared file. */
enum { GD_PLACE_COLD = -1, GD_PLACE_ONCE = -2, GD_PLACE_SHARED = -3 };
/* Count one use of each of `ids` that is not hot: cold becomes once, once becomes shared, row 0.
 * An id may come twice, which is two uses. Writes the ids that became shared to shared[n] and
 * returns how many they are. -ERANGE: as gd_uses_enter. */
int64_t gd_uses_mark(int32_t *place, int64_t nodes, const int64_t *ids, int64_t n, int64_t *shared);

/* ---- arrange.c: the order of a batch's nodes in x ---- */
enum { GD_IN_CHUNK = 0, GD_IN_SHARED = 1, GD_IN_HOT = 2, GD_CLASSES = 3 };
/* Arrange node[], which lie hop after hop. Hop 0 stays as it is, all in the chunk. An odd hop
 * becomes chunk | shared | hot, an even one hot | shared | chunk; the chunk's rows by id, shared
 * rows by their row in the file, hot ones by slot, equal ones in their order in node[].
 * Outputs: order[p] is where the node at the new position p was, rank[] its inverse; counts[hops *
 * GD_CLASSES] by hop and class; sorted[p] is the node at p; row[p] its row in the shared file, or
 * its slot, or -1: in the chunk. -ERANGE: a node is out of range; -EINVAL: per_hop[hops] does not
 * sum up to n; -EOVERFLOW: n or the nodes are too many; -ENOMEM. */
int gd_arrange(const int32_t *place, int64_t nodes, const int64_t *node, int64_t n,
               const int64_t *per_hop, int32_t hops, int32_t *order, int32_t *rank, int64_t *counts,
               int64_t *sorted, int32_t *row);
/* Renumber the edges of a sample whose nodes were arranged: row[edges] of `sources` source nodes,
 * colptr[expanded + 1] of the first target nodes, edge[edges] of edge_bytes (4 or 8) each.
 * source_rank is the rank[] of the source's nodes, target_order the order[] of the target's.
 * -ERANGE: a row is not a source, or colptr does not rise from 0 to `edges`; -EINVAL: edge_bytes is
 * wrong, or the first `expanded` target nodes did not stay the first. */
int gd_renumber(const int32_t *row, const int32_t *colptr, const void *edge, int32_t edge_bytes,
                int64_t edges, int64_t expanded, const int32_t *source_rank, int64_t sources,
                const int32_t *target_order, int32_t *row_out, int32_t *colptr_out, void *edge_out);

/* ---- pack.c: rows for packed files, and their checksum (see there) ---- */
typedef struct gd_packing {
    const uint8_t *rows; /* a part of a table: `count` rows, the first of which is row `first` */
    int64_t first, count, row_bytes;
    const void *ids;          /* rows of the table in the order of the output */
    int32_t wide;             /* 1: ids are int64_t; 0: int32_t */
    int64_t position;         /* of the output's first row, for the checksum */
    const int64_t *positions; /* or each row's position; NULL: they are consecutive */
} gd_packing;
/* out[i] = row ids[i] for i < n, and *sum += the rows' checksum; out == NULL: only the checksum.
 * -ERANGE: an id is not in the part; *sum is as it was. */
int gd_pack_rows(const gd_packing *p, int64_t n, uint8_t *out, uint64_t *sum);
/* The checksum of n consecutive rows, the first of which is at `position`. */
uint64_t gd_pack_sum(const uint8_t *rows, int64_t n, int64_t row_bytes, int64_t position);
/* ---- residents.c: the slots of a replayed batch's rows ---- */
/* A row below `residents` has the slot of its number; the others get `slot`, slot + 1, … and are
 * written to load_rows[] and load_slots[], which have room for n. alias[i] is the slot of rows[i].
 * Returns how many rows are to be loaded. -ERANGE: a row is not in [0, row_count); -ENOSPC: more
 * than place_rows are to be loaded. */
int64_t gd_place_rows(const int64_t *rows, int64_t n, int64_t row_count, int64_t residents,
                      int32_t slot, int64_t place_rows, int32_t *alias, int64_t *load_rows,
                      int32_t *load_slots);
/* Copy row[i] of rows[], which are row_bytes each, to place[i] of `to`, for i < n; places are
 * `stride` bytes apart. */
void gd_spread(const uint8_t *rows, const int64_t *row, int64_t n, int64_t row_bytes,
               const int32_t *place, int64_t stride, uint8_t *to);

/* ---- roll.c: distributing rows to batches in one pass over the table ---- */
/* Encode the cold rows of node[n], which are in any order, as deltas (see there), sorted, each
 * once: rows whose class is below `threshold`, and others whose bit in seen[], which has one for
 * each of `rows`, is not set; these bits are set. `deltas` has room for n bytes, and for 8 n or
 * rows / 128 more. Writes how many rows they are to *count and returns how many bytes. -ERANGE: a
 * node is out of range, and nodes before it are marked; -ENOMEM. Several threads may share seen[]:
 * each row is marked by one of them. */
int64_t gd_cold_rows(const int64_t *node, int64_t n, const uint8_t *classes, int64_t rows,
                     int32_t threshold, uint8_t *seen, uint8_t *deltas, int64_t *count);
/* Write the rows of deltas to rows[count]. -EINVAL: the deltas are damaged. */
int gd_rows_decode(const uint8_t *deltas, int64_t bytes, int64_t count, int64_t *rows);
/* found[i] is the place of rows[i] among ids[m], which rise, or -1. -EINVAL: the ids do not rise;
 * -EOVERFLOW: they are too far apart for so many rows; -ENOMEM. */
int gd_rows_find(const int64_t *ids, int64_t m, const int64_t *rows, int64_t n, int64_t *found);

typedef struct gd_deltas {
    const uint8_t *deltas;
    int64_t bytes, count;
} gd_deltas;
typedef struct gd_buffers {
    uint8_t *memory; /* buffer b starts at memory + b * stride */
    int64_t stride, count;
    const int32_t *spare; /* numbers of buffers that may be opened */
    int64_t spares;
} gd_buffers;
/* A buffer with `rows` of a batch's rows; block_rows in all but a batch's last one. */
typedef struct gd_block {
    int32_t batch, buffer;
    int64_t ordinal; /* of the block in its batch */
    int64_t rows;
} gd_block;
enum { GD_WANTS_BUFFERS = 1 };
typedef struct gd_distribution gd_distribution;
/* What the deltas point to must stay until gd_distribution_free. NULL: errno is EINVAL, an argument
 * is out of range or the beginning of the deltas is damaged; or ENOMEM. */
gd_distribution *gd_distribution_new(int64_t row_bytes, int64_t block_rows, int64_t batches,
                                     const gd_deltas *deltas);
void gd_distribution_free(gd_distribution *d);
/* Copy the rows of each batch that are in `part`, rows `first` to first + count of the table, one
 * behind the other to the batch's open buffer; one is opened where there is none. Writes the full
 * blocks to full[], which has room for the open buffers and the spare ones, and how many they are
 * to *handed; and to *taken how many spare buffers were opened, the first ones. 0;
 * GD_WANTS_BUFFERS: go on with the same part and other spare buffers; -ERANGE: a batch needs a row
 * before `first`; -EINVAL: the deltas are damaged, or a spare buffer's number is out of range. */
int gd_distribution_copy(gd_distribution *d, const uint8_t *part, int64_t first, int64_t count,
                         const gd_buffers *buffers, gd_block *full, int64_t *handed,
                         int64_t *taken);
/* Hand out the open buffers, what follows their rows as it is, to last[batches]; returns how many.
 * -ENODATA: a batch has rows that no part had. */
int64_t gd_distribution_flush(gd_distribution *d, gd_block *last);

/* ---- durability ---- */
/* Make all that was written to the file system of `fd` durable; syncfs(2). */
int gd_sync_file_system(int fd);
#endif
