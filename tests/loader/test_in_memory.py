"""Over data in memory batches are those of PyG's classes with gnndrive's sampler, to the last bit,
also where gnndrive joins or groups them itself."""

import copy

import pytest
import torch
from torch_geometric.data import Data, HeteroData
from torch_geometric.loader import LinkLoader, NodeLoader
from torch_geometric.sampler import NegativeSampling

from gnndrive import ConfigError, LinkNeighborLoader, NeighborLoader
from gnndrive.loader.in_memory import GroupedIterator
from tests.loader.batches import assert_same

NODES, EDGES = 3000, 12_000
GENERATOR = torch.Generator().manual_seed(3)
FEATURES = torch.rand(NODES, 200, generator=GENERATOR)  # large, so that it is in the pool's memory


def ends(sources: int, targets: int) -> torch.Tensor:
    both = [torch.randint(count, (EDGES,), generator=GENERATOR) for count in (sources, targets)]
    return torch.stack(both)


GRAPH = Data(
    x=FEATURES, half=FEATURES.to(torch.bfloat16), y=torch.arange(NODES),
    none=torch.empty(NODES, 0), time=torch.arange(NODES),
    edge_index=ends(NODES, NODES), edge_attr=torch.rand(EDGES, 2), weight=torch.rand(EDGES),
    name="graph", mean=torch.rand(1, 5), num_nodes=NODES, seed_time=torch.ones(3),
)  # fmt: skip
TYPES = HeteroData(
    {"a": {"x": FEATURES, "n_id": torch.arange(NODES) + 7},
     "b": {"y": torch.arange(50), "num_nodes": 50}, "c": {"num_nodes": 9}, "name": "graph"}
)  # fmt: skip
TYPES["a", "to", "a"].edge_index, TYPES["b", "to", "a"].edge_index = ends(NODES, NODES), ends(50, 9)
TYPES["a", "to", "a"].edge_attr, TYPES["a", "of", "c"].edge_index = torch.rand(EDGES), ends(50, 9)
LABELS = {"edge_label_index": GRAPH.edge_index[:, ::9], "edge_label": torch.arange(EDGES)[::9]}


def by_pyg(loader: NeighborLoader | LinkNeighborLoader, **arguments) -> list:
    """The batches of PyG's class with the loader's sampler."""
    torch.manual_seed(5)
    if isinstance(loader, NeighborLoader):
        return list(NodeLoader(loader.data, loader.node_sampler, **arguments))
    return list(LinkLoader(loader.data, loader.link_sampler, **arguments))


def check(kind, data, fanout, own, shared) -> None:
    """Raise AssertionError unless the loader has the batches of PyG's class."""
    loader = kind(data, fanout, **own, **shared)
    torch.manual_seed(5)
    mine = list(loader)
    for one, other in zip(mine, by_pyg(loader, **shared), strict=True):
        assert [each._key for each in one.stores] == [each._key for each in other.stores]
        for left, right in zip(one.stores, other.stores, strict=True):
            assert_same(left, right)


SEEDS = {"batch_size": 64, "input_nodes": torch.arange(0, NODES, 4)}


@pytest.mark.parametrize(
    "own",
    [
        {}, {"replace": True}, {"disjoint": True}, {"subgraph_type": "induced"},
        {"subgraph_type": "bidirectional"}, {"time_attr": "time"}, {"weight_attr": "weight"},
    ],
)  # fmt: skip
def test_batches_of_a_data(own):
    check(NeighborLoader, GRAPH, [5, 5], own, SEEDS | {"shuffle": True})


@pytest.mark.parametrize("own", [{}, {"disjoint": True}, {"subgraph_type": "induced"}])
def test_batches_of_a_hetero_data(own):
    check(NeighborLoader, TYPES, [5, 5], own, SEEDS | {"input_nodes": ("a", None)})


@pytest.mark.parametrize("negative", [None, "binary", "triplet"])
def test_batches_of_seed_edges(negative):
    data = copy.copy(GRAPH)
    data.edge_label_index = torch.zeros(3)
    given = {"batch_size": 100, "neg_sampling": negative} | LABELS
    if negative == "triplet":
        del given["edge_label"]
    check(LinkNeighborLoader, data, [5, 5], {}, given)
    pairs = ("a", "to", "a"), TYPES["a", "to", "a"].edge_index[:, ::9]
    check(LinkNeighborLoader, TYPES, [5], {}, given | {"edge_label_index": pairs})


@pytest.mark.parametrize(
    "other",
    [
        {"x": FEATURES.clone().requires_grad_()}, {"x": FEATURES.numpy()},
        {"a_index": torch.rand(2, NODES)},
    ],
)  # fmt: skip
def test_other_attributes_are_left_to_pyg(other):
    data = copy.copy(GRAPH)
    data.update(other)
    check(NeighborLoader, data, [5, 5], {}, SEEDS)


def test_the_next_batch_has_what_is_set_on_the_data():
    data = copy.copy(GRAPH)
    data.x = FEATURES.clone()
    loader = NeighborLoader(data, [5, 5], shuffle=True, **SEEDS)
    for number, batch in enumerate(loader):
        assert torch.equal(batch.x, data.x[batch.n_id]), number
        if number % 3 == 1:
            data.x[batch.n_id] += 1  # in place
        if number % 3 == 2:
            data.x = data.x + 1
    data.x = FEATURES.clone()
    for number, batch in enumerate(loader):
        assert torch.equal(batch.x, data.x[batch.n_id]), number
        assert batch.x.requires_grad == (number > 6)
        if number == 3:
            data.x.data = data.x.data + 1
        if number == 6:
            data.x.requires_grad_()


# ---- groups


def in_groups(loader) -> bool:
    return isinstance(iter(loader), GroupedIterator)


class OwnFilter(NeighborLoader):
    def filter_fn(self, out):
        return out.node


def test_what_does_not_come_in_groups():
    assert in_groups(NeighborLoader(GRAPH, [5], **SEEDS))
    for own in (
        {"transform_sampler_output": lambda out: out}, {"subgraph_type": "induced"},
        {"subgraph_type": "bidirectional"}, {"batch_size": None}, {"filter_per_worker": False},
    ):  # fmt: skip
        assert not in_groups(NeighborLoader(GRAPH, [5], **SEEDS | own)), own
    assert not in_groups(OwnFilter(GRAPH, [5], **SEEDS))


class OwnNegatives(NegativeSampling):
    """A user's, which may choose by what the model has learnt until then."""


def test_which_batches_of_seed_edges_come_in_groups():
    weighted = NegativeSampling("triplet", dst_weight=torch.rand(NODES))
    for negatives in (None, "binary", "triplet"):
        assert in_groups(LinkNeighborLoader(GRAPH, [5], neg_sampling=negatives))
    for own in (
        {"disjoint": True}, {"neg_sampling": weighted}, {"neg_sampling": OwnNegatives("binary")},
    ):  # fmt: skip
        assert not in_groups(LinkNeighborLoader(GRAPH, [5], **own)), own


def test_every_batch_has_memory_of_its_own():
    for batch in NeighborLoader(GRAPH, [5, 5], **SEEDS):
        for name, value in batch.to_dict().items():
            if isinstance(value, torch.Tensor):
                assert value.untyped_storage().nbytes() == value.nbytes, name


def test_groups_with_a_sparse_tensor_of_the_whole_graph():
    data = copy.copy(GRAPH)
    data.eye = torch.eye(3).to_sparse()
    assert all(batch.eye is data.eye for batch in NeighborLoader(data, [5, 5], **SEEDS))


def test_groups_without_edges():
    data = HeteroData({"a": {"x": FEATURES}})
    check(NeighborLoader, data, [5], {}, {"batch_size": 64, "input_nodes": "a"})


def test_a_seed_that_is_no_node_is_refused_at_its_batchs_turn():
    nodes = torch.arange(80)
    nodes[42] = NODES  # in the second batch of the third group
    batches, seen = iter(NeighborLoader(GRAPH, [5], nodes, batch_size=10)), []
    for number in range(8):
        if number == 4:
            with pytest.raises(ConfigError, match=f"seed {NODES} is not a node"):
                next(batches)
        else:
            seen += next(batches).input_id.tolist()
    assert seen == [*range(40), *range(50, 80)]
    assert next(batches, None) is None


def test_a_transform_is_called_at_its_batchs_turn():
    turn = []
    loader = NeighborLoader(GRAPH, [5], transform=lambda batch: (batch, list(turn)), **SEEDS)
    for number, (_, turns) in enumerate(loader):
        assert turns == list(range(number))
        turn.append(number)


@pytest.mark.parametrize("kind", ["sampler", "batch_sampler"])
def test_a_sampler_of_the_users_is_not_asked_ahead(kind):
    asked = []

    def positions():
        for number in range(40):
            asked.append(number)
            yield -1 - number if kind == "sampler" else [-1 - number]  # from the end, as in PyG

    class Positions:
        __iter__ = staticmethod(positions)

    loader = NeighborLoader(GRAPH, [5], **{kind: Positions()})
    for number, batch in enumerate(loader):
        assert batch.n_id[0] == NODES - 1 - number
        assert len(asked) <= number + 1


def test_two_iterators_at_once():
    loader = NeighborLoader(GRAPH, [-1], batch_size=100)
    alone = list(loader)
    for one, two, expected in zip(loader, loader, alone, strict=True):
        assert_same(one, expected)
        assert_same(two, expected)
