"""A graph with as many edges as nodes: whether an attribute is the nodes' or the edges'."""

import warnings
from itertools import product

import pytest
import torch
from torch_geometric.data import Data, HeteroData

from gnndrive import ConfigError, NeighborLoader, NeighborSampler
from gnndrive.store import write_store
from gnndrive.store.importers import from_data

N = 20


def graph(**attributes) -> Data:
    """Two edges go to each of the first half of the nodes; targets are not in order."""
    target = torch.arange(N).flip(0) // 2
    edge_index = torch.stack([(target + torch.arange(N)) % N, target])
    return Data(x=torch.rand(N, 2), y=torch.arange(N), edge_index=edge_index, **attributes)


def sources(data, **arguments) -> set[tuple[int, int]]:
    """The edges that a loader draws, at most one of two for each of the first nodes."""
    found = set()
    for batch in NeighborLoader(data, [1], range(N // 2), batch_size=4, **arguments):
        found |= set(map(tuple, batch.n_id[batch.edge_index].T.tolist()))
    return found


EDGES = graph().edge_index
ONE = set(map(tuple, EDGES[:, ::2].T.tolist()))  # one of the two edges to each node
OF_ONE = torch.arange(N) % 2 == 0


def test_the_names_of_pyg_decide_what_is_written(tmp_path):
    data = graph(w=torch.rand(N), edge_w=torch.rand(N), train_mask=torch.arange(N) < 3)
    store = from_data(data, tmp_path / "s")
    assert (store.node_names, store.edge_names) == (("x", "y", "w", "train_mask"), ("edge_w",))
    # Five edges become ten: as many as nodes, and `w` is the edges' as before.
    few = Data(x=torch.rand(10, 2), edge_index=torch.arange(10).view(2, 5), w=torch.arange(5))
    few.edges_of_it = torch.arange(10)  # of a node
    store = from_data(few, tmp_path / "u", undirected=True)
    assert store.num_edges == store.num_nodes
    assert (store.node_names, store.edge_names) == (("x", "edges_of_it"), ("w",))


@pytest.mark.parametrize("on_store", [False, True])
def test_weights_are_the_edges(tmp_path, on_store):
    data = graph(w=OF_ONE.float(), edge_w=OF_ONE.float())
    given = from_data(data, tmp_path / "s") if on_store else data
    assert sources(given, weight_attr="edge_w") == ONE
    both = (
        r"weight_attr='w'.* nodes.* as many nodes as edges, .* if it is the edges', call it edge_w"
    )
    if on_store:
        with pytest.raises(ConfigError, match=both):
            NeighborLoader(given, [1], weight_attr="w")
        explicit = write_store(
            tmp_path / "t", indptr=given.indptr, indices=given.indices, edge_id=given.edge_id,
            nodes={"x": data.x}, edges={"w": data.w},
        )  # fmt: skip
        assert sources(explicit, weight_attr="w") == ONE
    else:
        with pytest.warns(UserWarning, match=both):
            assert sources(given, weight_attr="w") == ONE


@pytest.mark.parametrize("on_store", [False, True])
def test_times_are_those_that_pyg_takes(tmp_path, on_store):
    data = graph(t=torch.zeros(N).long(), edge_t=1 - OF_ONE.long())
    given = from_data(data, tmp_path / "s") if on_store else data
    early = {"input_time": torch.zeros(N // 2).long(), "disjoint": True}
    assert sources(given, time_attr="edge_t", **early) == ONE
    both = r"time_attr='t' is taken as times of nodes: .* as many nodes as edges, .* call it edge_t"
    with pytest.warns(UserWarning, match=both):
        sampler = NeighborSampler(given, [1], time_attr="t")
    assert not sampler.edge_level
    if on_store:
        explicit = write_store(
            tmp_path / "t", indptr=given.indptr, indices=given.indices, edge_id=given.edge_id,
            nodes={"x": data.x}, edges={"t": data.edge_t},
        )  # fmt: skip
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert NeighborSampler(explicit, [1], time_attr="t").edge_level


def test_weights_in_memory_have_a_row_for_each_edge():
    data = graph(w=torch.rand(N))
    data.edge_index = data.edge_index[:, :5]
    data.f, types = 1.5, HeteroData(a={"x": data.w})
    types["a", "to", "a"].edge_index, types["a", "to", "a"].f = data.edge_index, 1.5
    for name, match in (("w", "data has 20 rows and 5 edges"), ("v", "no such attribute")):
        with pytest.raises(ConfigError, match=match):
            NeighborLoader(data, [1], weight_attr=name)
    for source, what, (name, held) in product(
        (data, types), ("weight_attr", "time_attr"), (("v", "no such"), ("f", "a float without"))
    ):
        with pytest.raises(ConfigError, match=f"{what}='{name}': data has {held}"):
            NeighborSampler(source, [1], **{what: name})
