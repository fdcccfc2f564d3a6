"""Attributes outside the buffer are mapped if memory has room for them, and read otherwise."""

import copy
import os
import pickle
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
import torch
from torch_geometric.data import Data, HeteroData

import gnndrive
from gnndrive import NeighborLoader, ReadError
from gnndrive.common.errors import StoreError
from gnndrive.plan import plan as planning
from gnndrive.plan.slots import ALL_FIT
from gnndrive.pyg import attributes
from gnndrive.pyg.collate import Collate
from gnndrive.pyg.items import AttributeMemory
from gnndrive.pyg.labels import Labels, SharedLabels, kept_bytes, kept_dtype, read_labels
from gnndrive.pyg.stores import FeatureStore
from tests.given import moved
from tests.loader.batches import assert_same, check
from tests.loader.hetero.graph import check as check_types
from tests.loader.hetero.graph import make_data
from tests.soak import product

EVERYTHING = {"nodes/train_mask", "edges/edge_attr", "graph/edge_id"}


@pytest.fixture
def no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plan as if memory had room for no file."""
    monkeypatch.setattr(planning, "MAPPED_BYTES", 0)
    monkeypatch.setattr(planning, "ROOM", 1 << 40)


def planner_of(loader: NeighborLoader) -> planning.Planner:
    assembly = loader._assembly()
    return assembly.scheme.planner(assembly.request())


@product(
    "engine,topology,device", ["uring", "threads"], ["resident", "direct"],
    ["cpu", "simulated-cuda"],
)  # fmt: skip
def test_mapped_and_read_attributes_give_the_same_batches(
    make, data, request, engine, topology, device
):
    mapped = list(make(seed=1))
    request.getfixturevalue("no_room")
    loader = make(seed=1, engine=engine, topology=topology, device=device)
    assert set(loader.plan().fetched) == EVERYTHING
    assert "attributes" in {line.what for line in loader.plan().lines}
    assert ALL_FIT not in loader.plan().levels
    for batch, expected in zip(loader, mapped, strict=True):
        check(batch, data)
        assert_same(batch, expected)
    assert int(loader.stats()["topology_requests"]) > 0


@pytest.mark.usefixtures("no_room")
def test_attributes_of_several_types(tmp_path):
    data = make_data()
    store = gnndrive.from_data(data, tmp_path / "types.gnn")
    given = {"batch_size": 16, "buffer": "100KB", "io_depth": 16}
    with NeighborLoader(store, [4, 3], "paper", **moved(given)) as loader:
        fetched = set(loader.plan().fetched)
        assert {"nodes/paper/year", "edges/paper__cites__paper/weight"} <= fetched
        assert "graph/author__writes__paper/edge_id" in fetched
        assert not {table.name for table in loader.plan().tables} & fetched
        for batch in loader:
            check_types(batch, data)


@pytest.mark.parametrize(("topology", "ring"), [("resident", 64 * 262144), ("direct", 0)])
def test_the_plan_counts_the_least_that_reading_takes(make, request, monkeypatch, topology, ring):
    """Attributes and an adjacency on disk share one ring, which the plan counts once."""
    mapped = make(topology=topology).plan()
    request.getfixturevalue("no_room")
    fetched = make(topology=topology).plan()
    largest = planner_of(make(topology=topology)).shape.edges
    assert fetched.total_bytes - mapped.total_bytes == 34 * largest + ring
    assert fetched.epoch_bytes - mapped.epoch_bytes == 34 * largest + ring
    monkeypatch.setattr(planning, "PASS_ROWS", 10)
    assert make(topology=topology).plan().total_bytes - mapped.total_bytes == 340 + ring


def test_files_small_beside_memory_are_mapped_and_counted(make, store, no_room, monkeypatch):
    """Otherwise the buffer would take all the rest, and leave room for no file."""
    least = make(memory="1GB", topology="mmap").plan().total_bytes
    plan = make(memory=least + 40_000, buffer=None, topology="mmap").plan()
    sizes = {name: store.info.arrays[name].nbytes for name in EVERYTHING}
    assert sum(sizes.values()) * planning.MAPPED_SHARE < plan.total_bytes
    assert plan.fetched == ()
    (line,) = [line for line in plan.lines if line.what == "mapped files"]
    assert line.nbytes == sum(sizes.values())
    monkeypatch.setattr(planning, "MAPPED_SHARE", least // sizes["nodes/train_mask"])
    plan = make(memory=least + 40_000, buffer=None, topology="mmap").plan()
    assert set(plan.fetched) == EVERYTHING - {"nodes/train_mask"}


def test_rows_that_a_batch_has_twice_in_several_passes(make, data, no_room, monkeypatch):
    monkeypatch.setattr(attributes, "PASS_ROWS", 50)
    twice = 0
    for batch in islice(make(disjoint=True), 3):
        assert torch.equal(batch.x, data.x[batch.n_id])
        assert torch.equal(batch.train_mask, data.train_mask[batch.n_id])
        assert torch.equal(batch.edge_attr, data.edge_attr[batch.e_id])
        twice += len(batch.n_id) - len(batch.n_id.unique())
    assert twice > 0


def test_files_that_memory_has_room_for_are_mapped(make, store, monkeypatch):
    sizes = {name: store.info.arrays[name].nbytes for name in EVERYTHING}
    loader = make(buffer=None, memory="40MB", topology="resident")
    whole = loader.plan()
    assert whole.fetched == ()
    largest, twice = max(sizes, key=lambda name: sizes[name]), 2 * sum(sizes.values())
    monkeypatch.setattr(planning, "MAPPED_BYTES", 0)
    wanted = planner_of(loader)
    for room, fetched in ((twice, ()), (twice - 1, (largest,))):
        budget = replace(wanted.budget, memory=whole.total_bytes + room)
        planner = replace(wanted, budget=budget)
        assert planner._fetched(planner._divide(AttributeMemory())) == fetched


@pytest.mark.usefixtures("no_room")
def test_a_file_that_became_shorter_is_an_error(tmp_path, data):
    store = gnndrive.from_data(data, tmp_path / "short.gnn")
    with NeighborLoader(store, [4, 3], batch_size=16, buffer="40KB") as loader:
        batches = iter(loader)
        next(batches)
        os.truncate(store.path / "edges" / "edge_attr.npy", 8192)
        with pytest.raises(ReadError, match=r"edge_attr\.npy"):
            list(batches)
        with pytest.raises(StopIteration):
            next(batches)


COUNT = 1200
NODE = np.array([5, 7, 5])
LOADED = {"num_neighbors": [2], "batch_size": 400, "buffer": "1MB"}
Write = Callable[..., gnndrive.Store]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def write(y: np.ndarray) -> gnndrive.Store:
        return gnndrive.write_store(
            tmp_path / "labelled.gnn", indptr=np.arange(COUNT + 1),
            indices=np.arange(COUNT)[::-1].copy(), made_by="test",
            nodes={"x": np.zeros((COUNT, 4), np.float32), "y": y},
        )  # fmt: skip

    return write


def labels_of(classes: int, dtype: type, least: int = 0) -> np.ndarray:
    y = np.random.default_rng(classes).integers(least, classes, COUNT).astype(dtype)
    y[7] = classes - 1
    return y


# Importing says that most of so many classes have no node.
@pytest.mark.filterwarnings("ignore:nodes/y. its labels go up to")
@pytest.mark.parametrize(
    ("y", "kept"),
    [
        (labels_of(128, np.int64, -128), np.int8),
        (labels_of(129, np.int64), np.int16),
        (labels_of(40_000, np.int64, -1), np.int32),
        (labels_of(40_000, np.int32), None),  # int32 would save nothing
        (labels_of(1 << 40, np.int64), None),
        (labels_of(50, np.int16), np.int8),
        (labels_of(2, np.float32), None),
        (labels_of(50, np.int64).reshape(-1, 1), None),
        # One label is no class: all labels stay mapped.
        (np.append(labels_of(50, np.int64)[:-1], -129), np.int8),
    ],
)
def test_a_batch_has_the_stores_labels(write, y, kept, monkeypatch):
    monkeypatch.setattr("gnndrive.disk.sequential_reader.STRETCH_BYTES", 4096)  # several stretches
    store = write(y)
    assert kept_dtype(store.nodes()) == kept
    assert kept_bytes(store.nodes()) == (0 if kept is None else np.dtype(kept).itemsize * COUNT)
    mapped = kept is None or bool(y[-1] == -129)
    assert (Labels(store.nodes()).pick(np.array([0]), np.empty) is None) is mapped
    with gnndrive.NeighborLoader(store, **moved(LOADED), shuffle=True) as loader:
        for batch in loader:
            torch.testing.assert_close(batch.y, torch.from_numpy(y)[batch.n_id], rtol=0, atol=0)


def test_preparing_reads_the_labels_that_pick_returns(write):
    store = write(labels_of(50, np.int64))
    collate = Collate(store, None, False, buffered=())
    collate.prepare()
    os.truncate(store.table("y").path, 4096)
    (labels,) = collate._labels.values()
    assert labels.pick(np.array([7]), np.empty).tolist() == [49]
    for node in (-1, COUNT):
        with pytest.raises(IndexError, match="a node id is out of range"):
            labels.pick(np.array([7, node]), np.empty)
    labels.close()
    collate.prepare()  # which leaves the error to the batch
    with pytest.raises(StoreError, match="became shorter"):
        labels.pick(np.array([7]), np.empty)
    loader = gnndrive.NeighborLoader(store, **moved(LOADED))
    with loader, pytest.raises(StoreError, match="became shorter"):
        list(loader)


def test_labels_of_another_process_are_used_until_close(write, monkeypatch):
    y, memory = labels_of(200, np.int64), np.zeros(2 * COUNT, np.uint8)
    store = write(y)
    kept = read_labels(store.nodes(), lambda shape, dtype: memory[: 2 * shape].view(dtype))
    assert np.shares_memory(kept, memory)
    assert np.array_equal(kept, y)
    kept[5] = 3  # to be told from what is read here
    kept.flags.writeable = False
    collate = Collate(store, None, False, buffered=())
    collate.use_labels({"nodes/y": SharedLabels(kept)})
    store.year = torch.zeros(COUNT)
    collate = collate.current(False)
    (labels,) = collate._labels.values()
    monkeypatch.setattr(f"{Labels.__module__}.SequentialReader", None)
    collate.prepare()
    picked = labels.pick(NODE, np.empty)
    assert (picked.dtype, picked.tolist()) == (torch.int64, [3, 199, 3])
    monkeypatch.undo()
    again = pickle.loads(pickle.dumps(labels))
    collate.close()
    for these in (labels, again, labels):
        assert these.pick(NODE, np.empty).tolist() == y[NODE].tolist()
        these.close()


FEW, FEW_EDGES = 60, 400
KEPT = {"batch_size": 16, "buffer": "1MB"}


@pytest.mark.parametrize("dtype", [torch.uint16, torch.uint32, torch.uint64], ids=str)
def test_they_are_delivered_in_their_dtype(dtype, tmp_path: Path, monkeypatch):
    """From the buffer, maps and planned reads, converted, set by the program, and for types. The
    largest values are there."""
    draw = torch.Generator().manual_seed(0)
    kind = np.dtype(str(dtype).removeprefix("torch."))

    def rows(*shape: int) -> torch.Tensor:
        value = torch.randint(0, 30, shape, generator=draw).numpy().astype(kind)
        value.flat[0] = np.iinfo(kind).max
        return torch.from_numpy(value)

    data = Data(
        x=rows(FEW, 5), y=torch.randint(0, 7, (FEW,), generator=draw).to(dtype),
        year=rows(FEW), edge_attr=rows(FEW_EDGES, 40), small=rows(FEW_EDGES),
        edge_index=torch.randint(FEW, (2, FEW_EDGES), generator=draw),
    )  # fmt: skip
    store = gnndrive.from_data(data, tmp_path / "unsigned.gnn")
    assert store.num_classes == 7
    assert torch.equal(store.x, data.x)
    for room in (planning.MAPPED_BYTES, 0):  # at first all other files are mapped, then read
        monkeypatch.setattr(planning, "MAPPED_BYTES", room)
        monkeypatch.setattr(planning, "ROOM", 1 if room else 1 << 40)
        with NeighborLoader(store, [4, 4], **moved(KEPT)) as loader:
            assert bool(loader.plan().fetched) is not bool(room)
            for batch in [*loader, loader(torch.arange(20))]:
                for name in ("x", "y", "year", "edge_attr", "small"):
                    number = batch.n_id if data.is_node_attr(name) else batch.e_id
                    assert batch[name].dtype == dtype
                    assert torch.equal(batch[name], data[name][number])
    monkeypatch.undo()
    mine = copy.copy(store)
    mine.mark = data.year.clone()
    with NeighborLoader(mine, [4], **moved(KEPT), feature_dtype="float64") as loader:
        for batch in loader:
            assert torch.equal(batch.x, data.x.to(torch.float64)[batch.n_id])
            assert torch.equal(batch.mark, data.year[batch.n_id])
    with closing(FeatureStore(store)) as features:
        index = torch.tensor([3, 0, 3])
        found = features.get_tensor(group_name=None, attr_name="year", index=index)
        assert torch.equal(found, data.year[index])
    hetero = HeteroData()
    hetero["a"].x = data.x
    hetero["a", "to", "a"].edge_index = data.edge_index
    hetero["a", "to", "a"].small = data.small
    store = gnndrive.from_data(hetero, tmp_path / "types.gnn")
    with NeighborLoader(store, [4], "a", **moved(KEPT)) as loader:
        for batch in loader:
            assert torch.equal(batch["a"].x, data.x[batch["a"].n_id])
            assert torch.equal(batch["a", "a"].small, data.small[batch["a", "a"].e_id])
