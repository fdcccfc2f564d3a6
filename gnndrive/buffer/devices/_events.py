"""Waits for CUDA events in a thread, so that the event loop can go on meanwhile.

`TorchDriver` (cuda.py) makes one `Waiter` for each stream.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

import torch

from gnndrive.buffer.devices._capture import CaptureMode
from gnndrive.common.limits import named_limit


class LandedEvent:
    """An event after which the host has work to do: it has fired when that is done.

    Args:
        event: the torch event.
        finish: the work, which a `Waiter`'s thread does once.
    """

    def __init__(self, event: Any, finish: Callable[[], object]) -> None:
        self._event, self._finish = event, finish
        self._done = False

    def query(self) -> bool:
        """Whether the work is done."""
        return self._done

    def synchronize(self) -> None:
        """In the waiter's thread: wait for the event, and do the work unless it is done."""
        self._event.synchronize()
        if not self._done:
            self._finish()
            self._done, self._finish = True, int


class Waiter:
    """A thread that waits for one stream's events, in their order, without the GIL.

    The GPU is made current before every call of CUDA, because a thread begins with GPU 0, and a
    call could create a context there, which takes some hundred megabytes. A user's capture of a
    graph would forbid queries of events, unless the thread's capture mode is relaxed.

    Args:
        device: the events' GPU.
    """

    def __init__(self, device: torch.device, capture: CaptureMode) -> None:
        self._device, self._capture = device, capture
        self._events: SimpleQueue[tuple[Any, Callable[[BaseException | None], None]] | None]
        self._events = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="gnndrive-events", daemon=True)
        with named_limit():
            self._thread.start()

    async def wait(self, event: Any) -> None:
        """Return once the torch event has fired.

        Raises:
            RuntimeError: CUDA's error.
            BaseException: what the work of a `LandedEvent` raised.
        """
        with self._capture.relaxed(), torch.cuda.device(self._device):
            if event.query():
                return
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[None] = loop.create_future()

        def report(error: BaseException | None) -> None:
            with contextlib.suppress(RuntimeError):  # the loop was closed meanwhile
                loop.call_soon_threadsafe(_settle, waiter, error)

        self._events.put((event, report))
        await waiter

    def _run(self) -> None:
        with self._capture.relaxed(), torch.cuda.device(self._device):
            while (item := self._events.get()) is not None:
                event, report = item
                try:
                    event.synchronize()
                except BaseException as error:  # of CUDA, or of the work on the host
                    report(error)
                else:
                    report(None)
                del item, event, report

    def close(self) -> None:
        """Wait for all events given to `wait`, and end the thread."""
        self._events.put(None)
        self._thread.join()


def _settle(waiter: asyncio.Future[None], error: BaseException | None) -> None:
    if waiter.done():
        return
    if error is None:
        waiter.set_result(None)
    else:
        waiter.set_exception(error)
