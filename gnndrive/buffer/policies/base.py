"""The Policy interface: which standby slot is given up, said as keys; the smallest goes first."""

from __future__ import annotations

from abc import ABC
from dataclasses import dataclass
from typing import Self

import numpy as np

from gnndrive.common.records import Int64Array
from gnndrive.store.reader import Store

NO_USE = int(np.iinfo(np.int64).max)
"""The next use of a row that no known batch wants."""


@dataclass(frozen=True, slots=True)
class PolicyContext:
    """What the policy of one table is made from; each takes what it needs.

    Attributes:
        table: the table's name in the store, such as "nodes/x".
        rows: rows of the table.
        slots: rows that the feature buffer holds.
        store: the graph's; None: there is none, as in some tests.
    """

    table: str
    rows: int
    slots: int
    store: Store | None = None


class Policy(ABC):
    """Chooses what leaves the feature buffer.

    Attributes:
        looks_ahead: whether standby slots leave by `keys`, which costs a byte a row of the table
            and some milliseconds a batch; if not, they leave in the order of their release (LRU).
    """

    name: str
    looks_ahead: bool

    @classmethod
    def make(cls, context: PolicyContext) -> Self:
        """The policy of one table."""
        return cls()

    def keys(self, next_use: Int64Array) -> Int64Array:
        """Standby keys of rows by their next use; asked again whenever the batches that are known
        and not admitted change. Only of a policy that looks ahead.

        Args:
            next_use: for each case that there is, the index of the next batch that wants a row,
                among those known and not admitted, or `NO_USE`; int64 [cases].

        Returns:
            int64 [cases].
        """
        raise NotImplementedError(f"the policy {self.name!r} does not look ahead")
