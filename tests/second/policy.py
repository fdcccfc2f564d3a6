"""A policy that looks ahead and sees batches only by pairs."""

from __future__ import annotations

from gnndrive.buffer.policies.base import Policy
from gnndrive.common.records import Int64Array
from tests.second.use import used


class Pairs(Policy):
    """What no known batch wants leaves first, then what the farthest pair of batches wants."""

    name = "pairs"
    looks_ahead = True

    def keys(self, next_use: Int64Array) -> Int64Array:
        used["policies"] += 1
        return -(next_use // 2)
