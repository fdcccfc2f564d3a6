"""The LRU standby list (GNNDrive §4.2): the slot that was released longest ago is reused first.

Use it where a look-ahead policy's byte for each row is too much.
"""

from __future__ import annotations

from gnndrive.buffer.policies.base import Policy


class LRU(Policy):
    """The key is the release tick, which the C core stamps itself, at a linked list's cost."""

    name = "lru"
    looks_ahead = False
