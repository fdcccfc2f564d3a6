"""A store as PyG's FeatureStore and GraphStore, and what one process publishes of it."""

import asyncio
import contextlib
import gc
import json
import os
import pickle
import random
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from torch_geometric.data import Data, EdgeAttr, TensorAttr
from torch_geometric.loader import LinkLoader, NodeLoader

import gnndrive
from gnndrive import ClosedError, NeighborSampler
from gnndrive.common.errors import ConfigError, GNNDriveError, StoreError
from gnndrive.common.records import TopologyChoice
from gnndrive.common.shared_memory import SharedMemory
from gnndrive.disk.sequential_reader import SequentialReader
from gnndrive.pyg import labels
from gnndrive.pyg.shared_store import PublishedStore, attach, publish
from gnndrive.pyg.stores import FeatureStore, GraphStore
from gnndrive.sampling.graph import Adjacency
from gnndrive.sampling.samplers.uniform import Uniform
from gnndrive.store import Store, mapped_arrays
from tests.common.test_shared_memory import open_files, received_fd
from tests.loader.hetero.graph import make_data
from tests.pyg.graphs import homogeneous


@pytest.fixture(scope="module")
def data() -> Data:
    return homogeneous()


@pytest.fixture(scope="module")
def small(data: Data, tmp_path_factory: pytest.TempPathFactory) -> Store:
    return gnndrive.from_data(data, tmp_path_factory.mktemp("stores") / "graph.gnn")


@pytest.fixture
def features(small: Store) -> Iterator[FeatureStore]:
    found = FeatureStore(small, io_depth=8)
    yield found
    found.close()


@pytest.mark.parametrize(
    "index",
    [torch.tensor([5, 0, 59, 5]), torch.arange(60) % 7 == 0, slice(3, 50, 9), torch.tensor([1, -1]),
     torch.tensor([], dtype=torch.int64), None],
)  # fmt: skip
def test_rows_by_any_index(features, data, index):
    expected = data.x if index is None else data.x[index]
    assert torch.equal(torch.as_tensor(features.get_tensor(None, "x", index)), expected)


def test_several_attributes_at_once(features, data):
    attrs = features.get_all_tensor_attrs()
    assert sorted(attr.attr_name for attr in attrs) == ["x", "y"]
    for attr in attrs:
        attr.index = torch.tensor([7, 3])
    attrs.append(TensorAttr(None, "y", None))
    for attr, found in zip(attrs, features.multi_get_tensor(attrs), strict=True):
        value = data[attr.attr_name]
        assert torch.equal(found, value if attr.index is None else value[attr.index])
    assert features.get_tensor_size(None, "x") == (60, 3)
    other = pickle.loads(pickle.dumps(features))
    assert torch.equal(other.get_tensor(None, "x", torch.tensor([4])), data.x[[4]])
    for _ in range(2):
        other.close()
        with pytest.raises(ClosedError):
            other.get_tensor(None, "x", torch.tensor([1]))


async def test_rows_are_awaited(features, data):
    indices = [torch.tensor([n, 59 - n]) for n in range(20)]
    attrs = [TensorAttr(None, "x", index) for index in indices]
    found = await asyncio.gather(*map(features.aget_tensor, attrs))
    for index, rows in zip(indices, found, strict=True):
        assert torch.equal(rows, data.x[index])
    both = await features.amulti_get_tensor([attrs[0], TensorAttr(None, "y", attrs[1].index)])
    assert torch.equal(both[1], data.y[indices[1]])


def test_the_adjacency_is_that_of_the_data(small, data):
    graph = pickle.loads(pickle.dumps(GraphStore(small)))
    (attr,) = graph.get_all_edge_attrs()
    assert attr.size == (60, 60)
    row, colptr = graph.get_edge_index(attr)
    col = torch.repeat_interleave(torch.arange(60), colptr.diff())
    ends = sorted(zip(row.tolist(), col.tolist(), strict=True))
    assert ends == sorted(map(tuple, data.edge_index.t().tolist()))


def test_what_is_not_there_or_read_only_is_an_error(features, small):
    with pytest.raises(KeyError, match="has no attribute 'z'"):
        features.get_tensor(None, "z", None)
    with pytest.raises(KeyError, match="of 'paper'"):
        features.get_tensor("paper", "x", None)
    with pytest.raises(ConfigError, match="row 0 … 60 of nodes/x, which has 60 rows"):
        features.get_tensor(None, "x", torch.tensor([0, 60]))
    edges = torch.zeros(2, 3, dtype=torch.int64)
    for change in (
        lambda: features.put_tensor(torch.zeros(60), None, "z", None),
        lambda: features.remove_tensor(None, "x", None),
        lambda: GraphStore(small).put_edge_index(tuple(edges), EdgeAttr(None, "coo")),
    ):
        with pytest.raises(ConfigError, match="read-only"):
            change()


@pytest.mark.parametrize("workers", [0, 2])
def test_pygs_own_loaders(features, small, data, workers):
    pair, sampler = (features, GraphStore(small)), NeighborSampler(small, [3, 2])
    features.get_tensor(None, "x", torch.tensor([1]))  # starts threads, which forked workers lack
    nodes = NodeLoader(
        pair, sampler, input_nodes=torch.arange(60), batch_size=20, num_workers=workers
    )
    for batch in nodes:
        assert torch.equal(batch.x, data.x[batch.n_id])
        assert torch.equal(batch.n_id[batch.edge_index], data.edge_index[:, batch.e_id])
    given = {"edge_label_index": (None, data.edge_index), "neg_sampling": "binary"}
    for batch in LinkLoader(pair, sampler, **given, batch_size=100):
        assert torch.equal(batch.y, data.y[batch.n_id])


# ---- what is published


RESIDENT, DIRECT = (TopologyChoice(kind, "", 0) for kind in ("resident", "direct"))


def make_store(path: Path, hetero: bool = False) -> Store:
    return gnndrive.from_data(make_data() if hetero else homogeneous(400, 3000), path)


@pytest.fixture(params=[False, True], ids=["one type", "several types"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    return make_store(tmp_path / "s.gnn", request.param)


@pytest.fixture
def published(store: Store) -> Iterator[PublishedStore]:
    with publish(gnndrive.open(store.path), RESIDENT) as made:
        yield made


def sent(published: PublishedStore) -> tuple[Any, list[int]]:
    """The description and the descriptors as they arrive."""
    return json.loads(json.dumps(published.description)), [*map(received_fd, published.fds)]


def read_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    refuse = Mock(side_effect=AssertionError("the store is read"))
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
        assert each.labels.dtype == kept[name].dtype
        assert np.array_equal(each.labels, kept[name])


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


def test_the_publisher_has_index_pointers_once(store):
    own = [weakref.ref(edges.index_pointers) for edges in store.all_edges()]
    with publish(store, DIRECT):
        gc.collect()
        assert [each() for each in own] == [None] * len(own)
        for edges in store.all_edges():
            assert np.array_equal(edges.index_pointers, edges.indptr)


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


ARRAY_DAMAGE: dict[str, Any] = {
    "count": [1 << 61, -1, lambda count: count + 1],
    "dtype": ["int64", "O", "nothing"],
    "bits": [True, lambda bits: bits + 1],
    "memory": [3, -1],
    "offset": [1 << 40, -64, 1],
    "name": ["nodes/x", None],
}
TOP_DAMAGE: list[Callable[[Any], Any]] = [
    lambda top: [top],
    lambda top: {**top, "store": "other"},
    lambda top: {**top, "memories": top["memories"][1:]},
    lambda top: {**top, "memories": [*top["memories"][1:], "1"]},
    lambda top: {**top, "memories": [*top["memories"][1:], 0]},
    lambda top: {**top, "arrays": {}},
    lambda top: {**top, "arrays": [*top["arrays"], 5]},
    lambda top: {**top, "arrays": [*top["arrays"], top["arrays"][0]]},
    lambda top: {**top, "arrays": top["arrays"][1:]},  # no index pointers
]


def test_a_damaged_message_is_an_error(store, published):
    rank, before = gnndrive.open(store.path), open_files()
    damaged = [damage(published.description) for damage in TOP_DAMAGE]
    for place, array in enumerate(published.description["arrays"]):
        for key, values in ARRAY_DAMAGE.items():
            for value in values:
                top = json.loads(json.dumps(published.description))
                top["arrays"][place][key] = value(array[key]) if callable(value) else value
                if top != published.description:
                    damaged.append(top)
    for description in damaged:
        with pytest.raises(StoreError, match="same version of gnndrive"):
            attach(rank, description, sent(published)[1])
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
