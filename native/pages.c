/* pages.c: requesting pages of mapped indices from the disk ahead of their use. */
#define _GNU_SOURCE /* RUSAGE_THREAD */
#include <sys/resource.h>
#include <unistd.h>
#include "pages.h"

int64_t gd_major_faults(void) {
    struct rusage usage;
    return getrusage(RUSAGE_THREAD, &usage) == 0 ? usage.ru_majflt : 0;
}

void gd_ask_for_pages(gd_sampler *s, const gd_csc *csc, const int64_t *edge, int64_t until) {
    const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), indices = (uintptr_t)csc->indices;
    uintptr_t begin = 0, end = 0; /* the run of pages that is collected */
    for (; s->asked < until; s->asked++) {
        const uintptr_t at = indices + (uintptr_t)edge[s->asked] * (uintptr_t)csc->index_bytes;
        const uintptr_t start = at & ~(page - 1);
        if (start >= begin && start < end) continue;
        if (start != end) {
            if (end != begin) madvise((void *)begin, end - begin, MADV_WILLNEED);
            begin = start;
        }
        end = start + page;
    }
    if (end != begin) madvise((void *)begin, end - begin, MADV_WILLNEED);
}

void gd_ask_for_list(const gd_csc *csc, int64_t begin, int64_t end) {
    const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), indices = (uintptr_t)csc->indices;
    const uintptr_t width = (uintptr_t)csc->index_bytes;
    const uintptr_t from = (indices + (uintptr_t)begin * width) & ~(page - 1);
    const uintptr_t until = indices + (uintptr_t)end * width;
    if (end > begin) madvise((void *)from, until - from, MADV_WILLNEED);
}
