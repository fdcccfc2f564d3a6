"""A small homogeneous graph with times and weights, and what records batches of a loader."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch_geometric.data import Data

from gnndrive.loader.recording import LoaderRecording
from gnndrive.store.feature_tables import feature_tables
from gnndrive.store.packed.record import Recorded, record
from gnndrive.store.packed.samples import SampleReader

NODES, EDGES = 300, 2_500


def make_graph() -> Data:
    """300 nodes, 2,500 edges with duplicates, self loops and nodes without in-neighbours."""
    draw = torch.Generator().manual_seed(3)
    edges = torch.randint(0, NODES, (2, EDGES), generator=draw)
    edges[1] %= 280
    return Data(
        x=torch.randn(NODES, 20, generator=draw),
        y=torch.randint(0, 7, (NODES,), generator=draw),
        edge_index=edges,
        edge_attr=torch.randn(EDGES, 16, generator=draw),
        time=torch.randint(0, 50, (NODES,), generator=draw),
        edge_time=torch.randint(0, 50, (EDGES,), generator=draw),
        weight=torch.rand(EDGES, generator=draw) + 0.1,
    )


def source_of(loader: Any, epochs: int = 1) -> LoaderRecording:
    """What draws the batches of a loader's first epochs."""
    return LoaderRecording(loader._assembly(), loader.seed, epochs)


def record_loader(loader: Any, root: Path, epochs: int = 1, **more: Any) -> Recorded:
    """Record a loader's first epochs in a folder."""
    root.mkdir(exist_ok=True)
    store, source = loader.data, source_of(loader, epochs)
    return record(root, source, store.info.types, feature_tables(store), **more)


def reader_of(loader: Any, root: Path, recorded: Recorded) -> SampleReader:
    """What reads them again."""
    return SampleReader(
        root,
        recorded.schema,
        recorded.index,
        loader.data.info.types,
        feature_tables(loader.data),
        max(len(loader), 1),
    )


def files_of(root: Path) -> dict[str, bytes]:
    """The files below a folder, with their content."""
    return {
        str(path.relative_to(root)): path.read_bytes()
        for path in sorted(root.rglob("*"))
        if path.is_file()
    }
