"""Which nodes are hot, how many batches share a file, in which order, and where each row lies."""

from collections import Counter
from itertools import pairwise

import numpy as np
import pytest

from gnndrive.common.records import Sample
from gnndrive.store.packed import sharing
from gnndrive.store.packed.format import ORDERS
from gnndrive.store.packed.places import IN_CHUNK, IN_HOT, IN_SHARED, NodePlaces, renumber
from gnndrive.store.packed.record import predict
from gnndrive.store.packed.sharing import (
    BANDS,
    choose_hot,
    choose_segment,
    order_rows,
    rows_by_segment,
)

# ---- hot nodes


def test_the_nodes_with_the_most_uses_are_hot_in_bands_by_use_and_id(seeds, monkeypatch):
    """Of nodes with equally many uses, those with the lowest ids; the same in chunks of any
    length."""
    for seed in seeds(8):
        random = np.random.default_rng(seed)
        most = int(random.choice([1, 3, 20, 1000]))
        counts = most * random.random(int(random.integers(1, 300))) ** random.integers(1, 8)
        counts = counts.round().astype(np.uint32)
        slots = int(random.integers(0, len(counts) + 1))
        monkeypatch.setattr(sharing, "_CHUNK", int(random.integers(1, 80)))
        found = choose_hot(counts, slots)
        ranked = sorted(np.flatnonzero(counts), key=lambda node: (-int(counts[node]), node))
        assert sorted(found.node.tolist()) == sorted(ranked[:slots])
        assert found.band_uses.sum() == counts[ranked[:slots]].sum()
        ends = found.band_ends.tolist()
        bands = [found.node[start:end] for start, end in zip([0, *ends], ends, strict=False)]
        assert len(bands) == BANDS
        assert ends[-1] == len(found.node)
        assert all((np.diff(band) > 0).all() for band in bands)
        assert found.band_uses.tolist() == [int(counts[band].sum()) for band in bands]
        used = [counts[band] for band in bands if len(band)]
        assert all(hotter.min() > colder.max() for hotter, colder in pairwise(used))


def test_bands_are_about_equally_long():
    counts = np.random.default_rng(0).permutation(np.arange(6400, dtype=np.uint32))
    found = choose_hot(counts, 3200)
    assert np.diff(found.band_ends, prepend=0).tolist() == [100] * BANDS
    assert found.node.dtype == np.int32


# ---- segments


def small_batches(random: np.random.Generator) -> tuple[list[np.ndarray], int]:
    """Batches of ids, some of which come twice in a batch, and the number of nodes."""
    nodes, batches = int(random.integers(1, 60)), int(random.integers(1, 40))
    dtype = random.choice([np.int32, np.int64])
    popular = random.random(nodes) ** random.integers(1, 6) + 1e-9
    sizes = random.integers(0, nodes + 1, batches).tolist()
    twice = bool(random.integers(3) == 0)
    return [
        random.choice(nodes, size, twice, popular / popular.sum()).astype(dtype) for size in sizes
    ], nodes


def rows_written(batches: list[np.ndarray], segment: int) -> int:
    """The rows of chunks, used once in a segment, and of shared files, used more often."""
    return sum(
        len(np.unique(np.concatenate(batches[start : start + segment])))
        for start in range(0, len(batches), segment)
    )


def test_searches_equal_brute_force(seeds):
    for seed in seeds(12):
        random = np.random.default_rng(seed)
        batches, nodes = small_batches(random)
        order = str(random.choice(ORDERS))
        asked = int(random.integers(1, 50)) if random.integers(4) == 0 else None
        sizes = sorted({1 << power for power in range(7)} | ({asked} - {None}))
        sizes = [size for size in sizes if size < 2 * len(batches) or size in (1, asked)]
        needed = {size: rows_written(batches, size) for size in sizes}
        once = (batch.copy() for batch in batches)  # they are read in one pass
        assert rows_by_segment(once, nodes, asked) == needed
        limit = int(random.choice(list(needed.values()))) - int(random.integers(2))
        for disk in (1 << 60, limit):
            choice = choose_segment(needed, disk, order, asked)
            fits = [size for size in sizes if needed[size] <= disk]
            may = fits
            if asked is not None:
                may = [size for size in fits if size == asked]
            elif order == "sets":
                may = [size for size in fits if min(8, max(sizes)) <= size <= 64]
            assert (choice.needed, choice.fitting) == (needed, fits)
            assert choice.segment == (min(may) if may else None)


# ---- orders of shared rows


def random_members(random: np.random.Generator, batches: int) -> tuple[list[np.ndarray], int]:
    rows = int(random.integers(0, 300))
    return [
        random.integers(0, rows, int(random.integers(0, 2 * rows))) if rows else np.arange(0)
        for _ in range(batches)
    ], rows


def sets_of(members: list[np.ndarray], rows: int) -> list[frozenset[int]]:
    used = [set(each.tolist()) for each in members]
    return [frozenset(b for b, each in enumerate(used) if row in each) for row in range(rows)]


@pytest.mark.parametrize("batches", [1, 8, 9, 16, 33, 64])
def test_sets_lie_together_in_grays_order_and_by_id(batches, seeds):
    for seed in seeds(2):
        members, rows = random_members(np.random.default_rng(seed), batches)
        gray = {}
        for row, used in enumerate(sets_of(members, rows)):
            rank, bit = 0, 0
            for batch in reversed(range(batches)):
                bit ^= batch in used
                rank = 2 * rank + bit
            gray[row] = rank
        found = order_rows("sets", members, rows, batches).tolist()
        assert found == sorted(range(rows), key=lambda row: (gray[row], row))
        assert order_rows("id", members, rows, batches).tolist() == list(range(rows))


@pytest.mark.parametrize("batches", [1, 8, 65, 300])
def test_minhash_sorts_by_both_hashes_and_by_id(batches, seeds):
    ranks = [sharing._ranks(batches, number) for number in (0, 1)]
    assert [sorted(each) for each in ranks] == [list(range(batches))] * 2
    for seed in seeds(1):
        members, rows = random_members(np.random.default_rng(seed), batches)
        used = sets_of(members, rows)

        def key(row: int, used: list[frozenset[int]] = used) -> tuple[int, ...]:
            least = [min((each[b] for b in used[row]), default=batches - 1) for each in ranks]
            return (*least, row)

        found = order_rows("minhash", members, rows, batches).tolist()
        assert found == sorted(range(rows), key=key)


def test_the_hashes_are_what_they_have_been():
    assert sharing._ranks(8, 0) == [7, 0, 1, 2, 3, 4, 5, 6]
    assert sharing._ranks(8, 1) == [1, 7, 0, 5, 6, 4, 3, 2]


# ---- places of a segment's rows


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
    return Sample(node, row, colptr, edge, tuple(per_hop.tolist()), tuple(np.diff(ends).tolist()))


def hops_of(sample: Sample) -> np.ndarray:
    return np.repeat(np.arange(len(sample.num_sampled_nodes)), sample.num_sampled_nodes)


def check_arranged(places: NodePlaces, sample: Sample, slots: dict, shared: dict):
    """Arrange a sample and hold it against the words of the design: odd hops lie as chunk, shared,
    hot, even ones the other way round; the rows of each by id, by place in the file, by slot."""
    found = places.arrange(sample.node, sample.num_sampled_nodes)
    node, hops = sample.node.tolist(), hops_of(sample)
    order, counts = [], []
    lists = {IN_CHUNK: [], IN_SHARED: [], IN_HOT: []}
    for hop in range(len(sample.num_sampled_nodes)):
        parts = {IN_CHUNK: [], IN_SHARED: [], IN_HOT: []}
        for at in np.flatnonzero(hops == hop).tolist():
            id = node[at]
            if hop == 0:
                parts[IN_CHUNK].append((at, at, id))
            elif id in slots:
                parts[IN_HOT].append((slots[id], at, slots[id]))
            elif id in shared:
                parts[IN_SHARED].append((shared[id], at, shared[id]))
            else:
                parts[IN_CHUNK].append((id, at, id))
        for kind in (IN_CHUNK, IN_SHARED, IN_HOT) if hop % 2 else (IN_HOT, IN_SHARED, IN_CHUNK):
            for _, at, row in sorted(parts[kind]):
                order.append(at)
                lists[kind].append(row)
        counts.append([len(parts[kind]) for kind in (IN_CHUNK, IN_SHARED, IN_HOT)])
    assert found.order.tolist() == order
    assert found.rank[found.order].tolist() == list(range(len(node)))
    assert found.node.tolist() == [node[at] for at in order]
    assert found.counts.tolist() == counts
    assert [each.tolist() for each in (found.chunk, found.shared, found.hot)] == [*lists.values()]
    return found


def edges_by_hop(sample: Sample) -> list[Counter]:
    """The (source, target, edge) of each hop, by node position turned into node id."""
    found = [Counter() for _ in sample.num_sampled_nodes]
    ends = sample.node[sample.row].tolist(), sample.node[sample.col].tolist(), sample.edge.tolist()
    for hop, *each in zip(hops_of(sample)[sample.col], *ends, strict=True):
        found[hop][tuple(each)] += 1
    return found


def test_segments_of_samples_lie_as_designed_and_stay_the_same_graphs(seeds):
    for seed in seeds(8):
        random = np.random.default_rng(seed)
        nodes, twice = int(random.integers(1, 100)), seed % 4 == 0
        hot_nodes = random.permutation(nodes)[: int(random.integers(0, nodes + 1))]
        slots = {int(id): slot for slot, id in enumerate(hot_nodes)}
        places = NodePlaces(nodes, hot_nodes)
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
                mine = [shared[id] for id in ids.tolist() if id in shared]
                assert places.members(ids).tolist() == mine
            for sample in samples:
                arranged = check_arranged(places, sample, slots, shared)
                edges = renumber(sample.row, sample.colptr, sample.edge, arranged, arranged)
                assert [each.dtype for each in edges] == [np.int32, np.int32, sample.edge.dtype]
                counts = sample.num_sampled_nodes, sample.num_sampled_edges
                assert edges_by_hop(Sample(arranged.node, *edges, *counts)) == edges_by_hop(sample)


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


@pytest.mark.parametrize("id", [-1, 5, 1 << 40])
def test_an_id_out_of_range_and_hops_that_do_not_sum_up_are_refused(id):
    places = NodePlaces(5)
    for per_hop in ((2,), (4, -1), (-1, 4)):
        with pytest.raises(ValueError, match="arrange"):
            places.arrange(np.array([1, 2, 3]), per_hop)
    for per_hop in ((2,), (1, 1), (0, 0, 2)):
        with pytest.raises(ValueError, match="2 nodes below 5"):
            places.arrange(np.array([1, id]), per_hop)
    with pytest.raises(ValueError, match="batch 1 of the segment has ids outside 0 to 4"):
        places.begin([np.array([0, 3]), np.array([0, id])])
    assert places.begin([np.array([0, 1]), np.array([1])]).tolist() == [1]
    with pytest.raises(ValueError, match="batch 1 has ids outside 0 to 4"):
        rows_by_segment([np.array([0]), np.array([1, id])], 5)


def test_edges_that_are_none_are_refused():
    arranged = NodePlaces(9).arrange(np.array([7, 6, 5]), (1, 2))
    for row, colptr in (
        ([0, 3], [0, 2]),  # a row that is no node
        ([0, -1], [0, 2]),
        ([0, 1], [0, 1]),  # edges beyond the last target
        ([0, 1], [1, 2]),  # edges before the first target
        ([0, 1], [0, 3, 1, 2]),  # pointers beyond the edges
        ([0, 1], [0, 2, 1, 2]),  # pointers that fall
        ([0, 1], [0, 2, 2, 2, 2]),  # more targets than nodes
        ([0, 1], [0, 1, 2]),  # targets that are half a hop
    ):
        ends = np.array(row, np.int32), np.array(colptr, np.int32)
        with pytest.raises(ValueError, match="renumber"):
            renumber(*ends, np.arange(2), arranged, arranged)


# ---- predicted bytes


def test_the_prediction_has_the_samples_and_the_places_of_their_rows():
    found = predict([8192, 4096], 30, 200)
    assert (8192 + 4096 + 4 * 30) * 100 <= found <= (8192 + 4096 + 4 * 30 + 3 * 4096) * 100
