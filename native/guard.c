/* guard.c: a read error of a mapped file as an error number.
 *
 * The kernel reports that it cannot read a page by SIGBUS, which ends the process. Within
 * gd_guarded the handler jumps back instead. A SIGBUS elsewhere goes to the handler that was
 * installed before, or ends the process as ever. Python's faulthandler and others install handlers
 * of their own at any time, so each guarded call looks whether this one is in place.
 */
#define _GNU_SOURCE
#include "guard.h"
#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stddef.h>
#include <stdlib.h>

/* Allocated with the thread, because the handler must not allocate. */
#define OF_THREAD static _Thread_local __attribute__((tls_model("initial-exec")))
OF_THREAD sigjmp_buf *volatile way_back; /* of the innermost guarded call, or NULL */
OF_THREAD volatile uintptr_t unreadable;
OF_THREAD volatile sig_atomic_t passing_on;
OF_THREAD void *volatile passed; /* the last byte whose fault was passed on */

static pthread_mutex_t installing = PTHREAD_MUTEX_INITIALIZER;
/* The handler that was installed when this one was. Other threads may be reading it, so a new one
 * gets memory of its own, and none is freed. */
static const struct sigaction *_Atomic before;

static void lock(void) { pthread_mutex_lock(&installing); }
static void unlock(void) { pthread_mutex_unlock(&installing); }

/* A fork waits until no thread holds the lock, which would stay locked in the child. */
__attribute__((constructor)) static void expect_forks(void) {
    pthread_atfork(lock, unlock, unlock);
}

/* Have the signal do what it does without this file. */
static void pass_on(int signal_number, siginfo_t *info, void *context) {
    const int by_kernel = info->si_code > 0;
    const struct sigaction *const next = before;
    if (next->sa_handler == SIG_IGN && !by_kernel) return;
    /* A handler that raises the signal again, as faulthandler does, ends the process here, and so
     * does the second fault at a byte: the first one's handler has changed nothing. */
    const int again = by_kernel && passed == info->si_addr;
    if (passing_on || again || next->sa_handler == SIG_DFL || next->sa_handler == SIG_IGN) {
        signal(SIGBUS, SIG_DFL);
        if (!by_kernel) raise(SIGBUS); /* else the access is repeated */
        return;
    }
    passed = by_kernel ? info->si_addr : NULL;
    passing_on = 1;
    if (next->sa_flags & SA_SIGINFO)
        next->sa_sigaction(signal_number, info, context);
    else
        next->sa_handler(signal_number);
    passing_on = 0;
}

static void on_bus_error(int signal_number, siginfo_t *info, void *context) {
    sigjmp_buf *const back = way_back;
    if (back && info->si_code == BUS_ADRERR) {
        unreadable = (uintptr_t)info->si_addr;
        siglongjmp(*back, 1);
    }
    const int error = errno;
    pass_on(signal_number, info, context);
    errno = error;
}

/* Whether this handler is installed; if not, *now is the one that is. */
static int in_place(struct sigaction *now) {
    return sigaction(SIGBUS, NULL, now) || now->sa_sigaction == on_bus_error;
}

static void install(void) {
    struct sigaction now;
    if (in_place(&now)) return;
    lock();
    struct sigaction *const kept = in_place(&now) ? NULL : malloc(sizeof *kept);
    if (kept) {
        struct sigaction ours = {.sa_flags = SA_SIGINFO | SA_NODEFER};
        ours.sa_sigaction = on_bus_error;
        sigemptyset(&ours.sa_mask);
        *kept = now;
        before = kept;
        sigaction(SIGBUS, &ours, NULL);
    }
    unlock();
}

int gd_guarded(int (*work)(void *), void *argument, uintptr_t *address) {
    sigjmp_buf back, *const outer = way_back;
    install();
    if (sigsetjmp(back, 0)) { /* the signal is not blocked in its handler, see SA_NODEFER */
        way_back = outer;
        *address = unreadable;
        return -EIO;
    }
    way_back = &back;
    const int result = work(argument);
    way_back = outer;
    return result;
}
