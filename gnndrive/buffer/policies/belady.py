"""Belady's rule as far as the queued samples reach: what is wanted last is given up first.

The optimum for what is known (Ginex §4 takes whole superbatches of samples; here it is the queue
that GNNDrive has anyway, up to eight batches). The key of a row is minus its next use, set when its
batch is admitted and again when a new sample wants it; rows that no known batch wants go first,
the one retired longest ago before the others, so with an empty queue it is LRU. Do not use it where
a byte a row is too much.
"""

from __future__ import annotations

from gnndrive.buffer.policies.base import Policy
from gnndrive.common.records import Int64Array


class Belady(Policy):
    """The key is minus the next use."""

    name = "belady"
    looks_ahead = True

    def keys(self, next_use: Int64Array) -> Int64Array:
        """See `Policy.keys`."""
        return -next_use
