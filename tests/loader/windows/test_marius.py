"""`strategy="marius"` with seed edges: both of their ends are in memory, and negative nodes too."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable
from itertools import islice
from typing import Any

import pytest
import torch
from torch_geometric.data import Data
from torch_geometric.sampler import NegativeSampling

from gnndrive import LinkNeighborLoader
from gnndrive.common.records import Subgraph
from gnndrive.loader.megabatches import MegabatchSource
from gnndrive.sampling.graph import mapped
from gnndrive.sampling.schedules._orders import beta_swaps
from tests.loader.batches import assert_same
from tests.loader.windows.conftest import Make
from tests.loader.windows.stores import (
    EDGES,
    MARIUS,
    NODES,
    PARTS,
    check,
    inputs_of,
    inside,
    windows_of,
    with_windows,
)
from tests.soak import product

MakeLinks = Callable[..., LinkNeighborLoader]
SOME = torch.arange(0, EDGES, 9)
NO_EDGES = torch.randint(0, NODES, (2, 400), generator=torch.Generator().manual_seed(1))
NEGATIVES: dict[str, Any] = {
    "none": None,
    "binary": "binary",
    "half as many": NegativeSampling("binary", 0.5),
    "triplets": NegativeSampling("triplet", 2),
}
VARIANTS: dict[str, dict[str, Any]] = {
    "comet": {},
    "no edges of the graph": {"edge_label_index": NO_EDGES},
    "beta": {"order": "beta"},
    "the fewest partitions": {"megabatch": 2, "drop_last": True, "batch_size": 8},
    "all partitions": {"megabatch": PARTS, "shuffle": False},
    "the largest that fits": {"megabatch": None, "buffer": "20KB", "static": 0.03},
    "a memory limit": {"megabatch": None, "memory": "80MB", "batch_size": 4000},
    "few edges": {"some": SOME[:5], "replace": True},
    "all edges": {"some": slice(None), "batch_size": 900},
    "a GPU": {"device": "simulated-cuda"},
}


@pytest.fixture
def links(make: Make, graph: Data) -> MakeLinks:
    """Makes link loaders over the store; `some=` are the numbers of its edges that are seeds."""

    def one(some: Any = SOME, **more: Any) -> Any:
        given = {"batch_size": 90, "edge_label_index": graph.edge_index[:, some]}
        return make(**(MARIUS | given | more))

    return one


def check_seeds(batch: Data, seeds: torch.Tensor) -> None:
    """Raise AssertionError unless a batch's seeds are its inputs of `seeds`, int64 [2, inputs]."""
    count = len(batch.input_id)
    if "src_index" in batch:
        ends = torch.stack([batch.src_index, batch.dst_pos_index])
        labelled = torch.cat([*ends, batch.dst_neg_index.reshape(-1)])
    else:
        ends, labelled = batch.edge_label_index[:, :count], batch.edge_label_index.reshape(-1)
    assert torch.equal(batch.n_id[ends], seeds[:, batch.input_id])
    # PyG's code has each seed node once, in ascending order.
    assert torch.equal(labelled.unique(), torch.arange(batch.num_sampled_nodes[0]))
    assert (batch.n_id[: batch.num_sampled_nodes[0]].diff() > 0).all()


def check_negatives(batch: Data, negatives: NegativeSampling | None) -> None:
    """Raise AssertionError unless a batch has the labels and negative edges that it should."""
    count = len(batch.input_id)
    if negatives is None:
        assert "edge_label" not in batch
        assert batch.edge_label_index.shape == (2, count)
    elif negatives.is_binary():
        more = math.ceil(count * negatives.amount)
        assert batch.edge_label_index.shape == (2, count + more)
        assert batch.edge_label.tolist() == [1] * count + [0] * more
    else:
        assert batch.dst_neg_index.shape == (count, negatives.amount)
        assert "edge_label_index" not in batch


@product("variant,negatives", list(VARIANTS), list(NEGATIVES))
def test_batches_are_pieces_of_the_graph(links, graph, variant, negatives):
    arguments = VARIANTS[variant]
    loader = links(**arguments, neg_sampling=NEGATIVES[negatives])
    seeds = arguments.get("edge_label_index", graph.edge_index[:, arguments.get("some", SOME)])
    for epoch in range(2):
        batches = list(loader)
        assert len(batches) == len(loader)
        for batch, window in with_windows(batches, loader, epoch):
            check(batch, graph, window)
            check_seeds(batch, seeds)
            check_negatives(batch, loader.neg_sampling)
        found = Counter(number for each in inputs_of(batches) for number in each)
        if arguments.get("drop_last"):
            assert all(len(each) == 8 for each in inputs_of(batches))
            assert max(found.values()) == 1
        else:
            assert found == Counter(range(seeds.size(1)))


@pytest.mark.parametrize(("order", "logical", "resident"), [("comet", 6, 2), ("beta", PARTS, 4)])
def test_swaps(links: MakeLinks, order: str, logical: int, resident: int) -> None:
    """There are as many as BETA makes, and rows that stay are not read again."""
    loader = links(order=order, num_neighbors=[2], some=slice(None), batch_size=400)
    windows = beta_swaps(logical, resident) + 1
    for epoch in range(1, 3):
        for _ in loader:
            pass
        assert loader.stats()["windows"] == epoch * windows
    loads = float(loader.stats()["rows_loaded"])
    assert loads <= 1.2 * NODES / logical * (2 * windows + 2 * (resident - 1))


def test_negative_nodes_are_any_of_the_window(links: MakeLinks) -> None:
    """Also static nodes and nodes without neighbours; and no other."""
    loader = links(
        neg_sampling=NegativeSampling("triplet", 40), static=0.03, num_neighbors=[], batch_size=400
    )
    drawn: dict[int, set[int]] = {}
    windows = [each for each in windows_of(loader) for _ in range(each.count)]
    for batch, window in zip(loader, windows, strict=True):
        found = batch.n_id[batch.dst_neg_index].reshape(-1).tolist()
        drawn.setdefault(window.number, set()).update(found)
    for window in windows_of(loader):
        among = set(inside(loader, window).nonzero().reshape(-1).tolist())
        assert drawn[window.number] <= among
        assert len(drawn[window.number]) > 0.8 * len(among)


@pytest.mark.parametrize("replace", [False, True])
def test_a_window_of_all_partitions_is_the_whole_graph(links, store, replace):
    """Then samples are those of the strategy that draws from the whole graph."""
    plain = links(strategy="gnndrive", megabatch=None, replace=replace, some=slice(None))
    loader = links(megabatch=PARTS, static=0.03, replace=replace, some=slice(None))
    assembly, (window,) = loader._assembly(), windows_of(loader)
    source = MegabatchSource(
        assembly.megabatches.windows, store.edges().index_pointers, lambda: iter((window,))
    )
    graph, samplers = source.graph(window), (plain._assembly().sampler(), assembly.sampler())
    for key in range(9):
        seeds = loader._inputs.seeds(0, torch.arange(key, EDGES, 300).numpy())
        whole = samplers[0].sample(seeds, key, [mapped(store.edges())])
        inner = samplers[1].sample(seeds, key, [graph])
        assert isinstance(whole, Subgraph)
        for name in ("node", "row", "col", "edge"):
            assert torch.equal(getattr(whole.output, name), getattr(inner.output, name)), name
        assert whole.output.num_sampled_nodes == inner.output.num_sampled_nodes
        assert whole.output.num_sampled_edges == inner.output.num_sampled_edges
        for one, other in zip(whole.output.metadata, inner.output.metadata, strict=True):
            assert one is other is None or torch.equal(one, other)


@product("order,done", ["comet", "beta"], [1, 5, 9])
def test_the_same_seed_gives_the_same_batches(links: MakeLinks, order: str, done: int) -> None:
    """An epoch also goes on in the middle of a state."""
    arguments = {"order": order, "neg_sampling": "triplet"}
    whole, second = links(**arguments), links(**arguments, samplers=1, extracting_queue=1)
    epochs = [list(whole), list(whole)]
    assert inputs_of(epochs[0]) != inputs_of(links(**arguments, seed=6))
    begun = list(islice(second, done))
    other = links(**arguments)
    assert len(other) == len(whole)
    other.load_state_dict(json.loads(json.dumps(second.state_dict())))
    for one, same in zip([*begun, *other, *other], [*epochs[0], *epochs[1]], strict=True):
        assert_same(one, same)
