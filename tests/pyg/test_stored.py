"""All but plain neighbour sampling, of a store and of data in memory, compared with the graph."""

import asyncio
import copy
import pickle
import re
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import pytest
import torch
import torch_geometric.loader
from torch_geometric.data import Data, HeteroData
from torch_geometric.loader import NodeLoader
from torch_geometric.nn import SAGEConv, to_hetero
from torch_geometric.sampler import BaseSampler, NodeSamplerInput, SamplerOutput
from torch_geometric.testing import MyFeatureStore, MyGraphStore

import gnndrive
from gnndrive import (
    ConfigError,
    LinkNeighborLoader,
    NeighborLoader,
    NeighborSampler,
    Store,
    StoreError,
)
from tests.given import moved
from tests.loader.hetero.graph import HOSTS, make_data
from tests.pyg.graphs import homogeneous
from tests.soak import product

NODES, EDGES = 60, 400
OF_STORES = ("buffer", "io_depth", "seed")
Make = Callable[..., Any]


@pytest.fixture(scope="module")
def data() -> Data:
    data = homogeneous(NODES, EDGES)
    draw = torch.Generator().manual_seed(4)
    data.time = torch.randint(0, 20, (NODES,), generator=draw)
    data.edge_time = torch.randint(0, 20, (EDGES,), generator=draw)
    data.weight = (data.edge_attr % 3 > 0).float()
    return data


@pytest.fixture(scope="module")
def store(data: Data, tmp_path_factory: pytest.TempPathFactory) -> Store:
    return gnndrive.from_data(data, tmp_path_factory.mktemp("stored") / "graph.gnn")


@pytest.fixture
def make(store: Store, stack: ExitStack) -> Make:
    """Make loaders of the store, or of `of=`, and close them after the test."""

    def one(
        kind: type = NeighborLoader, fanout: Any = (3, 2), of: Any = store, **arguments: Any
    ) -> Any:
        given = {"batch_size": 10, "buffer": "20KB", "io_depth": 8, "seed": 1} | arguments
        if of is not store:
            given = {name: each for name, each in given.items() if name not in OF_STORES}
        return stack.enter_context(kind(of, list(fanout), **moved(given)))

    return one


@pytest.fixture(params=["store", "data"])
def each(request: pytest.FixtureRequest, make: Make) -> Make:
    """Make loaders of the store, and of the data in memory."""
    of = request.getfixturevalue(request.param)
    return lambda *given, **arguments: make(*given, of=of, **arguments)


def check(batch: Data, data: Data) -> None:
    """Check a batch of any kind of sampling."""
    assert torch.equal(batch.x, data.x[batch.n_id])
    assert torch.equal(batch.y, data.y[batch.n_id])
    assert torch.equal(batch.n_id[batch.edge_index], data.edge_index[:, batch.e_id])
    assert torch.equal(batch.edge_attr, data.edge_attr[batch.e_id])


# ---- nodes


def test_trees_are_disjoint(each, data):
    for batch in each(disjoint=True):
        check(batch, data)
        assert batch.batch[:10].tolist() == list(range(10))
        row, col = batch.edge_index
        assert torch.equal(batch.batch[row], batch.batch[col])


@product("time_attr,strategy", ["time", "edge_time"], ["uniform", "last"])
def test_no_neighbour_is_later_than_its_seed(each, data, time_attr, strategy):
    """With "last", the neighbours are the latest."""
    times = torch.arange(NODES) % 20
    loader = each(
        fanout=[2], time_attr=time_attr, input_time=times, temporal_strategy=strategy, batch_size=1
    )
    edges = 0
    for batch in loader:
        check(batch, data)
        assert torch.equal(batch.seed_time, times[batch.input_id])
        row, _ = batch.edge_index
        since = batch.time[row] if time_attr == "time" else batch.edge_time
        reach = (data.edge_index[1] == batch.input_id).nonzero().view(-1)
        all_since = (
            data.time[data.edge_index[0, reach]] if time_attr == "time" else data.edge_time[reach]
        )
        latest = all_since[all_since <= batch.seed_time].sort().values[-2:]
        assert len(since) == len(latest)
        assert (since <= batch.seed_time).all()
        assert strategy == "uniform" or torch.equal(since.sort().values, latest)
        edges += len(row)
    assert edges > 50


def test_without_input_time_seeds_use_their_own_times(each, data):
    for batch in each(time_attr="time", input_nodes=data.time < 10):
        row, col = batch.edge_index
        assert (batch.time[row] <= batch.time[: batch.batch_size][batch.batch[col]]).all()
        assert "seed_time" not in batch


def test_neighbours_are_drawn_by_weight(each, data):
    degree = torch.bincount(data.edge_index[1], minlength=NODES)
    for batch in each(fanout=[2], weight_attr="weight"):
        check(batch, data)
        full = degree[batch.n_id[batch.edge_index[1]]] > 2
        assert (batch.weight[full] == 1).all()


def test_induced_subgraphs_have_all_edges(each, data):
    for batch in each(subgraph_type="induced"):
        check(batch, data)
        kept = torch.isin(data.edge_index, batch.n_id).all(0)
        assert sorted(batch.e_id.tolist()) == kept.nonzero().view(-1).tolist()


def test_bidirectional_subgraphs_have_both_directions(each, data):
    for batch in each(subgraph_type="bidirectional"):
        pairs = set(map(tuple, batch.edge_index.t().tolist()))
        assert pairs == {(col, row) for row, col in pairs}
        assert torch.equal(batch.x, data.x[batch.n_id])


def test_a_transform_of_the_sampler_output(make, data):
    def without_edges(out: SamplerOutput) -> SamplerOutput:
        out.row, out.col, out.edge = out.row[:0], out.col[:0], out.edge[:0]
        return out

    def beyond(out: SamplerOutput) -> SamplerOutput:
        out.edge = out.edge + EDGES
        return out

    for batch in make(transform_sampler_output=without_edges):
        check(batch, data)
        assert batch.edge_index.shape == (2, 0)
    with pytest.raises(ConfigError, match="and there are 400"):
        next(iter(make(transform_sampler_output=beyond)))


class Whole(BaseSampler):
    """Samples all nodes, the seeds first, and all edges, numbered by its own permutation."""

    def __init__(self, data: Data) -> None:
        self._data = data

    @property
    def edge_permutation(self) -> Any:
        return torch.arange(EDGES).flip(0)

    def sample_from_nodes(self, index: NodeSamplerInput, **_: Any) -> SamplerOutput:
        rest = torch.arange(NODES)[~torch.isin(torch.arange(NODES), index.node)]
        node = torch.cat([index.node.flip(0), rest])
        row, col = torch.empty(NODES, dtype=torch.int64).scatter(0, node, torch.arange(NODES))[
            self._data.edge_index
        ]
        return SamplerOutput(
            node, row, col, self.edge_permutation, metadata=(index.input_id, index.time)
        )

    def sample_from_edges(self, index: Any, neg_sampling: Any = None) -> SamplerOutput:
        raise NotImplementedError


def test_a_users_sampler(make, data):
    for number, batch in enumerate(make(neighbor_sampler=Whole(data))):
        check(batch, data)
        assert batch.e_id.tolist() == list(range(EDGES))
        assert batch.n_id[:10].tolist() == list(range(10 * number, 10 * number + 10))[::-1]
        assert "num_sampled_nodes" not in batch


def test_a_state_of_other_times_labels_or_negatives_is_refused(make):
    state = make(time_attr="time").state_dict()
    with pytest.raises(ConfigError, match="drawing was"):
        make().load_state_dict(state)
    with pytest.raises(ConfigError, match="inputs was"):
        make(time_attr="time", input_time=torch.arange(NODES)).load_state_dict(state)
    labels = torch.ones(EDGES)
    negatives = {"mode": "binary", "src_weight": torch.ones(NODES)}
    given = {"edge_label": labels, "neg_sampling": negatives}
    state = make(LinkNeighborLoader, **given).state_dict()
    other_weights = {"mode": "binary", "src_weight": torch.ones(NODES) * 2}
    for other in ({"edge_label": labels * 2}, {"neg_sampling": other_weights}):
        with pytest.raises(ConfigError, match="other settings"):
            make(LinkNeighborLoader, **(given | other)).load_state_dict(state)


# ---- edges


def test_edges_are_seeds(each, data):
    """All once, or a user's."""
    seen = []
    for batch in each(LinkNeighborLoader, batch_size=30, shuffle=True):
        check(batch, data)
        seen += batch.input_id.tolist()
        ends = batch.n_id[batch.edge_label_index]
        assert torch.equal(ends, data.edge_index[:, batch.input_id])
    assert sorted(seen) == list(range(EDGES))
    edges = torch.tensor([[1, 2, 3], [4, 5, 6]])
    labels = torch.tensor([0, 1, 2])
    loader = each(LinkNeighborLoader, edge_label_index=edges, edge_label=labels, batch_size=2)
    first, second = loader
    assert first.n_id[first.edge_label_index].tolist() == [[1, 2], [4, 5]]
    assert (first.edge_label.tolist(), second.edge_label.tolist()) == ([0, 1], [2])
    assert second.input_id.tolist() == [2]


def test_binary_negatives(each, data):
    for batch in each(LinkNeighborLoader, batch_size=20, neg_sampling_ratio=1.5):
        check(batch, data)
        assert batch.edge_label.tolist() == [1] * 20 + [0] * 30
        positive = batch.n_id[batch.edge_label_index[:, :20]]
        assert torch.equal(positive, data.edge_index[:, batch.input_id])
    edges, labels = data.edge_index[:, :40], torch.arange(40) % 3
    given = {"edge_label_index": edges, "edge_label": labels, "neg_sampling": "binary"}
    (batch,) = each(LinkNeighborLoader, batch_size=40, **given)
    assert torch.equal(batch.edge_label[:40], labels + 1)
    assert not batch.edge_label[40:].any()


def test_triplets(each, data):
    weight = torch.zeros(NODES)
    weight[7:9] = 1
    negatives = {"mode": "triplet", "amount": 3, "dst_weight": weight}
    for batch in each(LinkNeighborLoader, batch_size=20, neg_sampling=negatives):
        assert torch.equal(batch.n_id[batch.src_index], data.edge_index[0, batch.input_id])
        assert torch.equal(batch.n_id[batch.dst_pos_index], data.edge_index[1, batch.input_id])
        assert batch.dst_neg_index.shape == (20, 3)
        assert set(batch.n_id[batch.dst_neg_index].view(-1).tolist()) <= {7, 8}


def test_edges_with_times(each, data):
    times = {"edge_label_time": data.edge_time, "time_attr": "edge_time"}
    for batch in each(LinkNeighborLoader, **times, batch_size=25, neg_sampling="binary"):
        assert torch.equal(batch.edge_label_time[:25], data.edge_time[batch.input_id])
        _, col = batch.edge_index
        assert (batch.edge_time <= batch.edge_label_time[batch.batch[col]]).all()


def test_a_batch_and_its_negatives_fit_into_a_buffer_that_the_plan_allows(make):
    given = {"fanout": [], "batch_size": 3, "neg_sampling_ratio": 0.5}
    plan = make(LinkNeighborLoader, **given, buffer="1KB").plan()
    assert plan.batch_rows_max == 2 * 3 + 2 * 2
    exact = make(LinkNeighborLoader, **given, buffer=plan.batch_rows_max * plan.tables[0].row_bytes)
    assert len(list(exact)) == -(-EDGES // 3)


# ---- the plan, and what is refused


def test_the_plan_counts_times_and_weights(make):
    plain, timed = (
        {line.what: line.nbytes for line in make(**given).plan().lines}
        for given in ({}, {"time_attr": "time", "weight_attr": "weight"})
    )
    assert timed["times, weights"] == 8 * (NODES + EDGES)
    assert "times, weights" not in plain
    assert timed["sampler scratch"] > plain["sampler scratch"]
    assert timed["live batches"] > plain["live batches"]


SPARSE = torch.ones(2, 30, dtype=torch.int64).to_sparse()
FLOATS = torch.zeros(EDGES)
REFUSED: list[tuple[type, dict[str, Any], str]] = [
    (NeighborLoader, {"time_attr": "since"}, "no such attribute, but edge_attr, edge_time, ti"),
    (NeighborLoader, {"weight_attr": "time"}, "weight_attr='time'.*no such attribute"),
    (NeighborLoader, {"input_time": torch.arange(NODES)}, "time_attr= is not"),
    (NeighborLoader, {"input_time": torch.zeros(3), "time_attr": "time"},
     r"torch\.float32 \[3\].*of the 60"),
    (NeighborLoader, {"time_attr": "time", "topology": "direct"}, "times of nodes"),
    (NeighborLoader, {"subgraph_type": "induced", "topology": "direct"}, "whole lists"),
    (NeighborLoader, {"temporal_strategy": "x"}, "temporal_strategy='x': give 'uniform' or 'last'"),
    (NeighborLoader, {"subgraph_type": "x"}, "subgraph_type='x': give one of 'directional', 'bid"),
    (NeighborLoader, {"subgraph_type": None}, "subgraph_type=None: give one of"),
    (NeighborLoader, {"transform": 3}, "transform=3 cannot be called"),
    (LinkNeighborLoader, {"transform_sampler_output": "x"}, "sampler_output='x' cannot be called"),
    (LinkNeighborLoader, {"neighbor_sampler": "x"}, "sampler='x' has no method sample_from_nodes"),
    (LinkNeighborLoader, {"edge_label_index": torch.zeros(3, 2)}, r"\[2, edges\]"),
    (LinkNeighborLoader, {"edge_label_index": [[0], [NODES]]}, "ids outside"),
    (LinkNeighborLoader, {"edge_label": torch.zeros(3)}, "3 entries for 400 edges"),
    (LinkNeighborLoader, {"edge_label_time": FLOATS}, "give both"),
    (LinkNeighborLoader, {"edge_label_time": FLOATS, "time_attr": "time"}, "give whole numbers"),
    (LinkNeighborLoader, {"neg_sampling": "triplet", "edge_label": FLOATS}, "triplets"),
    (LinkNeighborLoader, {"neg_sampling": {"mode": "x"}}, "neg_sampling=.*give 'binary', 'trip"),
    (LinkNeighborLoader, {"neg_sampling": 3}, "neg_sampling=.*give 'binary', 'triplet'"),
    (NeighborLoader, {"input_nodes": SPARSE}, r"input_nodes is sparse: .*nodes\.to_dense\(\)"),
    (NeighborLoader, {"input_time": SPARSE, "time_attr": "time"}, "input_time is sparse"),
    (LinkNeighborLoader, {"edge_label_index": SPARSE}, "edge_label_index is sparse"),
    (LinkNeighborLoader, {"edge_label": SPARSE}, "edge_label is sparse"),
    (LinkNeighborLoader, {"edge_label_time": SPARSE, "time_attr": "time"}, "label_time is sparse"),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "arguments", "match"), REFUSED)
def test_bad_arguments_are_refused(make, kind, arguments, match):
    with pytest.raises(ConfigError, match=match):
        make(kind, **arguments).plan()


# torch says so of what it has just made.
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_what_is_set_on_a_store_has_rows(store, data, tmp_path):
    opened = gnndrive.open(store.path)
    opened.z = torch.eye(NODES).to_sparse()
    batch = next(iter(NeighborLoader(opened, [2], batch_size=4, buffer="40KB")))
    assert torch.equal(batch.z.to_dense(), torch.eye(NODES)[batch.n_id])
    for value in (torch.eye(60).to_sparse_csr(), torch.nested.nested_tensor([torch.ones(1)] * 60)):
        with pytest.raises(ConfigError, match="z is sparse"):
            opened.z = value
    for x in (data.x.to_sparse(), data.x.to_sparse_csr()):
        with pytest.raises(ConfigError, match=r"data\.x is sparse.*to_dense\(\).*save_npz"):
            gnndrive.from_data(Data(x=x, edge_index=data.edge_index), tmp_path / "s")


def test_a_stores_sampler(store, data):
    with pytest.raises(TypeError, match="'typo'"):
        NeighborSampler(store, [2], typo=1)
    with pytest.raises(NotImplementedError, match="forward"):
        NeighborSampler(store, [2], sample_direction="backward")
    with pytest.raises(ConfigError, match="cannot be disjoint"):
        NeighborSampler(store, [2], subgraph_type="induced", disjoint=True)
    for of in (store, data):
        with pytest.raises(ConfigError, match="subgraph_type='x': give one of"):
            NeighborSampler(of, [2], subgraph_type="x")
    sampler = NeighborSampler(store, [3, 2], weight_attr="weight")
    out = sampler.sample_from_nodes(NodeSamplerInput(None, torch.tensor([4, 2])))
    edges = data.edge_index[:, sampler.edge_permutation[out.edge]]
    assert torch.equal(torch.stack([out.node[out.row], out.node[out.col]]), edges)


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = SAGEConv((-1, -1), 8), SAGEConv((-1, -1), 4)

    def forward(self, x: Any, edge_index: Any) -> Any:
        return self.conv2(self.conv1(x, edge_index).relu(), edge_index)


def test_loaders_are_instances_of_pygs():
    loader = NeighborLoader(homogeneous(), [3, 2], batch_size=20)
    assert isinstance(loader, torch_geometric.loader.NeighborLoader)
    assert (len(loader), loader.dataset) == (3, range(60))
    links = LinkNeighborLoader(homogeneous(), [3], batch_size=8)
    assert isinstance(links, torch_geometric.loader.LinkNeighborLoader)
    assert isinstance(loader.node_sampler, NeighborSampler)

    async def main() -> list[int]:
        return [len(batch.input_id) async for batch in loader]

    assert asyncio.run(main()) == [20, 20, 20]
    loader.close()
    assert loader.stats() == {}
    with pytest.raises(ConfigError, match="nothing to plan"):
        loader.plan()


def test_all_neighbours_of_several_types_give_what_the_whole_graph_gives():
    data = make_data()
    del data[HOSTS], data["venue"], data["topic"]  # no edge ends at these types
    data["author"].x = data["author"].x.float()
    model = to_hetero(Model(), data.metadata())
    whole = model(data.x_dict, data.edge_index_dict)["paper"]
    for batch in NeighborLoader(data, [-1, -1], input_nodes="paper", batch_size=7):
        size = batch["paper"].batch_size
        out = model(batch.x_dict, batch.edge_index_dict)["paper"][:size]
        torch.testing.assert_close(out, whole[batch["paper"].n_id[:size]])


def test_a_feature_store_and_a_graph_store():
    data, features, graph = make_data(), MyFeatureStore(), MyGraphStore()
    for name in ("paper", "author", "venue"):
        features.put_tensor(data[name].x, group_name=name, attr_name="x", index=None)
    for edge_type in data.edge_types:
        sizes = tuple(data[end].num_nodes for end in edge_type[::2])
        edge_index = tuple(data[edge_type].edge_index)
        graph.put_edge_index(edge_index, edge_type=edge_type, layout="coo", size=sizes)
    loader = NeighborLoader((features, graph), [3], input_nodes="paper", batch_size=10)
    for batch in loader:
        assert torch.equal(batch["author"].x, data["author"].x[batch["author"].n_id])
    with pytest.raises(NotImplementedError, match="weight_attr"):
        NeighborLoader((features, graph), [3], input_nodes="paper", weight_attr="w")


@pytest.mark.parametrize(
    ("given", "error", "words"),
    [
        ({"time_attr": "edge_attr"}, ValueError, "input_time"),
        ({"time_attr": "time"}, ConfigError, r"times are torch\.float32: give whole numbers"),
        ({"disjoint": True, "subgraph_type": "induced"}, ValueError, "induced"),
    ],
)
def test_what_cannot_be_sampled_is_refused(given, error, words):
    data = homogeneous()
    data.time = torch.rand(60)
    with pytest.raises(error, match=words):
        next(iter(NeighborLoader(data, [2], **given)))


def test_an_edge_to_no_node_is_refused_before_torch_writes_out_of_bounds():
    data, types = homogeneous(), make_data()
    edge_type = types.edge_types[0]
    for graph, edges, where in (
        (data, data, "data"), (types, types[edge_type], re.escape(f"data[{edge_type!r}]")),
    ):  # fmt: skip
        edges.edge_index = edges.edge_index.clone()
        edges.edge_index[1, 3] = -1
        match = rf"{where}\.edge_index: edge 3 names -1, .* from 0; correct the edge, or the number"
        with pytest.raises(StoreError, match=match):
            NeighborSampler(graph, [2])
        for wrong, match in ((edges.edge_index / 2, "holds torch.float32"), (torch.ones(3, 4), "")):
            edges.edge_index = wrong
            with pytest.raises(ConfigError, match=rf"{where}.* edge_index|{match}: give"):
                NeighborSampler(graph, [2])


def test_manual_seed_repeats_the_draws():
    loader = NeighborLoader(homogeneous(), [2, 2], batch_size=10)

    def drawn() -> list[list[int]]:
        torch.manual_seed(3)
        return [batch.e_id.tolist() for batch in loader]

    assert drawn() == drawn()
    assert drawn() != [batch.e_id.tolist() for batch in loader]


def test_worker_processes_and_copies():
    data = homogeneous()
    loader = NeighborLoader(data, [3], batch_size=10, num_workers=2)
    assert [len(batch.input_id) for batch in loader] == [10] * 6
    for other in (copy.copy(loader), pickle.loads(pickle.dumps(loader.node_sampler))):
        sampler = getattr(other, "node_sampler", other)
        for batch in NodeLoader(data, sampler, batch_size=30):
            assert torch.equal(batch.n_id[batch.edge_index], data.edge_index[:, batch.e_id])


def test_a_graph_without_edges():
    loader = NeighborLoader(Data(num_nodes=5), [2, 2], batch_size=2)
    assert [batch.n_id.tolist() for batch in loader] == [[0, 1], [2, 3], [4]]


def test_times_of_nodes_and_edges_under_one_name_are_refused(tmp_path):
    """Those of one would be left out silently."""
    data = HeteroData()
    data["user"].time, data["user"].num_nodes, data["item"].num_nodes = torch.arange(3), 3, 4
    data["user", "buys", "item"].edge_index = torch.zeros((2, 5), dtype=torch.int64)
    data["user", "buys", "item"].time = torch.arange(5)
    store = gnndrive.from_data(data, tmp_path / "both.gnn")
    with pytest.raises(ConfigError, match=r"nodes and edges of .* both have it"):
        NeighborLoader(store, [2], ("item", None), time_attr="time")
