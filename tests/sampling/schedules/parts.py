"""A partitioned store as schedules see it: which partition each node lies in."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch

from gnndrive.common.records import Int32Array, Int64Array
from gnndrive.sampling.schedules.base import InputEdges


@dataclass
class Parts:
    """Partitions of some nodes.

    Attributes:
        num_parts: how many partitions.
        part: the partition of each node.
        asked: how many nodes were looked up.
    """

    num_parts: int
    part: Int32Array
    asked: list[int] = field(default_factory=list)

    @classmethod
    def spread(cls, count: int, nodes: int = 1 << 18) -> Parts:
        """Partitions of as many nodes each, as good as at random."""
        order = np.random.default_rng(0).permutation(nodes)
        return cls(count, (order % count).astype(np.int32))

    def part_of(self, nodes: Int64Array) -> Int32Array:
        self.asked.append(len(nodes))
        return self.part[nodes]


def edges_between(source: Int64Array, target: Int64Array) -> InputEdges:
    """Input edges with these ends."""

    def ends(at: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        return torch.from_numpy(source)[at], torch.from_numpy(target)[at], at

    return InputEdges(len(source), ends, "edges")
