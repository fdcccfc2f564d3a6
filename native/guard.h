/* guard.h: reading mapped files, whose pages may turn out to be unreadable. */
#ifndef GNNDRIVE_GUARD_H
#define GNNDRIVE_GUARD_H
#include <stdint.h>

/* Return work(argument), or -EIO if it touched a page of a mapped file that the kernel cannot read:
 * the file has become shorter, or the disk fails. *address is then the byte. `work` is left at that
 * access, so it must hold no lock and no memory that is not reachable from `argument`. */
int gd_guarded(int (*work)(void *), void *argument, uintptr_t *address);
#endif
