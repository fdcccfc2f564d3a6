"""The Policy interface: sets the keys by which standby slots are reused, the smallest key first.

To add a policy, add a file to this folder with a subclass of `Policy` whose `name` is the file's;
loaders then find it as `policy="name"`. `loader/buffer_pool.py` makes one policy for each table; a
`Ranking` (`buffer/ranking.py`) asks it for the keys of all cases and passes them to the C core,
which keeps the standby list.
"""

from __future__ import annotations

from abc import ABC
from dataclasses import dataclass
from typing import NamedTuple, Self

import numpy as np
import numpy.typing as npt

from gnndrive.common.ffi import lib
from gnndrive.common.records import Int64Array
from gnndrive.store.reader import Store

NO_USE = int(np.iinfo(np.int64).max)
"""The next use of a row that no announced batch needs."""

WINDOW = int(lib.GD_WINDOW_BATCHES)
"""How many queued samples are known ahead."""


class Keys(NamedTuple):
    """The standby keys for the cases of a row's next use; see `Policy.keys`.

    Attributes:
        base: int64 [cases].
        mask: uint8 [cases]; the key of a row is `base[case] + (class of the row & mask[case])`.
    """

    base: Int64Array
    mask: npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class PolicyContext:
    """What the policy of one table is made from; each policy takes what it needs.

    Attributes:
        table: the table's name in the store, such as "nodes/x".
        rows: rows of the table.
        slots: rows that the feature buffer can hold.
        store: the graph's store; None: there is none, as in some tests.
        batch_rows: the most distinct rows that one batch can need; 0: unknown.
        window: how many batches may be known ahead.
    """

    table: str
    rows: int
    slots: int
    store: Store | None = None
    batch_rows: int = 0
    window: int = WINDOW


class Policy(ABC):
    """Chooses which rows leave the feature buffer.

    Attributes:
        name: the name of the policy's file.
        looks_ahead: whether keys depend on next uses, which costs a byte for each row of the table
            and some milliseconds for each batch; if not, and without a score either, standby slots
            are reused in the order of their release (LRU).
        score: the score whose classes rank the rows (`store/row_classes.py`), another byte for each
            row; None: keys do not depend on classes.
    """

    name: str
    looks_ahead: bool
    score: str | None = None

    @classmethod
    def make(cls, context: PolicyContext) -> Self:
        """The policy of one table."""
        return cls()

    def keys(self, next_use: Int64Array, now: int) -> Keys:
        """The standby keys of rows, by their next use. Called whenever more or less is known, and
        at each batch; only if the policy looks ahead or has a score.

        Args:
            next_use: int64 [cases]. The cases are the sets of up to eight known batches, or the
                codes of the batches of a superbatch (`buffer/ranking.py`). For each, the index of
                the batch that needs the row next, or `NO_USE`: no known batch needs it.
            now: the index of the batch that was admitted last, or is being admitted; a case means
                a batch behind it, or `NO_USE`.

        Returns:
            The keys for each case; slots with equal keys leave in the order of their release.

        Raises:
            NotImplementedError: the policy neither looks ahead nor has a score.
        """
        raise NotImplementedError(f"the policy {self.name!r} neither looks ahead nor has a score")
