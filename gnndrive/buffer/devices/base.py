"""The Device interface: where the feature buffer lives, how rows get into it and out of it.

On the host a landed row is already in its slot, so a commit has nothing to wait for. A CUDA device
takes rows in pinned staging beside the feature buffer, commits a stretch when the copy's event has
fired, and a gather is over when its own has.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass
from typing import Any, Self, TypeAlias

import numpy as np
import torch

from gnndrive.common.array_pool import Allocate
from gnndrive.common.records import Int32Array, Landing, Stretch

Fence: TypeAlias = Callable[[], Awaitable[None]]
"""Awaited before slots are given up that the gather did not say it was done with."""


async def already_done() -> None:
    """The fence of a gather that was over when it returned."""


def no_callback(begin: int) -> None:
    """What a gather calls behind its pieces if nobody wants to know."""


class SlotMemory(ABC):
    """The memory of one feature buffer: `slots` rows of `row_bytes`.

    Attributes:
        landing_rows_max: rows of one landing at most; None: any number.
    """

    landing_rows_max: int | None = None

    @abstractmethod
    def landing(self, slots: Int32Array) -> Landing | None:
        """Where engines put the rows of `slots` (int32 [n]); None: there is no staging now, but
        will be when a landing that was given out is left."""

    @abstractmethod
    async def commit(self, landing: Landing, stretch: Stretch) -> Stretch:
        """Return once the rows of a stretch that landed there can be gathered; the stretch with
        slots for places."""

    @abstractmethod
    def gather(
        self,
        alias: Int32Array,
        dtype: torch.dtype,
        row_shape: tuple[int, ...],
        behind: Callable[[int], object] = no_callback,
    ) -> tuple[torch.Tensor, Fence]:
        """Copy the rows of `alias` (slots, int32 [n]) into a new tensor [n, *row_shape]; blocking,
        in a worker thread. The slots may be given up behind the fence, and those of `alias[begin:]`
        once `behind(begin)` has been called: from the last to the first, or never."""

    @abstractmethod
    def close(self) -> None:
        """Free the memory; nothing may be in flight."""


@dataclass(frozen=True, slots=True)
class DeviceContext:
    """What a device is made from; each takes what it needs.

    Attributes:
        empty: where gathered rows in host memory get their memory from.
        where: which device of its kind; None: there is but one, or the current one.
    """

    empty: Allocate = np.empty
    where: torch.device | None = None


class Device(ABC):
    """A place where feature buffers live."""

    name: str

    @classmethod
    @abstractmethod
    def make(cls, context: DeviceContext) -> Self:
        """A device, for one loader.

        Raises:
            ConfigError: there is no such device.
        """

    @abstractmethod
    def allocate(self, slots: int, row_bytes: int) -> SlotMemory:
        """Memory for a feature buffer.

        Raises:
            ConfigError: there is not that much memory.
        """

    @classmethod  # noqa: B027  # the host is always there
    def check(cls, where: torch.device | None) -> None:
        """Look whether there is such a device, and do nothing else.

        Raises:
            ConfigError: there is none.
        """

    @classmethod
    def free_bytes(cls, where: torch.device | None) -> int | None:
        """Bytes of its own memory that are free now; None: it has none but the host's."""
        return None

    def watch(self) -> Callable[[], int]:
        """Begin to watch how much of the device's own memory is needed.

        Returns:
            Says how many bytes nothing has needed since, less a margin; 0 where the device has no
            memory except the host's.
        """
        return lambda: 0

    @classmethod
    def pinned_bytes(cls, row_bytes: int, rows: int) -> int:
        """Bytes of host memory that staging before it takes, for a buffer of up to `rows` rows."""
        return 0

    def deliver(
        self,
        batch: Any,
        there: Collection[torch.Tensor],
        finish: Callable[[Any], Any] = lambda batch: batch,
    ) -> Any:
        """Bring a batch to the device; in a worker thread.

        Args:
            batch: a Data or HeteroData.
            there: those of its tensors that are on the device already.
            finish: called with the batch once all of its tensors are on the device or on their way;
                torch computes within it behind what brings their bytes.

        Returns:
            What `finish` returned.
        """
        return finish(batch)

    def close(self) -> None:  # noqa: B027  # most have nothing
        """Let go of everything; all memory that it allocated was closed."""

    def hand_over(self, batch: Any) -> None:  # noqa: B027  # nothing is begun on the host
        """In the user's thread: what was begun for the batch comes before what the user begins."""
