"""Fixtures: graphs on disk, and topologies over them that are closed after the test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from gnndrive.common import plugins
from gnndrive.common.records import EngineSettings, TableFile, TopologyChoice
from gnndrive.sampling.graph import Adjacency
from gnndrive.sampling.topologies.base import Topology

DATA_OFFSET = 4096


@dataclass
class Graph:
    """A CSC graph whose indices are in a file; has the attributes of `StoredEdges`."""

    indptr: np.ndarray
    path: Path
    dtype: np.dtype[Any]
    type: Any = None

    @property
    def index_pointers(self) -> np.ndarray:
        """uint32 as in a store, or int64 if a damaged pointer does not fit."""
        narrow = self.indptr.astype(np.uint32)
        return narrow if np.array_equal(narrow, self.indptr) else self.indptr

    @property
    def indices(self) -> np.ndarray:
        edges = (self.path.stat().st_size - DATA_OFFSET) // self.dtype.itemsize
        return np.memmap(self.path, self.dtype, "r", DATA_OFFSET, (edges,))

    @property
    def source(self) -> SimpleNamespace:
        return SimpleNamespace(type=None, num_nodes=len(self.indptr) - 1)

    target = source

    @property
    def num_edges(self) -> int:
        return self.indices_file.row_count

    @property
    def indices_file(self) -> TableFile:
        width = self.dtype.itemsize
        return TableFile(str(self.path), DATA_OFFSET, len(self.indices), width, str(self.dtype), ())


@dataclass
class Opened:
    """A topology whose engine runs."""

    adjacency: Adjacency
    closed: bool = False

    @property
    def topology(self) -> Topology:
        return self.adjacency.topologies[0]

    @property
    def stats(self) -> dict[str, Any]:
        return self.adjacency.stats()

    def close(self) -> None:
        if not self.closed:
            self.adjacency.close()
        self.closed = True


Open = Callable[..., Opened]
OnDisk = Callable[[np.ndarray, np.ndarray], Graph]


@pytest.fixture
def on_disk(tmp_path: Path) -> OnDisk:
    """A function that writes a graph's indices to a file."""

    def write(indptr: np.ndarray, indices: np.ndarray) -> Graph:
        path = tmp_path / f"indices{len(list(tmp_path.iterdir()))}.npy"
        path.write_bytes(bytes(DATA_OFFSET) + indices.tobytes())
        return Graph(np.asarray(indptr, np.int64), path, indices.dtype)

    return write


@pytest.fixture
def opened() -> Iterator[Open]:
    """A function that opens a graph as the topology of that name; closed after the test."""
    made: list[Opened] = []

    def one(
        graph: Graph, name: Any = "direct", cache_bytes: int = 0, engine: str = "threads",
        faults: Any = None, seed: int = 0, gap: int = 8192,
    ) -> Opened:  # fmt: skip
        choice = TopologyChoice(name, "", 0, cache_bytes)
        adjacency = Adjacency([graph], choice, gap)  # type: ignore[list-item]
        made.append(Opened(adjacency))
        adjacency.start(plugins.find("engines", engine), EngineSettings(16, 65536, seed, faults))
        return made[-1]

    yield one
    for each in made:
        each.close()
