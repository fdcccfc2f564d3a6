"""HierBatching: mini-batches inside mega-batches of partitions that are in memory together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from gnndrive.strategies.windows.scheme import InsideWindows


@dataclass(frozen=True, kw_only=True)
class HierBatching(InsideWindows):
    """HierBatching, "Locality-Aware Out-of-Core Training of Graph Neural Networks".

    The graph is partitioned by min-cut, and the rows of a partition lie together on disk (section
    3.1). A mega-batch is a random set of partitions that are loaded in long reads; batches are
    sampled inside it. Beside it the 1 % of nodes with the highest degree are always in memory
    (section 3.2). The next mega-batch is loaded while the present one is trained on, whose batches
    come several times if loading takes longer (section 3.3).

    Where this differs: partitions are made by METIS, by streaming (LDG) or at random; passes=1 is
    the default, because more passes cost accuracy, and passes="auto" is the paper's rule; GPUs load
    the rows of each mega-batch each, where the paper's draw from one in host memory (Algorithm 1),
    as ranks without GPUs do here.
    """

    name: str = "hierbatching"
    published: str = "HierBatching"
    schedule: Any = "megabatch"
    own_static: ClassVar[float] = 0.01
    does: ClassVar[str] = "samples inside windows of partitions"
    pays: ClassVar[str] = "many seeds an epoch, a graph of communities"
