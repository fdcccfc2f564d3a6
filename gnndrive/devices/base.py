"""The Device interface: where the feature buffer lives, how rows get into it and out of it.

On the host a landed row is already in its slot, so a commit has nothing to wait for. A CUDA device
takes rows in pinned staging beside the feature buffer and commits a stretch when the copy's event
has fired.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch

from gnndrive.records import Int32Array, Landing, Stretch


class SlotMemory(ABC):
    """The memory of one feature buffer: `slots` rows of `row_bytes`."""

    @abstractmethod
    def landing(self) -> Landing:
        """Where engines put rows."""

    @abstractmethod
    async def commit(self, stretch: Stretch) -> None:
        """Return once the stretch's rows can be gathered."""

    @abstractmethod
    def gather(
        self, alias: Int32Array, dtype: torch.dtype, row_shape: tuple[int, ...]
    ) -> torch.Tensor:
        """Copy the rows of `alias` (slots, int32 [n]) into a new tensor [n, *row_shape]; blocking,
        in a worker thread.

        When it returns the slots may be given up: this call is the fence.
        """

    @abstractmethod
    def close(self) -> None:
        """Free the memory; nothing may be in flight."""


class Device(ABC):
    """A place where feature buffers live."""

    name: str

    @abstractmethod
    def allocate(self, slots: int, row_bytes: int) -> SlotMemory:
        """Memory for a feature buffer.

        Raises:
            ConfigError: there is not that much memory.
        """
