"""Belady's rule for the batches that are known: the row that is needed last is given up first.

It is optimal for these batches. `gnndrive` knows the samples of its extracting queue, up to eight
batches; `ginex` knows a superbatch that it has sampled ahead (Ginex §4). The key of a row is minus
its next use. It is set when the row's batch is admitted, and again when a new sample needs the row
or a batch that needed it is withdrawn.
Rows that no known batch needs go first, and of these the ones that few nodes have as neighbours:
their class by out-degree tells how likely a batch that is not known yet needs them. In the same
class the row that was released longest ago goes first. Do not use it where two bytes of memory for
each row are too much.
"""

from __future__ import annotations

import numpy as np

from gnndrive.buffer.policies.base import NO_USE, Keys, Policy
from gnndrive.common.records import Int64Array


class Belady(Policy):
    """The key is minus the next use; without one, the class by degree."""

    name = "belady"
    looks_ahead = True
    score = "degree"

    def keys(self, next_use: Int64Array, now: int) -> Keys:
        """See `Policy.keys`."""
        return Keys(-next_use, np.where(next_use == NO_USE, 255, 0).astype(np.uint8))
