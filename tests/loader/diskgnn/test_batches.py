"""Replayed batches are those that are drawn: the same nodes and edges in each hop, and every byte
of their rows, also of those that host memory keeps because the device has no room for them."""

from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import gnndrive
from gnndrive import ConfigError
from gnndrive.buffer.devices._staged import StagedMemory, StagedVictims
from gnndrive.buffer.devices.simulated_cuda import SimulatedCuda, SimulatedDriver
from gnndrive.disk.tiers import host_rows
from gnndrive.disk.tiers._copied import spread_rows
from gnndrive.store.packed.sharing import SETS_MAX
from gnndrive.store.packed.verify import verify_pack
from gnndrive.strategies import STRATEGIES
from tests.loader.batches import assert_all_same, assert_same
from tests.loader.diskgnn.conftest import BATCHES, EPOCHS
from tests.loader.diskgnn.packs import (
    assert_same_sample,
    check_rows,
    loader_of,
    make_pack,
    pack_folder,
    reads_no_kept_rows,
)
from tests.loader.hetero.graph import make_data as make_typed
from tests.loader.kinds import OTHERS, PLAIN, TYPED
from tests.soak import product

ORDERS = ["sets", "minhash", "id"]  # how rows lie


def epochs_of(
    data: Any, folder: Path, arguments: dict[str, Any], **more: Any
) -> list[list[tuple[Any, Any]]]:
    """(replayed batch, drawn batch) of each batch of the recorded epochs."""
    store = gnndrive.from_data(data, folder / "graph.gnn")
    info = make_pack(store, arguments, epochs=EPOCHS, **more)
    assert verify_pack(pack_folder(store), store) == info
    found = []
    with (
        loader_of(store, arguments) as replayed,
        loader_of(store, arguments, strategy="gnndrive") as drawn,
    ):
        assert len(replayed) == len(drawn)
        for _ in range(EPOCHS):
            # All are kept until the end: none may be in memory that is used again.
            found.append(list(zip(list(replayed), list(drawn), strict=True)))
        assert replayed.stats()["topology"] == "none"
    return found


@product(
    "name,shuffle,order,segment", [*PLAIN, *OTHERS], [True, False], ORDERS, [1, 3, SETS_MAX, 3]
)
def test_samples(graph, name, shuffle, order, segment, tmp_path):
    arguments = (PLAIN | OTHERS)[name] | {"shuffle": shuffle}
    epochs = epochs_of(graph, tmp_path, arguments, order=order, segment=segment)
    for batches in epochs:
        assert batches
        for replayed, drawn in batches:
            (assert_same_sample if name in PLAIN else assert_same)(replayed, drawn)
            check_rows(replayed, graph)
    inputs = [[each.input_id.tolist() for each, _ in batches] for batches in epochs]
    assert (inputs[0] == inputs[1]) is not shuffle


@pytest.mark.parametrize("arguments", TYPED.values(), ids=TYPED)
def test_graphs_of_several_types(arguments, tmp_path):
    typed = make_typed()
    for batches in epochs_of(typed, tmp_path, arguments | {"shuffle": True}):
        for replayed, drawn in batches:
            check_rows(replayed, typed)
            assert_all_same(replayed.stores, drawn.stores)


@product(
    "kind,num_neighbors,subgraph_type,more",
    [{}, {"edge_label_index": None}, *({"edge_label_index": None, "neg_sampling": mode}
                                       for mode in ("binary", "triplet"))],
    [[], [], [2, 1], [2]],
    ["bidirectional", "induced", "directional"],
    [{}, {"weight_attr": "weight"}, {"disjoint": True}, {"replace": True}],
    ids=repr,
)  # fmt: skip
def test_all_strategies_deliver_the_same_attributes(
    graph, tmp_path, kind, num_neighbors, subgraph_type, more
):
    store = gnndrive.from_data(graph, tmp_path / "graph.gnn")
    gnndrive.partition(store, 4, method="random")
    arguments = {"num_neighbors": num_neighbors, "batch_size": 60, **kind, **more}
    arguments["subgraph_type"] = subgraph_type
    found = {}
    for name in STRATEGIES:
        with suppress(ConfigError):  # the strategy does not sample so
            if name == "diskgnn":
                make_pack(store, arguments)
            with loader_of(store, arguments, strategy=name, buffer="2MB") as loader:
                found[name] = set(next(iter(loader)).keys())
    refused = subgraph_type == "induced" and "disjoint" in more
    assert ({"gnndrive", "diskgnn"} <= found.keys()) is not refused
    assert all(each == found["gnndrive"] for each in found.values()), found


# ---- rows that host memory keeps


ON_DEVICE = {"device": "simulated-cuda", "device_memory": "600KB"}  # not all hot rows fit


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch) -> list[StagedVictims]:
    """The memory of rows that loaders keep; empty once it is closed."""
    made: list[StagedVictims] = []
    real = StagedMemory.evicted

    def evicted(memory: StagedMemory, places: int) -> StagedVictims:
        made.append(real(memory, places))
        return made[-1]

    monkeypatch.setattr(StagedMemory, "evicted", evicted)
    return made


def bytes_of(kept: list[StagedVictims]) -> list[int]:
    return [each.rows.nbytes for each in kept if each.rows.size]


@pytest.mark.parametrize("seed", [0, 1])
def test_kept_rows_are_right_read_once_and_freed_with_the_loader(
    replay, graph, kept, seed, monkeypatch
):
    """By a device that reads them where they are (seed 0), and by one for which a thread copies
    them."""
    monkeypatch.setattr(SimulatedCuda, "make", lambda context: SimulatedCuda(seed))
    copied: list[int] = []

    def copy(address: int, row_bytes: int, rows: Any, *rest: Any) -> None:
        copied.append(len(rows))
        spread_rows(address, row_bytes, rows, *rest)

    monkeypatch.setattr(host_rows, "spread_rows", copy)
    loader = replay(**ON_DEVICE)
    plan = loader.plan()
    expected = [each.kept * each.row_bytes for each in plan.tables if each.kept]
    assert sum(expected) == sum(line.nbytes for line in plan.lines if line.what == "hot rows") > 0
    for batch in loader:
        check_rows(batch, graph)
    with reads_no_kept_rows(loader):
        for _ in range(EPOCHS):
            for batch in loader:
                check_rows(batch, graph)
    assert bool(copied) == bool(seed)
    assert bytes_of(kept) == expected
    loader.close()
    assert not bytes_of(kept)


def test_a_device_without_room_is_said_as_nobody_gave_its_memory(replay, monkeypatch):
    monkeypatch.setattr(SimulatedDriver, "memory_bytes", 1000)
    loader = replay(device="simulated-cuda", memory="50MB")
    with pytest.raises(ConfigError, match=r"^the part of the device's free .*, is too little to r"):
        loader.plan()


def test_a_buffer_that_grows_keeps_them_once(replay, kept, monkeypatch):
    """The smaller one, of a warm-up, keeps none."""
    monkeypatch.setattr("gnndrive.plan.request.WARM_UP_BATCHES", 1.0)
    monkeypatch.setattr(SimulatedDriver, "memory_bytes", 380_000)
    loader = replay(device="simulated-cuda", memory="10MB")
    before = loader.plan()
    assert any(each.kept for each in before.tables)
    assert len(list(loader)) == BATCHES
    grown = loader.plan()
    assert grown.slots > before.slots
    assert [len(each.rows) for each in kept] == [each.kept for each in grown.tables if each.kept]
