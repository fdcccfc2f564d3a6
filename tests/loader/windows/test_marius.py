"""`strategy="marius"`: partitions in memory give way one by one, for seed nodes and seed edges,
whose both ends are in memory, as negative nodes are."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import islice, pairwise
from typing import Any

import numpy as np
import pytest
import torch
from torch_geometric.data import Data
from torch_geometric.sampler import NegativeSampling

from gnndrive import LinkNeighborLoader, NeighborLoader, Store
from gnndrive.common.errors import ConfigError
from gnndrive.common.records import Subgraph
from gnndrive.loader.megabatches import MegabatchSource
from gnndrive.sampling.graph import mapped
from gnndrive.sampling.schedules._orders import beta_swaps
from gnndrive.strategies import STRATEGIES
from tests.loader.batches import assert_same
from tests.loader.windows.conftest import Make
from tests.loader.windows.stores import (
    ARGUMENTS,
    EDGES,
    NODES,
    PARTS,
    bits,
    check,
    inputs_of,
    inside,
    windows_of,
    with_windows,
)
from tests.soak import product

MARIUS: dict[str, Any] = {"strategy": "marius", "megabatch": 4}


def of_partitions(loader: NeighborLoader, partitions: list[int]) -> torch.Tensor:
    """The nodes of some partitions."""
    part = loader._partitioned.part_of(np.arange(NODES))
    return torch.from_numpy(np.flatnonzero(np.isin(part, partitions)))


def test_sequential_has_all_seeds_in_memory(make: Make, graph: Data) -> None:
    nodes = of_partitions(make(), [2, 7])
    loader = make(**MARIUS, order="sequential", input_nodes=nodes)
    groups = []
    for epoch in range(4):
        (window,) = windows_of(loader, epoch)
        groups.append(tuple(window.partitions.tolist()))
        batches = list(loader)
        for batch in batches:
            check(batch, graph, inside(loader, window))
        seeds = torch.cat([each.input_id for each in batches])
        assert seeds.sort().values.tolist() == list(range(len(nodes)))
    assert all(len(each) == 4 and {2, 7} < set(each) for each in groups)
    assert len(set(groups)) > 1


def test_a_swap_loads_one_logical_partition(make: Make) -> None:
    """Of the six, two are in memory; a window's rows are read before its batches, and once."""
    loader = make(**MARIUS)
    assert len(list(loader)) == len(loader)
    sizes = np.diff(loader._partitioned.bounds)
    windows = [set(each.partitions.tolist()) for each in windows_of(loader)]
    new = [
        sizes[sorted(after - before)].sum() for before, after in pairwise([set[int](), *windows])
    ]
    stats = loader.stats()
    assert len(new) == stats["windows"] == 5
    assert sum(new) == stats["rows_loaded"] == NODES
    plan = loader.plan()
    assert plan.tables[0].slots == np.sort(sizes)[::-1][:6].sum()
    assert "0 static ones and two of 5 windows, each of 4 of 12 partitions, 2 of them in both" in (
        str(plan)
    )


def test_slots_for_what_two_windows_have_in_common(make: Make) -> None:
    """In the memory that two windows of hierbatching with two partitions need, marius has three of
    its own, one of which gives way."""
    slots = make(megabatch=2, static=0).plan().tables[0].slots
    found = make(strategy="marius", megabatch=None, buffer=36 * slots)
    found.plan()
    sizes = found._megabatches[1].windows.sizes
    assert (sizes.one, sizes.two, sizes.windows) == (3, 4, 10)
    assert found._megabatches[1].windows.static == STRATEGIES["marius"].static == 0


NO_SAMPLING: list[tuple[dict[str, Any], str]] = [
    ({"disjoint": True}, "leave disjoint= out, or give strategy='gnndrive'"),
    ({"transform_sampler_output": dict}, "leave transform_sampler_output= out"),
]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        *NO_SAMPLING,
        ({"order": "comet"}, "'comet' is not an order for seed nodes: give 'dispersed' or"),
        ({"order": "best"}, "order='best' is not an order"),
        ({"order": "sequential"}, "needs all 12 partitions .* give order='dispersed'"),
        ({"strategy": "hierbatching", "order": "beta"}, "order='beta': .* leave order= out, or"),
        ({"subgraph_type": "induced"}, "leave subgraph_type='induced' out"),
        ({"sampler": range(9), "shuffle": False}, "leave sampler= and batch_sampler= out"),
    ],
)
def test_what_cannot_work_is_refused(make: Make, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        iter(make(**{**MARIUS, **arguments}))


# ---- seed edges

MakeLinks = Callable[..., LinkNeighborLoader]
SOME = torch.arange(0, EDGES, 9)
NEGATIVES: dict[str, Any] = {
    "none": None,
    "binary": "binary",
    "half as many": NegativeSampling("binary", 0.5),
    "triplets": NegativeSampling("triplet", 2),
}
VARIANTS: dict[str, dict[str, Any]] = {
    "comet": {},
    "comet again": {},
    "beta": {"order": "beta"},
    "the fewest partitions": {"megabatch": 2, "drop_last": True, "batch_size": 8},
    "all partitions": {"megabatch": PARTS, "shuffle": False},
    "the largest that fits": {"megabatch": None, "buffer": "20KB", "static": 0.03},
    "a memory limit": {"megabatch": None, "memory": "80MB", "batch_size": 4000},
    "few edges": {"some": SOME[:5], "replace": True},
    "all edges": {"some": None, "batch_size": 900},
    "a GPU": {"device": "simulated-cuda"},
}


@pytest.fixture
def links(store: Store, graph: Data) -> Iterator[MakeLinks]:
    """Makes link loaders over the store; `some=` are the numbers of its edges that are seeds."""
    with ExitStack() as opened:

        def one(**more: Any) -> LinkNeighborLoader:
            given: dict[str, Any] = {**ARGUMENTS, **MARIUS, "batch_size": 90, "some": SOME, **more}
            some = given.pop("some")
            if some is not None and "edge_label_index" not in given:
                given["edge_label_index"] = graph.edge_index[:, some]
            return opened.enter_context(LinkNeighborLoader(store, **given))

        yield one


def check_links(batch: Data, data: Data, seeds: torch.Tensor, window: torch.Tensor) -> None:
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


@product("variant,negatives", list(VARIANTS), list(NEGATIVES))
def test_batches_are_pieces_of_the_graph(links, graph, variant, negatives):
    arguments = VARIANTS[variant]
    loader = links(**arguments, neg_sampling=NEGATIVES[negatives])
    some = arguments.get("some", SOME)
    seeds = graph.edge_index if some is None else graph.edge_index[:, some]
    for epoch in range(2):
        batches = list(loader)
        assert len(batches) == len(loader)
        for batch, window in with_windows(batches, loader, epoch):
            check_links(batch, graph, seeds, window)
            check_negatives(batch, loader.neg_sampling)
        found = Counter(number for each in inputs_of(batches) for number in each)
        if arguments.get("drop_last"):
            assert all(len(each) == 8 for each in inputs_of(batches))
            assert max(found.values()) == 1
        else:
            assert found == Counter(range(seeds.size(1)))


@pytest.mark.parametrize(
    ("order", "logical", "resident"), [("comet", 6, 2), ("beta", PARTS, 4)]
)  # fmt: skip
def test_swaps(links: MakeLinks, order: str, logical: int, resident: int) -> None:
    """There are as many as BETA makes, and rows that stay are not read again."""
    loader = links(order=order, num_neighbors=[2], some=None, batch_size=400)
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
    plain = links(strategy="gnndrive", megabatch=None, replace=replace, some=None)
    loader = links(megabatch=PARTS, static=0.03, replace=replace, some=None)
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


def test_labels_and_input_ids(links: MakeLinks) -> None:
    labels, ids = torch.randint(0, 4, (len(SOME),)), 3 * torch.arange(len(SOME))
    named = links(edge_label=labels, input_id=ids)
    raised = links(edge_label=labels, neg_sampling="binary")
    for one, other, third in zip(links(), named, raised, strict=True):
        assert torch.equal(other.input_id, 3 * one.input_id)
        assert torch.equal(other.edge_label, labels[one.input_id])
        assert torch.equal(one.n_id, other.n_id)
        count = len(third.input_id)
        assert torch.equal(third.edge_label[:count], 1 + labels[third.input_id])
        assert not third.edge_label[count:].any()


def test_seeds_that_are_no_edges_of_the_graph(links: MakeLinks, graph: Data) -> None:
    seeds = torch.randint(0, NODES, (2, 400), generator=torch.Generator().manual_seed(1))
    loader = links(edge_label_index=seeds, neg_sampling="binary")
    found: list[int] = []
    for batch, window in with_windows(loader, loader):
        check_links(batch, graph, seeds, window)
        found += batch.input_id.tolist()
    assert sorted(found) == list(range(400))


@product("order,done", ["comet", "beta"], [1, 5, 9])
def test_the_same_seed_gives_the_same_batches(links: MakeLinks, order: str, done: int) -> None:
    """An epoch also goes on in the middle of a state."""
    arguments = {"order": order, "neg_sampling": "triplet", "megabatch": 4}
    whole, second = links(**arguments), links(**arguments, samplers=1, extracting_queue=1)
    epochs = [list(whole), list(whole)]
    assert inputs_of(epochs[0]) != inputs_of(links(**arguments, seed=6))
    begun = list(islice(second, done))
    other = links(**arguments)
    assert len(other) == len(whole)
    other.load_state_dict(json.loads(json.dumps(second.state_dict())))
    for one, same in zip([*begun, *other, *other], [*epochs[0], *epochs[1]], strict=True):
        assert_same(one, same)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        *NO_SAMPLING,
        ({"strategy": "hierbatching"}, 'give LinkNeighborLoader strategy="marius"'),
        ({"order": "dispersed"}, "not an order for seed edges: give 'comet' or 'beta'"),
        ({"megabatch": 1}, "'comet' needs 2 of 12 .*: give megabatch=2 or more"),
        ({"weight_attr": "edge_attr"}, "leave weight_attr= out, or give strategy='gnndrive'"),
        (
            {"time_attr": "y", "edge_label_time": torch.zeros(len(SOME), dtype=torch.int64)},
            "leave time_attr= out",
        ),
        ({"subgraph_type": "bidirectional"}, "leave subgraph_type='bidirectional' out"),
        (
            {"neg_sampling": NegativeSampling("binary", 1, None, torch.ones(NODES))},
            "leave the weights of neg_sampling= out",
        ),
    ],
)
def test_links_that_cannot_work_are_refused(links, arguments, message):
    with pytest.raises(ConfigError, match=message):
        iter(links(**arguments))
