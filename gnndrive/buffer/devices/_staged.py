"""A feature buffer in a device's memory, with pinned staging before it (GNNDrive §4.2, phase 2).

The disk reads only into host memory, so a missing row lands in staging: pinned memory that is
allocated once, in as many portions as the paper has extractors; any fetch may take any portion. A
stretch that has landed is scattered into its slots on a side stream while the rest is still being
read: by one kernel that reads pinned memory itself, or by one large copy and a scatter after it.
(The paper's code makes one copy for each row.)

Every wait for a batch is for one event, never for the whole device: a stretch is committed after
its scatter's event, and a lease is released after its gather's, because until then its slots are
read. Only a buffer that is closed or grown waits for all work, because torch gives no memory back
before.
A row that leaves its slot and is kept in host memory (`StagedVictims`) is copied out on the side
stream too, so before the scatter of the row that comes in its place.

It calls CUDA through a `Driver`: `cuda.py` has the real one, `simulated_cuda.py` one that carries
copies out at times drawn from a seed.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch_geometric.data.data import BaseData

from gnndrive.buffer.devices._options import MoveOptions
from gnndrive.buffer.devices.base import Device, Fence, SlotMemory, no_callback
from gnndrive.common.array_pool import mapped_bytes
from gnndrive.common.errors import ConfigError
from gnndrive.common.io.direct_file import Bytes, whole_pages
from gnndrive.common.records import FAILURE, Int32Array, Landing, PinnedRows, Stretch

PORTION_BYTES = 32 << 20
COPIED_BATCHES = 2  # whose pinned copies exist at once: one on its way, and the next
PINNED_ROUNDING = 2  # torch rounds pinned memory up to a power of two


class Driver(ABC):
    """Memory, a side stream, a compute stream and their events.

    Work that is begun on a stream happens later, in the order of that stream; the streams are
    independent except where one waits for the other.

    Attributes:
        copy_out_bytes_max: the most bytes of rows whose copies out of slots may be under way at
            once; None: any number.
        reads_pinned: whether it reads few rows out of much pinned memory by themselves: `gather`
            may be given rows there, and `scatter` more than a portion of staging.
    """

    copy_out_bytes_max: int | None = None
    reads_pinned: bool = True

    @abstractmethod
    def pinned(self, nbytes: int) -> Bytes:
        """Host memory that the device can read, aligned to a page; or a MemoryError."""

    def pinned_later(self, nbytes: int) -> tuple[Bytes, Callable[[int], object]]:
        """The same for memory of gigabytes, which may be pinned meanwhile. The host may use it at
        once. Before the device uses its first n bytes call the function with n: it waits until
        they are pinned, and raises a MemoryError if they cannot be."""
        return self.pinned(nbytes), no_callback

    @abstractmethod
    def allocate(self, nbytes: int) -> torch.Tensor:
        """Device memory of arbitrary content, uint8 [nbytes]; or a MemoryError with the numbers."""

    @abstractmethod
    def scatter(self, into: torch.Tensor, staging: Bytes, moves: Int32Array) -> Any:
        """On the side stream: row `moves[0][i]` of `staging` goes to row `moves[1][i]` of `into`.

        Args:
            into: uint8 [slots, row_bytes], on the device.
            staging: pinned, uint8 [places, row_bytes].
            moves: pinned, int32 [2, n]: places and slots.

        Returns:
            An event that fires after the copy.
        """

    @abstractmethod
    def copy_out(self, rows: torch.Tensor, into: Bytes, moves: Int32Array) -> Any:
        """On the side stream: row `moves[0][i]` of `rows` goes to row `moves[1][i]` of `into`.

        Args:
            rows: uint8 [slots, row_bytes], on the device.
            into: uint8 [places, row_bytes]; pinned if `reads_pinned`.
            moves: int32 [2, n], not pinned: slots, and different places. It may be changed when
                this returns.

        Returns:
            An event that fires when the rows are there.

        Raises:
            MemoryError: there is no memory for the copy, and none was begun.
        """

    @abstractmethod
    def gather(self, rows: torch.Tensor, alias: Int32Array) -> tuple[torch.Tensor, Any]:
        """On the compute stream: a new tensor `rows[alias]`, uint8 [n, row_bytes], and an event
        that fires after the copy. `alias` (int32 [n], not pinned) may be changed when this
        returns."""

    def rows(self, count: int, row_bytes: int) -> torch.Tensor:
        """A new tensor on the device for `pull`, which the compute stream may use later, uint8
        [count, row_bytes]; or a MemoryError."""
        return self.allocate(count * row_bytes).view(count, row_bytes)

    def pull(self, rows: torch.Tensor, into: torch.Tensor, moves: Int32Array) -> Any:
        """The same as `copy_out` into a tensor of `rows`, out of slots that may be another
        process's; for a device that `pulls`."""
        raise NotImplementedError

    @abstractmethod
    def empty(self, rows: int, row_bytes: int) -> torch.Tensor:
        """A new tensor on the device for `fill`, uint8 [rows, row_bytes]."""

    @abstractmethod
    def fill(self, into: torch.Tensor, piece: Bytes) -> Any:
        """Copy pinned memory into a part of a tensor of `empty`, beside both streams; the compute
        stream waits for the copy. Returns an event that fires after it, for `finish`."""

    @abstractmethod
    def finish(self, event: Any) -> None:
        """Block this thread until an event of `fill` has fired."""

    @abstractmethod
    def copy(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Copy host tensors to the device, beside both streams; the compute stream waits for the
        copies. The tensors may be changed when this returns."""

    def put(self, rows: torch.Tensor, into: torch.Tensor, places: Int32Array) -> None:
        """The same into a tensor of `rows`: row i goes to row `places[i]`."""
        there, index = self.copy([rows, torch.from_numpy(places).long()])
        with self.computing():
            into.index_copy_(0, index, there)

    @abstractmethod
    def computing(self) -> AbstractContextManager[object]:
        """A context in which torch works on the compute stream."""

    @abstractmethod
    async def wait(self, event: Any) -> None:
        """Return once the event has fired; blocks no thread that runs Python meanwhile."""

    @abstractmethod
    def hand_over(self, tensors: Sequence[torch.Tensor]) -> None:
        """In the user's thread: let its current stream wait for the compute stream, and keep the
        memory of `tensors` from being reused before the current stream has finished with it."""

    @abstractmethod
    def unpin(self, memory: Bytes) -> None:
        """Free memory of `pinned`, after everything that was begun on the side stream."""

    @abstractmethod
    def synchronize(self) -> None:
        """Wait until no work is under way on any stream; called before `close`."""

    def give_back(self) -> None:  # noqa: B027  # a driver may have no cache
        """Give memory of `allocate` that is not used any more back to the device."""

    def close(self) -> None:
        """Free everything, after all work that was begun."""
        self.synchronize()


class StagedMemory(SlotMemory):
    """Slots in device memory, and portions of staging with `portion_rows` rows each."""

    def __init__(
        self, driver: Driver, slots: int, row_bytes: int, portions: int, portion_rows: int
    ) -> None:
        self._driver, self._row_bytes = driver, row_bytes
        self.landing_rows_max = self._portion_rows = portion_rows
        self._places = np.arange(portion_rows, dtype=np.int32)
        sizes = _pinned_sizes(portions, portion_rows, row_bytes)
        portion_bytes = sizes[0] // portions
        try:
            self._slots = driver.allocate(slots * row_bytes).view(slots, row_bytes)
        except MemoryError as error:
            raise ConfigError(
                f"no device memory for a feature buffer of {slots:,} rows of {row_bytes:,} bytes "
                f"({error}): ask for less with buffer= or device_memory="
            ) from error
        self._pinned: list[Bytes] = []
        try:
            for nbytes in sizes:
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
        """See `SlotMemory.landing`: a portion of staging."""
        assert len(slots) <= self._portion_rows
        if not self._free:
            return None
        portion = self._free.popleft()
        portion.slots, portion.moved = slots, 0
        return Landing(
            portion.staging.ctypes.data, self._row_bytes, True, portion,
            self._places[: len(slots)], partial(self._free.append, portion),
        )  # fmt: skip

    async def commit(self, landing: Landing, stretch: Stretch) -> Stretch:
        """See `SlotMemory.commit`: scatter the rows into their slots and wait for the event."""
        portion: _Portion = landing.owner
        places = stretch.slots
        slots = portion.slots[places]
        if len(places):
            # The device reads `moves` later, so each stretch has a range of its own.
            moves = portion.moves[:, portion.moved : portion.moved + len(places)]
            portion.moved += len(places)
            staging = portion.staging[: self._portion_rows * self._row_bytes]
            rows = stretch.pinned or PinnedRows(staging.reshape(-1, self._row_bytes), places)
            moves[0], moves[1] = rows.rows, slots
            await self._driver.wait(self._driver.scatter(self._slots, rows.memory, moves))
            rows.leave()
        failures: npt.NDArray[np.void] = np.array(stretch.failures, FAILURE)
        failures["slot"] = portion.slots[failures["slot"]]
        return Stretch(slots, failures)

    def gather(
        self,
        alias: Int32Array,
        dtype: torch.dtype,
        row_shape: tuple[int, ...],
        copied: Callable[[int], object] = no_callback,
    ) -> tuple[torch.Tensor, Fence]:
        """See `SlotMemory.gather`: one copy on the compute stream."""
        rows, event = self._driver.gather(self._slots, alias)
        shaped = rows.view(dtype).view(len(alias), *row_shape)
        return shaped, partial(self._driver.wait, event)

    @property
    def shared(self) -> torch.Tensor:  # type: ignore[override]
        """See `SlotMemory.shared`."""
        return self._slots

    def evicted(self, places: int) -> StagedVictims:
        """See `SlotMemory.evicted`."""
        return StagedVictims(self._driver, self._slots, places)

    def close(self) -> None:
        """Free slots and staging, after every stretch was committed and every gather's fence has
        passed, so that no work on the compute stream uses them."""
        self._slots = torch.empty(0, dtype=torch.uint8)
        self._free = deque()
        while self._pinned:
            self._driver.unpin(self._pinned.pop())
        self._driver.give_back()


class StagedVictims:
    """Host memory for `places` rows beside `slots`, pinned if the device reads it; an
    `EvictedRows`.

    Args:
        slots: uint8 [slots, row_bytes], on the device.
    """

    def __init__(self, driver: Driver, slots: torch.Tensor, places: int) -> None:
        self._driver, self._slots = driver, slots
        row_bytes, most = max(int(slots.shape[1]), 1), driver.copy_out_bytes_max
        self.rows_max = None if most is None else max(most // row_bytes, 1)
        self.read_in_place = driver.reads_pinned
        self._row_bytes = row_bytes
        self._limited = partial(
            rows_limited, "host memory beside the GPU for", places, row_bytes,
            "memory= or victim_buffer=",
        )  # fmt: skip
        self._wait: Callable[[int], object] = no_callback
        nbytes = max(places * row_bytes, 1)
        with self._limited():
            if driver.reads_pinned:
                memory, self._wait = driver.pinned_later(nbytes)
            else:
                memory = mapped_bytes(nbytes)
        self._pinned = memory if driver.reads_pinned else None
        self.rows = memory[: places * row_bytes].reshape(places, row_bytes)

    def copy_out(self, slots: Int32Array, places: Int32Array) -> Fence:
        """See `EvictedRows.copy_out`; waits until the places are pinned, and raises a ConfigError
        if they cannot be."""
        self._wait_for(int(places.max()) + 1)
        event = self._driver.copy_out(self._slots, self.rows, np.stack([slots, places]))
        return partial(self._driver.wait, event)

    def wait(self) -> None:
        """See `EvictedRows.wait`."""
        self._wait_for(len(self.rows))

    def _wait_for(self, places: int) -> None:
        with self._limited():
            self._wait(places * self._row_bytes)

    def close(self) -> None:
        """See `EvictedRows.close`."""
        self._slots = torch.empty(0, dtype=torch.uint8)
        self.rows = np.empty((0, 0), np.uint8)
        if self._pinned is not None:
            self._driver.unpin(self._pinned)
            self._pinned = None


@dataclass(eq=False)
class _Portion:
    """A portion of staging.

    Attributes:
        staging: pinned, uint8 [bytes].
        moves: pinned, int32 [2, rows]: places and slots, one stretch behind the other.
        slots: the slots of the rows that land there.
        moved: rows that were scattered so far.
    """

    staging: Bytes
    moves: Int32Array
    slots: Int32Array = field(default_factory=lambda: np.empty(0, np.int32))
    moved: int = 0


class Staged(Device):
    """A device whose slots the disk cannot reach; a driver moves its rows.

    Attributes:
        options: how; the plan counts with those of the class.
        portion_bytes: about how many bytes a portion has.
    """

    delivers = True
    driver: Driver
    options = MoveOptions()
    portion_bytes = PORTION_BYTES
    pinned_per_byte = COPIED_BATCHES * PINNED_ROUNDING

    @property
    def portions(self) -> int:
        """How many portions of staging."""
        return self.options.portions

    def allocate(self, slots: int, row_bytes: int) -> SlotMemory:
        """Slots in device memory; see `StagedMemory`."""
        rows = portion_rows(self.portion_bytes, row_bytes, slots)
        return StagedMemory(self.driver, slots, row_bytes, self.portions, rows)

    @classmethod
    def pinned_bytes(cls, row_bytes: int, rows: int) -> int:
        """See `Device.pinned_bytes`; the places and slots of scatters are pinned too."""
        portion = portion_rows(cls.portion_bytes, row_bytes, rows)
        return sum(map(whole_pages, _pinned_sizes(cls.options.portions, portion, row_bytes)))

    def deliver(
        self,
        batch: Any,
        there: Collection[torch.Tensor],
        finish: Callable[[Any], Any] = lambda batch: batch,
    ) -> Any:
        """See `Device.deliver`: begin to copy the tensors that are not on the device yet."""
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

    def bring(self, rows: torch.Tensor) -> torch.Tensor:
        """See `Device.bring`."""
        return self.driver.copy([rows])[0]

    def rows(self, count: int, row_bytes: int) -> torch.Tensor:
        """See `Device.rows`."""
        return self.driver.rows(count, row_bytes)

    def pull(
        self, slots: torch.Tensor, alias: Int32Array, into: torch.Tensor, places: Int32Array
    ) -> Fence:
        """See `Device.pull`."""
        event = self.driver.pull(slots, into, np.stack([alias, places]))
        return partial(self.driver.wait, event)

    def put(self, rows: torch.Tensor, into: torch.Tensor, places: Int32Array) -> None:
        """See `Device.put`."""
        self.driver.put(rows, into, places)

    def hand_over(self, batch: Any) -> None:
        """See `Driver.hand_over`."""
        self.driver.hand_over(list(_tensors(batch)))

    def close(self) -> None:
        """See `Driver.close`."""
        self.driver.close()


@contextmanager
def rows_limited(what: str, rows: int, row_bytes: int, give: str) -> Iterator[None]:
    """Make a MemoryError a ConfigError that says what there is no memory for, and what to give."""
    try:
        yield
    except MemoryError as error:
        raise ConfigError(
            f"no {what} {rows:,} rows of {row_bytes:,} bytes ({error}): ask for less with {give}"
        ) from error


def _pinned_sizes(portions: int, rows: int, row_bytes: int) -> tuple[int, int]:
    """Bytes of the pinned memory for rows, and of that for their places and slots."""
    staging = portions * whole_pages(max(rows * row_bytes, 1))
    return staging, portions * 2 * rows * 4


def portion_rows(portion_bytes: int, row_bytes: int, slots: int) -> int:
    """Rows of a portion of about `portion_bytes` bytes, at least one and at most `slots`."""
    return max(1, min(portion_bytes // max(row_bytes, 1), slots))


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    """The tensors of a batch, or of the object that a transform returned for it."""
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
