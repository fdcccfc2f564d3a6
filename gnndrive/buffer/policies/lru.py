"""LRU standby list (GNNDrive §4.2): the slot retired longest ago is given up first."""

from __future__ import annotations

from gnndrive.buffer.policies.base import Policy


class LRU(Policy):
    """The key is the release tick, which the C core stamps itself, at a linked list's cost."""

    name = "lru"
    looks_ahead = False
