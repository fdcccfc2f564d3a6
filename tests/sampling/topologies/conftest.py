"""Graphs on disk, and topologies over them that are closed after the test."""

from __future__ import annotations

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
    count: int
    type = None

    def __post_init__(self) -> None:
        self.source = self.target = SimpleNamespace(type=None, num_nodes=len(self.indptr) - 1)
        self.num_edges = self.count
        self.indices_file = TableFile(
            str(self.path), DATA_OFFSET, self.count, self.dtype.itemsize, str(self.dtype), ()
        )
        # uint32 as in a store, or int64 if a damaged pointer does not fit.
        narrow = self.indptr.astype(np.uint32)
        self.index_pointers = narrow if np.array_equal(narrow, self.indptr) else self.indptr

    @property
    def indices(self) -> np.ndarray:
        return np.memmap(self.path, self.dtype, "r", DATA_OFFSET, (self.count,))


class Opened(Adjacency):
    """An adjacency of one type, whose engine runs."""

    @property
    def topology(self) -> Topology:
        return self.topologies[0]

    def close(self) -> None:
        if self._contexts:
            super().close()


@pytest.fixture
def on_disk(tmp_path):
    """A function that writes a graph's indices to a file."""

    def write(indptr: np.ndarray, indices: np.ndarray) -> Graph:
        path = tmp_path / f"indices{len(list(tmp_path.iterdir()))}.npy"
        path.write_bytes(bytes(DATA_OFFSET) + indices.tobytes())
        return Graph(np.asarray(indptr, np.int64), path, indices.dtype, len(indices))

    return write


@pytest.fixture
def opened():
    """A function that opens a graph as the topology of that name; closed after the test."""
    made: list[Opened] = []

    def one(
        graph: Any, name: Any = "direct", cache_bytes: int = 0, engine: str = "threads",
        faults: Any = None, seed: int = 0, gap: int = 8192,
    ) -> Opened:  # fmt: skip
        made.append(Opened([graph], TopologyChoice(name, "", 0, cache_bytes), gap))
        made[-1].start(plugins.find("engines", engine), EngineSettings(16, 65536, seed, faults))
        return made[-1]

    yield one
    for each in made:
        each.close()
