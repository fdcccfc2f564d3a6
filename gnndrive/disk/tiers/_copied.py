"""What tiers share that copy rows from host memory to a landing, in a thread of their own.

The rows of a batch may be hundreds of megabytes, and the event loop has other work.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from gnndrive.common.ffi import ffi, lib, pointer
from gnndrive.common.limits import named_limit
from gnndrive.common.records import Int32Array, Int64Array, Landing, PinnedRows, Stretch
from gnndrive.disk.tiers.base import Fetch


def start_thread(name: str) -> ThreadPoolExecutor:
    """One thread for copies, which runs already, so that none is refused during a fetch."""
    thread = ThreadPoolExecutor(1, name)
    with named_limit():
        thread.submit(int)
    return thread


def begin_copy(
    thread: ThreadPoolExecutor, copy: Callable[..., None], *arguments: Any
) -> asyncio.Future[None]:
    """Call `copy(*arguments)` in the thread; a future of its end."""
    loop = asyncio.get_running_loop()
    try:
        return loop.run_in_executor(thread, copy, *arguments)
    except RuntimeError:  # the interpreter is ending, and executors take no more work
        copy(*arguments)
        ended = loop.create_future()
        ended.set_result(None)
        return ended


def spread_rows(
    address: int, row_bytes: int, rows: Int64Array, places: Int32Array, landing: Landing
) -> None:
    """Copy row `rows[i]` of the memory at `address` to place `places[i]` of a landing."""
    lib.gd_spread(
        ffi.cast("uint8_t *", address), pointer(rows), len(rows), row_bytes, pointer(places),
        landing.slot_stride, ffi.cast("uint8_t *", landing.address),
    )  # fmt: skip


class CopiedFetch:
    """First the rows that a tier has itself, at the places `served`, when they are copied; then
    those from below, as they come. `pinned`: where the device reads the first ones itself, after
    `copied`; None: they are copied to the landing."""

    def __init__(
        self, served: Int32Array, copied: asyncio.Future[None], rest: Fetch,
        pinned: PinnedRows | None = None,
    ) -> None:  # fmt: skip
        self._served, self._copied, self._rest, self._pinned = served, copied, rest, pinned

    def __aiter__(self) -> AsyncIterator[Stretch]:
        return self._stretches()

    async def _stretches(self) -> AsyncIterator[Stretch]:
        problem: Exception | None = None
        try:
            await self._wait_for_copy()
        except Exception as error:  # raised at the end: the disk still writes (rule 13)
            problem = error
        else:
            yield Stretch(self._served, pinned=self._pinned)
        async for stretch in self._rest:
            yield stretch
        if problem is not None:
            raise problem

    async def _wait_for_copy(self) -> None:
        """Wait until the rows are copied. A thread cannot be cancelled: when cancelled, this waits,
        too, because it writes to the landing, and then raises CancelledError."""
        cancelled: asyncio.CancelledError | None = None
        while not self._copied.done():
            try:
                await asyncio.wait([self._copied])
            except asyncio.CancelledError as error:
                cancelled = error
        if cancelled is not None:
            raise cancelled
        self._copied.result()

    def cancel(self) -> None:
        """See `Fetch.cancel`; the copy goes on to its end."""
        self._rest.cancel()
