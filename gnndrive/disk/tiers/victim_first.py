"""The host level below a device for rows of which each is needed about once an epoch.

A row that is here stays until it is fetched, and rows that leave the device while no place is free
are dropped. If partitions come once an epoch, in any order, a level for a share f of them serves
the share f so. In the order of their last use rows would leave before their turn comes: it would
serve f + (1 - f) ln(1 - f) of partitions in random order, a third of f for f = 1/2, and nothing if
the order is always the same.

When not to use it: if some rows are needed more often than others, use `victim.py`.
"""

from __future__ import annotations

from gnndrive.disk.tiers._victims import Victims


class VictimFirst(Victims):
    """Keeps the rows that came first."""

    name = "victim-first"
    gives_up = False
