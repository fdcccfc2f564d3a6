/* slice.c: short scheduler slices, for a thread that others wait for and that runs for a moment at
 * a time.
 *
 * A thread that wakes up while all cores are busy waits until the slice of a running thread ends,
 * up to four milliseconds, unless it has asked for shorter slices than that thread (Linux 6.12;
 * earlier kernels ignore the request). It needs no privilege and gives the thread no larger share
 * of a core.
 */
#define _GNU_SOURCE
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>
#include "internal.h"
#include "slice.h"

enum { SLICE_NS = 100000 }; /* the shortest slice that the kernel accepts */

/* The argument of sched_setattr(2), which C libraries before glibc 2.41 do not declare. */
typedef struct sched_attributes {
    uint32_t size, policy;
    uint64_t flags;
    int32_t nice;
    uint32_t priority;
    uint64_t runtime, deadline, period;
} sched_attributes;

void gd_short_slice(void) {
    sched_attributes attr = {0};
    if (syscall(SYS_sched_getattr, 0, &attr, sizeof attr, 0) < 0) return;
    if (attr.policy != SCHED_OTHER && attr.policy != SCHED_BATCH) return;
    attr.runtime = SLICE_NS;
    syscall(SYS_sched_setattr, 0, &attr, 0);
}
