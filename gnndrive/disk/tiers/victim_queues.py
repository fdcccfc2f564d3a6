"""The victim buffer by the paper's rule (LSM-GNN's PVP): a queue for each batch to come.

A row that leaves goes to the queue of the batch that needs it next, and is dropped if no known one
does, if this queue is full, or if no place is free. Rows leave only when they are fetched, or when
the batch of their queue has passed. The paper has queues of 16 K rows.

When not to use it: where `victim.py` works, which keeps the rows that are needed soonest; and with
a policy that does not look ahead, because then it keeps nothing.
"""

from __future__ import annotations

from gnndrive.disk.tiers._victims import Victims


class VictimQueues(Victims):
    """Keeps up to 16,384 rows for each batch to come."""

    name = "victim-queues"
    queue_rows = 16 << 10
