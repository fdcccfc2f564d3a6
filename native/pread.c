/* pread.c: the threads engine's inner loop, and what a file asks of a direct read.
 *
 * For where io_uring is refused. Each thread reads one extent at a time, so that the device sees as
 * many requests as there are threads; the ring keeps more in flight for less.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include "reads.h"

enum { ROWS_PER_CALL = 1024 };

int gd_reads_pread(gd_reads *r, int fd, uint8_t *block, int64_t block_bytes)
{
    int64_t e = -1;
    if (gd_reads_block_bytes(r) > block_bytes)
        return -EINVAL;
    for (int64_t rows = 0; rows < ROWS_PER_CALL; rows += gd_extent_rows(r, e)) {
        e = gd_reads_take(r);
        if (e < 0)
            return 0;
        gd_request q;
        int64_t res;
        do {
            gd_reads_request(r, e, block, &q);
            res = pread(fd, q.into, (size_t)q.length, q.offset);
            if (res < 0)
                res = -errno;
        } while (gd_reads_complete(r, e, res, block) == GD_AGAIN);
    }
    return 1;
}

/* Where the kernel does not say, try: one read of 512 bytes to an address that is no multiple of
 * 1,024. */
static int64_t tried_alignment(int fd)
{
    int64_t alignment = 4096;
    uint8_t *page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (page == MAP_FAILED)
        return alignment;
    if (pread(fd, page + 512, 512, 0) >= 0)
        alignment = 512;
    munmap(page, 4096);
    return alignment;
}

int gd_dio_alignment(int fd, int64_t *memory, int64_t *offset)
{
#ifdef STATX_DIOALIGN
    struct statx answer;
    memset(&answer, 0, sizeof answer);
    int code = statx(fd, "", AT_EMPTY_PATH, STATX_DIOALIGN, &answer);
    if (code == 0 && (answer.stx_mask & STATX_DIOALIGN)) {
        *memory = answer.stx_dio_mem_align;
        *offset = answer.stx_dio_offset_align;
        return *offset ? 0 : -EOPNOTSUPP;
    }
#endif
    struct stat file;
    if (fstat(fd, &file) < 0)
        return -errno;
    *memory = *offset = tried_alignment(fd);
    return 0;
}
