"""The Policy interface: which standby slot is given up, said as keys (the smallest first)."""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np

from gnndrive.records import Int64Array

NO_USE = int(np.iinfo(np.int64).max)
"""The next use of a row that no batch known so far wants."""


class Policy(ABC):
    """Chooses what leaves the feature buffer.

    Attributes:
        looks_ahead: whether `keys` wants to know the rows' next uses, which costs a byte a row of
            the table and some milliseconds a batch.
    """

    name: str
    looks_ahead: bool

    @abstractmethod
    def keys(self, rows: Int64Array, next_use: Int64Array | None) -> Int64Array | None:
        """Standby keys, set at admission and again when a batch that is known but not admitted
        turns out to want a row sooner than was known.

        Args:
            rows: the rows, int64 [n].
            next_use: for each the index of the next batch that wants it, among those known and not
                admitted, or `NO_USE`; int64 [n], which the keys may be written into; None if the
                policy does not look ahead.

        Returns:
            int64 [n], or None: the release tick (LRU).
        """
