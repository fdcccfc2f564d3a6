"""A stranger's samples: what does not fit the index, the schema or the store is refused."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import gnndrive
from gnndrive import LinkNeighborLoader, NeighborLoader, Store
from gnndrive.common.errors import StoreError
from gnndrive.store.feature_tables import feature_tables
from gnndrive.store.packed.placement import PLACING
from gnndrive.store.packed.samples import SampleReader
from gnndrive.store.packed.sections import Schema
from gnndrive.store.packed.volumes import read_volume, whole_volumes
from tests.loader.hetero.graph import make_data
from tests.store.packed.graphs import make_graph, record_loader


@pytest.fixture(scope="module", params=["plain", "typed", "links"])
def loader(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory):
    path = tmp_path_factory.mktemp("samples") / "graph.gnn"
    given = {"num_neighbors": [4, 3], "batch_size": 16, "seed": 1, "buffer": "200KB"}
    if request.param == "typed":
        store: Store = gnndrive.from_data(make_data(), path)
        made = NeighborLoader(store, input_nodes="paper", **given)
    elif request.param == "links":
        store = gnndrive.from_data(make_graph(), path)
        made = LinkNeighborLoader(store, neg_sampling="binary", **(given | {"batch_size": 400}))
    else:
        made = NeighborLoader(gnndrive.from_data(make_graph(), path), **given)
    with made:
        yield made


def test_volumes_are_arrays_of_numpy(loader, tmp_path: Path):
    recorded = record_loader(loader, tmp_path / "pack", volume_bytes=1 << 15)
    assert whole_volumes(tmp_path / "pack") > 1
    index = np.load(tmp_path / "pack" / "index.npy", mmap_mode="r")
    assert (index == recorded.index).all()
    columns, schema = recorded.schema.column, recorded.schema
    for row in index:
        volume = np.load(tmp_path / "pack" / "samples" / f"{row[0]:03d}.npy", mmap_mode="r")
        assert volume.dtype == np.int32
        starts, _ = schema.places(schema.counts(row))
        place = next(n for n, each in enumerate(schema.sections) if each.name.startswith("node"))
        name = schema.sections[place].name
        count, at = int(row[columns[f"count {name}"]]), (int(row[1]) + starts[place]) // 4
        assert count
        assert int(volume[at : at + count].min()) >= 0
        assert all(row[columns[each]] == 0 for each in columns if each.startswith("count hot/"))
    volume = read_volume(tmp_path / "pack", 0, len(schema.columns))
    assert (volume.rows == index[: len(volume.rows)]).all()


def test_damaged_samples_are_refused_or_consistent(loader, tmp_path: Path):
    """Each number is replaced by one that is out of range for all kinds of sections."""
    recorded, root = record_loader(loader, tmp_path / "pack"), tmp_path / "pack"
    types, index, schema = loader.data.info.types, recorded.index, recorded.schema
    tables = feature_tables(loader.data)
    path, bad = root / "samples" / "000.npy", 0
    whole = path.read_bytes()
    starts, _ = schema.places(schema.counts(index[0]))
    checked = ("node", "row", "col", "edge", "batch", "colptr")
    for section, start in zip(schema.sections, starts, strict=True):
        count = int(index[0, schema.column[f"count {section.name}"]])
        if not section.name.startswith(checked) or count <= 0:
            continue
        for value in (-1, 1 << 30):
            damaged = bytearray(whole)
            at = 4096 + start + section.itemsize * (count // 2)
            damaged[at : at + 4] = np.int32(value).tobytes()
            path.write_bytes(damaged)
            with pytest.raises(StoreError, match="is damaged"):
                SampleReader(root, schema, index, types, tables).read(0)
            bad += 1
    assert bad >= 8
    path.write_bytes(whole)
    SampleReader(root, schema, index, types, tables).read(0)


def test_a_schema_of_another_store_is_refused(loader, tmp_path: Path):
    recorded, types = record_loader(loader, tmp_path / "pack"), loader.data.info.types
    schema, tables = recorded.schema, feature_tables(loader.data)
    first = dataclasses.replace(schema.sections[0], delivered="float32")
    for other in (
        dataclasses.replace(schema, sections=schema.sections[1:]),
        dataclasses.replace(schema, sections=(first, *schema.sections[1:])),
        dataclasses.replace(schema, edge_types=()),
        dataclasses.replace(schema, node_types=("paper",)),
        *other_places(schema),
    ):
        with pytest.raises(StoreError, match="another form"):
            SampleReader(tmp_path / "pack", other, recorded.index, types, tables)
    SampleReader(tmp_path / "pack", schema, recorded.index, types, tables)


def other_places(schema: Schema) -> Iterator[Schema]:
    """Schemas with another section for the places of rows."""
    for place, section in enumerate(schema.sections):
        if not section.name.startswith(PLACING):
            continue
        before, after = schema.sections[:place], schema.sections[place + 1 :]
        yield dataclasses.replace(schema, sections=before + after)
        for fields in (
            {"dtype": "float64"},
            {"delivered": "float32"},
            {"shape": (2, -1)},
            {"name": f"{section.name}/more"},
        ):
            other = dataclasses.replace(section, **fields)
            yield dataclasses.replace(schema, sections=(*before, other, *after))


def test_a_damaged_index_is_refused_or_consistent(loader, tmp_path: Path):
    recorded, root = record_loader(loader, tmp_path / "pack"), tmp_path / "pack"
    types, schema, refused = loader.data.info.types, recorded.schema, 0
    tables = feature_tables(loader.data)
    for column in range(recorded.index.shape[1]):
        for value in (-2, -1, 7, 4096, 1 << 45, -(1 << 63)):
            index = recorded.index.copy()
            index[1, column] = value
            try:
                SampleReader(root, schema, index, types, tables).read(1)
            except StoreError:
                refused += 1
    assert refused > 2 * recorded.index.shape[1]
    (root / "samples" / "000.npy").write_bytes(b"")
    with pytest.raises(StoreError, match="does not hold"):
        SampleReader(root, schema, recorded.index, types, tables).read(0)
