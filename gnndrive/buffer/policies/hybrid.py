"""Hybrid eviction (LSM-GNN): a level by the next use, and in it the class by reverse PageRank.

The levels, the lowest leaves first:

0. no known batch needs the row: the lowest class leaves first;
1. a known batch needs it, but more than `threshold` batches from now: likewise;
2. a batch needs it within the threshold: the row that is needed last leaves first, then the lowest
   class.

Distances shrink, so a row rises from level 1 to 2 when the batch that needs it comes near. A use
that is far away is thus worth no more than a high score, which may say that several batches need
the row. The paper's threshold is an eighth of a window of 256 batches. That is too long where the
rows of fewer batches fit: "auto" is the number of batches whose misses fill the buffer.

When not to use it: if next uses are exact, "belady" never loads more, because it is optimal. This
policy is the paper's, for comparison, and for windows that see only a part of the next uses.
"""

from __future__ import annotations

from typing import Self

import numpy as np

from gnndrive.buffer.policies.base import NO_USE, Keys, Policy, PolicyContext
from gnndrive.common.records import Int64Array

THRESHOLD_MIN = 4
_CLASSES = 256
_NEAR_CLASSES = 0xF0  # in level 2 only 16 classes count, because each next use has keys of its own
_USES = 1 << 54  # next uses are told apart below it; a level has so many keys, times the classes
_NEAR = 1 << 62  # the key of level 2 for next use -2, which is more than those of level 1


class Hybrid(Policy):
    """A level by the next use, then the class by reverse PageRank.

    Args:
        threshold: batches; see the module.

    Attributes:
        threshold: the same. A subclass may set it for all its policies, as in
            `class Paper(Hybrid): threshold = 32`; None: "auto".
    """

    name = "hybrid"
    looks_ahead = True
    score = "pagerank"
    threshold: int | None = None

    def __init__(self, threshold: int | None = None) -> None:
        if threshold is None:
            threshold = THRESHOLD_MIN if self.threshold is None else self.threshold
        self.threshold = threshold

    @classmethod
    def make(cls, context: PolicyContext) -> Self:
        """The policy of one table."""
        return cls(cls.threshold if cls.threshold is not None else auto_threshold(context))

    def keys(self, next_use: Int64Array, now: int) -> Keys:
        """See `Policy.keys`."""
        assert self.threshold is not None
        known = next_use != NO_USE
        near = known & (next_use - now <= self.threshold)
        # Above level 1 for every next use; it does not depend on `now`, so that few keys change.
        level_2 = _NEAR + (2 - next_use % _USES) * _CLASSES
        base = np.where(near, level_2, known * _CLASSES).astype(np.int64)
        return Keys(base, np.where(near, _NEAR_CLASSES, _CLASSES - 1).astype(np.uint8))


def auto_threshold(context: PolicyContext) -> int:
    """The number of batches whose misses fill the buffer, from `THRESHOLD_MIN` to the window.

    Misses are estimated as if a batch's rows were any of the table's; the largest batch counts.
    """
    missing = 1 - min(context.slots / max(context.rows, 1), 1)
    misses = max(context.batch_rows * missing, 1)
    if not context.batch_rows:  # unknown
        return THRESHOLD_MIN
    return int(min(max(context.slots / misses, THRESHOLD_MIN), max(context.window, THRESHOLD_MIN)))
