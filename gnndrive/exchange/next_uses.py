"""`SharedUses`: when rows are needed next by the batches of all ranks, as their owner knows it.

A rank that samples ahead knows the next uses by its own batches. It tells the owner which of its
rows a superbatch needs first where (`Share.foresee`), and of each batch when its rows are needed
next. For each row the owner keeps the first use by each rank; the nearest of them is the row's next
use, so the policy sees the batches of all ranks as one sequence, whatever superbatches they have.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from gnndrive.buffer.admission_queue import Ticket
from gnndrive.buffer.feature_buffer import Foreseen, add_later
from gnndrive.common.ffi import ffi, lib, pointer
from gnndrive.common.records import Codes
from gnndrive.host.group import STEP_BITS


class SharedUses(Foreseen):
    """See the module; batches have the order numbers of a `Group` of so many `ranks`. `rows` are
    those of the tables whose next uses are known."""

    def __init__(self, ranks: int, rows: Mapping[str, int]) -> None:
        super().__init__()
        self._ranks, self._now = ranks, 0
        self._first = {name: np.empty((count, ranks), np.uint16) for name, count in rows.items()}
        self.begin(0)

    def begin(self, index: int) -> None:
        """An epoch begins with batch `index`."""
        self._now = index
        for first in self._first.values():
            first.fill(lib.GD_NO_CODE)

    def learn_of(self, rank: int, later: Mapping[str, Codes]) -> dict[str, Codes]:
        """Another superbatch of a rank is known; see `Foreseen.learn`. Returns the next use of each
        row."""
        for index, (rows, uses) in self.items():
            if index is not None and self._rank(index) == rank:
                for name in uses.keys() & later.keys():
                    add_later(uses[name], rows[name], later[name])
        for name, codes in later.items():
            own = self._first[name][:, rank]
            np.copyto(own, codes, where=own == lib.GD_NO_CODE)
        return {name: self._least(name, None, len(codes)) for name, codes in later.items()}

    def learn(self, later: Mapping[str, Codes]) -> None:
        """See `Foreseen.learn`; batches have learned it from `learn_of`."""

    def joined(self, tickets: Sequence[Ticket]) -> dict[str, Codes]:
        """See `Foreseen.joined`: the next uses behind all of the tickets."""
        batches = [(each.index, *self[each.index]) for each in tickets if each.index in self]
        assert len(batches) in (0, len(tickets)), "codes come with all batches or with none"
        found = dict[str, Codes]()
        for name in batches[0][2] if batches else ():
            old = [uses[name].codes.copy() for _, _, uses in batches]
            for (index, rows, _), codes in zip(batches, old, strict=True):
                self._exchange(name, index, rows, codes)
            ids = np.concatenate([rows[name] for _, rows, _ in batches])
            found[name] = self._least(name, ids, len(ids))
            for (index, rows, _), codes in zip(reversed(batches), reversed(old), strict=True):
                self._exchange(name, index, rows, codes, back=1)
        return found

    def pop(self, index: Any, *default: Any) -> Any:
        """A batch is admitted, or is not any more: others need its rows first."""
        if index in self:
            rows, uses = self[index]
            self._now = max(self._now, index + 1)
            for name, each in uses.items():
                self._exchange(name, index, rows, each.codes.copy())
        return super().pop(index, *default)

    def _rank(self, index: int) -> int:
        return (index & ((1 << STEP_BITS) - 1)) % self._ranks

    def _exchange(self, name: str, index: Any, rows: Any, codes: Codes, back: int = 0) -> None:
        first, ids = self._first[name], rows[name]
        lib.gd_first_exchange(
            pointer(first), *first.shape, self._rank(index), pointer(ids), len(ids),
            pointer(codes), back,
        )  # fmt: skip

    def _least(self, name: str, ids: Any, count: int) -> Codes:
        first, codes = self._first[name], np.empty(count, np.uint16)
        at = ffi.NULL if ids is None else pointer(ids)
        now = self._now % lib.GD_NO_CODE
        lib.gd_first_least(pointer(first), *first.shape, at, count, now, pointer(codes))
        return codes
