"""Batches that are sampled inside windows: each is a piece of the graph and of its window."""

import math
from collections import Counter
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from torch_geometric.data import Data
from torch_geometric.sampler import NegativeSampling

from gnndrive import LinkNeighborLoader, Store
from gnndrive.common.records import Subgraph
from gnndrive.sampling.graph import mapped
from gnndrive.strategies.windows.feed import PartitionWindows
from tests.loader.windows.conftest import Make
from tests.loader.windows.stores import (
    EDGES,
    MARIUS,
    NODES,
    PARTS,
    STATIC,
    WINDOWS,
    check,
    inputs_of,
    inside,
    windows_of,
    with_windows,
)
from tests.soak import product

EPOCHS = 2
SOME = torch.arange(0, NODES, 5)
SIZES = [
    {"megabatch": 1, "static": 0},
    {"megabatch": PARTS, "shuffle": False},
    {"megabatch": None, "buffer": "20KB", "static": 0.04},
    {"megabatch": None, "memory": "80MB", "passes": 2},
]
VARIANTS: list[dict[str, Any]] = [
    *SIZES,
    {"drop_last": True, "batch_size": 40, "passes": 2},
    {"num_neighbors": [], "batch_size": 5000},
    {"replace": True, "input_nodes": SOME},
    {"sampling": "labor", "batch_dependency": 4, "input_nodes": SOME[:3]},
    {"input_nodes": torch.empty(0, dtype=torch.int64), "shuffle": False},
    *(MARIUS | each for each in SIZES),
    MARIUS | {"static": 0.02, "drop_last": True, "batch_size": 40},
    # states that are left out, in any order
    MARIUS | {"input_nodes": SOME[::20], "batch_size": 1, "in_order": False, "megabatch": 3},
]


@pytest.mark.parametrize("arguments", VARIANTS, ids=lambda given: " ".join(map(str, given)))
def test_batches_are_pieces_of_the_graph(make, graph, arguments):
    """All batches of an epoch are kept: none may be in memory that is used again."""
    loader = make(**arguments)
    inputs = range(len(arguments.get("input_nodes", range(NODES))))
    for epoch in range(EPOCHS):
        batches = list(loader)
        assert len(batches) == len(loader)
        for batch, window in with_windows(batches, loader, epoch):
            check(batch, graph, window if loader.in_order else None)
            assert batch.batch_size <= loader.batch_size
        found = Counter(number for each in inputs_of(batches) for number in each)
        passes = arguments.get("passes", 1)
        if arguments.get("drop_last"):
            assert all(batch.batch_size == loader.batch_size for batch in batches)
            assert max(found.values()) <= passes
        else:
            assert found == Counter(dict.fromkeys(inputs, passes))


def test_the_in_edges_of_a_windows_nodes(make: Make, store: Store) -> None:
    """They are counted right. A static node in one of the partitions counts once."""
    for static in (0, 0.01):
        assembly = make(static=static)._assembly()
        schedule, pointers = assembly.schedule(0), store.edges().index_pointers
        windows, left = assembly.scheme.chosen, partial(schedule.windows, 0)
        source = PartitionWindows(windows.partitioned, windows.static, pointers, left)
        degrees = np.diff(pointers.astype(np.int64))
        windows = list(source.windows())
        assert len(windows) == WINDOWS
        for window in windows:
            nodes = np.unique(source.graph(window).store_ids)
            assert source.in_edges_of(window) == degrees[nodes].sum()


def test_each_window_is_loaded_once(make: Make) -> None:
    """Its rows are read once, with its lists, and no batch loads a row itself. Each partition, and
    the static rows, are one read."""
    loader = make(static=0.01, passes=2)
    for epoch in range(1, EPOCHS + 1):
        for _ in loader:
            pass
        stats = loader.stats()
        assert stats["windows"] == epoch * WINDOWS
        assert stats["requests"] <= epoch * (PARTS + 1)
    assert stats["topology"] == "none"
    assert NODES + STATIC <= stats["rows_loaded"] <= EPOCHS * (NODES + STATIC)


def test_input_ids(make: Make, graph: Data) -> None:
    """A node that is given twice is there twice."""
    ids = graph.train_mask.nonzero().reshape(-1)
    by_mask = make(input_nodes=graph.train_mask)
    own = make(input_nodes=ids, input_id=torch.arange(len(ids)) * 7)
    for mask, one, other in zip(by_mask, make(input_nodes=ids), own, strict=True):
        assert torch.equal(mask.input_id, mask.n_id[: mask.batch_size])
        assert torch.equal(ids[one.input_id], mask.input_id)
        assert torch.equal(other.input_id, 7 * one.input_id)
    twice = torch.cat([SOME, SOME.flip(0)])
    found = Counter[int]()
    for batch in make(input_nodes=twice):
        seeds = batch.n_id[: batch.num_sampled_nodes[0]]  # PyG has a seed once in a batch
        assert set(twice[batch.input_id].tolist()) == set(seeds.tolist())
        found.update(batch.input_id.tolist())
    assert found == Counter(range(len(twice)))


# ---- marius: partitions in memory give way one by one


def test_a_swap_loads_one_logical_partition(make: Make) -> None:
    """Of the six, two are in memory; a window's rows are read before its batches, and once."""
    loader = make(**MARIUS)
    assert len(list(loader)) == len(loader)
    sizes = np.diff(loader._scheme.source.bounds)
    windows = [set(each.partitions.tolist()) for each in windows_of(loader)]
    new = [
        sizes[sorted(after - before)].sum() for before, after in pairwise([set[int](), *windows])
    ]
    stats, plan = loader.stats(), loader.plan()
    assert len(new) == stats["windows"] == 5
    assert sum(new) == stats["rows_loaded"] == NODES
    assert plan.tables[0].slots == np.sort(sizes)[::-1][:6].sum()
    assert "two of 5 windows, each of 4 of 12 partitions, 2 of them in both" in plan.details()


# ---- seed edges, with marius: both ends are in memory, and negative nodes too

MakeLinks = Callable[..., LinkNeighborLoader]
EDGE_SEEDS = torch.arange(0, EDGES, 9)
NO_EDGES = torch.randint(0, NODES, (2, 400), generator=torch.Generator().manual_seed(1))
NEGATIVES: dict[str, Any] = {
    "none": None,
    "binary": "binary",
    "half as many": NegativeSampling("binary", 0.5),
    "triplets": NegativeSampling("triplet", 2),
}
LINKS: dict[str, dict[str, Any]] = {
    "comet": {},
    "no edges of the graph": {"edge_label_index": NO_EDGES},
    "beta": {"order": "beta"},
    "the fewest partitions": {"megabatch": 2, "drop_last": True, "batch_size": 8},
    "all partitions": {"megabatch": PARTS, "shuffle": False},
    "the largest that fits": {"megabatch": None, "buffer": "20KB", "static": 0.03},
    "a memory limit": {"megabatch": None, "memory": "80MB", "batch_size": 4000},
    "few edges": {"some": EDGE_SEEDS[:5], "replace": True},
    "all edges": {"some": slice(None), "batch_size": 900},
    "a GPU": {"device": "simulated-cuda"},
}


@pytest.fixture
def links(make: Make, graph: Data) -> MakeLinks:
    """Makes link loaders over the store; `some=` are the numbers of its edges that are seeds."""

    def one(some: Any = EDGE_SEEDS, **more: Any) -> Any:
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


@product("variant,negatives", list(LINKS), list(NEGATIVES))
def test_link_batches_are_pieces_of_the_graph(links, graph, variant, negatives):
    arguments = LINKS[variant]
    loader = links(**arguments, neg_sampling=NEGATIVES[negatives])
    some = graph.edge_index[:, arguments.get("some", EDGE_SEEDS)]
    seeds = arguments.get("edge_label_index", some)
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
    plain = links(strategy="gnndrive", replace=replace, some=slice(None))
    loader = links(megabatch=PARTS, static=0.03, replace=replace, some=slice(None))
    assembly, (window,) = loader._assembly(), windows_of(loader)
    chosen, pointers = assembly.scheme.chosen, store.edges().index_pointers
    source = PartitionWindows(chosen.partitioned, chosen.static, pointers, lambda: iter((window,)))
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
