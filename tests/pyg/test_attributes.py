"""Attributes outside the buffer are mapped if memory has room for them, and read otherwise; the
batches are the same."""

from __future__ import annotations

import os
from itertools import islice

import pytest
import torch

import gnndrive
from gnndrive import ConfigError, NeighborLoader, ReadError
from gnndrive.common.memory import parse_size
from gnndrive.plan import planner as planning
from gnndrive.plan.choice import make_planner
from gnndrive.pyg import attributes
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
    return make_planner(loader._assembly().request())


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
    for batch, expected in zip(loader, mapped, strict=True):
        check(batch, data)
        assert_same(batch, expected)
    assert int(loader.stats()["topology_requests"]) > 0


@pytest.mark.usefixtures("no_room")
def test_attributes_of_several_types(tmp_path):
    data = make_data()
    store = gnndrive.from_data(data, tmp_path / "types.gnn")
    with NeighborLoader(
        store, [4, 3], "paper", batch_size=16, buffer="100KB", io_depth=16
    ) as loader:
        fetched = set(loader.plan().fetched)
        assert {"nodes/paper/year", "edges/paper__cites__paper/weight"} <= fetched
        assert "graph/author__writes__paper/edge_id" in fetched
        assert not {table.name for table in loader.plan().tables} & fetched
        for batch in loader:
            check_types(batch, data)


@pytest.mark.parametrize(("topology", "ring"), [("resident", 64 * 262144), ("direct", 0)])
def test_the_plan_counts_the_least_that_reading_takes(make, monkeypatch, topology, ring):
    """Attributes and an adjacency on disk share one ring, which the plan counts once."""
    arguments = {"buffer": "40KB", "topology": topology}
    mapped = make(**arguments).plan()
    monkeypatch.setattr(planning, "MAPPED_BYTES", 0)
    monkeypatch.setattr(planning, "ROOM", 1 << 40)
    fetched = make(**arguments).plan()
    largest = planner_of(make(**arguments)).requirements.batch_edges_max
    assert fetched.total_bytes - mapped.total_bytes == 34 * largest + ring
    assert fetched.epoch_bytes - mapped.epoch_bytes == 34 * largest + ring
    monkeypatch.setattr(planning, "PASS_ROWS", 10)
    assert make(**arguments).plan().total_bytes - mapped.total_bytes == 340 + ring


def test_files_small_beside_memory_are_mapped_and_counted(make, store, no_room, monkeypatch):
    """Otherwise the buffer would take all the rest, and leave room for no file."""
    least = make(memory="1GB", buffer="40KB", topology="mmap").plan().total_bytes
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


def test_a_warm_up_keeps_the_plan(make, data, no_room):
    loader = make(device="simulated-cuda", buffer=None)
    first = loader.plan().fetched
    assert set(first) == EVERYTHING
    for batch in loader:
        check(batch, data)
    assert loader.plan().fetched == first


def test_files_that_memory_has_room_for_are_mapped(make, store):
    sizes = {name: store.info.arrays[name].nbytes for name in EVERYTHING}
    whole = make(buffer=None, memory="40MB", topology="resident").plan()
    assert whole.fetched == ()
    planned = whole.total_bytes
    largest = max(sizes, key=lambda name: sizes[name])
    for room, fetched in (
        (2 * sum(sizes.values()), ()),
        (2 * sum(sizes.values()) - 1, (largest,)),
    ):
        wanted = planner_of(make(buffer=None, memory="40MB", topology="resident"))
        budget = planning.Planner(
            wanted.requirements, planned + room, None, wanted.topology, False,
            wanted.stages, None, wanted.attributes,
        )  # fmt: skip
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(planning, "MAPPED_BYTES", 0)
            plan = planning.make_plan(wanted.requirements, planned + room, None, wanted.topology)
            assert budget._fetched(plan) == fetched


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


@pytest.mark.usefixtures("no_room")
def test_closing_in_the_middle_of_an_epoch(make):
    loader = make()
    iterator = iter(loader)
    next(iterator)
    loader.close()
    with pytest.raises(gnndrive.ClosedError):
        next(iterator)


@pytest.mark.usefixtures("no_room")
def test_too_little_memory_for_reading_is_refused(make):
    given = {"buffer": "40KB", "topology": "mmap"}
    with pytest.raises(ConfigError, match="is too little") as caught:
        make(memory=1, **given).plan()
    least = parse_size(str(caught.value).split('memory="')[1].split('"')[0], "memory")
    plan = make(memory=least, **given).plan()
    assert set(plan.fetched) == EVERYTHING
    assert next(line.nbytes for line in plan.lines if line.what == "attributes") > 1 << 24
    with pytest.raises(ConfigError, match="is too little"):
        make(memory=int(0.998 * least), **given).plan()
