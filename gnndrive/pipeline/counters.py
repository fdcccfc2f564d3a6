"""Counters of what the stages did: cheap enough to be always on.

The stages and iterators add to them; `Runtime.stats` reads them. Counts of reads, slots and
sampling are kept where they happen (engine, slot tables, topologies).
"""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass, field

from gnndrive.pipeline.batch_times import StageTimes

WINDOWS_TIMED = 256


@dataclass(eq=False)
class Counters:
    """What the stages of a loader's epochs count; times are summed over tasks that run side by
    side.

    Attributes:
        batches, rows, edges: put into output queues; rows and edges are nodes and edges of samples.
        bytes_wanted: bytes of those batches' rows.
        samples: batches sampled, including those that the user did not take.
        sample_s: seconds in samplers, with their waits for the disk and for the other samplers of
            a combined fetch.
        extract_s: seconds from a ticket's turn to its last valid row.
        gather_s: seconds in which worker threads made batches.
        windows: windows that were loaded, if a schedule's windows need something in memory.
        window_load_s: seconds that loading them took.
        window_wait_s: seconds in which no window was open.
        window_seconds: of each of the last windows whose batches were all released, the seconds
            that loading it took, and those from then on, or from the end of the window before, to
            its last release.
        lock: held to change `batches`, `rows`, `edges`, `bytes_wanted` and `gather_s`, because
            worker threads of several epochs count these. All others are counted in the loop thread.
        times: how long batches are in each stage, and what the user waits for.
    """

    batches: int = 0
    rows: int = 0
    edges: int = 0
    bytes_wanted: int = 0
    samples: int = 0
    sample_s: float = 0.0
    extract_s: float = 0.0
    gather_s: float = 0.0
    windows: int = 0
    window_load_s: float = 0.0
    window_wait_s: float = 0.0
    window_seconds: deque[tuple[float, float]] = field(
        default_factory=lambda: deque(maxlen=WINDOWS_TIMED)
    )
    lock: threading.Lock = field(default_factory=threading.Lock, repr=False)
    times: StageTimes = field(default_factory=StageTimes)
