"""The Policy interface: which standby slot is given up, said as keys (the smallest first)."""

from __future__ import annotations

from abc import ABC

import numpy as np

from gnndrive.common.records import Int64Array

NO_USE = int(np.iinfo(np.int64).max)
"""The next use of a row that no batch known so far wants."""


class Policy(ABC):
    """Chooses what leaves the feature buffer.

    Attributes:
        looks_ahead: whether standby slots leave by `keys`, which costs a byte a row of the table
            and some milliseconds a batch; if not, by the tick of their release (LRU).
    """

    name: str
    looks_ahead: bool

    def keys(self, next_use: Int64Array) -> Int64Array:
        """Standby keys of rows by their next use; asked again whenever the batches that are known
        and not admitted change. Only of a policy that looks ahead.

        Args:
            next_use: the index of the next batch that wants a row, among those known and not
                admitted, or `NO_USE`; int64 [m], the cases that there are.

        Returns:
            int64 [m].
        """
        raise NotImplementedError(f"the policy {self.name!r} does not look ahead")
