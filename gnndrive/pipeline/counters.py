"""Counters of what happened, cheap enough to be always on, and the one place that names them."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field


@dataclass(eq=False)
class Counters:
    """What an epoch's stages count; times are summed over tasks that run side by side.

    Attributes:
        batches, rows, edges: handed over.
        bytes_wanted: bytes of the rows handed over.
        samples: batches sampled, those that nobody came to ask for too.
        sample_s: seconds that samplers were at work on them, and waited for the disk or the others
            of their round.
        extract_s, gather_s: seconds that batches spent in these stages.
        wait_s: seconds that the user waited for a batch.
        handing_over: whoever counts what is handed over has it: worker threads, of several epochs
            where there are several iterators. All else but wait_s is counted in the event loop.
    """

    batches: int = 0
    rows: int = 0
    edges: int = 0
    bytes_wanted: int = 0
    samples: int = 0
    sample_s: float = 0.0
    extract_s: float = 0.0
    gather_s: float = 0.0
    wait_s: float = 0.0
    handing_over: threading.Lock = field(default_factory=threading.Lock, repr=False)
