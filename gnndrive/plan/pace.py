"""`measure_pace`: how fast this machine computes, beside the one that the constants are of.

The constants of `plan/computing.py` are seconds of one machine. What its event loop spends most of
its time on, a slot table, is timed here with the same batches everywhere, in some tens of
milliseconds of one core's time. When not to use it: for choosing topology, samplers and queues
(`plan/choice.py`), because the same plan must come of the same arguments.
"""

from __future__ import annotations

from time import thread_time

import numpy as np

from gnndrive.common.records import Int64Array
from gnndrive.plan.replay import Run, replay
from gnndrive.store.reader import Store

ROWS, SLOTS = 100_000, 60_000
BATCHES, DRAWS = 16, 20_000  # of row ids of a batch, some of them twice
RUNS = 3
ROW_S = 3.4e-8  # seconds for a row of these batches on the machine of the constants


class Batches:
    """Row ids at random, some rows far more often than others; a `Trace`."""

    rows = ROWS

    def __init__(self) -> None:
        random = np.random.default_rng(0)
        drawn = (ROWS * random.random((BATCHES, DRAWS)) ** 2).astype(np.int64)
        self._ids = [np.unique(each) for each in drawn]

    def __len__(self) -> int:
        return BATCHES

    def __getitem__(self, index: int) -> Int64Array:
        return self._ids[index]

    def size(self, first: int, last: int) -> int:
        """Row ids of the batches [first, last) together."""
        return sum(map(len, self._ids[first:last]))


def measure_pace(store: Store) -> float:
    """Seconds that computing takes on this machine, as a multiple of what the constants say.

    Args:
        store: any; policies are made with one.
    """
    batches, run = Batches(), Run("lru", 1, SLOTS)
    seconds = []
    for _ in range(RUNS):
        began = thread_time()
        replay(run, batches, store, None)
        seconds.append(thread_time() - began)
    return min(seconds) / (ROW_S * batches.size(0, BATCHES))
