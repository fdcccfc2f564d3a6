"""`BatchIterator`: what `iter(loader)` and `aiter(loader)` give, one epoch's batches."""

from __future__ import annotations

import weakref
from abc import ABC, abstractmethod
from collections.abc import Iterator
from time import perf_counter
from typing import Any, Self

from gnndrive.pipeline.handover import HandoverEnded
from gnndrive.runtime import Running, Runtime


class Closing(ABC):
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


class BatchIterator(Iterator[Any]):
    """One epoch's batches, for `for` and `async for`; closing it, or dropping it, ends the
    epoch."""

    def __init__(self, loader: object, runtime: Runtime, running: Running) -> None:
        self._loader = loader  # `for batch in NeighborLoader(…)` holds nothing but this iterator
        self._runtime = runtime
        self._running = running
        self._handover = running.epoch.handover
        weakref.finalize(self, runtime.drop, running)

    def __iter__(self) -> BatchIterator:
        return self

    def __next__(self) -> Any:
        started = perf_counter()
        try:
            return self._given(self._handover.get())
        except HandoverEnded:
            self.close()
            raise StopIteration from None
        except BaseException:
            self.close()
            raise
        finally:
            self._runtime.counters.wait_s += perf_counter() - started

    def _given(self, batch: Any) -> Any:
        self._runtime.device.hand_over(batch)
        return batch

    def __aiter__(self) -> BatchIterator:
        return self

    async def __anext__(self) -> Any:
        started = perf_counter()
        try:
            return self._given(await self._handover.aget())
        except HandoverEnded:
            self.close()
            raise StopAsyncIteration from None
        finally:
            self._runtime.counters.wait_s += perf_counter() - started

    def close(self) -> None:
        """End the epoch and wait until nothing of it is under way; idempotent."""
        self._runtime.end(self._running)
