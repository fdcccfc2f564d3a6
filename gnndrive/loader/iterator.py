"""`BatchIterator`: what `iter(loader)` and `aiter(loader)` give, one epoch's batches."""

from __future__ import annotations

import asyncio
import threading
import weakref
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Iterator
from time import perf_counter
from typing import Any, Protocol, Self

from gnndrive.common.errors import LateError
from gnndrive.common.records import Seeds
from gnndrive.loader.epoch_state import EpochState
from gnndrive.loader.runtime import Runtime
from gnndrive.pipeline.epoch import EpochInputs
from gnndrive.pipeline.output_queue import LATE, OutputEnded
from gnndrive.sampling.schedules.base import Window

WARM_UP = 3  # batches, after which training takes what it will take of a device's memory


class Closeable(ABC):
    """`with` and `async with` close it."""

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
    """Seeds of the batches of a warm-up, which may have been drawn and not delivered when it
    ends."""

    def __init__(self, batches: Iterator[tuple[Window, Seeds]]) -> None:
        self._left, self._drawn = batches, list[tuple[Window, Seeds]]()
        self._error: BaseException | None = None

    def __next__(self) -> tuple[Window, Seeds]:
        try:
            self._drawn.append(next(self._left))
        except BaseException as error:  # a user's sampler: its batches are still to be delivered
            self._error = error
            raise
        return self._drawn[-1]

    def replay(self, first: int) -> Iterator[tuple[Window, Seeds]]:
        """Those from batch `first` on."""
        yield from (each for each in self._drawn if each[1].index >= first)
        if self._error is not None and not isinstance(self._error, StopIteration):
            raise self._error
        yield from self._left


class EpochSource(Protocol):
    """Makes what the pipeline needs to run an epoch, once or, after a warm-up, twice."""

    def inputs(self, batches: Iterator[tuple[Window, Seeds]], first: int) -> EpochInputs:
        """To run it from batch `first` on, whose seeds come first in `batches`."""
        ...


async def in_thread(batches: Iterator[Any]) -> AsyncIterator[Any]:
    """Batches of an ordinary iterator for `async for`: each is made in a thread."""
    end = object()
    while (batch := await asyncio.to_thread(next, batches, end)) is not end:
        yield batch


class BatchIterator(Iterator[Any]):
    """One epoch's batches, for `for` and `async for`; closing it, or dropping it, ends the
    epoch."""

    def __init__(
        self,
        loader: object,
        runtime: Runtime,
        epoch: EpochSource,
        batches: Iterator[tuple[Window, Seeds]],
        state: EpochState,
        timeout: float = 0,
    ) -> None:
        # Keeps the loader alive: `for batch in NeighborLoader(…)` holds nothing but this iterator.
        self._loader = loader
        self._runtime, self._epoch, self._state = runtime, epoch, state
        self._warm = state.batches + WARM_UP
        self._timeout = timeout or None
        self._growing: asyncio.Future[None] | None = None
        self._changing, self._closed = threading.Lock(), False
        self._seeds = ReplayableSeeds(batches) if runtime.warming_up else None
        self._begin(self._seeds or batches)

    def _begin(self, batches: Iterator[tuple[Window, Seeds]]) -> None:
        self._running = self._runtime.begin(self._epoch.inputs(batches, self._state.batches))
        self._output = self._running.epoch.output
        self._dropped = weakref.finalize(self, self._runtime.drop, self._running)

    def __iter__(self) -> BatchIterator:
        return self

    def __next__(self) -> Any:
        started = perf_counter()
        try:
            if self._state.batches == self._warm and self._seeds is not None:
                self._grow()
            return self._give(self._output.get(self._timeout))
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

    def _give(self, batch: Any) -> Any:
        self._state.batches += 1
        self._runtime.device.hand_over(batch)
        return batch

    def _grow(self) -> None:
        """At the end of the warm-up: the rest of the epoch through a feature buffer in all that
        training leaves. What a batch holds depends on its index alone, so none is different."""
        with self._changing:
            replayable = self._seeds
            try:
                over = self._closed or self._output.ended
                if replayable is None or over or not self._runtime.alone(self._running):
                    return
                self._dropped.detach()
                self._runtime.end(self._running)
                self._runtime.grow()
                self._begin(replayable.replay(self._state.batches))
            finally:
                self._seeds = None

    def __aiter__(self) -> BatchIterator:
        return self

    async def __anext__(self) -> Any:
        started, waiting = perf_counter(), asyncio.timeout(self._timeout)
        try:
            if self._state.batches == self._warm and self._seeds is not None:
                # Whoever is cancelled meanwhile finds it under way, or done, the next time.
                if self._growing is None:
                    self._growing = asyncio.ensure_future(asyncio.to_thread(self._grow))
                await asyncio.shield(self._growing)
            async with waiting:
                batch = await self._output.aget()
            return self._give(batch)
        except TimeoutError:
            if not waiting.expired():  # it is the batch's own
                raise
            raise LateError(LATE.format(self._timeout)) from None
        except OutputEnded:
            self._finish()
            raise StopAsyncIteration from None
        finally:
            self._runtime.counters.wait_s += perf_counter() - started

    def _finish(self) -> None:
        if not self._closed:  # by the user, in the middle
            self._state.finished = True
        self.close()

    def close(self) -> None:
        """End the epoch and wait until nothing of it is under way; idempotent."""
        with self._changing:
            self._closed = True
            self._runtime.end(self._running)
            self._dropped.detach()  # a finalizer that runs between two epochs may swallow a Ctrl-C
