/* probe.c: what this machine allows: io_uring, and direct reads of a file. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <liburing.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include "internal.h"

int gd_ring_probe(void) {
    struct io_uring uring;
    struct io_uring_cqe *cqe;
    int code = io_uring_queue_init(2, &uring, 0);
    if (code < 0) return code;
    io_uring_prep_nop(io_uring_get_sqe(&uring));
    code = io_uring_submit(&uring);
    if (code >= 0) code = io_uring_wait_cqe(&uring, &cqe);
    if (code >= 0) code = cqe->res;
    io_uring_queue_exit(&uring);
    return code < 0 ? code : 0;
}

/* If the kernel does not report the alignment, try it: one read of 512 bytes to an address that is
 * not a multiple of 1,024. */
static int64_t tried_alignment(int fd) {
    int64_t alignment = 4096;
    uint8_t *page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (page == MAP_FAILED) return alignment;
    if (pread(fd, page + 512, 512, 0) >= 0) alignment = 512;
    munmap(page, 4096);
    return alignment;
}

int gd_dio_alignment(int fd, int64_t *memory, int64_t *offset) {
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
    if (fstat(fd, &file) < 0) return -errno;
    *memory = *offset = tried_alignment(fd);
    return 0;
}
