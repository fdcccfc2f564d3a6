"""What one process publishes of a store, and others attach: the same values, nothing read."""

from __future__ import annotations

import contextlib
import gc
import json
import os
import random
import socket
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch_geometric.data import Data

import gnndrive
from gnndrive.common import plugins
from gnndrive.common.errors import ConfigError, GNNDriveError, StoreError
from gnndrive.common.records import TopologyChoice
from gnndrive.common.shared_memory import SharedMemory
from gnndrive.disk.sequential_reader import SequentialReader
from gnndrive.pyg import labels
from gnndrive.pyg.collate import Collate
from gnndrive.pyg.shared_store import PublishedStore, attach, publish
from gnndrive.sampling.graph import Adjacency
from gnndrive.sampling.samplers.uniform import Uniform
from gnndrive.store import Store, mapped_arrays
from tests.loader.hetero.graph import make_data

RESIDENT, DIRECT = (TopologyChoice(kind, "", 0) for kind in ("resident", "direct"))
NODES = 400


def make_store(path: Path, hetero: bool = False) -> Store:
    if hetero:
        return gnndrive.from_data(make_data(), path)
    draw = torch.Generator().manual_seed(1)
    data = Data(
        x=torch.randn(NODES, 4, generator=draw),
        y=torch.randint(0, 7, (NODES,), generator=draw),
        edge_index=torch.randint(0, NODES, (2, 3000), generator=draw),
    )
    return gnndrive.from_data(data, path)


@pytest.fixture(params=[False, True], ids=["one type", "several types"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    return make_store(tmp_path / "s.gnn", request.param)


@pytest.fixture
def published(store: Store) -> Iterator[PublishedStore]:
    with publish(gnndrive.open(store.path), RESIDENT) as made:
        yield made


def sent(published: PublishedStore) -> tuple[Any, list[int]]:
    """The description and the descriptors as they arrive."""
    one, other = socket.socketpair()
    with one, other:
        socket.send_fds(one, [json.dumps(published.description).encode()], published.fds)
        message, fds, _, _ = socket.recv_fds(other, 1 << 20, 253)
    return json.loads(message), fds


def open_files() -> int:
    """The number of open files that something still uses; a memory that is mapped may be one."""
    gc.collect()
    return len(os.listdir("/proc/self/fd"))


def read_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise AssertionError("the store is read")

    monkeypatch.setattr(mapped_arrays, "load_checked", refuse)
    monkeypatch.setattr(SequentialReader, "stretch", refuse)


def samples(store: Store, adjacency: Adjacency) -> list[np.ndarray]:
    """The nodes sampled around some seeds of each edge type."""
    found = []
    for edges, topology in zip(store.all_edges(), adjacency.topologies, strict=True):
        if edges.source.type == edges.target.type:
            seeds = np.arange(0, edges.target.num_nodes, 5)
            found.append(Uniform([4, 3]).sample_nodes(seeds, 2, topology).node)
    assert found
    return found


def test_another_process_has_the_same_and_reads_nothing(store, published, monkeypatch):
    assert len(published.fds) == 3  # a message carries 253, a store may have hundreds of types
    assert published.nbytes == sum(published.description["memories"])
    own = Adjacency(store.all_edges(), RESIDENT, 0)
    wanted = samples(store, own)
    pointers = [edges.index_pointers for edges in store.all_edges()]
    kept = {each.name_of("y"): labels.read_labels(each) for each in store.all_nodes()}
    rank = gnndrive.open(store.path)
    read_nothing(monkeypatch)
    attached = attach(rank, *sent(published))
    theirs = Adjacency(rank.all_edges(), RESIDENT, 0, attached.indices)
    assert all(map(np.array_equal, samples(rank, theirs), wanted))
    for edges, mine in zip(rank.all_edges(), pointers, strict=True):
        assert np.array_equal(edges.index_pointers, mine)
        assert edges.index_pointers.dtype == mine.dtype
        assert not edges.index_pointers.flags.writeable
    assert set(attached.labels) == {name for name, each in kept.items() if each is not None}
    for name, each in attached.labels.items():
        assert each.labels is not None
        assert each.labels.dtype == kept[name].dtype  # type: ignore[union-attr]
        assert np.array_equal(each.labels, kept[name])  # type: ignore[arg-type]


def test_descriptors_are_closed_and_memory_is_freed(store, published):
    def shared_maps() -> int:
        return Path("/proc/self/maps").read_text().count("memfd:gnndrive-store")

    gc.collect()  # of other tests in this process
    files, maps = open_files(), shared_maps()
    message = sent(published)
    rank = gnndrive.open(store.path)
    attached = attach(rank, *message)
    adjacency = Adjacency(rank.all_edges(), RESIDENT, 0, attached.indices)
    assert shared_maps() == maps + 3
    del attached
    adjacency.close()
    gc.collect()
    assert shared_maps() == maps + 1  # the index pointers, which the store uses
    del adjacency, rank
    assert (open_files(), shared_maps()) == (files, maps)
    published.close()
    published.close()
    gc.collect()
    assert shared_maps() == maps - len(message[1])  # the publisher's own maps are gone, too


@pytest.mark.parametrize("kind", plugins.names("topologies"))
def test_only_a_topology_that_keeps_all_indices_shares_them(store, kind):
    with publish(gnndrive.open(store.path), TopologyChoice(kind, "", 0, 10_000)) as published:
        attached = attach(gnndrive.open(store.path), *sent(published))
    shares = plugins.find("topologies", kind).shares_indices
    assert len(attached.indices) == (len(store.all_edges()) if shares else 0)
    assert attached.labels


def test_the_publisher_has_index_pointers_once(store):
    own = [weakref.ref(edges.index_pointers) for edges in store.all_edges()]
    with publish(store, DIRECT):
        gc.collect()
        assert [each() for each in own] == [None] * len(own)
        for edges in store.all_edges():
            assert np.array_equal(edges.index_pointers, edges.indptr)


def test_labels_that_are_not_kept_are_not_read_again(tmp_path, monkeypatch):
    store = make_store(tmp_path / "s.gnn")
    with open(store.table("y").path, "r+b") as file:
        os.pwrite(file.fileno(), np.int64(1000).tobytes(), 4096)
    with publish(store, DIRECT) as published:
        attached = attach(store, *sent(published))
    assert attached.labels == {"nodes/y": labels.SharedLabels(None)}
    read_nothing(monkeypatch)
    mine = labels.Labels(store.nodes())
    mine.use(attached.labels["nodes/y"])
    assert mine.pick(np.array([0]), np.empty) is None


def test_a_rank_with_labels_of_its_own_ignores_the_shared_ones(store, published):
    rank = gnndrive.open(store.path)
    nodes = rank["paper"] if rank.is_hetero else rank
    nodes.y = torch.ones(nodes.num_nodes)
    attached = attach(rank, *sent(published))
    assert len(attached.labels) == rank.is_hetero  # of the authors
    Collate(rank, (), None, False).use_labels(attached.labels)


def test_too_little_memory_says_what_to_do(store, monkeypatch):
    monkeypatch.setattr("gnndrive.common.shared_memory.available_memory", lambda: 10)
    before = open_files()
    with pytest.raises(ConfigError, match=r"does not fit into memory that processes share.*direct"):
        publish(store, RESIDENT)
    assert open_files() == before


def test_a_store_that_cannot_be_read_leaves_nothing(store):
    nodes, before = store["paper"] if store.is_hetero else store.nodes(), open_files()
    publisher = gnndrive.open(store.path)
    os.truncate(nodes.table("y").path, 4096 + 8)
    with pytest.raises(StoreError, match="became shorter"):
        publish(publisher, RESIDENT)
    del publisher  # which uses the shared index pointers
    assert open_files() == before


# ---- damaged messages


def change(key: str, value: Any) -> Callable[[Any], None]:
    """Change an array of a message."""

    def apply(array: Any) -> None:
        array[key] = value(array[key]) if callable(value) else value

    return apply


ARRAY_DAMAGE: dict[str, Callable[[Any], None]] = {
    "more values": change("count", lambda count: count + 1),
    "values without end": change("count", 1 << 61),
    "negative": change("count", -1),
    "a wider dtype": change("dtype", "int64"),
    "a dtype of objects": change("dtype", "O"),
    "no dtype": change("dtype", "nothing"),
    "another width of packed indices": change("bits", lambda bits: bits + 1),
    "a truth value": change("bits", True),
    "no such memory": change("memory", 3),
    "a memory before the first": change("memory", -1),
    "outside of the memory": change("offset", 1 << 40),
    "before the memory": change("offset", -64),
    "not aligned": change("offset", 1),
    "another name": change("name", "nodes/x"),
    "no name": lambda array: array.pop("name"),
}
TOP_DAMAGE: dict[str, Callable[[Any], Any]] = {
    "no object": lambda top: [top],
    "another store": lambda top: {**top, "store": "other"},
    "one memory less": lambda top: {**top, "memories": top["memories"][1:]},
    "a memory of no size": lambda top: {**top, "memories": [*top["memories"][1:], "1"]},
    "an empty memory": lambda top: {**top, "memories": [*top["memories"][1:], 0]},
    "arrays that are none": lambda top: {**top, "arrays": {}},
    "an array that is none": lambda top: {**top, "arrays": [*top["arrays"], 5]},
    "an array twice": lambda top: {**top, "arrays": [*top["arrays"], top["arrays"][0]]},
    "no index pointers": lambda top: {**top, "arrays": top["arrays"][1:]},
}


def test_a_damaged_message_is_an_error(store, published):
    rank, before = gnndrive.open(store.path), open_files()
    for name, damage in (ARRAY_DAMAGE | TOP_DAMAGE).items():
        for place in range(len(published.description["arrays"]) if name in ARRAY_DAMAGE else 1):
            description, fds = sent(published)
            if name in ARRAY_DAMAGE:
                damage(description["arrays"][place])
            else:
                description = damage(description)
            if description == published.description:
                continue
            with pytest.raises(StoreError, match="same version of gnndrive"):
                attach(rank, description, fds)
    assert open_files() == before


def test_memories_that_are_not_as_described_are_an_error(store, published):
    """One is smaller, or has the index pointers of another graph."""
    rank, before = gnndrive.open(store.path), open_files()
    for place in range(3):
        description, fds = sent(published)
        os.close(fds[place])
        small = SharedMemory.create(description["memories"][place] - 1, "small")
        fds[place] = os.dup(small.fd)
        small.close()
        with pytest.raises(ConfigError, match=r"instead of.*same version of gnndrive"):
            attach(rank, description, fds)
    assert open_files() == before
    published._arrays.memories[0].array[:] = 0
    with pytest.raises(ConfigError, match="index pointers"):
        attach(rank, *sent(published))


VALUES = [0, 1, -1, 7, 64, 1 << 31, 1 << 63, 1 << 70, 1.5, True, None, "", "uint8", [], {}]


def test_random_damage_is_an_error_or_harmless(tmp_path, seeds):
    """Whatever is attached can be sampled from, or says what is wrong."""
    store = make_store(tmp_path / "s.gnn")
    with publish(store, RESIDENT) as published:
        for seed in seeds(40):
            draw = random.Random(seed)
            top, fds = sent(published)
            places = [top, top["memories"], *top["arrays"]]
            for place in draw.sample(places, draw.randint(1, 2)):
                key = draw.choice(list(place) if isinstance(place, dict) else range(len(place)))
                place[key] = draw.choice(VALUES)
            rank = gnndrive.open(store.path)
            with contextlib.suppress(GNNDriveError):
                attached = attach(rank, top, fds)
                adjacency = Adjacency(rank.all_edges(), RESIDENT, 0, attached.indices)
                samples(rank, adjacency)
