"""`BatchIterator`: one epoch's batches; what `iter(loader)` and `aiter(loader)` return.

`StoreLoader` makes it for each epoch. It starts the epoch in the `Runtime` and takes batches from
the epoch's output queue. After a warm-up it ends the epoch, has the runtime make a larger feature
buffer, and starts the rest of the epoch with it.
"""

from __future__ import annotations

import asyncio
import threading
import weakref
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Iterator
from time import perf_counter
from typing import Any, Self

from gnndrive.common.errors import LateError
from gnndrive.common.records import Seeds
from gnndrive.loader.assembly import EpochAssembly
from gnndrive.loader.epoch_state import EpochState
from gnndrive.loader.runtime import Runtime
from gnndrive.pipeline.output_queue import LATE, OutputEnded
from gnndrive.sampling.schedules.base import Window

WARM_UP = 3  # batches, after which training has used as much device memory as it will use


class Closeable(ABC):
    """A context manager, for `with` and `async with`, that calls its `close` at the end."""

    @abstractmethod
    def close(self) -> None:
        """Free everything."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *raised: object) -> None:
        self.close()


class ReplayableSeeds(Iterator[tuple[Window, Seeds]]):
    """The seeds of an epoch that begins with a warm-up; keeps those that were drawn.

    At the end of the warm-up, the pipeline has drawn seeds of batches that it has not delivered.
    `replay` yields these seeds again, then the others.

    Args:
        batches: the seeds of each batch, with its window.
    """

    def __init__(self, batches: Iterator[tuple[Window, Seeds]]) -> None:
        self._batches, self._drawn = batches, list[tuple[Window, Seeds]]()
        self._error: BaseException | None = None

    def __next__(self) -> tuple[Window, Seeds]:
        try:
            self._drawn.append(next(self._batches))
        except BaseException as error:
            # The end, or an error of the user's sampler. `replay` raises it again, after the seeds
            # that were drawn before it.
            self._error = error
            raise
        return self._drawn[-1]

    def replay(self, first: int) -> Iterator[tuple[Window, Seeds]]:
        """Yield the seeds of the batches from `first` on."""
        yield from (each for each in self._drawn if each[1].index >= first)
        if self._error is not None and not isinstance(self._error, StopIteration):
            raise self._error
        yield from self._batches


async def in_thread(batches: Iterator[Any]) -> AsyncIterator[Any]:
    """Yield the batches of an ordinary iterator for `async for`; each is made in a thread."""
    end = object()
    while (batch := await asyncio.to_thread(next, batches, end)) is not end:
        yield batch


class BatchIterator(Iterator[Any]):
    """One epoch's batches, for `for` and `async for`. Closing or dropping it ends the epoch.

    Args:
        loader: the loader, which stays alive as long as this iterator.
        runtime: runs the epoch.
        assembly: makes the epoch's inputs: once, or twice if the epoch begins with a warm-up.
        batches: the seeds of each batch, with its window.
        state: how far the epoch has come; this iterator counts the batches that it yields in it.
        timeout: seconds to wait for a batch before LateError is raised; 0: no limit.
    """

    def __init__(
        self,
        loader: object,
        runtime: Runtime,
        assembly: EpochAssembly,
        batches: Iterator[tuple[Window, Seeds]],
        state: EpochState,
        timeout: float = 0,
    ) -> None:
        # In `for batch in NeighborLoader(…)` this is the only reference to the loader.
        self._loader = loader
        self._runtime, self._assembly, self._state = runtime, assembly, state
        self._timeout = timeout or None
        self._epoch_lock, self._closed = threading.Lock(), False
        # Until the end of a warm-up; else None.
        self._replayable = ReplayableSeeds(batches) if runtime.warming_up else None
        self._warm_up_end = state.batches + WARM_UP
        self._ending_warm_up: asyncio.Future[None] | None = None
        self._start(self._replayable or batches)

    def _start(self, batches: Iterator[tuple[Window, Seeds]]) -> None:
        """Start the epoch, or the rest of it, whose seeds are `batches`."""
        self._run = self._runtime.begin(self._assembly.inputs(batches, self._state.batches))
        self._output = self._run.epoch.output
        self._finalizer = weakref.finalize(self, self._runtime.drop, self._run)

    def __iter__(self) -> BatchIterator:
        return self

    def __next__(self) -> Any:
        self._runtime.check_caller()
        started = perf_counter()
        try:
            if self._state.batches == self._warm_up_end and self._replayable is not None:
                self._end_warm_up()
            return self._deliver(self._output.get(self._timeout))
        except OutputEnded:
            self._finish()
            raise StopIteration from None
        except LateError:
            raise
        except BaseException:
            self.close()
            raise
        finally:
            self._runtime.counters.wait_s += perf_counter() - started

    def _deliver(self, batch: Any) -> Any:
        self._state.batches += 1
        self._runtime.device.hand_over(batch)
        return batch

    def _end_warm_up(self) -> None:
        """Run the rest of the epoch with a larger feature buffer, in the device memory that
        training leaves. Batches stay the same, because they depend on their indices only."""
        with self._epoch_lock:
            replayable = self._replayable
            try:
                ended = self._closed or self._output.ended
                if replayable is None or ended or not self._runtime.runs_only(self._run):
                    return
                self._finalizer.detach()
                self._runtime.end(self._run)
                self._runtime.grow()
                self._start(replayable.replay(self._state.batches))
            finally:
                self._replayable = None

    def __aiter__(self) -> BatchIterator:
        return self

    async def __anext__(self) -> Any:
        self._runtime.check_caller()
        started, waiting = perf_counter(), asyncio.timeout(self._timeout)
        try:
            if self._state.batches == self._warm_up_end and self._replayable is not None:
                # If this task is cancelled meanwhile, the next call waits for the same future.
                if self._ending_warm_up is None:
                    ending = asyncio.to_thread(self._end_warm_up)
                    self._ending_warm_up = asyncio.ensure_future(ending)
                await asyncio.shield(self._ending_warm_up)
            async with waiting:
                batch = await self._output.aget()
            return self._deliver(batch)
        except TimeoutError:
            if not waiting.expired():  # making the batch raised it
                raise
            raise LateError(LATE.format(self._timeout)) from None
        except OutputEnded:
            self._finish()
            raise StopAsyncIteration from None
        finally:
            self._runtime.counters.wait_s += perf_counter() - started

    def _finish(self) -> None:
        if not self._closed:  # else the user has closed it before the end
            self._state.finished = True
        self.close()

    def close(self) -> None:
        """End the epoch and wait until all its reads and tasks have ended; idempotent.

        Raises:
            ConfigError: this is a forked child, or a thread of the loader itself.
        """
        self._runtime.check_caller()
        with self._epoch_lock:
            self._closed = True
            self._runtime.end(self._run)
            self._finalizer.detach()  # Ctrl-C that arrives while a finalizer runs may be lost
