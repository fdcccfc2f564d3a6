/* partition.h: the C core's interface to Python for stores in partitions. gnndrive.h includes it;
 * its rules on errors and threads apply here too.
 */
#ifndef GNNDRIVE_PARTITION_H
#define GNNDRIVE_PARTITION_H
#include <stdint.h>

/* Numbers in memory: `wide` of them are int64_t; else ids and codes are int32_t, and index pointers
 * uint32_t. */
typedef struct gd_numbers {
    const void *at;
    int32_t wide;
} gd_numbers;

/* ---- partition.c: nodes renumbered by their partitions ---- */
/* Add the nodes, and the entries of their lists, to nodes[] and edges[] of their partitions.
 * part[n] belongs to the first n nodes of `pointers`, which has n + 1. -ERANGE: no partition; the
 * nodes before it are counted. */
int gd_partition_count(const int32_t *part, int64_t n, int64_t parts, gd_numbers pointers,
                       int64_t *nodes, int64_t *edges);
/* For i < n: order[cursor[part[i]]++] = first + i; order is int64_t if `wide`, else int32_t. end[]
 * says where each partition ends in order[]. -ERANGE: no partition, or it has more nodes. */
int gd_partition_order(const int32_t *part, int64_t n, int64_t first, int64_t parts,
                       const int64_t *end, int64_t *cursor, void *order, int32_t wide);
/* starts[place[v]] = where the list of v begins, for each v of order[n] with a place below
 * `statics`, if the lists of order[] lie one after another from `at`. Returns where they end;
 * -ERANGE: an id is not in [0, nodes), or a place not in [0, nodes + statics). */
int64_t gd_static_starts(gd_numbers order, int64_t n, gd_numbers pointers, gd_numbers place,
                         int64_t nodes, int64_t statics, int64_t at, int64_t *starts);

/* Lists of targets, as codes, from a part of the indices: entries `first` to first + count - 1. Of
 * each list the part has what lies in it. */
typedef struct gd_lists {
    gd_numbers indices; /* the part */
    int64_t first, count;
    gd_numbers order; /* the targets */
    int64_t targets;
    gd_numbers pointers; /* nodes + 1 */
    gd_numbers place;    /* the code of each node, from 0 to codes - 1; codes are as wide */
    int64_t nodes, codes;
    int64_t next; /* the target whose list goes on, and how much of it is written */
    int64_t done;
} gd_lists;
/* How many entries there are of all targets. -ERANGE: a target is not in [0, nodes). */
int64_t gd_lists_total(const gd_lists *l);
/* Write the next codes, at most `room`, to out[]; returns how many. -ERANGE: a target, an index or
 * a code is out of range. */
int64_t gd_lists_write(gd_lists *l, int64_t room, void *out);
/* Copy stretches of numbers of `width` bytes: `n` stretches, from[i] to from[i] + length[i] - 1, go
 * to to[i]. rows[] has the numbers `first` to first + count - 1; what lies outside is left out. */
void gd_copy_stretches(const uint8_t *rows, int64_t first, int64_t count, int64_t width,
                       const int64_t *from, const int64_t *length, const int64_t *to, int64_t n,
                       uint8_t *out);
/* found[0] += codes whose new id is in [low, high); found[1] += other codes below `hot`. A code
 * below `statics` has the new id home[code], others code - statics. -ERANGE: a code is out of
 * range. */
int gd_count_inside(gd_numbers codes, int64_t n, const int64_t *home, int64_t statics,
                    int64_t nodes, int64_t hot, int64_t low, int64_t high, int64_t *found);
#endif
