"""`attrs=`, and attributes that a store got after it was packed and partitioned."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from torch_geometric.data import Data, HeteroData

import gnndrive
from gnndrive import ConfigError, NeighborLoader, Store
from tests.given import moved
from tests.loader.hetero.graph import make_data
from tests.store.packed.packs import make_graph
from tests.store.test_store_added import add

ARGUMENTS: dict[str, Any] = {"batch_size": 32, "num_neighbors": [4, 3], "seed": 7, "io_depth": 16}
STRATEGIES = ("gnndrive", "ginex", "diskgnn", "hierbatching", "marius")
OF_SAMPLING = {"n_id", "e_id", "edge_index", "num_sampled_nodes", "num_sampled_edges", "input_id",
               "batch_size"}  # fmt: skip


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> tuple[Store, dict[str, torch.Tensor]]:
    """A store that was packed and partitioned before it got h, and its attributes."""
    data = make_graph()
    store = gnndrive.from_data(data, tmp_path_factory.mktemp("attrs") / "graph.gnn")
    gnndrive.pack(store, **moved(ARGUMENTS), buffer="60KB")
    gnndrive.partition(store, 6, memory="128MB")
    h = torch.randn(store.num_nodes, 20)
    add(store, h)
    rows = {name: value for name, value in data if name != "edge_index"}
    return gnndrive.open(store.path), {**rows, "h": h}


def first_batch(store: Store, **more: Any) -> Data:
    with NeighborLoader(store, **moved({**ARGUMENTS, "memory": "200MB", **more})) as loader:
        loader.plan()
        found: Data = next(iter(loader))
        return found


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_what_was_added_since_comes_with_all_strategies(graph, strategy):
    store, values = graph
    batch = first_batch(store, strategy=strategy)
    assert set(batch.keys()) - OF_SAMPLING == values.keys()
    for name, value in values.items():
        rows = batch.n_id if len(value) == store.num_nodes else batch.e_id
        assert torch.equal(batch[name], value[rows]), name


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_batches_have_the_attributes_that_are_asked_for(graph, strategy):
    store, values = graph
    batch = first_batch(store, strategy=strategy, attrs=("x", "time"))
    assert set(batch.keys()) - OF_SAMPLING == {"x", "time"}
    assert torch.equal(batch.x, values["x"][batch.n_id])
    assert torch.equal(batch.time, values["time"][batch.n_id])


def test_a_pack_gives_the_rows_of_one_of_its_tables(graph):
    store, values = graph
    for attrs in (["edge_attr"], ["h"], []):
        batch = first_batch(store, strategy="diskgnn", attrs=attrs)
        assert set(batch.keys()) - OF_SAMPLING - {"num_nodes"} == set(attrs)
        for name in attrs:
            rows = batch.e_id if name == "edge_attr" else batch.n_id
            assert torch.equal(batch[name], values[name][rows])


def test_the_rows_of_attributes_that_are_left_out_are_not_read_or_planned(graph):
    store, _ = graph
    with NeighborLoader(
        store, **moved(ARGUMENTS), memory="200MB", attrs=["y"], weight_attr="weight"
    ) as loader:
        assert loader.plan().tables == ()
        for _ in loader:
            pass
        assert loader.stats()["bytes_read"] == 0
    with pytest.raises(ConfigError, match="delivers no x of the store"):
        first_batch(store, strategy="marius", attrs=["y"])


def test_a_pack_of_other_rows_of_an_attribute_serves_loaders_without_it(graph, tmp_path):
    store = gnndrive.from_data(make_graph(), tmp_path / "graph.gnn")
    add(store, torch.zeros(store.num_nodes, 20))
    store = gnndrive.open(store.path)
    gnndrive.pack(store, **moved(ARGUMENTS), buffer="60KB")
    add(store, torch.ones(store.num_nodes, 20), run="f" * 16)
    store = gnndrive.open(store.path)
    assert "h" not in first_batch(store, strategy="diskgnn", attrs=["x"])
    shutil.rmtree(store.path / "derived")
    without = first_batch(gnndrive.open(store.path), strategy="diskgnn")
    assert torch.equal(without.x, make_graph().x[without.n_id])
    add(store, torch.ones(store.num_nodes, 20), run="f" * 16)
    with pytest.raises(gnndrive.StoreError, match=r"nodes/h of .* has changed since .* was packed"):
        first_batch(store, strategy="diskgnn")


def test_types_and_values_of_the_whole_graph(tmp_path: Path) -> None:
    data: HeteroData = make_data()
    data.name = "g"
    store = gnndrive.from_data(data, tmp_path / "graph.gnn")
    store["author"].mark = torch.arange(store["author"].num_nodes)
    seeds = ("paper", torch.arange(9))
    with NeighborLoader(store, [3, 2], seeds, attrs=["x", "mark"], batch_size=9) as loader:
        batch = next(iter(loader))
        store["author"].mark = -store["author"].mark  # a later epoch has what the store has then
        later = next(iter(loader))
    left = {name for storage in batch.stores for name in storage.keys()}  # noqa: SIM118
    assert left - OF_SAMPLING - {"num_nodes"} == {"x", "mark"}
    assert torch.equal(batch["author"].mark, batch["author"].n_id)
    assert torch.equal(batch["paper"].x, data["paper"].x[batch["paper"].n_id])
    assert torch.equal(later["author"].mark, -later["author"].n_id)


def test_integers_keep_their_scale(tmp_path):
    data = make_graph()
    data.x = torch.randint(-9, 9, (300, 64), dtype=torch.int8)
    data.x_scale = torch.rand(300)
    store = gnndrive.from_data(data, tmp_path / "graph.gnn")
    batch = first_batch(store, attrs=["x"], feature_dtype="float32")
    expected = data.x[batch.n_id].float() * data.x_scale[batch.n_id, None]
    assert torch.equal(batch.x, expected)


@pytest.mark.parametrize(
    ("attrs", "said"),
    [("x", r"give a list of attributes' names"), ([3], "give a list"), (7, "give a list"),
     (iter("xy"), "give a list"), (["x", "q"], r"has no 'q'; it has: edge_attr, .*weight, x")],
)  # fmt: skip
def test_what_is_no_list_of_its_attributes_is_refused(graph, attrs, said):
    with pytest.raises(ConfigError, match=said):
        first_batch(graph[0], attrs=attrs)


def test_an_attribute_that_is_deleted_while_a_loader_asks_for_it_is_named(graph):
    store = gnndrive.open(graph[0].path)
    with NeighborLoader(store, **moved(ARGUMENTS), attrs=["x", "y"]) as loader:
        next(iter(loader))
        del store.y
        said = r"attrs=\['x', 'y'\]: .* has no 'y', which was deleted since it was opened; it has:"
        with pytest.raises(ConfigError, match=said):
            next(iter(loader))
