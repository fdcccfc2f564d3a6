"""Replayed batches are those that are drawn: the same nodes and edges in each hop, and every byte
of their rows, also of those that host memory keeps because the device has no room for them."""

import gc
import weakref
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import gnndrive
from gnndrive import ConfigError
from gnndrive.buffer.devices.simulated_cuda import SimulatedDriver
from gnndrive.disk.tiers import host_rows
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


@pytest.fixture
def maps(monkeypatch: pytest.MonkeyPatch) -> list[weakref.ref[Any]]:
    """Weak references to the memory of kept rows."""
    made: list[weakref.ref[Any]] = []
    real = host_rows.private_map

    def private_map(nbytes: int) -> Any:
        block = real(nbytes)
        made.append(weakref.ref(block))
        return block

    monkeypatch.setattr(host_rows, "private_map", private_map)
    return made


def alive(maps: list[weakref.ref[Any]]) -> int:
    return sum(each() is not None for each in maps)


@pytest.fixture
def no_collection():
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def test_kept_rows_are_right_and_freed_with_the_loader(
    replay, graph, maps, no_collection, monkeypatch
):
    copied: list[int] = []
    real = host_rows.HostRows._copy

    def copy(tier: Any, memory: Any, kept: Any, *rest: Any) -> None:
        copied.append(len(kept))
        real(tier, memory, kept, *rest)

    monkeypatch.setattr(host_rows.HostRows, "_copy", copy)
    loader = replay(device="simulated-cuda", device_memory="600KB")  # not all hot rows fit
    assert sum(each.kept for each in loader.plan().tables) > 0
    for _ in range(2 * EPOCHS):
        for batch in loader:
            check_rows(batch, graph)
    assert sum(copied) > 0
    assert alive(maps) == len(maps) > 0
    loader.close()
    assert alive(maps) == 0


def test_a_device_without_room_is_said_as_nobody_gave_its_memory(replay, monkeypatch):
    monkeypatch.setattr(SimulatedDriver, "memory_bytes", 1000)
    loader = replay(device="simulated-cuda", memory="50MB")
    with pytest.raises(ConfigError, match=r"^the part of the device's free .*, is too little to r"):
        loader.plan()


def test_a_buffer_that_grows_keeps_them_once(replay, maps, no_collection, monkeypatch):
    """The smaller one's are freed before those of the larger one are made."""
    monkeypatch.setattr("gnndrive.plan.request.WARM_UP_BATCHES", 1.0)
    monkeypatch.setattr(SimulatedDriver, "memory_bytes", 380_000)
    loader = replay(device="simulated-cuda", memory="10MB")
    before = loader.plan()
    kept = sum(each.kept > 0 for each in before.tables)
    assert kept
    assert len(list(loader)) == BATCHES
    grown = loader.plan()
    assert grown.slots > before.slots
    assert len(maps) == kept + sum(each.kept > 0 for each in grown.tables)
    assert alive(maps) == len(maps) - kept
