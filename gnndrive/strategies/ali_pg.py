"""AliGraph (VLDB 2019) and PaGraph (SoCC 2020): a static cache of the rows that matter most."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from gnndrive.strategies.base import Strategy


@dataclass(frozen=True, kw_only=True)
class AliPG(Strategy):
    """Ali+PG, the baseline that DiskGNN's and Ginex's papers call so: AliGraph and PaGraph keep
    what most batches need in memory and never replace it.

    AliGraph keeps the lists of in-neighbours of the nodes with the highest ratio of out- to
    in-degree; PaGraph keeps the rows of the nodes with the most out-edges, as many as fit. All
    other rows are read for each batch.

    Where this differs: rows are read through the same buffer as with the other strategies, from
    which those of nodes with few out-edges leave first; no slot is kept for a row for good, so that
    batches may use them all. The neighbour cache is that of topology="direct", the first choice
    here.
    """

    name: str = "ali+pg"
    published: str = "AliGraph (VLDB 2019), PaGraph (SoCC 2020)"
    topologies: tuple[Any, ...] = ("direct", "resident", "mmap")
    policy: Any = "static"

    does: ClassVar[str] = "keeps rows of popular nodes"
    pays: ClassVar[str] = "a few nodes are in most batches; else a baseline"
