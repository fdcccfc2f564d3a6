"""Topologies: adjacency for the samplers."""

from __future__ import annotations

from typing import Any

import numpy.typing as npt

from gnndrive.common.records import IndexPointers
from gnndrive.sampling.topologies.base import Topology
from gnndrive.sampling.topologies.mmap import Mmap

__all__ = ["over_arrays"]


def over_arrays(
    indptr: IndexPointers, indices: npt.NDArray[Any], path: str = "<memory>"
) -> Topology:
    """A graph over two arrays, in memory or memory-mapped: ready at once, for a sample here and
    there; see `Mmap`."""
    return Mmap(indptr, indices, path)
