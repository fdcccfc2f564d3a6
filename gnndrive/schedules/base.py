"""The Schedule interface: which seeds come next."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator

from gnndrive.records import Seeds


class Schedule(ABC):
    """The order of an epoch's seeds, in windows; a window is one batch unless a design needs
    more."""

    name: str

    @abstractmethod
    def windows(self, epoch: int) -> Iterator[list[Seeds]]:
        """The epoch's windows, each a list of batches, in order."""

    @abstractmethod
    def __len__(self) -> int:
        """Batches in an epoch."""
