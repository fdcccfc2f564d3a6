"""LRU standby list (GNNDrive §4.2): the slot retired longest ago is given up first."""

from __future__ import annotations

from gnndrive.policies.base import Policy
from gnndrive.records import Int64Array


class LRU(Policy):
    """The key is the release tick, which the C standby structure keeps at a linked list's cost."""

    name = "lru"
    looks_ahead = False

    def keys(self, rows: Int64Array, next_use: Int64Array | None) -> Int64Array | None:
        """None: the C core stamps the release tick itself."""
        return None
