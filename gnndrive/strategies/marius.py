"""MariusGNN (EuroSys 2023): a buffer of partitions that change one by one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from gnndrive.strategies.windows.scheme import InsideWindows


@dataclass(frozen=True, kw_only=True)
class Marius(InsideWindows):
    """MariusGNN, "Resource-Efficient Out-of-Core Training of Graph Neural Networks".

    Nodes lie in partitions at random; a buffer holds some of them, and batches are sampled inside
    it. Partitions change one by one, in an order: for links COMET or BETA, in which any two
    partitions meet; for nodes one that brings each partition once (section 5).

    Where this differs: a state of the buffer is a window, whose rows stay for its batches, and the
    next state is loaded meanwhile; the sampler is the one of the other strategies, not DENSE
    (section 4).

    Args:
        order: for seed nodes "dispersed" (each partition is loaded once) or "sequential" (one
            window, of all partitions with seeds); for seed edges "comet" or "beta" (any two
            partitions come together). None: the first of these.
        partitioned, megabatch, static, passes, per_rank: see `InsideWindows`.
    """

    name: str = "marius"
    published: str = "MariusGNN (EuroSys 2023)"
    schedule: Any = "marius"
    order: str | None = None  # type: ignore[misc]
    mixed: ClassVar[bool] = True
    does: ClassVar[str] = "samples inside random partitions"
    preparation: ClassVar[str] = "gnndrive partition --method random"
    pays: ClassVar[str] = "links, of which any two partitions meet; for nodes a baseline"
