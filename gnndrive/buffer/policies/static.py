"""Hubs stay: the rows of the nodes with the most out-edges leave last (PaGraph, AliGraph).

The key of a row is its class by out-degree, and nothing else. The papers pin the hottest rows and
have separate memory for a batch's other rows. Here these are in the same slots: whatever a batch
needs finds place, because hubs leave too if nothing else can, so a batch never fails to fit.

This costs hits in a small buffer, because the other rows of the batches in flight take slots that a
pinned cache of the same size has beside it. On P10M, simulated with one batch in the slots at a
time, 36.8, 55.3 and 65.1 % of a batch's rows are hits with 820 MB, 1.5 GB and 2 GB; of a pinned
cache that large 40.3, 56.9 and 66.3 %, and 26.2, 47.1 and 58.4 % if the other rows of one batch
come out of the same memory.

When not to use it: "belady" ranks rows that nothing is known of the same way and uses what the
queued samples tell. This policy needs no queue for its hits, and a byte for each row less.
"""

from __future__ import annotations

import numpy as np

from gnndrive.buffer.policies.base import Keys, Policy
from gnndrive.common.records import Int64Array


class Static(Policy):
    """The key is the class by out-degree."""

    name = "static"
    looks_ahead = False
    score = "degree"

    def keys(self, next_use: Int64Array, now: int) -> Keys:
        """See `Policy.keys`."""
        return Keys(np.zeros(len(next_use), np.int64), np.full(len(next_use), 255, np.uint8))
