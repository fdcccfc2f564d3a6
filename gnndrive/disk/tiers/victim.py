"""The host level below a device: a victim buffer with one order over both levels.

A row in it has the standby key that it would have in the feature buffer, and this key changes when
those of the feature buffer do. Of the rows here and those that are offered, the ones with the
largest keys stay: under Belady's rule those that are needed soonest, and of those that no known
batch needs the ones of the highest classes; under LRU those that left last. A row that would take
the place of one with the same key is not copied. A row is not given up while its copy is under
way, so of rows that leave in one step more than there is room for, the first are kept.

A row is in one of the levels, never in both: it leaves this one when it is fetched. So a loader
reads about what it would with a feature buffer that has the slots and places of both.

`victim_queues.py` has the rule of LSM-GNN's paper. It can serve fewer rows than no victim buffer
would leave to the disk, because rows that are needed late keep their places.
"""

from __future__ import annotations

from gnndrive.disk.tiers._victims import Victims


class Victim(Victims):
    """Keeps the rows with the largest standby keys."""

    name = "victim"
