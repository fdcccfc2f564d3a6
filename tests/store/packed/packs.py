"""A small graph, and recordings and packs of loaders' batches."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch_geometric.data import Data

from gnndrive.store.feature_tables import feature_tables
from gnndrive.store.packed.encoding import RecordedBatch
from gnndrive.store.packed.format import PackInfo
from gnndrive.store.packed.pack import write_pack
from gnndrive.store.packed.record import Recorded, record
from gnndrive.store.packed.samples import SampleReader, read_index
from gnndrive.store.packed.verify import verify_pack
from gnndrive.strategies.packs.recording import LoaderRecording, pack_settings

MEMORY = 65 << 20
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


def record_loader(loader: Any, root: Path, source: Any = None, **more: Any) -> Recorded:
    """Record a loader's first epoch, or what `source` draws, in a folder."""
    root.mkdir(exist_ok=True)
    store, source = loader.data, source or source_of(loader)
    return record(root, source, store.info.types, feature_tables(store), **more)


def reader_of(loader: Any, root: Path, recorded: Recorded) -> SampleReader:
    types, tables = loader.data.info.types, feature_tables(loader.data)
    return SampleReader(root, recorded.schema, recorded.index, types, tables, max(len(loader), 1))


def files_of(root: Path) -> dict[str, bytes]:
    """The files below a folder, with their content."""
    return {
        str(path.relative_to(root)): path.read_bytes()
        for path in sorted(root.rglob("*"))
        if path.is_file()
    }


def pack_loader(
    loader: Any, target: Path, epochs: int = 1, hot: float = 0.2, source: Any = None, **more: Any
) -> PackInfo:
    """Pack a loader's first epochs. `hot` is the share of each table's rows that memory holds,
    `source` draws the batches instead of the loader, and `more` has settings of the placing, and
    arguments of `write_pack`."""
    store = loader.data
    placing = {name: more.pop(name) for name in ("order", "segment", "disk") if name in more}
    settings = pack_settings(loader._assembly(), loader.seed, epochs, **placing)

    def slots(recorded: Recorded) -> dict[str, int]:
        return {name: int(hot * len(counts)) for name, counts in recorded.counts.items()}

    source = source or source_of(loader, epochs)
    given = {"memory": MEMORY, "volume_bytes": 1 << 15} | more
    return write_pack(store, target, settings, source, feature_tables(store), slots, **given)


def check_pack(loader: Any, target: Path, **more: Any) -> PackInfo:
    """Pack, and assert that the pack is whole and as large as predicted. That its batches are those
    of the loader is shown by tests/loader/diskgnn."""
    info = pack_loader(loader, target, **more)
    assert verify_pack(target, loader.data) == info
    assert info.batches == len(loader) == info.arrays["index"].shape[0]
    files = files_of(target)
    assert files.keys() == {f"{name}.npy" for name in info.arrays} | {"pack.json"}
    assert info.actual_bytes == info.predicted_bytes == sum(map(len, files.values()))
    return info


def rows_at(target: Path, info: PackInfo) -> dict[str, int]:
    """How many rows the batches have in chunks, in segments' shared files, and in memory."""
    sums = read_index(target, *info.arrays["index"].shape).sum(axis=0).tolist()
    named = list(zip(info.schema.columns, sums, strict=True))
    return {
        level: sum(count for name, count in named if name.startswith(f"{level} "))
        for level in ("chunk", "shared", "hot")
    }


@dataclass(frozen=True)
class Replay:
    """A source of batches that were drawn before, which needs no thread or torch any more."""

    batches: list[RecordedBatch]
    hops: int

    @property
    def total(self) -> int:
        return len(self.batches)

    def draw(self, first: int) -> Iterator[RecordedBatch]:
        yield from self.batches[first:]


def drawn(loader: Any, epochs: int = 1) -> Replay:
    source = source_of(loader, epochs)
    return Replay(list(source.draw(0)), source.hops)
