"""Seed edges inside windows: both ends are in memory, and so are negative nodes."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
import torch
from torch_geometric.data import Data
from torch_geometric.sampler import NegativeSampling

from gnndrive import LinkNeighborLoader, Store
from gnndrive.common.errors import ConfigError
from gnndrive.common.records import Subgraph
from gnndrive.loader.megabatches import MegabatchSource
from gnndrive.sampling.graph import mapped
from gnndrive.sampling.schedules._orders import beta_swaps
from tests.loader.batches import assert_same
from tests.loader.windows.stores import (
    ARGUMENTS,
    EDGES,
    NODES,
    PARTS,
    bits,
    inputs_of,
    inside,
    windows_of,
    with_windows,
)

Make = Callable[..., LinkNeighborLoader]
SOME = torch.arange(0, EDGES, 9)
NEGATIVES: dict[str, Any] = {
    "none": None,
    "binary": "binary",
    "half as many": NegativeSampling("binary", 0.5),
    "triplets": NegativeSampling("triplet", 2),
}
VARIANTS: dict[str, dict[str, Any]] = {
    "comet": {},
    "beta": {"order": "beta"},
    "the fewest partitions": {"megabatch": 2},
    "all partitions": {"megabatch": PARTS},
    "the largest that fits": {"megabatch": None, "buffer": "20KB"},
    "a memory limit": {"megabatch": None, "memory": "80MB"},
    "static nodes": {"static": 0.03},
    "in order": {"shuffle": False},
    "whole batches": {"drop_last": True},
    "few edges": {"some": SOME[:5]},
    "large batches": {"batch_size": 4000},
    "with replacement": {"replace": True},
    "a GPU": {"device": "simulated-cuda"},
}


@pytest.fixture
def make(store: Store, graph: Data) -> Iterator[Make]:
    """Makes link loaders over the store; `some=` are the numbers of its edges that are seeds."""
    with ExitStack() as opened:

        def one(**more: Any) -> LinkNeighborLoader:
            given: dict[str, Any] = {**ARGUMENTS, "strategy": "marius", "megabatch": 4, **more}
            given["batch_size"] = more.get("batch_size", 90)
            some = given.pop("some", None)
            if some is not None:
                given["edge_label_index"] = graph.edge_index[:, some]
            return opened.enter_context(LinkNeighborLoader(store, **given))

        yield one


def check(batch: Data, data: Data, seeds: torch.Tensor, window: torch.Tensor) -> None:
    """Raise AssertionError unless a batch is a piece of the graph and of its window, and its seeds
    are edges of `seeds`, int64 [2, inputs]."""
    for name in ("x", "y", "place"):
        assert torch.equal(bits(batch[name]), bits(data[name][batch.n_id])), name
    assert torch.equal(batch.n_id[batch.edge_index], data.edge_index[:, batch.e_id])
    assert torch.equal(batch.edge_attr, data.edge_attr[batch.e_id])
    assert len(batch.n_id.unique()) == batch.num_nodes == sum(batch.num_sampled_nodes)
    assert window[batch.n_id].all()
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


@pytest.mark.parametrize("negatives", NEGATIVES.values(), ids=NEGATIVES)
@pytest.mark.parametrize("arguments", VARIANTS.values(), ids=VARIANTS)
def test_batches_are_pieces_of_the_graph(
    make: Make, graph: Data, arguments: dict[str, Any], negatives: Any
) -> None:
    loader = make(**arguments, neg_sampling=negatives)
    some = arguments.get("some", torch.arange(EDGES))
    seeds = graph.edge_index[:, some]
    # A plain loader shows what negatives do in a later epoch, whose windows are others.
    for epoch in range(2 if negatives is None or not arguments else 1):
        batches = list(loader)
        assert len(batches) == len(loader)
        for batch, window in with_windows(batches, loader, epoch):
            check(batch, graph, seeds, inside(loader, window))
            check_negatives(batch, loader.neg_sampling)
        found = Counter(number for each in inputs_of(batches) for number in each)
        if arguments.get("drop_last"):
            assert all(len(each) == 90 for each in inputs_of(batches))
            assert max(found.values()) == 1
        else:
            assert found == Counter(range(len(some)))


@pytest.mark.parametrize(
    ("order", "logical", "resident"), [("comet", 6, 2), ("beta", PARTS, 4)]
)  # fmt: skip
def test_swaps(make: Make, order: str, logical: int, resident: int) -> None:
    """There are as many as BETA makes, and rows that stay are not read again."""
    loader = make(order=order, num_neighbors=[2])
    for epoch in range(1, 3):
        for _ in loader:
            pass
        assert loader.stats()["windows"] == epoch * (beta_swaps(logical, resident) + 1)
    loads, windows = float(loader.stats()["rows_loaded"]), 2 * (beta_swaps(logical, resident) + 1)
    assert loads <= 1.2 * NODES / logical * (windows + 2 * (resident - 1))


def test_negative_nodes_are_any_of_the_window(make: Make) -> None:
    """Also static nodes and nodes without neighbours; and no other."""
    loader = make(neg_sampling=NegativeSampling("triplet", 8), static=0.03, num_neighbors=[])
    drawn: dict[int, set[int]] = {}
    for batch, window in with_windows(loader, loader):
        found = batch.n_id[batch.dst_neg_index].reshape(-1).tolist()
        drawn.setdefault(window.number, set()).update(found)
    for window in windows_of(loader):
        among = set(inside(loader, window).nonzero().reshape(-1).tolist())
        assert drawn[window.number] <= among
        assert len(drawn[window.number]) > 0.8 * len(among)


@pytest.mark.parametrize("replace", [False, True])
def test_a_window_of_all_partitions_is_the_whole_graph(
    make: Make, store: Store, replace: bool
) -> None:
    """Then samples are those of the strategy that draws from the whole graph."""
    plain = make(strategy="gnndrive", megabatch=None, replace=replace)
    loader = make(megabatch=PARTS, static=0.03, replace=replace)
    assembly, (window,) = loader._assembly(), windows_of(loader)
    assert assembly.megabatches is not None
    source = MegabatchSource(
        assembly.megabatches.windows, store.edges().index_pointers, lambda: iter((window,))
    )
    graph, samplers = source.graph(window), (plain._assembly().sampler(), assembly.sampler())
    for key in range(9):
        seeds = loader._inputs.seeds(0, torch.arange(key, EDGES, 300).numpy())
        whole = samplers[0].sample(seeds, key, [mapped(store.edges())])
        inner = samplers[1].sample(seeds, key, [graph])
        assert isinstance(whole, Subgraph)
        assert isinstance(inner, Subgraph)
        for name in ("node", "row", "col", "edge"):
            assert torch.equal(getattr(whole.output, name), getattr(inner.output, name)), name
        assert whole.output.num_sampled_nodes == inner.output.num_sampled_nodes
        assert whole.output.num_sampled_edges == inner.output.num_sampled_edges
        for one, other in zip(whole.output.metadata, inner.output.metadata, strict=True):
            assert one is other is None or torch.equal(one, other)


def test_labels_and_input_ids(make: Make, graph: Data) -> None:
    labels, ids = torch.randint(0, 4, (len(SOME),)), 3 * torch.arange(len(SOME))
    plain = make(some=SOME)
    named = make(some=SOME, edge_label=labels, input_id=ids)
    raised = make(some=SOME, edge_label=labels, neg_sampling="binary")
    for one, other, third in zip(plain, named, raised, strict=True):
        assert torch.equal(other.input_id, 3 * one.input_id)
        assert torch.equal(other.edge_label, labels[one.input_id])
        assert torch.equal(one.n_id, other.n_id)
        count = len(third.input_id)
        assert torch.equal(third.edge_label[:count], 1 + labels[third.input_id])
        assert not third.edge_label[count:].any()


def test_seeds_that_are_no_edges_of_the_graph(make: Make, graph: Data) -> None:
    seeds = torch.randint(0, NODES, (2, 400), generator=torch.Generator().manual_seed(1))
    loader = make(edge_label_index=seeds, neg_sampling="binary")
    found: list[int] = []
    for batch, window in with_windows(loader, loader):
        check(batch, graph, seeds, inside(loader, window))
        found += batch.input_id.tolist()
    assert sorted(found) == list(range(400))


@pytest.mark.parametrize("order", ["comet", "beta"])
def test_the_same_seed_gives_the_same_batches(make: Make, order: str) -> None:
    arguments = {"order": order, "neg_sampling": "binary"}
    first, second = make(**arguments), make(**arguments, samplers=1, extracting_queue=1)
    for one, other in zip([*first, *first], [*second, *second], strict=True):
        assert_same(one, other)
    drawn = inputs_of(first), inputs_of(make(**arguments, seed=6))
    assert drawn[0] != drawn[1]


@pytest.mark.parametrize("done", [1, 40, 80])
def test_an_epoch_goes_on_in_the_middle_of_a_state(make: Make, done: int) -> None:
    arguments: dict[str, Any] = {"order": "beta", "neg_sampling": "triplet", "megabatch": 5}
    whole = make(**arguments)
    expected, after = list(whole), list(whole)
    first = make(**arguments)
    iterator = iter(first)
    for _ in range(done):
        next(iterator)
    other = make(**arguments)
    assert len(other) == len(whole)
    other.load_state_dict(json.loads(json.dumps(first.state_dict())))
    for one, same in zip(other, expected[done:], strict=True):
        assert_same(one, same)
    for one, same in zip(other, after, strict=True):
        assert_same(one, same)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"strategy": "hierbatching"}, 'give LinkNeighborLoader strategy="marius"'),
        ({"order": "dispersed"}, "not an order for seed edges: give 'comet' or 'beta'"),
        ({"megabatch": 1}, "'comet' needs 2 of 12 .*: give megabatch=2 or more"),
        ({"disjoint": True}, "leave disjoint= out, or give strategy='gnndrive'"),
        ({"weight_attr": "edge_attr"}, "leave weight_attr= out, or give strategy='gnndrive'"),
        (
            {"time_attr": "y", "edge_label_time": torch.zeros(EDGES, dtype=torch.int64)},
            "leave time_attr= out",
        ),
        ({"subgraph_type": "bidirectional"}, "leave subgraph_type='bidirectional' out"),
        ({"transform_sampler_output": dict}, "leave transform_sampler_output= out"),
        (
            {"neg_sampling": NegativeSampling("binary", 1, None, torch.ones(NODES))},
            "leave the weights of neg_sampling= out",
        ),
    ],
)
def test_what_cannot_work_is_refused(make: Make, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        iter(make(**arguments))
