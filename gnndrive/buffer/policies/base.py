"""The Policy interface: sets the keys by which standby slots are reused, the smallest key first.

To add a policy, add a file to this folder with a subclass of `Policy` whose `name` is the file's;
loaders then find it as `policy="name"`. `loader/buffer_pool.py` makes one policy for each table;
`SlotTable` asks it for keys and passes them to the C core, which keeps the standby list.
"""

from __future__ import annotations

from abc import ABC
from dataclasses import dataclass
from typing import Self

import numpy as np

from gnndrive.common.records import Int64Array
from gnndrive.store.reader import Store

NO_USE = int(np.iinfo(np.int64).max)
"""The next use of a row that no announced batch needs."""


@dataclass(frozen=True, slots=True)
class PolicyContext:
    """What the policy of one table is made from; each policy takes what it needs.

    Attributes:
        table: the table's name in the store, such as "nodes/x".
        rows: rows of the table.
        slots: rows that the feature buffer can hold.
        store: the graph's store; None: there is none, as in some tests.
    """

    table: str
    rows: int
    slots: int
    store: Store | None = None


class Policy(ABC):
    """Chooses which rows leave the feature buffer.

    Attributes:
        name: the name of the policy's file.
        looks_ahead: whether standby slots are reused by `keys`, which costs a byte for each row of
            the table and some milliseconds for each batch; if not, in the order of their release
            (LRU).
    """

    name: str
    looks_ahead: bool

    @classmethod
    def make(cls, context: PolicyContext) -> Self:
        """The policy of one table."""
        return cls()

    def keys(self, next_use: Int64Array) -> Int64Array:
        """The standby keys of rows, by their next use. Called whenever a batch is announced or
        withdrawn, and only if the policy looks ahead.

        Args:
            next_use: int64 [cases]; the cases are the sets of up to eight known batches. For each
                set, the next use of a row that these batches need: the index of the first of them,
                or `NO_USE` for the empty set.

        Returns:
            The key for each case, int64 [cases]; slots with equal keys leave in the order of their
            release.

        Raises:
            NotImplementedError: the policy does not look ahead.
        """
        raise NotImplementedError(f"the policy {self.name!r} does not look ahead")
