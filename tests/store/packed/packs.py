"""Packs of loaders' batches, and checks of every row and every edge in them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from gnndrive.common.records import Sample
from gnndrive.loader.recording import LoaderRecording, pack_settings
from gnndrive.store import Store
from gnndrive.store.feature_tables import FeatureTable, feature_tables
from gnndrive.store.format import DATA_OFFSET
from gnndrive.store.packed.encoding import RecordedBatch, rows_of
from gnndrive.store.packed.format import PackInfo, open_pack
from gnndrive.store.packed.pack import write_pack
from gnndrive.store.packed.placement import fill, places_of
from gnndrive.store.packed.record import Recorded
from gnndrive.store.packed.samples import SampleReader, read_index

MEMORY = 65 << 20
Bytes = npt.NDArray[np.uint8]


def pack_loader(
    loader: Any, target: Path, epochs: int = 1, hot: float = 0.2, source: Any = None, **more: Any
) -> PackInfo:
    """Pack a loader's first epochs.

    Args:
        loader: the loader.
        target: the pack's folder.
        epochs: how many epochs.
        hot: the share of each table's rows that memory holds.
        source: draws the batches; None: the loader.
        more: settings of the placing, and arguments of `write_pack`.
    """
    store, assembly = loader.data, loader._assembly()
    placing = {name: more.pop(name) for name in ("order", "segment", "disk") if name in more}
    settings = pack_settings(assembly, loader.seed, epochs, **placing)

    def slots(recorded: Recorded) -> dict[str, int]:
        return {name: int(hot * len(counts)) for name, counts in recorded.counts.items()}

    source = source or LoaderRecording(assembly, loader.seed, epochs)
    given = {"memory": MEMORY, "volume_bytes": 1 << 15} | more
    return write_pack(store, target, settings, source, feature_tables(store), slots, **given)


@dataclass(frozen=True)
class Replay:
    """A source of batches that were drawn before."""

    batches: list[RecordedBatch]
    hops: int

    @property
    def total(self) -> int:
        return len(self.batches)

    def draw(self, first: int) -> Iterator[RecordedBatch]:
        yield from self.batches[first:]


def drawn(loader: Any, epochs: int = 1) -> Replay:
    """A loader's batches, which need no thread or torch any more."""
    source = LoaderRecording(loader._assembly(), loader.seed, epochs)
    return Replay(list(source.draw(0)), source.hops)


class OpenedPack:
    """A whole pack, as a loader finds it.

    Attributes:
        info: the content of its pack.json.
        index: the index.
        reader: its samples.
        levels: rows of all batches in chunks, shared, hot.
    """

    def __init__(self, root: Path, store: Store) -> None:
        self.root, self.store, self.info = root, store, open_pack(root, store)
        schema = self.info.schema
        shape = self.info.arrays["index"].shape
        self.index = read_index(root, *shape)
        self.tables = feature_tables(store)
        self.reader = SampleReader(
            root, schema, self.index, store.info.types, self.tables, self.info.batches
        )
        self.places = places_of(schema, [table.name for table in self.tables])
        self.levels = np.zeros(3, np.int64)

    def check(self, expected: Mapping[int, RecordedBatch] | list[RecordedBatch]) -> None:
        """Assert that the samples are those that were drawn, and each row its table's."""
        assert len(self.reader) == len(expected)
        files = {table.name: _table(table) for table in self.tables}
        packed = {table.name: self._rows(table) for table in self.tables}
        for number in range(len(self.reader)):
            batch = self.reader.read(number)
            assert_same(batch, expected[number])
            for table in self.tables:
                ids = rows_of(batch.sample, table)
                places = self.where(table, number)
                assert len(places) == len(ids)
                assert (packed[table.name][places] == files[table.name][ids]).all(), table.name
        size = sum(path.stat().st_size for path in self.root.rglob("*") if path.is_file())
        assert self.info.actual_bytes == self.info.predicted_bytes == size
        names = {f"{name}.npy" for name in self.info.arrays} | {"pack.json"}
        found = [path for path in self.root.rglob("*") if path.is_file()]
        assert {path.relative_to(self.root).as_posix() for path in found} == names

    def where(self, table: FeatureTable, number: int) -> Any:
        """The row of the table's file that each entry of a batch has."""
        row, sections = self.index[number], self.reader.sections(number)
        places = self.places[table.name]
        counts, (segment, first) = places.counts(row), places.starts(row)
        hot, shared = sections[f"hot/{table.name}"], sections[f"shared/{table.name}"]
        assert hot is not None
        assert shared is not None
        chunk = first + np.arange(counts[:, 0].sum())
        ends = np.load(self.root / f"ids/{table.name}/bands.npy")[:, 0]
        bands = np.searchsorted(ends, hot, side="right")
        assert np.bincount(bands, minlength=32).tolist() == places.bands(row).tolist()
        self.levels += counts.sum(axis=0)
        order = sections.get(f"order/{table.name}")
        return fill(places, counts, order, [chunk, segment + shared.astype(np.int64), hot])

    def _rows(self, table: FeatureTable) -> Bytes:
        raw = np.fromfile(self.root / f"rows/{table.name}.npy", np.uint8)
        return raw[DATA_OFFSET:].reshape(-1, table.file.row_bytes)


def _table(table: FeatureTable) -> Bytes:
    raw = np.fromfile(table.file.path, np.uint8, offset=table.file.data_offset)
    return raw[: table.file.row_count * table.file.row_bytes].reshape(-1, table.file.row_bytes)


def assert_same(found: RecordedBatch, wanted: RecordedBatch) -> None:
    """Assert that two samples have the same seeds and by hop the same sets of nodes and of edges;
    samples in PyG's own form are equal."""
    assert found.seeds.input_id.tolist() == wanted.seeds.input_id.tolist()
    if isinstance(found.sample, Sample):
        assert isinstance(wanted.sample, Sample)
        assert hops_of(found.sample) == hops_of(wanted.sample)
        return
    one, other = found.sample, wanted.sample
    assert not isinstance(other, Sample)
    for mine, theirs in ((one.node, other.node), (one.edge, other.edge)):
        for key in set(mine) | set(theirs):  # type: ignore[call-overload]
            first, second = mine.get(key), theirs.get(key)  # type: ignore[call-overload]
            assert (first is None) == (second is None)
            assert first is None or first.tolist() == second.tolist()


def hops_of(sample: Sample) -> tuple[Any, ...]:
    """The seeds in order; by hop the set of nodes, and the set of (source, target, number)."""
    target = np.repeat(np.arange(len(sample.colptr) - 1), np.diff(sample.colptr))
    edges = np.stack([sample.node[sample.row], sample.node[target], sample.edge], 1)
    nodes = np.split(sample.node, np.cumsum(sample.num_sampled_nodes)[:-1])
    by_hop = np.split(edges, np.cumsum(sample.num_sampled_edges)[:-1])
    return (
        nodes[0].tolist(),
        [set(each.tolist()) for each in nodes],
        [set(map(tuple, each.tolist())) for each in by_hop],
    )
