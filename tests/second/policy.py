"""A policy that looks ahead and sees batches only by pairs."""

from __future__ import annotations

import numpy as np

from gnndrive.buffer.policies.base import Keys, Policy
from gnndrive.common.records import Int64Array
from tests.second.use import used


class Pairs(Policy):
    """What no known batch wants leaves first, then what the farthest pair of batches wants."""

    name = "pairs"
    looks_ahead = True

    def keys(self, next_use: Int64Array, now: int) -> Keys:
        used["policies"] += 1
        return Keys(-(next_use // 2), np.zeros(len(next_use), np.uint8))
