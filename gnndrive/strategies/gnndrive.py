"""GNNDrive (ICPP 2024): the default strategy."""

from __future__ import annotations

from dataclasses import dataclass

from gnndrive.strategies.base import Strategy


@dataclass(frozen=True, kw_only=True)
class GNNDrive(Strategy):
    """GNNDrive, "Reducing Memory Contention and I/O Congestion for Disk-based GNN Training".

    Samplers, extractors, the trainer and releasers are workers with bounded queues between them
    (section 4.1). Rows are read with io_uring past the page cache, which would evict the adjacency
    (section 3), into staging memory and from there into a feature buffer of fixed size, on the GPU
    if there is one. The buffer has a mapping table, a reverse map, ref counts and a standby list of
    slots that no batch uses, from which the least recently used one is taken (section 4.2).
    Batches may be trained on in another order than they were sampled (section 4.3).

    Where this differs: rows leave by Belady's rule over the queued samples instead of LRU; several
    batches are read in one sorted pass with gaps bridged; the adjacency is in memory or read with
    direct I/O instead of memory-mapped; batches come in order unless in_order=False.
    """

    name: str = "gnndrive"
    paper: str = "GNNDrive (ICPP 2024)"
