"""Waits for CUDA's events on behalf of an event loop, which must not stand still meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

import torch


class Waiter:
    """A thread that waits for one stream's events, in their order, without the GIL.

    The GPU is made current wherever CUDA is called: a thread begins with GPU 0, and a call there
    may make a context on it, some hundred megabytes.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._events: SimpleQueue[tuple[Any, Callable[[BaseException | None], None]] | None]
        self._events = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="gnndrive-events", daemon=True)
        self._thread.start()

    async def wait(self, event: Any) -> None:
        """Return once torch's event has fired; raises what CUDA says instead."""
        with torch.cuda.device(self._device):
            if event.query():
                return
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[None] = loop.create_future()

        def tell(error: BaseException | None) -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(_settle, waiter, error)

        self._events.put((event, tell))
        await waiter

    def _run(self) -> None:
        with torch.cuda.device(self._device):
            while (item := self._events.get()) is not None:
                event, tell = item
                try:
                    event.synchronize()
                except RuntimeError as error:
                    tell(error)
                else:
                    tell(None)
                del item, event, tell

    def close(self) -> None:
        """Wait for those that are waited for, and end the thread."""
        self._events.put(None)
        self._thread.join()


def _settle(waiter: asyncio.Future[None], error: BaseException | None) -> None:
    if waiter.done():
        return
    if error is None:
        waiter.set_result(None)
    else:
        waiter.set_exception(error)
