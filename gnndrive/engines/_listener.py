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

from gnndrive._ffi import ffi, lib
from gnndrive.blocks import private_map
from gnndrive.errors import ClosedError, ConfigError
from gnndrive.records import FAILURE, EngineSettings, Stretch

if TYPE_CHECKING:
    from gnndrive.layouts.base import Reads


def refuse_long_extents(reads: Reads, settings: EngineSettings) -> None:
    """Raise ConfigError if an extent that is staged does not fit a staging block."""
    longest = int(lib.gd_reads_block_bytes(reads.handle))
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


def staging(length: int) -> Any:
    """Page-aligned memory, in huge pages where there are any, as a C `uint8_t[]` that keeps it
    alive."""
    return ffi.from_buffer("uint8_t[]", private_map(length, huge=True))


class Tally:
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
    """Iterates over the finished stretches of `reads`; one consumer, in the engine's event loop."""

    def __init__(self, reads: Reads) -> None:
        self.reads = reads
        self._news = asyncio.Event()
        self._landed = 0
        self._failed = 0

    def finished(self) -> bool:
        """Whether each row landed or failed and the engine has let go of the reads."""
        return bool(lib.gd_reads_finished(self.reads.handle))

    def poke(self) -> bool:
        """Wake the consumer if there is news; return `finished()`."""
        handle = self.reads.handle
        finished = self.finished()
        if (
            finished
            or lib.gd_reads_landed(handle, ffi.NULL) > self._landed
            or lib.gd_reads_failures(handle, ffi.NULL) > self._failed
        ):
            self._news.set()
        return finished

    def _collect(self) -> Stretch | None:
        """What has been logged since the last call, or None."""
        slots, failures = ffi.new("const int32_t **"), ffi.new("const gd_failure **")
        landed = int(lib.gd_reads_landed(self.reads.handle, slots))
        failed = int(lib.gd_reads_failures(self.reads.handle, failures))
        if landed == self._landed and failed == self._failed:
            return None
        new_slots = np.empty(landed - self._landed, np.int32)
        new_failures = np.empty(failed - self._failed, FAILURE)
        ffi.memmove(ffi.from_buffer(new_slots), slots[0] + self._landed, new_slots.nbytes)
        ffi.memmove(ffi.from_buffer(new_failures), failures[0] + self._failed, new_failures.nbytes)
        self._landed, self._failed = landed, failed
        return Stretch(new_slots, new_failures)

    async def __anext__(self) -> Stretch:
        while True:
            finished = self.finished()  # asked first: what is collected then is all there is
            stretch = self._collect()
            if stretch is not None:
                return stretch
            if finished:
                raise StopAsyncIteration
            self._news.clear()
            await self._news.wait()
