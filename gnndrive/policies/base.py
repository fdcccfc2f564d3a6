"""The Policy interface: which standby slot is given up, said as keys (the smallest first)."""

from __future__ import annotations

from abc import ABC, abstractmethod

from gnndrive.records import Int64Array


class Policy(ABC):
    """Chooses what leaves the feature buffer."""

    name: str

    @abstractmethod
    def keys(self, rows: Int64Array) -> Int64Array | None:
        """Standby keys for a batch's rows, set at admission, int64 [n]; None: the release tick
        (LRU).
        """
