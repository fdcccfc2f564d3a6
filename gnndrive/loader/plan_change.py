"""`PlanChange`: keeps epochs from beginning while a thread changes the runtime's plan.

`Runtime` owns one. Without it, an epoch could begin by the old plan after the feature buffer was
freed, and the buffer that it has been lent would be freed with the old plan.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Awaitable, Callable, Iterator

from gnndrive.common.errors import ConfigError
from gnndrive.common.loop_thread import LoopThread
from gnndrive.loader.buffers import Buffers

LARGER = (
    "a batch is larger than the plan counts, and another iterator of this loader is running, so "
    "the plan cannot change: close the other iterator, or begin the epoch again, which counts "
    "batches of this size from its start"
)
APART = (
    "with phases='apart' batches are sampled in the feature buffer's place, and another iterator "
    "of this loader is running: close the other iterator, or give phases='overlapped', without "
    "paper=True"
)


class PlanChange:
    """Lets one thread at a time change the plan, while no epoch runs.

    Args:
        loop_thread: the runtime's.
        buffers: the feature buffers.
    """

    def __init__(self, loop_thread: LoopThread, buffers: Buffers) -> None:
        self._loop_thread, self._buffers = loop_thread, buffers
        self._ended: asyncio.Event | None = None  # of the last change; the loop thread sets it
        self._thread: int | None = None

    @property
    def inside(self) -> bool:
        """Whether the calling thread is changing the plan."""
        return self._thread == threading.get_ident()

    @property
    def under_way(self) -> bool:
        """Whether a change is under way; for the loop thread."""
        return self._ended is not None and not self._ended.is_set()

    async def settled(self) -> None:
        """Wait until the change that is under way has ended."""
        assert self._ended is not None
        await self._ended.wait()

    @contextlib.contextmanager
    def changing(self, idle: Callable[[], Awaitable[bool]], busy: str) -> Iterator[None]:
        """Free the feature buffer; no epoch begins within the `with` block.

        Args:
            idle: called in the loop thread; waits until epochs may begin, and tells whether no
                epoch is running.
            busy: the message of the error if one is.

        Raises:
            ConfigError: another epoch is running, which uses memory by the present plan.
            ClosedError: the runtime was closed.
        """
        ended = asyncio.Event()
        try:
            self._loop_thread.call(self._begin(ended, idle, busy))
            self._thread = threading.get_ident()
            yield
        finally:
            if self.inside:
                self._thread = None
            self._loop_thread.call_soon(ended.set)

    async def _begin(
        self, ended: asyncio.Event, idle: Callable[[], Awaitable[bool]], busy: str
    ) -> None:
        if not await idle():
            raise ConfigError(busy)
        self._ended = ended
        await self._buffers.drain()
        if not ended.is_set():  # else Ctrl-C has ended the change meanwhile
            await self._buffers.close()
