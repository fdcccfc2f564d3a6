"""`pad=`: batches of a few sizes, the same for every seed, with shapes for compiled models."""

from contextlib import ExitStack
from typing import Any

import pytest
import torch
from torch._dynamo.testing import CompileCounter
from torch_geometric.nn.models import GAT, GraphSAGE

import gnndrive
from gnndrive import LinkNeighborLoader, NeighborLoader, Store
from tests.given import moved
from tests.gpu import test_kinds
from tests.gpu.test_kinds import KINDS, loader_of
from tests.loader.conftest import Make
from tests.loader.hetero.graph import make_data as make_types
from tests.loader.kinds import NODE, OTHERS, PLAIN, TYPED
from tests.store.packed.packs import make_graph

stores = test_kinds.stores
POWERS = [1 << power for power in range(1, 16)]
COUNTS = ("num_sampled_nodes", "num_sampled_edges")


def check_padded(found: Any, plain: Any, sizes: Any = POWERS) -> None:
    """Hold a padded batch against the same without padding."""
    nodes = {part._key: _count(part) for part in plain.node_stores}
    for one, other in zip(found.stores, plain.stores, strict=True):
        assert list(one.keys()) == list(other.keys())
        key = other._key
        if key in nodes and (count := nodes[key]):
            assert _count(one) in sizes
            assert _count(one) > count
        edges = other.edge_index.size(1) if "edge_index" in other else 0
        if edges:
            assert one.edge_index.size(1) in sizes
            ends = (None, None) if key is None else (key[0], key[2])
            for row, end in zip(one.edge_index[:, edges:], ends, strict=True):
                assert ((nodes[end] <= row) & (row < _count(_part(found, end)))).all()
        of_edges = {"edge_index", "e_id", *(n for n in other if other.is_edge_attr(n))}
        for name, value in other.items():
            _check_padded(name, one[name], value, name in of_edges)


def _check_padded(name: str, found: Any, value: Any, of_edges: bool) -> None:
    if name in COUNTS:
        assert found[:-1] == value[:-1]
        assert sum(found) >= sum(value)
    elif name == "edge_index":
        assert torch.equal(found[:, : value.size(1)], value)
    elif isinstance(value, torch.Tensor) and value.dim() and len(found) > len(value) > 0:
        assert torch.equal(found[: len(value)], value)
        assert torch.equal(found[len(value) :], value[-1:].expand_as(found[len(value) :])), name
    elif isinstance(value, torch.Tensor):
        assert torch.equal(found, value), name
    else:
        assert found == value or name == "num_nodes", name


def _part(batch: Any, key: Any) -> Any:
    return batch.stores[0] if key is None else batch[key]


def _count(part: Any) -> int:
    return len(part.n_id)


@pytest.mark.parametrize("kind", [*KINDS, "pyg+"])
def test_batches_of_every_strategy_are_padded(stores: tuple[Store, Store], kind: str) -> None:
    more: dict[str, Any] = {}
    if kind == "pyg+":
        kind, more = "gnndrive", {"strategy": "pyg+", "buffer": None}
    elif "device_memory" in KINDS[kind]:
        more = {"device_memory": None, "memory": "100MB"}
    plain, padded = (loader_of(stores, kind, **more, pad=pad) for pad in (None, "power-of-two"))
    with plain, padded:
        for _ in range(2):
            for other, one in zip(plain, padded, strict=True):
                check_padded(one, other)


@pytest.fixture(scope="module")
def graphs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Store, Store]:
    """A graph of one type, with times and weights, and one of several types."""
    folder = tmp_path_factory.mktemp("padding")
    plain = gnndrive.from_data(make_graph(), folder / "plain.gnn")
    return plain, gnndrive.from_data(make_types(), folder / "types.gnn")


@pytest.mark.parametrize("typed", [False, True])
def test_samples_of_every_kind_are_padded(graphs: tuple[Store, Store], typed: bool) -> None:
    for given in (TYPED if typed else PLAIN | OTHERS).values():
        kind: Any = LinkNeighborLoader if "edge_label_index" in given else NeighborLoader
        with ExitStack() as stack:
            plain, padded = (
                stack.enter_context(kind(graphs[typed], seed=1, pad=pad, **given))
                for pad in (None, "power-of-two")
            )
            check_padded(padded(range(20)), plain(range(20)))


@pytest.mark.parametrize("make_model", [GraphSAGE, GAT])
def test_outputs_of_seeds_are_the_same(make: Make, make_model: Any) -> None:
    """To the last bit, also of a model that computes in each layer only what seeds need."""
    torch.manual_seed(0)
    model = make_model(33, 16, num_layers=2, out_channels=7).eval()
    given: dict[str, Any] = {"shuffle": True, "seed": 3}
    for plain, padded in zip(make(**given), make(**given, pad=1.5), strict=True):
        size = plain.batch_size
        hops = {
            "num_sampled_nodes_per_hop": padded.num_sampled_nodes,
            "num_sampled_edges_per_hop": padded.num_sampled_edges,
        }
        with torch.no_grad():
            expected = model(plain.x, plain.edge_index)[:size]
            for more in ({}, hops):
                assert torch.equal(model(padded.x, padded.edge_index, **more)[:size], expected)


def test_a_model_is_compiled_once_for_each_shape(make: Make) -> None:
    torch._dynamo.reset()
    model, counter = GraphSAGE(33, 16, num_layers=2, out_channels=7), CompileCounter()
    compiled: Any = torch.compile(model, backend=counter, fullgraph=True, dynamic=False)
    shapes, sizes = set(), set()
    for batch in make(shuffle=True, seed=3, pad="power-of-two"):
        shapes.add((batch.x.shape, batch.edge_index.shape))
        sizes.add((sum(batch.num_sampled_nodes[:-1]), sum(batch.num_sampled_edges[:-1])))
        compiled(batch.x, batch.edge_index)[: batch.batch_size].sum().backward()
    assert counter.frame_count == len(shapes) <= 4 < len(sizes)


@pytest.mark.parametrize(("typed", "given"), [(False, {}), (True, {}), (False, {"sweep": 1})])
def test_the_plan_counts_padding(
    graphs: tuple[Store, Store], typed: bool, given: dict[str, Any]
) -> None:
    given = NODE | {"memory": "100MB", "input_nodes": "paper" if typed else None} | given
    with NeighborLoader(graphs[typed], pad=16, **moved(given)) as loader:
        (item,) = (line for line in loader.plan().lines if line.what == "live batches")
        tensors = [
            [value for part in batch.stores for value in part.values() if torch.is_tensor(value)]
            for batch in loader
        ]
        batch_bytes = [sum(each.nbytes for each in every) for every in tensors]
        assert item.nbytes >= 2 * max(batch_bytes)
        assert "with padding" in item.why


def test_a_state_goes_on_with_other_padding(make: Make) -> None:
    given: dict[str, Any] = {"shuffle": True, "seed": 3}
    plain, first = list(make(**given)), make(**given, pad=1.1)
    for _, batch in zip(range(9), first, strict=False):
        assert batch.num_nodes > 0
    rest = make(**given, pad="power-of-two")
    rest.load_state_dict(first.state_dict())
    for one, other in zip(rest, plain[9:], strict=True):
        check_padded(one, other)
