"""The victim buffer with one order over both levels (LSM-GNN's PVP, with another rule).

A row in it has the standby key that it would have in the feature buffer, and this key changes when
those of the feature buffer do. Of the rows here and those that are offered, the ones with the
largest keys stay, which under Belady's rule are those that are needed soonest. A row is not given
up while its copy is under way, so of rows that leave in one step more than there is room for, the
first are kept.

`victim_queues.py` has the paper's rule. It can serve fewer rows than no victim buffer would leave
to the disk, because rows that are needed late keep their places.
"""

from __future__ import annotations

from gnndrive.disk.tiers._victims import Victims


class Victim(Victims):
    """Keeps the rows with the largest standby keys."""

    name = "victim"
