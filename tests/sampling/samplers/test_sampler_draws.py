"""A node's draw depends on (key, node) only, and all outcomes are equally likely.

The chi-square tests have fixed keys, so each gives the same number every time; the bound is the
0.9999 quantile, which a sampler with a bias of a few per cent exceeds by far at these counts.
"""

from __future__ import annotations

import copy
import itertools
import pickle
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from scipy import stats

from gnndrive.common.records import Sample
from gnndrive.sampling.samplers.base import batch_key
from gnndrive.sampling.samplers.uniform import Uniform
from gnndrive.sampling.topologies.mmap import Mmap
from tests.sampling.samplers.graphs import random_graph, reference_sample, star

QUANTILE = 0.9999


def assert_uniform(counts: np.ndarray) -> None:
    expected = counts.sum() / counts.size
    assert expected > 20
    statistic = ((counts - expected) ** 2 / expected).sum()
    assert statistic < stats.chi2.ppf(QUANTILE, counts.size - 1)


def assert_independent(table: np.ndarray) -> None:
    assert stats.chi2_contingency(table).pvalue > 1 - QUANTILE


def assert_same(a: Sample, b: Sample) -> None:
    for name in ("node", "row", "col", "edge", "num_sampled_nodes", "num_sampled_edges"):
        np.testing.assert_array_equal(getattr(a, name), getattr(b, name))


def copies(degree: int, nodes: int) -> Mmap:
    """`nodes` nodes with `degree` in-edges each."""
    indptr = np.arange(nodes + 1, dtype=np.int64) * degree
    return Mmap(indptr, np.zeros(nodes * degree, np.int32), "copies")


def offsets(degree: int, fanout: int, keys: range, nodes: int, replace: bool) -> np.ndarray:
    """Drawn offsets, [keys * nodes, fanout]."""
    topology, sampler = copies(degree, nodes), Uniform([fanout], replace)
    seeds = np.arange(nodes)
    drawn = [sampler.sample_nodes(seeds, key, topology).edge.reshape(nodes, fanout) for key in keys]
    return np.concatenate(drawn) % degree


@pytest.mark.parametrize(("keys", "nodes"), [(range(20_000), 1), (range(20), 1000)])
def test_pairs_out_of_five_are_equally_likely(keys: range, nodes: int) -> None:
    drawn = np.sort(offsets(5, 2, keys, nodes, replace=False), axis=1)
    counted = Counter(map(tuple, drawn.tolist()))
    pairs = list(itertools.combinations(range(5), 2))
    assert set(counted) == set(pairs)
    assert_uniform(np.array([counted[pair] for pair in pairs]))


@pytest.mark.parametrize(("degree", "fanout"), [(11, 10), (40, 3), (100, 32), (100, 33), (90, 80)])
def test_each_edge_is_equally_likely_without_replacement(degree: int, fanout: int) -> None:
    drawn = offsets(degree, fanout, range(4), 2000, replace=False)
    assert (np.diff(np.sort(drawn, axis=1)) > 0).all()
    assert_uniform(np.bincount(drawn.ravel(), minlength=degree))


def test_triples_out_of_a_large_fanout_are_equally_likely() -> None:
    drawn = offsets(36, 34, range(10), 1000, replace=False)  # a draw is known by the two left out
    left = np.array([np.setdiff1d(np.arange(36), row) for row in drawn])
    table = np.zeros((36, 36))
    np.add.at(table, (left[:, 0], left[:, 1]), 1)
    assert table.sum() == len(left)
    statistic_input = table[np.triu_indices(36, 1)]
    expected = statistic_input.mean()
    statistic = ((statistic_input - expected) ** 2 / expected).sum()
    assert statistic < stats.chi2.ppf(QUANTILE, statistic_input.size - 1)


def test_the_scan_and_the_hash_set_draw_the_same_kind_of_subset() -> None:
    """Fanouts of 32 and 33 take different code: how often edge 0 and edge 1 come together."""
    for fanout in (32, 33):
        drawn = offsets(64, fanout, range(4), 2000, replace=False)
        both = ((drawn == 0).any(1) & (drawn == 1).any(1)).mean()
        expected = fanout * (fanout - 1) / (64 * 63)
        assert abs(both - expected) < 4 * np.sqrt(expected * (1 - expected) / len(drawn))


@pytest.mark.parametrize("degree", [2, 3, 7, 1000])
def test_with_replacement_all_draws_are_equally_likely(degree: int) -> None:
    drawn = offsets(degree, 4, range(10), 2000, replace=True)
    assert_uniform(np.bincount(drawn.ravel(), minlength=degree))
    if degree <= 7:
        for a, b in itertools.combinations(range(4), 2):
            assert_uniform(np.bincount(drawn[:, a] * degree + drawn[:, b], minlength=degree**2))


def test_draws_of_neighbouring_nodes_and_keys_are_independent() -> None:
    drawn = offsets(6, 1, range(40), 1000, replace=False).reshape(40, 1000)
    for here, there in ((drawn[:, :-1], drawn[:, 1:]), (drawn[:-1], drawn[1:])):
        assert_independent(np.bincount((here * 6 + there).ravel(), minlength=36).reshape(6, 6))


@pytest.mark.parametrize("replace", [False, True])
def test_the_distribution_equals_a_plain_samplers(replace: bool) -> None:
    indptr, indices = random_graph(40, 6, seed=8)
    seeds, fanout, runs = [3, 9, 20], [3, 2], 2000
    topology, sampler = Mmap(indptr, indices, "graph"), Uniform(fanout, replace)
    random = np.random.default_rng(1)
    sizes = np.zeros((2, 40))
    drawn = np.zeros((2, len(indices)))
    for key in range(runs):
        sample = sampler.sample_nodes(np.array(seeds), key, topology)
        nodes, edges = reference_sample(indptr, indices, seeds, fanout, replace, random)
        for which, (size, positions) in enumerate(
            [(len(sample.node), sample.edge), (len(nodes), np.array(edges))]
        ):
            sizes[which, size] += 1
            drawn[which] += np.bincount(positions, minlength=len(indices))
    assert_independent(sizes[:, sizes.sum(0) >= 20])
    often = drawn.sum(0) >= 20
    assert often.sum() > 30
    difference = (drawn[0] - drawn[1])[often] / np.sqrt(drawn.sum(0)[often])
    assert np.abs(difference).max() < stats.norm.ppf(1 - (1 - QUANTILE) / often.sum())


def test_a_sample_does_not_depend_on_earlier_use_of_the_scratch_memory() -> None:
    indptr, indices = random_graph(3000, 15, seed=2, dtype=np.int32)
    topology, seeds = Mmap(indptr, indices, "graph"), np.arange(0, 3000, 7)
    used = Uniform([10, 10])
    for size in (1, 400, 2, 3, 1, 2, 5, 400, 50):
        fresh = Uniform([10, 10]).sample_nodes(seeds[:size], 99, topology)
        assert_same(used.sample_nodes(seeds[:size], 99, topology), fresh)
    other = used.sample_nodes(seeds, 100, topology)
    assert not np.array_equal(other.node, used.sample_nodes(seeds, 99, topology).node)


def test_samples_do_not_depend_on_threads() -> None:
    indptr, indices = random_graph(3000, 15, seed=2, dtype=np.int32)
    topology, sampler = Mmap(indptr, indices, "graph"), Uniform([5, 5])

    def sample(batch: int) -> Sample:
        seeds = np.arange(batch * 10, batch * 10 + 10 * (batch % 7))
        return sampler.sample_nodes(seeds, batch_key(1, 0, batch), topology)

    alone = [sample(batch) for batch in range(200)]
    with ThreadPoolExecutor(4) as pool:
        for a, b in zip(alone, pool.map(sample, range(200)), strict=True):
            assert_same(a, b)


@pytest.mark.parametrize(("fanout", "replace"), [(4, False), (4, True), (40, False)])
def test_a_nodes_draw_does_not_depend_on_the_other_seeds_or_the_hop(
    fanout: int, replace: bool
) -> None:
    indptr, indices = random_graph(500, 60, seed=4)
    topology, sampler = Mmap(indptr, indices, "graph"), Uniform([fanout, fanout], replace)

    def drawn(seeds: list[int]) -> dict[int, list[int]]:
        sample = sampler.sample_nodes(np.array(seeds), 77, topology)
        by_node: dict[int, list[int]] = {}
        for place in np.unique(sample.col).tolist():
            by_node[int(sample.node[place])] = sample.edge[sample.col == place].tolist()
        return by_node

    one, many = drawn([8]), drawn([400, 3, 8, 77, 12])
    common = one.keys() & many.keys()
    assert 8 in common
    assert len(common) > 2
    assert all(one[node] == many[node] for node in common)


def test_large_fanouts_from_a_hub() -> None:
    sample = Uniform([100_000]).sample_nodes(np.array([0]), 5, star(150_000, np.int32))
    assert len(np.unique(sample.edge)) == 100_000
    halves = np.bincount(sample.edge // 1000, minlength=150)
    expected = 100_000 / 150  # hypergeometric: 1000 * 2/3 * 1/3 is the variance, nearly
    assert ((halves - expected) ** 2 / (1000 * 2 / 9)).sum() < stats.chi2.ppf(QUANTILE, 149)


def test_batch_keys_differ() -> None:
    parts = itertools.product((-1, 0, 1, 2**63), range(5), range(200))
    keys = {batch_key(*part) for part in parts}
    assert len(keys) == 4 * 5 * 200
    assert all(0 <= key < 2**64 for key in keys)
    assert batch_key(1, 2, 3) not in {batch_key(3, 2, 1), batch_key(2, 1, 3), batch_key(1, 3, 2)}
    bits = np.array([[key >> bit & 1 for bit in range(64)] for key in keys])
    assert np.abs(bits.mean(0) - 0.5).max() < 0.05


def test_a_batch_key_can_be_copied_and_pickled() -> None:
    key = batch_key(1, 2, 3)
    for same in (copy.copy(key), copy.deepcopy(key), pickle.loads(pickle.dumps(key))):
        assert type(same) is type(key)
        assert (same, same.epoch, same.batch) == (key, key.epoch, 3)
