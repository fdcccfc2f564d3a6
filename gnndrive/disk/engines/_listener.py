"""What all engines hand out: an iterator that listens to the log of one C `gd_reads`.

The engine keeps the listener, and with it the reads and their memory, until the reads are finished;
whoever iterates may go away at any time. Nothing here is done per row: a stretch is two numpy
copies.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

from gnndrive.common.array_pool import private_map
from gnndrive.common.errors import ClosedError, ConfigError
from gnndrive.common.ffi import ffi, holding_gil, lib
from gnndrive.common.records import FAILURE, EngineSettings, Stretch

if TYPE_CHECKING:
    from gnndrive.disk.layouts.base import Reads

_PAGE_BYTES = 4096


def refuse_long_extents(reads: Reads, settings: EngineSettings) -> None:
    """Raise ConfigError if an extent that is staged does not fit a staging block."""
    longest = int(holding_gil.gd_reads_block_bytes(reads.handle))
    if longest > settings.block_bytes:
        raise ConfigError(
            f"a read of {longest:,} bytes does not fit a staging block of "
            f"{settings.block_bytes:,} bytes: make block_bytes at least {longest:,}, or let the "
            "layout cut extents shorter (extent_bytes_max) if no single row is that long"
        )


def refuse_closed(closing: bool) -> None:
    """Raise ClosedError if the engine is closed or closing."""
    if closing:
        raise ClosedError("the engine is closed: make a new one (a new iterator does)")


def staging(count: int, block_bytes: int) -> tuple[Any, list[Any]]:
    """Memory in huge pages where there are any, as a C `uint8_t[]` that keeps it alive, and
    `count` page-aligned blocks of it, each a C pointer that does not."""
    stride = -(-block_bytes // _PAGE_BYTES) * _PAGE_BYTES
    memory = ffi.from_buffer("uint8_t[]", private_map(count * stride, huge=True))
    return memory, [memory + i * stride for i in range(count)]


class ReadCounters:
    """Completions of an engine's reads, the bytes they brought and how many were asked for again,
    for an engine that does not count itself."""

    def __init__(self) -> None:
        self._ended = {"requests": 0, "bytes": 0, "retries": 0}

    def add(self, reads: Reads) -> None:
        """Count reads that have ended."""
        self._ended = self.with_active([reads])

    def with_active(self, active: Iterable[Reads]) -> dict[str, int]:
        """`Engine.stats`: those that have ended and those under way."""
        total, out = dict(self._ended), ffi.new("gd_reads_stats *")
        for reads in active:
            lib.gd_reads_get_stats(reads.handle, out)
            for name in total:
                total[name] += int(getattr(out, name))
        return total


class Listener(AsyncIterator[Stretch]):
    """Iterates over the finished stretches of `reads`; one consumer, in the engine's event loop.

    A wake-up looks at each of the reads under way, and calls into the C core only if there is news.
    """

    def __init__(self, reads: Reads) -> None:
        self.reads = reads
        self._progress = holding_gil.gd_reads_progress(reads.handle)
        self._log = ffi.new("gd_log *")
        self._news = asyncio.Event()
        self._landed = 0
        self._failed = 0

    def poke(self) -> bool:
        """Wake the consumer if there is news; return whether each row landed or failed and the
        engine has let go of the reads."""
        # Looked at once, and first: if it came between a look for news and this one, the engine
        # would forget who has not been told.
        let_go = bool(self._progress.let_go)
        if self._is_news():
            self._news.set()
        return let_go

    def _is_news(self) -> bool:
        return bool(self._progress.let_go) or self._are_rows()

    def _are_rows(self) -> bool:
        progress = self._progress
        return bool(progress.landed > self._landed or progress.failed > self._failed)

    def _collect(self) -> Stretch | None:
        """What has been logged since the last call, or None."""
        log = self._log
        holding_gil.gd_reads_log(self.reads.handle, log)
        if log.landed == self._landed and log.failed == self._failed:
            return None
        new_slots = np.empty(log.landed - self._landed, np.int32)
        new_failures = np.empty(log.failed - self._failed, FAILURE)
        ffi.memmove(ffi.from_buffer(new_slots), log.slots + self._landed, new_slots.nbytes)
        ffi.memmove(ffi.from_buffer(new_failures), log.failures + self._failed, new_failures.nbytes)
        self._landed, self._failed = log.landed, log.failed
        return Stretch(new_slots, new_failures)

    async def __anext__(self) -> Stretch:
        if self._are_rows():
            # Beside a thread that burns Python there is news at every look, to the last row: others
            # come first, or nobody else would run until then.
            await asyncio.sleep(0)
        while True:
            if self._is_news():
                stretch = self._collect()
                if stretch is not None:
                    return stretch
                if self._log.finished:
                    raise StopAsyncIteration
            self._news.clear()
            await self._news.wait()
