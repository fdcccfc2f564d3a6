"""The io_uring engine: one ring, which a C thread keeps full without the GIL (GNNDrive §4.2).

The C thread (`native/ring.c`) tells the event loop about finished rows through an eventfd: one
wake-up for up to 2,048 rows, on which the engine checks each of the few jobs under way. If io_uring
is refused, use `threads`; `gnndrive.disk.engines.choose` finds out.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import weakref
from typing import Any

from gnndrive.common.errors import ConfigError
from gnndrive.common.ffi import check, ffi, holding_gil, lib
from gnndrive.common.forks import ProcessGuard
from gnndrive.common.limits import refusal
from gnndrive.common.records import EngineSettings
from gnndrive.disk.engines._shared import check_job
from gnndrive.disk.engines.base import Engine
from gnndrive.disk.read_job import ReadJob

_REMEDIES = {
    errno.ENOSYS: "this kernel has no io_uring: use Linux 5.19 or later",
    errno.EPERM: (
        "it is forbidden here: in a container allow io_uring_setup, io_uring_enter and "
        "io_uring_register in the seccomp profile (docker: --security-opt seccomp=PROFILE.json); "
        "on the host set `sysctl kernel.io_uring_disabled=0`"
    ),
    errno.ENOMEM: "locked memory is used up: raise `ulimit -l` (docker: --ulimit memlock=-1)",
}


def why_not_uring() -> str | None:
    """Return None if io_uring works here, else why it does not and what would allow it. ConfigError
    if this process has too many files open."""
    code = -lib.gd_ring_probe()
    if code == 0:
        return None
    if (refused := refusal(code)) is not None:
        raise refused  # not a reason to use threads, which need files too
    name = errno.errorcode.get(code, str(code))
    remedy = _REMEDIES.get(code, "see io_uring_setup(2) for what this error means")
    return f"io_uring_setup failed with {name} ({os.strerror(code)}): {remedy}"


REPORT_ROWS = 2048  # the most rows that land before the C thread wakes the event loop


class Uring(Engine):
    """Reads through one io_uring with `settings.depth` requests in flight."""

    name = "uring"

    def __init__(self, settings: EngineSettings) -> None:
        self._settings = settings
        self._loop = asyncio.get_running_loop()
        self._notify = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        error = ffi.new("int *")
        traffic = ffi.NULL if settings.traffic is None else settings.traffic
        options = ffi.new(
            "gd_ring_options *",
            (
                settings.submit_batch, settings.complete_min, settings.measure,
                settings.gives_way, traffic, settings.inflight_bytes,
            ),
        )  # fmt: skip
        ring = lib.gd_ring_new(
            settings.depth, settings.block_bytes, self._notify, REPORT_ROWS, options, error
        )
        if ring == ffi.NULL:
            os.close(self._notify)
            raise ConfigError(_ring_error(settings, -error[0]))
        self._ring = ring
        self._closing = False
        self._last_stats: dict[str, int] = {}
        self._last_latency: Any = None
        self._active: set[ReadJob] = set()
        self._ended = asyncio.Event()
        # The finalizer, not this object, keeps alive what the kernel may write until the ring has
        # stopped. The loop holds a weak reference only, so that dropping this object ends the ring.
        held = self._active, settings.traffic, ProcessGuard()
        self._finish = weakref.finalize(self, _finish, self._loop, ring, self._notify, *held)
        self._loop.add_reader(self._notify, _wake, weakref.ref(self))

    def read(self, job: ReadJob) -> ReadJob:
        """See `Engine.read`."""
        check_job(job, self._settings, self._closing)
        self._active.add(job)
        code = holding_gil.gd_ring_enqueue(self._ring, job.handle, job.fd)
        if code < 0:
            self._active.discard(job)
            check(code, "gd_ring_enqueue")
        return job

    def _on_notify(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._notify)
        for job in [job for job in self._active if job.wake()]:
            self._active.discard(job)
        if not self._active:
            self._ended.set()

    async def aclose(self) -> None:
        """See `Engine.aclose`; may be cancelled and called again."""
        self._closing = True
        if self._finish.alive:
            lib.gd_ring_halt(self._ring)
        while self._active:
            self._ended.clear()
            await self._ended.wait()
        if self._finish.alive:  # another call, which waited too, may have freed the ring meanwhile
            self._last_stats = _stats(self._ring)
            self._last_latency = self.latency()
            self._finish()

    def stats(self) -> dict[str, int]:
        """See `Engine.stats`; all counters of `gd_ring_stats`."""
        return _stats(self._ring) if self._finish.alive else dict(self._last_stats)

    def latency(self) -> Any:
        """Return a C `gd_latency *` of the requests so far; slat and clat are empty without
        `settings.measure`."""
        if not self._finish.alive:
            return self._last_latency
        out = ffi.new("gd_latency *")
        lib.gd_ring_get_latency(self._ring, out)
        return out


def _stats(ring: Any) -> dict[str, int]:
    out = ffi.new("gd_ring_stats *")
    lib.gd_ring_get_stats(ring, out)
    return {name: int(getattr(out, name)) for name in dir(out)}


def _wake(engine: weakref.ref[Uring]) -> None:
    alive = engine()
    if alive is not None:
        alive._on_notify()


def _finish(
    loop: asyncio.AbstractEventLoop, ring: Any, notify: int, active: set[ReadJob], traffic: Any,
    guard: ProcessGuard,
) -> None:  # fmt: skip
    """Stop the ring, wait for reads in flight, wake waiting consumers, free everything.

    May run in any thread; does nothing in a forked child, in which the ring has no thread.
    `traffic` is not used here, but must live as long as the ring, which counts in it.
    """
    if guard.forked:
        return
    lib.gd_ring_free(ring)

    def clean_up() -> None:
        for job in active:
            job.wake()
        active.clear()
        if not loop.is_closed():
            loop.remove_reader(notify)
        os.close(notify)

    if loop.is_running() and asyncio._get_running_loop() is not loop:
        loop.call_soon_threadsafe(clean_up)
    else:
        clean_up()


def _ring_error(settings: EngineSettings, code: int) -> str:
    reason = why_not_uring()
    if reason is not None:
        return f'{reason}. Or use engine="threads".'
    if (refused := refusal(code)) is not None:
        return str(refused)
    name = errno.errorcode.get(code, str(code))
    return (
        f"a ring of depth {settings.depth} with staging blocks of {settings.block_bytes:,} bytes "
        f"could not be made: {name} ({os.strerror(code)}); depth may be 1 to 4096, and "
        "depth x block_bytes of memory must be free"
    )
