"""The Topology interface: adjacency for the samplers, as CSC (in-neighbours of each node)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any


class Topology(ABC):
    """A CSC graph that the C samplers can read.

    Attributes:
        num_nodes: number of nodes.
        num_edges: number of edges.
        path: what to name in errors.
    """

    name: str
    num_nodes: int
    num_edges: int
    path: str

    @abstractmethod
    def csc(self) -> Any:
        """The C `gd_csc *`, valid while this object lives."""

    @abstractmethod
    def resident_bytes(self) -> int:
        """Bytes of process memory that it holds, the page cache not counted."""
