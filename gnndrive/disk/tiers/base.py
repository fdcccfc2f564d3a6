"""The Tier interface: what lies below the feature buffer. The disk is the first."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator

from gnndrive.common.records import Int32Array, Int64Array, Landing, Stretch


class Fetch(ABC):
    """Rows on their way; iterating only listens."""

    @abstractmethod
    def __aiter__(self) -> AsyncIterator[Stretch]:
        """The finished stretches, until each row landed or failed."""

    @abstractmethod
    def cancel(self) -> None:
        """Let what was not started fail with ECANCELED."""


class Tier(ABC):
    """A level that rows are fetched from."""

    name: str
    path: str

    @abstractmethod
    def fetch(self, rows: Int64Array, slots: Int32Array, landing: Landing) -> Fetch:
        """Start bringing `rows` into `slots`, in this step."""
