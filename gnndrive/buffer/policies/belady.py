"""Belady's rule within the queued samples: the row that is needed last is given up first.

It is optimal for the batches that are known. (Ginex §4 samples whole superbatches ahead; here the
samples of GNNDrive's own extracting queue are used, up to eight batches.) The key of a row is minus
its next use. It is set when the row's batch is admitted, and again when a new sample needs the row
or a batch that needed it is withdrawn.
Rows that no known batch needs go first, the one released longest ago before the others, so with an
empty queue this is LRU. Do not use it where one byte of memory for each row is too much.
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
