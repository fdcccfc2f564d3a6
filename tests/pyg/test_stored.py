"""All but plain neighbour sampling of a store, compared with the graph in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
import torch
from torch_geometric.data import Data
from torch_geometric.sampler import BaseSampler, NodeSamplerInput, SamplerOutput

import gnndrive
from gnndrive import ConfigError, LinkNeighborLoader, NeighborLoader, NeighborSampler, Store
from tests.pyg.graphs import homogeneous

NODES, EDGES = 60, 400
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
def make(store: Store) -> Iterator[Make]:
    """Make loaders, and close them after the test."""
    with ExitStack() as opened:

        def one(kind: type = NeighborLoader, fanout: Any = (3, 2), **arguments: Any) -> Any:
            given = {"batch_size": 10, "buffer": "20KB", "io_depth": 8, "seed": 1} | arguments
            return opened.enter_context(kind(store, list(fanout), **given))

        yield one


def check(batch: Data, data: Data) -> None:
    """Check a batch of any kind of sampling."""
    assert torch.equal(batch.x, data.x[batch.n_id])
    assert torch.equal(batch.y, data.y[batch.n_id])
    assert torch.equal(batch.n_id[batch.edge_index], data.edge_index[:, batch.e_id])
    assert torch.equal(batch.edge_attr, data.edge_attr[batch.e_id])


# ---- nodes


def test_trees_are_disjoint(make, data):
    for batch in make(disjoint=True):
        check(batch, data)
        assert batch.batch[:10].tolist() == list(range(10))
        row, col = batch.edge_index
        assert torch.equal(batch.batch[row], batch.batch[col])


@pytest.mark.parametrize("time_attr", ["time", "edge_time"])
@pytest.mark.parametrize("strategy", ["uniform", "last"])
def test_no_neighbour_is_later_than_its_seed(make, data, time_attr, strategy):
    times = torch.arange(NODES) % 20
    loader = make(time_attr=time_attr, input_time=times, temporal_strategy=strategy)
    edges = 0
    for batch in loader:
        check(batch, data)
        assert torch.equal(batch.seed_time, times[batch.input_id])
        row, col = batch.edge_index
        since = batch.time[row] if time_attr == "time" else batch.edge_time
        assert (since <= batch.seed_time[batch.batch[col]]).all()
        edges += len(row)
    assert edges > 100


def test_without_input_time_seeds_use_their_own_times(make, data):
    for batch in make(time_attr="time", input_nodes=data.time < 10):
        row, col = batch.edge_index
        assert (batch.time[row] <= batch.time[: batch.batch_size][batch.batch[col]]).all()
        assert "seed_time" not in batch


def test_neighbours_are_drawn_by_weight(make, data):
    degree = torch.bincount(data.edge_index[1], minlength=NODES)
    for batch in make(fanout=[2], weight_attr="weight"):
        check(batch, data)
        full = degree[batch.n_id[batch.edge_index[1]]] > 2
        assert (batch.weight[full] == 1).all()


def test_induced_subgraphs_have_all_edges(make, data):
    for batch in make(subgraph_type="induced"):
        check(batch, data)
        kept = torch.isin(data.edge_index, batch.n_id).all(0)
        assert sorted(batch.e_id.tolist()) == kept.nonzero().view(-1).tolist()
        assert "num_sampled_nodes" not in batch


def test_bidirectional_subgraphs_have_both_directions(make, data):
    for batch in make(subgraph_type="bidirectional"):
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

    def __init__(self, data: Data, permuted: bool) -> None:
        self._data, self._order = data, torch.arange(EDGES).flip(0) if permuted else None

    @property
    def edge_permutation(self) -> Any:
        return self._order

    def sample_from_nodes(self, index: NodeSamplerInput, **_: Any) -> SamplerOutput:
        rest = torch.arange(NODES)[~torch.isin(torch.arange(NODES), index.node)]
        node = torch.cat([index.node.flip(0), rest])
        row, col = torch.empty(NODES, dtype=torch.int64).scatter(0, node, torch.arange(NODES))[
            self._data.edge_index
        ]
        edge = torch.arange(EDGES) if self._order is None else torch.arange(EDGES).flip(0)
        return SamplerOutput(node, row, col, edge, metadata=(index.input_id, index.time))

    def sample_from_edges(self, index: Any, neg_sampling: Any = None) -> SamplerOutput:
        raise NotImplementedError


@pytest.mark.parametrize("permuted", [False, True])
def test_a_users_sampler(make, data, permuted):
    for number, batch in enumerate(make(neighbor_sampler=Whole(data, permuted))):
        check(batch, data)
        assert batch.e_id.tolist() == list(range(EDGES))
        assert batch.n_id[:10].tolist() == list(range(10 * number, 10 * number + 10))[::-1]
        assert "num_sampled_nodes" not in batch


@pytest.mark.parametrize(
    "arguments",
    [{"disjoint": True, "topology": "direct"}, {"weight_attr": "weight", "topology": "direct"},
     {"time_attr": "time"}, {"subgraph_type": "induced"}],
)  # fmt: skip
def test_a_batch_depends_on_seed_epoch_and_index_alone(make, arguments):
    """Not on threads, the engine, or the topology."""
    mapped = arguments | {"topology": "mmap"}
    one, other = make(samplers=1, **arguments), make(engine="threads", shuffle=False, **mapped)
    for left, right in zip(one, other, strict=True):
        for name in ("n_id", "e_id", "edge_index"):
            assert torch.equal(left[name], right[name])


def test_a_state_of_other_times_labels_or_negatives_is_refused(make):
    state = make(time_attr="time").state_dict()
    with pytest.raises(ConfigError, match="drawing was"):
        make().load_state_dict(state)
    with pytest.raises(ConfigError, match="inputs was"):
        make(time_attr="time", input_time=torch.arange(NODES)).load_state_dict(state)
    weight = torch.ones(NODES)
    negatives = {"mode": "binary", "src_weight": weight}
    labels = torch.ones(EDGES)
    state = make(LinkNeighborLoader, edge_label=labels, neg_sampling=negatives).state_dict()
    for other in (
        {"edge_label": labels * 2, "neg_sampling": negatives},
        {"edge_label": labels, "neg_sampling": {"mode": "binary", "src_weight": weight * 2}},
    ):
        with pytest.raises(ConfigError, match="other settings"):
            make(LinkNeighborLoader, **other).load_state_dict(state)


# ---- edges


def test_edges_are_seeds(make, data):
    """All once, or a user's."""
    seen = []
    for batch in make(LinkNeighborLoader, batch_size=30, shuffle=True):
        check(batch, data)
        seen += batch.input_id.tolist()
        ends = batch.n_id[batch.edge_label_index]
        assert torch.equal(ends, data.edge_index[:, batch.input_id])
    assert sorted(seen) == list(range(EDGES))
    edges = torch.tensor([[1, 2, 3], [4, 5, 6]])
    labels = torch.tensor([0, 1, 2])
    loader = make(LinkNeighborLoader, edge_label_index=edges, edge_label=labels, batch_size=2)
    first, second = loader
    assert first.n_id[first.edge_label_index].tolist() == [[1, 2], [4, 5]]
    assert (first.edge_label.tolist(), second.edge_label.tolist()) == ([0, 1], [2])
    assert second.input_id.tolist() == [2]


def test_binary_negatives(make, data):
    for batch in make(LinkNeighborLoader, batch_size=20, neg_sampling_ratio=1.5):
        check(batch, data)
        assert batch.edge_label.tolist() == [1] * 20 + [0] * 30
        positive = batch.n_id[batch.edge_label_index[:, :20]]
        assert torch.equal(positive, data.edge_index[:, batch.input_id])
    edges, labels = data.edge_index[:, :40], torch.arange(40) % 3
    (batch,) = make(
        LinkNeighborLoader, edge_label_index=edges, edge_label=labels, batch_size=40,
        neg_sampling="binary",
    )  # fmt: skip
    assert torch.equal(batch.edge_label[:40], labels + 1)
    assert not batch.edge_label[40:].any()


def test_triplets(make, data):
    weight = torch.zeros(NODES)
    weight[7:9] = 1
    negatives = {"mode": "triplet", "amount": 3, "dst_weight": weight}
    for batch in make(LinkNeighborLoader, batch_size=20, neg_sampling=negatives):
        assert torch.equal(batch.n_id[batch.src_index], data.edge_index[0, batch.input_id])
        assert torch.equal(batch.n_id[batch.dst_pos_index], data.edge_index[1, batch.input_id])
        assert batch.dst_neg_index.shape == (20, 3)
        assert set(batch.n_id[batch.dst_neg_index].view(-1).tolist()) <= {7, 8}


def test_edges_with_times(make, data):
    loader = make(
        LinkNeighborLoader, edge_label_time=data.edge_time, time_attr="edge_time", batch_size=25,
        neg_sampling="binary",
    )  # fmt: skip
    for batch in loader:
        assert torch.equal(batch.edge_label_time[:25], data.edge_time[batch.input_id])
        _, col = batch.edge_index
        assert (batch.edge_time <= batch.edge_label_time[batch.batch[col]]).all()


def test_a_batch_and_its_negatives_fit_into_a_buffer_that_the_plan_allows(make):
    loader = make(LinkNeighborLoader, fanout=[], batch_size=3, neg_sampling_ratio=0.5, buffer="1KB")
    rows = loader.plan().batch_rows_max
    assert rows == 2 * 3 + 2 * 2
    exact = make(
        LinkNeighborLoader, fanout=[], batch_size=3, neg_sampling_ratio=0.5,
        buffer=rows * loader.plan().tables[0].row_bytes,
    )  # fmt: skip
    assert len(list(exact)) == -(-EDGES // 3)


def test_negatives_depend_on_the_seed_alone(make):
    def drawn(**arguments: Any) -> list[list[int]]:
        loader = make(LinkNeighborLoader, batch_size=50, neg_sampling="binary", **arguments)
        return [batch.n_id[batch.edge_label_index[:, 50:]].tolist() for batch in loader]

    assert drawn() == drawn(samplers=1)
    assert drawn() != drawn(seed=2)


# ---- the plan, and what is refused


def test_the_plan_counts_times_and_weights(make):
    plain, timed = make().plan(), make(time_attr="time", weight_attr="weight").plan()
    lines = {line.what: line.nbytes for line in timed.lines}
    assert lines["times, weights"] == 8 * (NODES + EDGES)
    assert "times, weights" not in {line.what for line in plain.lines}
    assert lines["sampler scratch"] > {x.what: x.nbytes for x in plain.lines}["sampler scratch"]
    assert lines["live batches"] > {x.what: x.nbytes for x in plain.lines}["live batches"]


@pytest.mark.parametrize(
    ("kind", "arguments", "match"),
    [
        (NeighborLoader, {"time_attr": "since"}, "no such attribute, but edge_attr, edge_time, ti"),
        (NeighborLoader, {"weight_attr": "time"}, "weight_attr='time'.*no such attribute"),
        (NeighborLoader, {"input_time": torch.arange(NODES)}, "time_attr= is not"),
        (NeighborLoader, {"input_time": torch.zeros(3), "time_attr": "time"},
         r"torch\.float32 \[3\].*of the 60"),
        (NeighborLoader, {"time_attr": "time", "topology": "direct"}, "times of nodes"),
        (NeighborLoader, {"subgraph_type": "induced", "topology": "direct"}, "whole lists"),
        (LinkNeighborLoader, {"edge_label_index": torch.zeros(3, 2)}, r"\[2, edges\]"),
        (LinkNeighborLoader, {"edge_label_index": [[0], [NODES]]}, "ids outside"),
        (LinkNeighborLoader, {"edge_label": torch.zeros(3)}, "3 entries for 400 edges"),
        (LinkNeighborLoader, {"edge_label_time": torch.zeros(EDGES)}, "give both"),
        (LinkNeighborLoader, {"edge_label_time": torch.zeros(EDGES), "time_attr": "time"},
         "give whole numbers"),
        (LinkNeighborLoader, {"neg_sampling": "triplet", "edge_label": torch.zeros(EDGES)},
         "triplets"),
    ],
)  # fmt: skip
def test_bad_arguments_are_refused(make, kind, arguments, match):
    with pytest.raises(ConfigError, match=match):
        make(kind, **arguments).plan()


def test_a_stores_sampler(store, data):
    with pytest.raises(TypeError, match="'typo'"):
        NeighborSampler(store, [2], typo=1)
    with pytest.raises(NotImplementedError, match="forward"):
        NeighborSampler(store, [2], sample_direction="backward")
    with pytest.raises(ConfigError, match="cannot be disjoint"):
        NeighborSampler(store, [2], subgraph_type="induced", disjoint=True)
    sampler = NeighborSampler(store, [3, 2], weight_attr="weight")
    out = sampler.sample_from_nodes(NodeSamplerInput(None, torch.tensor([4, 2])))
    edges = data.edge_index[:, sampler.edge_permutation[out.edge]]
    assert torch.equal(torch.stack([out.node[out.row], out.node[out.col]]), edges)
