"""A feature buffer in a device's memory, with pinned staging before it (GNNDrive §4.2, phase 2).

The disk reaches host memory only, so a missing row lands in staging: pinned memory that is made
once, in as many portions as the paper has extractors, any of them for whoever has something to
read. A stretch that has landed is scattered into its slots on a side stream while the rest is still
being read: by one kernel that reads pinned memory itself, or by a large copy and a scatter behind
it. Never a copy a row, as the paper's code has it.

Each wait is for an event, none for the device:

1. a stretch is committed behind its scatter's event, and with that its rows are valid and its
   staging may be used again;
2. a lease is released behind its gather's event, for until then its slots are read;
3. what else a batch has is copied beside, and the compute stream waits for that;
4. staging is freed behind everything that was begun on the side stream.

What it needs of CUDA is a `Driver`: `devices/cuda.py` has the real one, `simulated_cuda.py` one
whose copies happen when a seed says so.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch_geometric.data.data import BaseData

from gnndrive.buffer.devices.base import Device, Fence, SlotMemory, no_callback
from gnndrive.common.errors import ConfigError
from gnndrive.common.ffi import ffi
from gnndrive.common.records import FAILURE, Int32Array, Landing, Stretch

PORTIONS = 4  # as many as there are extractors in the paper
PORTION_BYTES = 32 << 20


class Driver(ABC):
    """Memory, a side stream, a compute stream and their events.

    What it starts happens later, in the order of its stream; the two streams know nothing of each
    other but where one waits for the other.
    """

    @abstractmethod
    def pinned(self, nbytes: int) -> npt.NDArray[np.uint8]:
        """Host memory that the device can read, uint8 [nbytes], aligned to a page.

        Raises:
            MemoryError: there is none.
        """

    @abstractmethod
    def allocate(self, nbytes: int) -> torch.Tensor:
        """Device memory of arbitrary content, uint8 [nbytes].

        Raises:
            MemoryError: there is none; the message has the numbers.
        """

    @abstractmethod
    def scatter(self, into: torch.Tensor, staging: npt.NDArray[np.uint8], moves: Int32Array) -> Any:
        """On the side stream: row `moves[0][i]` of `staging` goes to row `moves[1][i]` of `into`.

        Args:
            into: uint8 [slots, row_bytes], on the device.
            staging: pinned, uint8 [places, row_bytes].
            moves: pinned, int32 [2, n]: places and slots.

        Returns:
            An event behind it.
        """

    @abstractmethod
    def gather(self, rows: torch.Tensor, alias: Int32Array) -> tuple[torch.Tensor, Any]:
        """On the compute stream: a new tensor `rows[alias]`, uint8 [n, row_bytes], and an event
        behind it. `alias` (int32 [n], not pinned) may be changed when this returns."""

    @abstractmethod
    def copy(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Beside both streams: copies of host tensors on the device, which the compute stream waits
        for. The tensors may be changed when this returns."""

    @abstractmethod
    def computing(self) -> AbstractContextManager[object]:
        """Within it torch works on the compute stream."""

    @abstractmethod
    async def wait(self, event: Any) -> None:
        """Return once the event has fired; no thread of Python's stands still meanwhile."""

    @abstractmethod
    def hand_over(self, tensors: Sequence[torch.Tensor]) -> None:
        """In the user's thread: its current stream waits for the compute stream, and memory of
        `tensors` is not used again before it is done with it."""

    @abstractmethod
    def unpin(self, memory: npt.NDArray[np.uint8]) -> None:
        """Let go of what `pinned` gave, behind all that was begun on the side stream."""

    @abstractmethod
    def synchronize(self) -> None:
        """Wait until nothing is under way on any stream; for the end."""

    def close(self) -> None:
        """Let go of everything behind all that was begun."""
        self.synchronize()


class StagedMemory(SlotMemory):
    """Slots in device memory.

    Args:
        driver: what moves rows.
        slots, row_bytes: how many, and of what size.
        portions: of staging.
        portion_rows: rows of a portion.

    Raises:
        ConfigError: there is not that much memory.
    """

    def __init__(
        self, driver: Driver, slots: int, row_bytes: int, portions: int, portion_rows: int
    ) -> None:
        self._driver, self._row_bytes = driver, row_bytes
        self.landing_rows_max = self._portion_rows = portion_rows
        self._places = np.arange(portion_rows, dtype=np.int32)
        portion_bytes = -(-portion_rows * row_bytes // _PAGE_BYTES) * _PAGE_BYTES
        try:
            self._slots = driver.allocate(slots * row_bytes).view(slots, row_bytes)
        except MemoryError as error:
            raise ConfigError(
                f"no device memory for a feature buffer of {slots:,} rows of {row_bytes:,} bytes "
                f"({error}): ask for less with buffer= or device_memory="
            ) from error
        self._pinned: list[npt.NDArray[np.uint8]] = []
        try:
            for nbytes in (portions * portion_bytes, portions * 2 * portion_rows * 4):
                self._pinned.append(driver.pinned(nbytes))
        except MemoryError as error:
            self.close()
            raise ConfigError(
                f"no pinned memory for {portions} portions of staging of {portion_bytes:,} bytes "
                f"({error}): free some of the host's memory"
            ) from error
        moves = self._pinned[1].view(np.int32).reshape(portions, 2, portion_rows)
        staging = self._pinned[0].reshape(portions, portion_bytes)
        self._free = deque(_Portion(*one) for one in zip(staging, moves, strict=True))

    def landing(self, slots: Int32Array) -> Landing | None:
        """A portion of staging; None: all are in use."""
        assert len(slots) <= self._portion_rows
        if not self._free:
            return None
        portion = self._free.popleft()
        portion.slots, portion.moved = slots, 0
        address = int(ffi.cast("uintptr_t", ffi.from_buffer(portion.staging)))
        return Landing(
            address, self._row_bytes, True, portion,
            self._places[: len(slots)], partial(self._free.append, portion),
        )  # fmt: skip

    async def commit(self, landing: Landing, stretch: Stretch) -> Stretch:
        """Scatter what has landed, and wait for that."""
        portion: _Portion = landing.owner
        places = stretch.slots
        slots = portion.slots[places]
        if len(places):
            # Read by the device later, so each stretch has a piece of its own.
            moves = portion.moves[:, portion.moved : portion.moved + len(places)]
            portion.moved += len(places)
            moves[0], moves[1] = places, slots
            rows = portion.staging[: self._portion_rows * self._row_bytes]
            event = self._driver.scatter(self._slots, rows.reshape(-1, self._row_bytes), moves)
            await self._driver.wait(event)
        failures: npt.NDArray[np.void] = np.array(stretch.failures, FAILURE)
        failures["slot"] = portion.slots[failures["slot"]]
        return Stretch(slots, failures)

    def gather(
        self,
        alias: Int32Array,
        dtype: torch.dtype,
        row_shape: tuple[int, ...],
        behind: Callable[[int], object] = no_callback,
    ) -> tuple[torch.Tensor, Fence]:
        """Begin to copy rows into a new tensor on the device, all at once."""
        rows, event = self._driver.gather(self._slots, alias)
        shaped = rows.view(dtype).view(len(alias), *row_shape)
        return shaped, partial(self._driver.wait, event)

    def close(self) -> None:
        """Free slots and staging. Every lease was gathered and every stretch committed: nothing
        on the compute stream looks at them any more."""
        self._slots = torch.empty(0, dtype=torch.uint8)
        self._free = deque()
        while self._pinned:
            self._driver.unpin(self._pinned.pop())


_PAGE_BYTES = 4096


@dataclass(eq=False)
class _Portion:
    """A portion of staging.

    Attributes:
        staging: pinned, uint8 [bytes].
        moves: pinned, int32 [2, rows]: places and slots, stretch behind stretch.
        slots: whose rows land there, int32 [n].
        moved: rows that were scattered out of it.
    """

    staging: npt.NDArray[np.uint8]
    moves: Int32Array
    slots: Int32Array = field(default_factory=lambda: np.empty(0, np.int32))
    moved: int = 0


class Staged(Device):
    """A device behind a driver.

    Attributes:
        driver: what moves bytes.
        portions: of staging.
        portion_bytes: of one, about; it holds a row at least.
    """

    driver: Driver
    portions = PORTIONS
    portion_bytes = PORTION_BYTES

    def allocate(self, slots: int, row_bytes: int) -> StagedMemory:
        """Slots in device memory; see `StagedMemory`."""
        rows = self._portion_rows(row_bytes, slots)
        return StagedMemory(self.driver, slots, row_bytes, self.portions, rows)

    @classmethod
    def _portion_rows(cls, row_bytes: int, slots: int) -> int:
        return max(1, min(cls.portion_bytes // max(row_bytes, 1), slots))

    @classmethod
    def pinned_bytes(cls, row_bytes: int, rows: int) -> int:
        """See `Device.pinned_bytes`; places and slots of what is scattered are pinned too."""
        portion = cls._portion_rows(row_bytes, rows)
        return cls.portions * (portion * (row_bytes + 8) + _PAGE_BYTES)

    def deliver(
        self,
        batch: Any,
        there: Collection[torch.Tensor],
        finish: Callable[[Any], Any] = lambda batch: batch,
    ) -> Any:
        """Begin to copy what is not on the device yet; see `Device.deliver`."""
        arrived = {id(tensor) for tensor in there}
        waiting = [
            (store, name, value)
            for store in batch.stores
            for name, value in store.items()
            if isinstance(value, torch.Tensor) and id(value) not in arrived
        ]
        copies = self.driver.copy([value for _, _, value in waiting])
        for (store, name, _), value in zip(waiting, copies, strict=True):
            store[name] = value
        with self.driver.computing():
            return finish(batch)

    def hand_over(self, batch: Any) -> None:
        """See `Driver.hand_over`."""
        self.driver.hand_over(list(_tensors(batch)))

    def close(self) -> None:
        """See `Driver.close`."""
        self.driver.close()


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    """The tensors of a batch, or of what a transform made of it."""
    if isinstance(value, torch.Tensor):
        yield value
        return
    if isinstance(value, BaseData):
        value = value.to_dict()
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, tuple | list):
        for one in value:
            yield from _tensors(one)
