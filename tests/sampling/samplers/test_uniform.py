"""Uniform sampling, and LABOR-0, which shares numbers: what is drawn, how often, and limits.

The chi-square tests have fixed keys, so each gives the same number every time; the bound is the
0.9999 quantile, which a sampler with a bias of a few per cent exceeds by far at these counts.
"""

import copy
import errno
import itertools
import math
import pickle
from collections import Counter
from typing import Any

import numpy as np
import pytest
from scipy import stats

import gnndrive
from gnndrive.common.errors import BatchTooLarge, ClosedError, ConfigError, StoreError
from gnndrive.common.ffi import ffi, lib, pointer
from gnndrive.common.records import Sample, Seeds
from gnndrive.sampling import degrees as module
from gnndrive.sampling.degrees import Degrees, degrees_of
from gnndrive.sampling.labor import DRAWN_APART, Sampling
from gnndrive.sampling.samplers._native import (
    WEIGHT_ONE,
    Native,
    Relation,
    SamplingOptions,
    SeedGroup,
    SharedNumbers,
    scratch_bytes,
)
from gnndrive.sampling.samplers._uniform import shared_numbers
from gnndrive.sampling.samplers.base import Bounds, batch_key, most, position_dtype
from gnndrive.sampling.samplers.uniform import Uniform
from gnndrive.sampling.topologies import over_arrays
from gnndrive.sampling.topologies.mmap import Mmap
from tests.sampling.samplers.graphs import (
    DEPENDENT,
    LABOR,
    Scratch,
    assert_contract,
    numbers_of,
    random_graph,
    star,
)
from tests.soak import product

QUANTILE = 0.9999


def test_nodes_equal_in_their_low_32_bits_stay_apart_and_positions_have_any_width():
    """Three thousand ids, so that some collide in the hash table, and each of them twice."""
    wide = 5 + np.tile(np.arange(3000, dtype=np.int64) << 32, 2)
    indptr = np.array([0, len(wide)], np.int64)  # enough, because only node 0 is expanded
    graph = ffi.new("gd_csc *", [pointer(indptr), pointer(wide), 8, 8, 2**48, len(wide)])
    scratch = Scratch()
    assert scratch.sample(graph, [0], [-1]) == 0
    assert lib.gd_sampler_nodes(scratch.handle, 0) == 3001
    np.testing.assert_array_equal(scratch.sources(), wide)
    assert (position_dtype(2**31 - 1), position_dtype(2**31)) == (np.int32, np.int64)
    topology, scratch, null = star(40), Scratch(), ffi.NULL
    assert scratch.sample(topology.csc(), [0], [7], key=3) == 0
    narrow, wide = np.empty(7, np.int32), np.empty(7, np.int64)
    for edge in (narrow, wide):
        lib.gd_sampler_drawn(scratch.handle, 0, null, null, pointer(edge), edge.itemsize, null)
    assert narrow.tolist() == wide.tolist()
    assert len(set(wide.tolist()) & set(range(40))) == 7


def assert_uniform(counts: np.ndarray) -> None:
    expected = counts.sum() / counts.size
    assert expected > 15
    statistic = ((counts - expected) ** 2 / expected).sum()
    assert statistic < stats.chi2.ppf(QUANTILE, counts.size - 1)


def offsets(degree: int, fanout: int, keys: int, nodes: int, replace: bool) -> np.ndarray:
    """The offsets that are drawn of nodes with `degree` in-edges each, [keys * nodes, fanout]."""
    indptr = np.arange(nodes + 1, dtype=np.int64) * degree
    topology, sampler = Mmap(indptr, np.zeros(nodes * degree, np.int32)), Uniform([fanout], replace)
    seeds = np.arange(nodes)
    drawn = [sampler.sample_nodes(seeds, key, topology).edge for key in range(keys)]
    return np.concatenate(drawn).reshape(keys * nodes, fanout) % degree


def test_pairs_are_equally_likely():
    """That are drawn, or left out of a large fanout."""
    drawn = np.sort(offsets(5, 2, 4, 500, replace=False), axis=1)
    counted = Counter(map(tuple, drawn.tolist()))
    pairs = list(itertools.combinations(range(5), 2))
    assert set(counted) == set(pairs)
    assert_uniform(np.array([counted[pair] for pair in pairs]))
    drawn = offsets(36, 34, 10, 1000, replace=False)
    left = np.ones((len(drawn), 36), bool)
    np.put_along_axis(left, drawn, False, axis=1)
    one, other = np.nonzero(left)[1].reshape(-1, 2).T
    counts = np.bincount(36 * one + other, minlength=36**2).reshape(36, 36)
    assert_uniform(counts[np.triu_indices(36, 1)])


@pytest.mark.parametrize(
    ("degree", "fanout", "replace"),
    [(11, 10, False), (40, 3, False), (100, 32, False), (100, 33, False), (90, 80, False),
     (7, 4, True), (1000, 4, True)],
)  # fmt: skip
def test_each_edge_is_equally_likely(degree, fanout, replace):
    """With replacement, so is each pair of draws."""
    drawn = offsets(degree, fanout, 10 if replace else 4, 2000, replace)
    assert replace or (np.diff(np.sort(drawn, axis=1)) > 0).all()
    assert_uniform(np.bincount(drawn.ravel(), minlength=degree))
    if replace and degree <= 7:
        for a, b in itertools.combinations(range(4), 2):
            assert_uniform(np.bincount(drawn[:, a] * degree + drawn[:, b], minlength=degree**2))


def test_draws_of_neighbouring_nodes_and_keys_are_independent():
    drawn = offsets(6, 1, 40, 1000, replace=False).reshape(40, 1000)
    for here, there in ((drawn[:, :-1], drawn[:, 1:]), (drawn[:-1], drawn[1:])):
        table = np.bincount((here * 6 + there).ravel(), minlength=36).reshape(6, 6)
        assert stats.chi2_contingency(table).pvalue > 1 - QUANTILE


def test_batch_keys():
    keys = {batch_key(*part) for part in itertools.product((-1, 0, 1, 2**63), range(5), range(100))}
    assert len(keys) == 4 * 5 * 100
    assert all(0 <= key < 2**64 for key in keys)
    assert batch_key(1, 2, 3) not in {batch_key(3, 2, 1), batch_key(2, 1, 3), batch_key(1, 3, 2)}
    key = batch_key(1, 2, 3)
    for same in (copy.copy(key), copy.deepcopy(key), pickle.loads(pickle.dumps(key))):
        assert type(same) is type(key)
        assert (same, same.epoch, same.batch) == (key, key.epoch, 3)


# ---- bounds and limits


def test_bounds_for_the_plan():
    many = 10**9
    for fanout, nodes, edges, repeat, expected in (
        ([10, 10, 10], many, many, False, (1_111_000, 1_110_000)),
        ([10, 10, 10], 50_000, 20_000, False, (50_000, 20_000)),
        ([10, -1], many, many, False, (many, many)),
        ([], many, many, False, (1000, 0)),
        ([10, 10], 5000, 20_000, True, (5000, 10_000 + 50_000)),
        ([-1, 10], 5000, 20_000, False, (5000, 20_000)),
    ):
        found = most({None: 1000}, {None: fanout}, {None: nodes}, {None: edges}, repeat)
        assert (found.nodes[None], found.edges[None]) == expected
    writes, cites = ("author", "writes", "paper"), ("paper", "cites", "paper")
    nodes, edges = {"author": 50, "paper": 1000}, {writes: 400, cites: 9000}
    for seeds, of_writes, of_cites, expected in (
        ({"paper": 10}, [5, 5], [2, 3], (50, 10 + 20 + 60, 50 + 100, 20 + 60)),
        ({"author": 10}, [5, 5], [2, 3], (10, 0, 0, 0)),
        ({"paper": 10}, [-1, 1], [1, -1], (50, 1000, 400, 9000)),
    ):
        found = most(seeds, {writes: of_writes, cites: of_cites}, nodes, edges)
        assert (*found.nodes.values(), *found.edges.values()) == expected


def limits(nodes: int, edges: int) -> Bounds:
    return Bounds({None: nodes}, {None: edges}, {None: nodes})


def test_a_sample_within_its_limits_is_the_same_and_a_larger_one_is_given_up():
    graph, seeds = Mmap(*random_graph(20_000, 20)), np.arange(900)
    sample = Uniform([5, 5]).sample_nodes(seeds, 1, graph)
    nodes, edges = sample.num_nodes, sample.num_edges
    assert min(nodes, edges) > 5_000, "it is larger than the first capacity of an array"
    exact = Uniform([5, 5], limits=limits(nodes, edges)).sample_nodes(seeds, 1, graph)
    assert np.array_equal(exact.node, sample.node)
    assert np.array_equal(exact.edge, sample.edge)
    few = Uniform([5, 5]).sample_nodes(seeds[:10], 1, graph)
    # Nodes are counted before the next 256 edges.
    for less in ((nodes, edges - 1), (nodes - 257, edges), (899, edges), (1_000, 1_000)):
        limited = Uniform([5, 5], limits=limits(*less))
        for _ in range(2):
            with pytest.raises(BatchTooLarge):
                limited.sample_nodes(seeds, 1, graph)
            assert np.array_equal(limited.sample_nodes(seeds[:10], 1, graph).node, few.node)


def test_each_type_has_its_own_limits():
    graph, fanout = Mmap(*random_graph(5_000, 20)), np.array([3], np.int64)
    relations = [Relation(graph, fanout, 0, 0), Relation(graph, fanout, 1, 0)]
    rest = relations, [5_000, 5_000], [SeedGroup(np.arange(900))], SamplingOptions(1)
    with Native([2_000_000, 3_000], [0, 3_000]).sampled(*rest) as sampled:
        found = sampled.nodes(1)[0]
    for few in (([0, 0], [0, 900]), ([0, len(found) - 257], [0, 0])):
        with pytest.raises(BatchTooLarge), Native(*few).sampled(*rest):
            pass
    size = limits(827_000, 930_000)
    assert scratch_bytes(size) < scratch_bytes(size, limited=False) < 2 * scratch_bytes(size)
    assert scratch_bytes(size) < min(scratch_bytes(size, disjoint=True), 45e6)


def test_what_cannot_be_counted_or_read_is_refused():
    for fanout in (2**31, 2**62):
        with pytest.raises(ConfigError, match="lower batch_size"):
            Uniform([fanout], replace=True).sample_nodes(np.array([0]), 0, star(3))
    assert len(Uniform([2**62]).sample_nodes(np.array([0]), 0, star(3)).edge) == 3
    two, ends = np.zeros(2, np.int32), np.array([0, 2])
    for indptr, indices in (
        (np.zeros(0, np.int64), two[:0]), (np.array([0, 3]), two), (np.array([1, 2]), two),
        (ends.astype(np.int32), two), (ends, two.astype(np.uint32)), (ends, two.astype(">i4")),
        (ends, two[:, None]), (ends, np.zeros(4, np.int32)[::2]),
        (ends, np.frombuffer(bytes(9), np.int32, 2, offset=1)),
    ):  # fmt: skip
        with pytest.raises(StoreError, match="graph"):
            Mmap(indptr, indices, "graph")


@pytest.mark.parametrize("chunk", [7, 1 << 22])
def test_the_most_edges_are_those_of_the_longest_lists(chunk, monkeypatch):
    monkeypatch.setattr(module, "_CHUNK", chunk)
    indptr, _ = random_graph(300, 6)
    counted = Degrees(indptr)
    longest = np.sort(np.diff(indptr))[::-1]
    for nodes in (0, 1, 2, 17, 299, 300, 10_000):
        for fanout in (-1, 0, 1, 5, 10**6):
            each = longest if fanout < 0 else np.minimum(longest, fanout)
            assert counted.edges_most(nodes, fanout) == each[:nodes].sum()
            if fanout >= 0:
                drawn = np.where(longest > 0, fanout, 0)[:nodes].sum()
                assert counted.edges_most(nodes, fanout, replace=True) == drawn
    assert Degrees(np.zeros(1, np.int64)).edges_most(5, -1) == 0


@pytest.mark.parametrize("replace", [False, True])
def test_no_sample_is_larger_than_the_bounds_by_degrees(replace):
    graph = random_graph(400, 5)
    counted, topology = {None: Degrees(graph[0])}, over_arrays(*graph)
    nodes, edges, longest = {None: 400}, {None: len(graph[1])}, np.diff(graph[0])
    for fanout in ([-1], [3], [2, -1], [-1, 2], [4, 3, 2], [0], []):
        sampler = Uniform(fanout, replace)
        for size in (1, 7, 50):
            bounds = sampler.bounds(size, nodes, edges, counted)
            plain = sampler.bounds(size, nodes, edges)
            assert bounds.nodes[None] <= plain.nodes[None]
            assert bounds.edges[None] <= plain.edges[None]
            for seeds in (np.argsort(-longest, kind="stable")[:size], np.arange(size)):
                sample = sampler.sample_nodes(seeds.astype(np.int64), 3, topology)
                assert sample.num_nodes <= bounds.nodes[None]
                assert sample.num_edges <= bounds.edges[None]
    hub = Uniform([-1]).bounds(1, nodes, edges, counted).edges[None]
    assert hub == longest.max() < edges[None]


def test_degrees_are_counted_once_for_each_store(tmp_path):
    indptr, indices = random_graph(50, 3)
    store = gnndrive.write_store(tmp_path / "a.gnn", indptr=indptr, indices=indices, nodes={})
    assert degrees_of(store) is degrees_of(store)
    assert degrees_of(store)[None].edges_most(50, -1) == len(indices)


# ---- LABOR-0

SAMPLINGS = [LABOR, Sampling("labor", 8), Sampling("labor", 1000)]


def sample_of(
    topology: Any, fanout: list[int], seeds: Any, batch: int, sampling: Sampling = LABOR
) -> Sample:
    sampler = Uniform(fanout, sampling=sampling)
    return sampler.sample_nodes(np.array(seeds, np.int64), batch_key(1, 0, batch), topology)


@product("sampling,dtype", SAMPLINGS, [np.int32, np.int64])
def test_each_target_takes_the_neighbours_with_the_smallest_numbers(sampling, dtype, seeds):
    indptr, indices = random_graph(900, 40, seed=3, dtype=dtype)
    assert np.diff(indptr).max() > 600  # a list that is read in three parts
    topology = Mmap(indptr, indices)
    node = [*np.argsort(-np.diff(indptr))[:4].tolist(), 5, 5, 17, 400]
    fanouts = ([3, 2], [10, 10], [-1, 4], [0, 5], [300, 1])
    for seed, fanout in itertools.product(seeds(1), fanouts):
        sample = sample_of(topology, fanout, node, seed, sampling)
        shared = shared_numbers(sampling, batch_key(1, 0, seed))
        numbers = numbers_of(shared, np.arange(900)).tolist()
        assert_contract(sample, indptr, indices, node, fanout, False, numbers)


@pytest.mark.parametrize(
    ("sampling", "degree", "fanout"), [(LABOR, 40, 7), (SAMPLINGS[1], 300, 20)]
)
def test_each_neighbour_is_taken_equally_often(sampling, degree, fanout):
    """In batches that lie so far apart that they share no numbers, at every distance from the
    beginning of a group."""
    batches, topology = 1000, star(degree)
    counts = np.zeros(degree)
    for at in range(batches):
        batch = 2 * sampling.batch_dependency * at + at % sampling.batch_dependency
        counts[sample_of(topology, [fanout], [0], batch, sampling).edge] += 1
    share = fanout / degree
    spread = ((counts - batches * share) ** 2).sum() / (batches * share * (1 - share))
    assert spread * (degree - 1) / degree < stats.chi2.ppf(QUANTILE, degree - 1)


def test_numbers_are_the_same_on_all_machines_and_weights_those_of_a_quarter_circle():
    """A change of these numbers would change the batches of all seeds."""
    shared = shared_numbers(Sampling("labor", 10), batch_key(7, 3, 24))
    assert shared == SharedNumbers(0x8490C52F93C7DF65, 0xA3976447CDA0D08B, 868675383, 631129609)
    sample = sample_of(star(50), [5], [0], 24, Sampling("labor", 10))
    assert sample.edge.tolist() == [5, 11, 15, 30, 42]
    for step in range(1000):
        shared = shared_numbers(Sampling("labor", 1000), batch_key(0, 0, step))
        angle = step / 1000 * math.pi / 2
        expected = np.array([math.cos(angle), math.sin(angle)]) * WEIGHT_ONE
        assert np.abs([shared.weight, shared.next_weight] - expected).max() < 0.51


def test_numbers_move_slowly_and_stay_what_they_are():
    """Consecutive batches order the nodes nearly alike, those of far groups independently."""
    sampling, ids = Sampling("labor", 32), np.arange(3000)
    keys = [batch_key(1, 0, batch) for batch in range(66)]
    orders = [numbers_of(shared_numbers(sampling, key), ids) for key in keys]
    for batch in (0, 15, 31, 32, 63, 64):  # across the ends of groups, too
        assert stats.spearmanr(orders[batch], orders[batch + 1]).statistic > 0.99
    assert 0.5 < stats.spearmanr(orders[0], orders[16]).statistic < 0.8
    assert abs(stats.spearmanr(orders[0], orders[64]).statistic) < 0.08


@pytest.mark.parametrize("sampling", [DRAWN_APART, LABOR, DEPENDENT])
def test_the_samples_of_a_group_are_those_of_its_batches(sampling):
    topology, sampler = over_arrays(*random_graph(300, 9)), Uniform([4, 3], sampling=sampling)
    seeds = [Seeds(number, each, each) for number, each in enumerate(np.arange(60).reshape(6, 10))]
    keys = [batch_key(1, 2, number) for number in range(6)]
    for one, seed, key in zip(sampler.samples(seeds, keys, [topology]), seeds, keys, strict=True):
        alone = sampler.sample(seed, key, [topology])
        for name in ("node", "row", "colptr", "edge"):
            np.testing.assert_array_equal(getattr(one, name), getattr(alone, name))
        assert one.num_sampled_nodes == alone.num_sampled_nodes
        assert one.num_sampled_edges == alone.num_sampled_edges
    seeds[2] = Seeds(2, np.array([300]), np.array([0]))
    samples = sampler.samples(seeds, keys, [topology])
    assert [next(samples).num_sampled_nodes[0] for _ in range(2)] == [10, 10]
    with pytest.raises(ConfigError, match="seed 300 is not a node"):
        next(samples)
    sampler.stop()
    with pytest.raises(ClosedError):
        next(sampler.samples(seeds, keys, [topology]))


def test_damage_and_limits_end_a_sample_with_shared_numbers():
    """Damage also in a list that is not taken, and in a window, where numbers are looked up."""
    for bad in (-1, 6, 2**31 - 1):
        csc, ids, scratch = ffi.new("gd_csc *"), np.arange(6), Scratch()
        source = Mmap(np.array([0, 5, 5, 5, 5, 5, 5]), np.array([1, 2, bad, 4, 5], np.int32))
        csc[0] = source.csc()[0]
        csc.ids, csc.id_bytes = ffi.from_buffer(ids), 8
        shared: Any = ffi.new("gd_shared *", (1, 0, WEIGHT_ONE, 0))
        assert scratch.sample(csc, [0], [2], shared=shared) == -errno.ERANGE
        assert lib.gd_sampler_culprit(scratch.handle, ffi.NULL) == bad
    limits = Bounds({None: 301}, {None: 40}, {None: 301})
    with pytest.raises(BatchTooLarge):
        Uniform([41], limits=limits, sampling=LABOR).sample_nodes(np.array([0]), 1, star(300))
