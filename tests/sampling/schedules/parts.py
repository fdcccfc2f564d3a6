"""Helpers for schedules: a partitioned store as they see it, and an epoch's batches."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache

import numpy as np
import torch

from gnndrive.common.records import Int32Array, Int64Array, Seeds
from gnndrive.sampling.schedules.base import InputEdges, Window


@dataclass
class Parts:
    """The partition of each node; `asked`: how many nodes were looked up each time."""

    num_parts: int
    part: Int32Array
    asked: list[int] = field(default_factory=list)

    @classmethod
    def spread(cls, count: int, nodes: int = 1 << 12) -> Parts:
        """Partitions of as many nodes each, as good as at random."""
        return cls(count, _spread(count, nodes))

    def part_of(self, nodes: Int64Array) -> Int32Array:
        self.asked.append(len(nodes))
        return self.part[nodes]


@cache
def _spread(count: int, nodes: int) -> Int32Array:
    return (np.random.default_rng(0).permutation(nodes) % count).astype(np.int32)


def edges_between(source: Int64Array, target: Int64Array) -> InputEdges:
    """Input edges with these ends."""

    def ends(at: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        return torch.from_numpy(source)[at], torch.from_numpy(target)[at], at

    return InputEdges(len(source), ends, "edges")


def parts_of(window: Window) -> list[int]:
    """The partitions of a window."""
    assert window.partitions is not None
    assert window.partitions.dtype == np.int32
    found: list[int] = window.partitions.tolist()
    return found


def batches(windows: Iterator[Window]) -> list[Seeds]:
    """All batches of an epoch, held against their numbers."""
    drawn: list[Seeds] = []
    for number, window in enumerate(windows):
        own = list(window.batches)
        assert (window.number, window.first) == (number, len(drawn)), "a wrong number of a window"
        assert window.count == len(own), "a wrong count of a window"
        drawn += own
    assert [seeds.index for seeds in drawn] == list(range(len(drawn))), "wrong numbers"
    return drawn
