"""Rows lie where the plan says, and a batch is the same graph after it is arranged."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from gnndrive.common.records import Sample
from gnndrive.store.packed.places import IN_CHUNK, IN_HOT, IN_SHARED, NodePlaces, renumber


def sample_of(random: np.random.Generator, nodes: int, twice: bool = False) -> Sample:
    """A random sample; with `twice` a node may stand in it several times."""
    hops = int(random.integers(1, 6))
    count = int(random.integers(0, 80)) if twice else int(random.integers(0, nodes + 1))
    node = random.choice(nodes, count, replace=twice)
    cuts = np.sort(random.integers(0, count + 1, hops - 1))
    per_hop = np.diff(cuts, prepend=0, append=count)
    expanded = int(per_hop[:-1].sum())
    degrees = random.integers(0, 6, expanded)
    edges = int(degrees.sum())
    colptr = np.append(0, degrees.cumsum()).astype(np.int32)
    row = random.integers(0, max(1, count), edges).astype(np.int32)
    edge = random.permutation(edges).astype(random.choice([np.int32, np.int64]))
    ends = colptr[np.append(0, per_hop.cumsum())[: len(per_hop)]]
    per_hop_edges = tuple(np.diff(ends).tolist())
    return Sample(node, row, colptr, edge, tuple(per_hop.tolist()), per_hop_edges)


def hops_of(sample: Sample) -> np.ndarray:
    return np.repeat(np.arange(len(sample.num_sampled_nodes)), sample.num_sampled_nodes)


def sorted_within(hop: int, parts: dict[int, list[int]], rows: dict[int, dict[int, int]]):
    """The order that the design gives a hop, of positions by class."""
    turns = (IN_CHUNK, IN_SHARED, IN_HOT) if hop % 2 else (IN_HOT, IN_SHARED, IN_CHUNK)
    return [at for kind in turns for at in sorted(parts[kind], key=lambda at: (rows[kind][at], at))]


def check(places: NodePlaces, sample: Sample, slots: dict[int, int], shared: dict[int, int]):
    """One arranged sample against the words of the design."""
    found = places.arrange(sample.node, sample.num_sampled_nodes)
    node, hops = sample.node.tolist(), hops_of(sample)
    expected, counts, rows = [], [], {IN_CHUNK: {}, IN_SHARED: {}, IN_HOT: {}}
    lists = {IN_CHUNK: [], IN_SHARED: [], IN_HOT: []}
    for hop in range(len(sample.num_sampled_nodes)):
        parts = {IN_CHUNK: [], IN_SHARED: [], IN_HOT: []}
        for at in np.flatnonzero(hops == hop).tolist():
            kind = IN_HOT if node[at] in slots else IN_SHARED if node[at] in shared else IN_CHUNK
            kind = IN_CHUNK if hop == 0 else kind
            parts[kind].append(at)
            row = {IN_CHUNK: node[at], IN_SHARED: shared.get(node[at]), IN_HOT: slots.get(node[at])}
            rows[kind][at] = at if hop == 0 else row[kind]
        order = sorted_within(hop, parts, rows)
        expected += order
        counts.append([len(parts[kind]) for kind in (IN_CHUNK, IN_SHARED, IN_HOT)])
        for at in order:
            for kind, members in parts.items():
                if at in members:
                    lists[kind].append(node[at] if kind == IN_CHUNK else rows[kind][at])
    assert found.order.tolist() == expected
    assert found.rank[found.order].tolist() == list(range(len(node)))
    assert found.node.tolist() == [node[at] for at in expected]
    assert found.counts.tolist() == counts
    assert found.chunk.tolist() == lists[IN_CHUNK]
    assert found.shared.tolist() == lists[IN_SHARED]
    assert found.hot.tolist() == lists[IN_HOT]
    return found


def edges_by_hop(sample: Sample) -> list[Counter]:
    """The (source, target, edge) of each hop, by node position turned into node id."""
    col = sample.col
    hop = hops_of(sample)[col]
    found = [Counter() for _ in sample.num_sampled_nodes]
    for each, source, target, edge in zip(
        hop, sample.node[sample.row], sample.node[col], sample.edge, strict=True
    ):
        found[each][int(source), int(target), int(edge)] += 1
    return found


@pytest.mark.parametrize("seed", range(200))
def test_segments_of_samples_lie_as_designed_and_stay_the_same_graphs(seed):
    random = np.random.default_rng(seed)
    nodes, twice = int(random.integers(1, 100)), seed % 4 == 0
    hot = random.permutation(nodes)[: int(random.integers(0, nodes + 1))]
    slots = {int(id): slot for slot, id in enumerate(hot)}
    places = NodePlaces(nodes, hot)
    for _ in range(3):
        samples = [sample_of(random, nodes, twice) for _ in range(int(random.integers(1, 6)))]
        cold = [places.cold(each.node, each.num_sampled_nodes[0]) for each in samples]
        uses = Counter(
            id for each in samples
            for id in each.node[each.num_sampled_nodes[0] :].tolist() if id not in slots
        )  # fmt: skip
        assert uses == Counter(id for ids in cold for id in ids.tolist())
        found = places.begin(cold)
        assert found.tolist() == sorted(id for id, count in uses.items() if count > 1)
        inside = places.set_order(random.permutation(len(found)))
        shared = {int(id): row for row, id in enumerate(inside)}
        for ids in cold:
            assert places.members(ids).tolist() == [shared[i] for i in ids.tolist() if i in shared]
        for sample in samples:
            arranged = check(places, sample, slots, shared)
            edges = renumber(sample.row, sample.colptr, sample.edge, arranged, arranged)
            assert [each.dtype for each in edges] == [np.int32, np.int32, sample.edge.dtype]
            packed = Sample(
                arranged.node, edges[0], edges[1], edges[2], sample.num_sampled_nodes,
                sample.num_sampled_edges,
            )  # fmt: skip
            assert edges_by_hop(packed) == edges_by_hop(sample)


def test_an_edge_list_of_its_own_keeps_its_order():
    places = NodePlaces(10, np.array([7]))
    arranged = places.arrange(np.array([5, 7, 3, 2]), (1, 3))
    assert arranged.node.tolist() == [5, 2, 3, 7]
    row, colptr, edge = renumber(
        np.array([1, 2, 1], np.int32), np.array([0, 3], np.int32), np.array([9, 8, 7]), arranged,
        arranged,
    )  # fmt: skip
    assert row.tolist() == [3, 2, 3]
    assert colptr.tolist() == [0, 3]
    assert edge.tolist() == [9, 8, 7]


def test_edges_between_two_types_take_the_rank_of_one_and_the_order_of_the_other():
    source = NodePlaces(4).arrange(np.array([3, 1, 0]), (0, 3))
    target = NodePlaces(9).arrange(np.array([4, 8, 2]), (1, 2))
    row, colptr, edge = renumber(
        np.array([0, 1, 2, 2], np.int32), np.array([0, 1, 3, 4], np.int32),
        np.array([10, 11, 12, 13], np.int32), source, target,
    )  # fmt: skip
    assert source.rank.tolist() == [2, 1, 0]
    assert target.order.tolist() == [0, 2, 1]
    assert row.tolist() == [2, 0, 1, 0]
    assert colptr.tolist() == [0, 1, 2, 4]
    assert edge.tolist() == [10, 13, 11, 12]


def test_a_chunk_of_three_hops_is_two_stretches_of_x():
    node, per_hop = np.random.default_rng(1).permutation(300)[:200], (20, 40, 60, 80)
    places = NodePlaces(300, np.arange(0, 300, 3))
    cold = places.cold(node, 20)
    places.begin([cold, cold[::2]])
    arranged = places.arrange(node, per_hop)
    in_chunk = np.isin(arranged.node, arranged.chunk)
    starts = np.flatnonzero(np.diff(in_chunk, prepend=False, append=False)).tolist()
    own = arranged.counts[:, IN_CHUNK].tolist()
    assert starts == [0, 20 + own[1], 120 - own[2], 120 + own[3]]
    assert min(own) > 0


@pytest.mark.parametrize("per_hop", [(2,), (1, 3), (4, -1), (-1, 4)])
def test_hops_that_do_not_sum_up_are_refused(per_hop):
    with pytest.raises(ValueError, match="arrange"):
        NodePlaces(5).arrange(np.array([1, 2, 3]), per_hop)


@pytest.mark.parametrize("id", [-1, 5, 1 << 40])
def test_an_id_out_of_range_is_refused(id):
    places = NodePlaces(5)
    for per_hop in ((2,), (1, 1), (0, 0, 2)):
        with pytest.raises(ValueError, match="2 nodes below 5"):
            places.arrange(np.array([1, id]), per_hop)
    with pytest.raises(ValueError, match="batch 1 of the segment has ids outside 0 to 4"):
        places.begin([np.array([0, 3]), np.array([0, id])])
    assert places.begin([np.array([0, 1]), np.array([1])]).tolist() == [1]


@pytest.mark.parametrize(
    ("row", "colptr", "why"),
    [
        ([0, 3], [0, 2], "a row that is no node"),
        ([0, -1], [0, 2], "a negative row"),
        ([0, 1], [0, 1], "edges beyond the last target"),
        ([0, 1], [1, 2], "edges before the first target"),
        ([0, 1], [0, 3, 1, 2], "pointers beyond the edges"),
        ([0, 1], [0, 2, 1, 2], "pointers that fall"),
        ([0, 1], [0, 2, 2, 2, 2], "more targets than nodes"),
    ],
)
def test_edges_that_are_none_are_refused(row, colptr, why):
    arranged = NodePlaces(9).arrange(np.array([7, 5, 6]), (1, 2))
    edge = np.arange(2)
    with pytest.raises(ValueError, match="renumber"):
        renumber(np.array(row, np.int32), np.array(colptr, np.int32), edge, arranged, arranged)


def test_targets_that_are_half_a_hop_are_refused():
    arranged = NodePlaces(9).arrange(np.array([7, 6, 5]), (1, 2))
    row, colptr, edge = np.zeros(3, np.int32), np.array([0, 1, 2, 3], np.int32), np.arange(3)
    assert renumber(row, colptr, edge, arranged, arranged)[1].tolist() == [0, 1, 2, 3]
    with pytest.raises(ValueError, match="renumber"):
        renumber(row[:2], colptr[:3], edge[:2], arranged, arranged)
