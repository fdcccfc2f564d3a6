/* pread.c: the inner loop of the threads engine, for machines that refuse io_uring.
 *
 * Each thread reads one extent at a time, so the device sees as many requests as there are threads.
 * A ring keeps more in flight at a lower cost.
 */
#include <unistd.h>
#include "latency.h"
#include "reads.h"

enum { ROWS_PER_CALL = 1024 };

int gd_reads_pread(gd_reads *r, int fd, uint8_t *block, int64_t block_bytes,
                   gd_histogram *latency) {
    int64_t e = -1;
    if (gd_reads_block_bytes(r) > block_bytes) return -EINVAL;
    for (int64_t rows = 0; rows < ROWS_PER_CALL; rows += gd_extent_rows(r, e)) {
        e = gd_reads_take(r);
        if (e < 0) return 0;
        gd_request q;
        int64_t res, since_ns;
        do {
            gd_reads_request(r, e, block, &q);
            since_ns = latency ? gd_clock_ns() : 0;
            res = q.write ? pwrite(fd, q.memory, (size_t)q.length, q.offset)
                          : pread(fd, q.memory, (size_t)q.length, q.offset);
            if (res < 0) res = -errno;
            if (latency) gd_histogram_count(latency, gd_clock_ns() - since_ns);
        } while (gd_reads_complete(r, e, res, block) == GD_AGAIN);
    }
    return 1;
}
