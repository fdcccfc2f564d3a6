"""`measure_pace`: how fast this machine computes, beside the one that the constants are of.

The constants of `plan/costs.py` are seconds of one machine. The event loop spends most of its
time on slot tables, so one is timed here with batches that are the same everywhere, in some tens of
milliseconds. When not to use it: for choosing topology, samplers and queues (`plan/choice.py`),
because the same plan must come of the same arguments. A process measures once, so that its
predictions agree; another process may choose another strategy where two cost about the same.
"""

from __future__ import annotations

from functools import cache
from time import thread_time
from typing import Any

import numpy as np

from gnndrive.plan.replay import Run, replay
from gnndrive.plan.sampled_trace import SampledTrace

ROWS, SLOTS = 100_000, 60_000
BATCHES, DRAWS = 16, 20_000  # of row ids of a batch, some of them twice
RUNS = 3
ROW_S = 3.3e-8  # seconds for a row of these batches on the machine of the constants
NO_STORE: Any = None  # the policy asks for nothing of it


def pace_trace() -> SampledTrace:
    """Batches with rows at random, some rows far more often than others."""
    random = np.random.default_rng(0)
    drawn = (ROWS * random.random((BATCHES, DRAWS)) ** 2).astype(np.int64)
    ids = [np.unique(each) for each in drawn]
    ends = np.cumsum([0, *map(len, ids)])
    return SampledTrace(ROWS, 0, np.arange(ROWS), np.concatenate(ids), ends, np.diff(ends))


@cache
def measure_pace(policy: str) -> float:
    """Seconds that computing takes on this machine, as a multiple of what the constants say;
    `policy` is the slot table's, which is told of no later batch."""
    trace, run = pace_trace(), Run(policy, 1, SLOTS)
    seconds = []
    for _ in range(RUNS):
        began = thread_time()
        replay(run, trace, NO_STORE, None)
        seconds.append(thread_time() - began)
    return min(seconds) / (ROW_S * len(trace.ids))
