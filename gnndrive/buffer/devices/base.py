"""The Device interface: where the feature buffer lives, how rows get into it and out of it.

To add a device, add a file to this folder with a subclass of `Device` and one of `SlotMemory`. The
loader's runtime makes one device; `BufferPool` has it allocate the slots of each table; the fetch
queue calls `landing` and `commit`, leases call `gather`, and the loader calls `deliver` and
`hand_over` for each batch.

On the host a row is read straight into its slot, so a commit waits for nothing. A CUDA device gives
out pinned staging instead, commits a stretch when the event behind its copy has fired, and a gather
is over when its own event has fired.
"""

from __future__ import annotations

import mmap
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, Self, TypeAlias

import numpy as np
import torch

from gnndrive.common.array_pool import Allocate, private_map
from gnndrive.common.records import Int32Array, Landing, Stretch
from gnndrive.disk.tiers.base import EvictedRows

# Where the pieces of a gather on the host begin, as shares of the batch. The first piece is small,
# because reads may be waiting for its slots; each later one is as large as all before it. A batch
# of fewer than PIECES_BYTES bytes is one piece, because each report takes the GIL.
PIECES = (7 / 8, 3 / 4, 1 / 2, 0)
PIECES_BYTES = 64 << 20

Fence: TypeAlias = Callable[[], Awaitable[None]]
"""Awaited before the slots that `copied` did not report are released. The wait may be cancelled and
begun again."""


async def already_done() -> None:
    """The fence of a gather that was over when it returned."""


def no_callback(begin: int) -> None:
    """The default callback of a gather; does nothing."""


class Gathering:
    """A gather of `rows` rows, in their order; this one has ended."""

    def __init__(self, rows: int) -> None:
        self.rows = rows

    def wait(self, rows: int) -> bool:
        """Wait until the first `rows` rows are copied; return whether all are."""
        return True

    def end(self) -> None:
        """Wait until all rows are copied; to be called once."""


class SlotMemory(ABC):
    """The slots' memory of one table: `slots` rows of `row_bytes` bytes.

    Attributes:
        landing_rows_max: the most rows of one landing; None: any number.
        shared: the slots, uint8 [slots, row_bytes], if the device's `pull` can read them.
    """

    landing_rows_max: int | None = None
    shared: torch.Tensor | None = None

    @abstractmethod
    def landing(self, slots: Int32Array) -> Landing | None:
        """Where engines put the rows of `slots` (int32 [n]); None: all staging is in use until
        `Landing.leave` of an earlier landing is called."""

    async def commit(self, landing: Landing, stretch: Stretch) -> Stretch:
        """Wait until the rows of a stretch, which have landed at `landing`, can be gathered: not
        at all if they have landed in their slots.

        Returns:
            The stretch, with slots in place of the landing's places.
        """
        return stretch

    @abstractmethod
    def gather(
        self,
        alias: Int32Array,
        dtype: torch.dtype,
        row_shape: tuple[int, ...],
        copied: Callable[[int], object] = no_callback,
    ) -> tuple[torch.Tensor, Fence]:
        """Copy rows into a new tensor; blocks, in a worker thread.

        Args:
            alias: the rows' slots, int32 [n].
            dtype, row_shape: of the tensor [n, *row_shape].
            copied: may be called with a smaller `begin` each time, once the slots of
                `alias[begin:]` have been copied and may be released.

        Returns:
            The tensor, and a fence; after it, all slots may be released.
        """

    def begin_gather(
        self, alias: Int32Array, dtype: torch.dtype, row_shape: tuple[int, ...]
    ) -> tuple[torch.Tensor, Fence, Gathering]:
        """Begin to copy rows as `gather` does, so that the caller can use the first ones while the
        others are being copied; the fence counts once `Gathering.end` was called."""
        return *self.gather(alias, dtype, row_shape), Gathering(len(alias))

    def evicted(self, places: int) -> EvictedRows | None:
        """Allocate host memory for `places` rows beside the slots, into which rows of these can be
        copied. None: the slots are in host memory, and `gather` copies rows there.

        Raises:
            ConfigError: there is not that much memory.
        """
        return None

    @abstractmethod
    def close(self) -> None:
        """Free the memory; no read, commit, gather or copy out of slots may be under way."""


@dataclass(frozen=True, slots=True)
class DeviceContext:
    """What a device is made from; each device takes what it needs.

    Attributes:
        empty: allocates the tensors that rows are gathered into, in host memory.
        where: which device of its kind; None: the only or the current one.
        map: maps so many bytes of host memory for slots, and raises MemoryError if there are not
            that many. It may return memory that processes share, also a mapping that can only be
            read, from which this process gathers. A device with memory of its own does not use it.
    """

    empty: Allocate = np.empty
    where: torch.device | None = None
    map: Callable[[int], mmap.mmap] = private_map


class Device(ABC):
    """A place where feature buffers live.

    Attributes:
        name: the name of the device's file.
        shares_slots: whether slots lie in `DeviceContext.map`, so that other processes can have
            them too.
        delivers: whether batches are delivered to memory of the device's own.
        pulls: whether it reads slots of other processes of this host: see `open_slots`.
        pinned_per_byte: bytes of pinned host memory that copies of live batches take for each byte
            of a batch's tensors other than features.
    """

    name: str
    shares_slots = False
    delivers = False
    pulls = False
    pinned_per_byte = 0

    @classmethod
    @abstractmethod
    def make(cls, context: DeviceContext) -> Self:
        """A device, for one loader.

        Raises:
            ConfigError: there is no such device.
        """

    @abstractmethod
    def allocate(self, slots: int, row_bytes: int) -> SlotMemory:
        """Allocate `slots` slots of `row_bytes` bytes.

        Raises:
            ConfigError: there is not that much memory.
        """

    @classmethod
    def check(cls, where: torch.device | None) -> torch.device | None:
        """Check in the user's thread that this machine has such a device.

        Returns:
            Which device of its kind, whichever is current later or in another thread.

        Raises:
            ConfigError: it has none.
        """
        return where

    @classmethod
    def host_slots(cls) -> type[Device] | None:
        """The device that delivers batches to the same place, and has its slots in host memory
        (`device_memory=0`); None: there is none."""
        return None

    @classmethod
    def free_bytes(cls, where: torch.device | None) -> int | None:
        """Free bytes of the device's own memory now; None: slots are in the host's memory."""
        return None

    def watch(self) -> Callable[[], int]:
        """Begin to watch how much of the device's own memory is used.

        Returns:
            A function that returns the smallest amount that was free since then, in bytes, less a
            margin; 0 if the device has only the host's memory.
        """
        return lambda: 0

    @classmethod
    def pinned_bytes(cls, row_bytes: int, rows: int) -> int:
        """Bytes of pinned host memory for the staging of a buffer of up to `rows` rows."""
        return 0

    @classmethod
    def scratch_bytes(cls, row_bytes: int, rows: int) -> int:
        """Bytes of the device's own memory that moving rows into such a buffer takes."""
        return 0

    @classmethod
    def copy_out_bytes(cls) -> int:
        """Bytes of pinned host memory that copies of rows out of slots take on their way."""
        return 0

    @classmethod
    def copy_out_scratch_bytes(cls) -> int:
        """Bytes of the device's own memory that such copies take."""
        return 0

    def deliver(
        self,
        batch: Any,
        there: Collection[torch.Tensor],
        finish: Callable[[Any], Any] = lambda batch: batch,
    ) -> Any:
        """Copy a batch to the device; called in a worker thread.

        Args:
            batch: a Data or HeteroData.
            there: those of its tensors that are on the device already.
            finish: called with the batch once all of its tensors are on the device or being copied;
                what torch computes in it happens after these copies.

        Returns:
            What `finish` returns.
        """
        return finish(batch)

    def bring(self, rows: torch.Tensor) -> torch.Tensor:
        """Begin to copy rows in host memory to the device, as `deliver` does; called in a worker
        thread. They may be changed when this returns."""
        return rows

    # ---- slots of other processes, if the device `pulls`

    def export_slots(self, slots: Sequence[torch.Tensor]) -> Any:
        """What another process of this host opens `SlotMemory.shared` of tables with; pickle can
        have it. The slots may be freed after no process has them open.

        Raises:
            Exception: they cannot be read from elsewhere, for whatever reason the device gives.
        """
        raise NotImplementedError

    def open_slots(self, exported: Any) -> list[torch.Tensor]:
        """Slots that another process has exported, in this device's addresses. Raises as
        `export_slots`."""
        raise NotImplementedError

    def shut_slots(self, opened: list[torch.Tensor]) -> None:
        """Empty the list, which has the only references to slots of `open_slots`, after all that
        was begun to read them."""
        raise NotImplementedError

    def rows(self, count: int, row_bytes: int) -> torch.Tensor:
        """Memory of the device for a batch's rows, uint8 [count, row_bytes]; MemoryError: there is
        none."""
        raise NotImplementedError

    def pull(
        self, slots: torch.Tensor, alias: Int32Array, into: torch.Tensor, places: Int32Array
    ) -> Fence:
        """Begin to copy the row in slot `alias[i]` to row `places[i]` of memory of `rows`, behind
        no work of the user's. Returns a function that waits for the copies' end.

        Raises:
            MemoryError: there is no memory for the copy, and none was begun.
        """
        raise NotImplementedError

    def put(self, rows: torch.Tensor, into: torch.Tensor, places: Int32Array) -> None:
        """Begin to copy row i in host memory to row `places[i]` of memory of `rows`, as `bring`."""
        raise NotImplementedError

    def close(self) -> None:  # noqa: B027  # most devices have nothing to free
        """Free what the device has, after all memory that it allocated was closed."""

    def hand_over(self, batch: Any) -> None:  # noqa: B027  # nothing is begun on the host
        """In the user's thread: let the user's own work on the batch wait for the copies of it that
        are under way."""
