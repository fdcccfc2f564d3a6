"""The threads engine: `pread` with O_DIRECT in a few C loops, for where io_uring is refused.

Each thread reads one extent at a time without the GIL and comes back to Python every thousand rows
to tell of them. As many requests are in flight as there are threads, so prefer `uring` where it
works.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from gnndrive.common.errors import ConfigError
from gnndrive.common.ffi import check, ffi, lib
from gnndrive.common.records import EngineSettings
from gnndrive.disk.engines._listener import (
    Listener,
    ReadCounters,
    refuse_closed,
    refuse_long_extents,
    staging,
)
from gnndrive.disk.engines.base import Engine

if TYPE_CHECKING:
    from gnndrive.disk.layouts.base import Reads

THREADS_MAX = 16


class Threads(Engine):
    """Reads with `min(settings.depth, 16)` threads, each with a staging block of its own."""

    name = "threads"

    def __init__(self, settings: EngineSettings) -> None:
        if settings.depth < 1 or settings.block_bytes < 1:
            raise ConfigError("depth and block_bytes must be at least 1")
        self._settings = settings
        self._loop = asyncio.get_running_loop()
        self._threads = min(settings.depth, THREADS_MAX)
        self._pool = ThreadPoolExecutor(self._threads, thread_name_prefix="gd-pread")
        self._times = [
            ffi.new("gd_histogram *") if settings.measure else ffi.NULL
            for _ in range(self._threads)
        ]
        self._staging, blocks = staging(self._threads, settings.block_bytes)
        self._idle = list(zip(blocks, self._times, strict=True))
        self._active: set[Listener] = set()
        self._tally = ReadCounters()
        self._closing = False
        self._ended = asyncio.Event()

    def read(self, reads: Reads) -> Listener:
        """See `Engine.read`."""
        refuse_closed(self._closing)
        refuse_long_extents(reads, self._settings)
        listener = Listener(reads)
        workers = min(self._threads, reads.requests)
        if workers == 0:
            lib.gd_reads_let_go(reads.handle)
            return listener
        self._active.add(listener)
        last_out = _LastOut(workers)
        for _ in range(workers):
            try:
                self._pool.submit(self._work, listener, last_out)
            except RuntimeError:  # the interpreter is ending: what was not begun will not be read
                reads.cancel()
                self._leave(listener, last_out)
        return listener

    def _work(self, listener: Listener, last_out: _LastOut) -> None:
        """In a pool thread: read extents until none is left; the last thread out lets go."""
        (block, times), reads = self._idle.pop(), listener.reads
        block_bytes = self._settings.block_bytes
        try:
            while True:
                code = lib.gd_reads_pread(reads.handle, reads.fd, block, block_bytes, times)
                if check(code, "gd_reads_pread") == 0:
                    break
                self._tell(listener)
        finally:
            self._idle.append((block, times))
            self._leave(listener, last_out)

    def _leave(self, listener: Listener, last_out: _LastOut) -> None:
        if last_out.leave():
            lib.gd_reads_let_go(listener.reads.handle)
            self._tell(listener)

    def _tell(self, listener: Listener) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody listens any more
            self._loop.call_soon_threadsafe(self._on_news, listener)

    def _on_news(self, listener: Listener) -> None:
        if not listener.poke() or listener not in self._active:
            return
        self._active.discard(listener)
        self._tally.add(listener.reads)
        if not self._active:
            self._ended.set()

    async def aclose(self) -> None:
        """See `Engine.aclose`; may be cancelled and called again."""
        self._closing = True
        for listener in self._active:
            listener.reads.cancel()
        while self._active:
            self._ended.clear()
            await self._ended.wait()
        self._pool.shutdown()

    def stats(self) -> dict[str, int]:
        """Requests, bytes and retries, of reads under way too."""
        return self._tally.with_active(listener.reads for listener in self._active)

    def latency(self) -> Any:
        """A C `gd_latency *` of the requests so far, with `settings.measure`.

        A call of `pread` both hands over and waits: its time is clat and lat.
        """
        out = ffi.new("gd_latency *")
        for times in self._times:
            if times != ffi.NULL:
                lib.gd_histogram_merge(ffi.addressof(out.clat), times)
                lib.gd_histogram_merge(ffi.addressof(out.lat), times)
        return out


class _LastOut:
    """Tells the last of `workers` threads that it is the last."""

    def __init__(self, workers: int) -> None:
        self._left = workers
        self._lock = threading.Lock()

    def leave(self) -> bool:
        with self._lock:
            self._left -= 1
            return self._left == 0
