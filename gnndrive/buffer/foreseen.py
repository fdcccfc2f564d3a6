"""`Foreseen`: when the rows of announced batches are needed next.

`FeatureBuffer` keeps one. A batch of a superbatch that was sampled ahead is announced with the next
use of each of its rows (`NextUses`), as far as it was known then. When another superbatch becomes
known, the batches that wait learn what it needs, because they set the keys of their rows when they
are admitted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from gnndrive.buffer.admission_queue import Ticket
from gnndrive.common.ffi import lib, pointer
from gnndrive.common.records import Codes, Int64Array, NextUses

Rows = Mapping[str, Int64Array]


class Foreseen:
    """Next uses of announced batches, by index."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[Rows, Mapping[str, NextUses]]] = {}

    def announce(self, index: int, rows: Rows, uses: Mapping[str, NextUses]) -> None:
        """Keep the next uses of the rows of batch `index`, by table, until `forget`."""
        self._known[index] = rows, uses

    def forget(self, index: int | None) -> None:
        """Batch `index` was admitted or given up; None: it was not announced."""
        self._known.pop(-1 if index is None else index, None)

    def clear(self) -> None:
        """Nothing is known any more."""
        self._known.clear()

    def learn(self, later: Mapping[str, Codes]) -> None:
        """Another superbatch is known. `later` has the code of its first use of each row, by table,
        uint16 [rows]; rows that no batch before it needs get these codes."""
        for rows, uses in self._known.values():
            for name in uses.keys() & later.keys():
                add_later(uses[name], rows[name], later[name])

    def joined(self, tickets: Sequence[Ticket]) -> dict[str, Codes]:
        """Table name → the codes of the tickets' rows, one behind the other; empty: none came."""
        uses = [self._known[each.index][1] for each in tickets if each.index in self._known]
        if not uses:
            return {}
        assert len(uses) == len(tickets), "codes come with all batches or with none"
        return {name: np.concatenate([each[name].codes for each in uses]) for name in uses[0]}


def add_later(uses: NextUses, rows: Int64Array, later: Codes) -> None:
    """Give those of `rows` (int64 [n]) that have no next use the code in `later`, uint16 [rows of
    the table]."""
    lib.gd_trace_patch(pointer(uses.codes), pointer(rows), len(rows), pointer(later))
