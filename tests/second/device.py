"""A device in host memory behind one copying thread, as a GPU is behind one stream.

Rows land in portions of staging beside the slots, in places of their own, and the thread copies
them into slots and out again, in the order in which it is asked. So a gather has only begun when it
returns, and what uses its rows, or their slots, must wait for it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Collection
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import torch

from gnndrive.buffer.devices.base import (
    Device,
    DeviceContext,
    Fence,
    SlotMemory,
    already_done,
    no_callback,
)
from gnndrive.common.array_pool import Allocate, empty_tensor, private_map
from gnndrive.common.errors import ConfigError
from gnndrive.common.records import FAILURE, Int32Array, Landing, Stretch
from tests.second.use import used

PORTIONS = 2
PORTION_ROWS = 48
Bytes = npt.NDArray[np.uint8]


@dataclass(eq=False)
class Portion:
    """Staging, uint8 [rows, row_bytes], and the slots whose rows land there."""

    rows: Bytes
    slots: Int32Array


class CopiedMemory(SlotMemory):
    """Slots that only the copying thread touches."""

    def __init__(self, copies: Copies, slots: int, row_bytes: int, empty: Allocate) -> None:
        self._copies, self._empty, self._row_bytes = copies, empty, row_bytes
        self.landing_rows_max = min(slots, PORTION_ROWS)
        self.closed = False
        try:
            self._slots = _rows(slots, row_bytes)
            portions = [_rows(self.landing_rows_max, row_bytes) for _ in range(PORTIONS)]
        except MemoryError as error:
            raise ConfigError(
                f"no memory for a feature buffer of {slots:,} rows of {row_bytes:,} bytes "
                f"({error}): ask for less with buffer= or memory="
            ) from error
        self._free = deque(Portion(rows, np.empty(0, np.int32)) for rows in portions)

    def landing(self, slots: Int32Array) -> Landing | None:
        if not self._free:
            return None
        portion = self._free.popleft()
        portion.slots = slots.copy()
        return Landing(
            portion.rows.ctypes.data, self._row_bytes, False, portion,
            np.arange(len(slots), dtype=np.int32), partial(self._free.append, portion),
        )  # fmt: skip

    async def commit(self, landing: Landing, stretch: Stretch) -> Stretch:
        portion: Portion = landing.owner
        slots = portion.slots[stretch.slots]
        if len(slots):
            await _ended(self._copies.begin(self._put, portion, stretch.slots, slots))
        failures = np.array(stretch.failures, FAILURE)
        failures["slot"] = portion.slots[failures["slot"]]
        return Stretch(slots, failures)

    def _put(self, portion: Portion, places: Int32Array, slots: Int32Array) -> None:
        self._slots[slots] = portion.rows[places]

    def gather(
        self,
        alias: Int32Array,
        dtype: torch.dtype,
        row_shape: tuple[int, ...],
        behind: Callable[[int], object] = no_callback,
    ) -> tuple[torch.Tensor, Fence]:
        rows = empty_tensor(self._empty, (len(alias), *row_shape), dtype)
        if not len(alias):
            return rows, already_done
        used["devices"] += 1
        copied = self._copies.begin(self._pick, alias.copy(), rows)
        return rows, partial(_ended, copied)

    def _pick(self, alias: Int32Array, rows: torch.Tensor) -> None:
        into = rows.reshape(len(alias), -1).view(torch.uint8).numpy()
        np.take(self._slots, alias, axis=0, out=into)

    def close(self) -> None:
        self.closed = True
        self._slots = _rows(0, self._row_bytes)
        self._free.clear()


class Copies:
    """The copying thread."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="copier")

    def begin(self, function: Callable[..., None], *arguments: Any) -> Future[None]:
        return self._thread.submit(function, *arguments)

    def wait(self) -> None:
        """Wait until all copies that were begun have ended."""
        with contextlib.suppress(RuntimeError):  # it was closed, and that waited
            self.begin(lambda: None).result()

    def close(self) -> None:
        self._thread.shutdown()


class Copier(Device):
    """Host memory behind a thread; batches stay on the host.

    Attributes:
        portions: of staging.
        memories: all that was allocated.
    """

    name = "copier"
    portions = PORTIONS

    def __init__(self, context: DeviceContext) -> None:
        self._copies, self._empty = Copies(), context.empty
        self.memories: list[CopiedMemory] = []

    @classmethod
    def make(cls, context: DeviceContext) -> Self:
        return cls(context)

    def allocate(self, slots: int, row_bytes: int) -> CopiedMemory:
        self.memories.append(CopiedMemory(self._copies, slots, row_bytes, self._empty))
        return self.memories[-1]

    @classmethod
    def pinned_bytes(cls, row_bytes: int, rows: int) -> int:
        return PORTIONS * (min(rows, PORTION_ROWS) * row_bytes + 4096)

    def deliver(
        self,
        batch: Any,
        there: Collection[torch.Tensor],
        finish: Callable[[Any], Any] = lambda batch: batch,
    ) -> Any:
        self._copies.wait()
        return finish(batch)

    def hand_over(self, batch: Any) -> None:
        self._copies.wait()

    def close(self) -> None:
        self._copies.close()


async def _ended(copied: Future[None]) -> None:
    """Wait for a copy; cancelling the wait does not cancel the copy."""
    await asyncio.shield(asyncio.wrap_future(copied))


def _rows(count: int, row_bytes: int) -> Bytes:
    """Page-aligned memory, uint8 [count, row_bytes]."""
    memory = np.frombuffer(private_map(count * row_bytes), np.uint8)
    return memory[: count * row_bytes].reshape(count, row_bytes)
