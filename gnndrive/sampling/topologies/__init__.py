"""Topologies: they give samplers the adjacency of one edge type.

To add one, write one file here with a subclass of `Topology` (`base.py`) that has a `name`, a class
method `plan(question)` that says how much memory it takes, and a class method
`make(context: TopologyContext)`. Enter it in `WAYS` of the test below too, which fails without it.
`tests/sampling/topologies/test_conformance.py` holds every plug-in of the kind to its contract.
"""

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
    """Return a topology over two arrays, in memory or memory-mapped; reads nothing. See `Mmap`."""
    return Mmap(indptr, indices, path)
