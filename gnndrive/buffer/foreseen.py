"""`Foreseen`: what is known of the next uses of announced batches, and of superbatches to come.

`FeatureBuffer` keeps one. A batch of a superbatch that was sampled ahead is announced with the next
use of each of its rows (`NextUses`), as far as its own superbatch knows. The next superbatch says
more, but only when its first batch is about to be admitted: the batches before it set the keys of
their rows when they are admitted, and would overwrite what it says.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from gnndrive.buffer.admission_queue import Ticket
from gnndrive.common.ffi import lib, pointer
from gnndrive.common.records import Codes, NextUses

Later = Mapping[str, Codes]
Foresee = Callable[[int, int, Later], None]


class Foreseen:
    """Next uses by batch, and the superbatches whose first batch was not tried yet."""

    def __init__(self) -> None:
        self._uses: dict[int, Mapping[str, NextUses]] = {}
        self._boundaries: deque[tuple[int, int, Later, Callable[[], object]]] = deque()

    def announce(self, index: int, uses: Mapping[str, NextUses]) -> None:
        """Keep the next uses of batch `index`, by table, until `forget`."""
        self._uses[index] = uses

    def forget(self, index: int | None) -> None:
        """Batch `index` was admitted or given up; None: it was not announced."""
        self._uses.pop(-1 if index is None else index, None)

    def clear(self) -> None:
        """Nothing is known any more."""
        self._uses.clear()
        self._boundaries.clear()

    def add_boundary(
        self, first: int, last: int, later: Later, passed: Callable[[], object]
    ) -> None:
        """See `FeatureBuffer.foresee_at_turn`."""
        self._boundaries.append((first, last, later, passed))

    def pass_boundaries(self, tickets: Sequence[Ticket], foresee: Foresee) -> bool:
        """Apply what is known of superbatches that begin within a sweep. The sweep's batches before
        one are admitted after that, so what they do not know is added to their codes.

        Args:
            tickets: the sweep's.
            foresee: called as foresee(first, last, later) for each of these superbatches.

        Returns:
            Whether there was one.
        """
        indices = [ticket.index for ticket in tickets if ticket.index is not None]
        passed_any = False
        while self._boundaries and indices and indices[-1] >= self._boundaries[0][0]:
            first, last, later, passed = self._boundaries.popleft()
            foresee(first, last, later)
            for ticket in tickets:
                if ticket.index is not None and ticket.index < first:
                    self._add_later(ticket, later)
            passed()
            passed_any = True
        return passed_any

    def _add_later(self, ticket: Ticket, later: Later) -> None:
        assert ticket.index is not None
        uses = self._uses.get(ticket.index, {})
        for name in uses.keys() & later.keys():
            ids, codes = ticket.rows[name], uses[name].codes
            lib.gd_trace_patch(pointer(codes), pointer(ids), len(ids), pointer(later[name]))

    def joined(self, tickets: Sequence[Ticket]) -> dict[str, Codes]:
        """Table name → the codes of the tickets' rows, one behind the other; empty: none came."""
        uses = [self._uses[ticket.index] for ticket in tickets if ticket.index in self._uses]
        if not uses:
            return {}
        assert len(uses) == len(tickets), "codes come with all batches or with none"
        return {name: np.concatenate([each[name].codes for each in uses]) for name in uses[0]}
