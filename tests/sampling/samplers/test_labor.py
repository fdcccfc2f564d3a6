"""LABOR-0: equal to brute force, each neighbour equally likely, and numbers that move slowly."""

from __future__ import annotations

import errno
import itertools
import math
from typing import Any

import numpy as np
import pytest
from scipy import stats

from gnndrive.common.errors import BatchTooLarge, ConfigError
from gnndrive.common.ffi import ffi, lib
from gnndrive.common.records import Sample
from gnndrive.sampling.labor import WEIGHT_ONE, Sampling, SharedNumbers
from gnndrive.sampling.samplers.base import Bounds, batch_key
from gnndrive.sampling.samplers.uniform import Uniform
from gnndrive.sampling.topologies.mmap import Mmap
from tests.sampling.samplers.graphs import (
    LABOR,
    Scratch,
    assert_contract,
    brute_force,
    numbers_of,
    random_graph,
    star,
)
from tests.soak import product

QUANTILE = 0.9999
SAMPLINGS = [LABOR, Sampling("labor", 8), Sampling("labor", 1000)]


def sample_of(
    topology: Any, fanout: list[int], seeds: Any, batch: int, sampling: Sampling = LABOR
) -> Sample:
    sampler = Uniform(fanout, sampling=sampling)
    return sampler.sample_nodes(np.array(seeds, np.int64), batch_key(1, 0, batch), topology)


# ---- which neighbours are taken


@product("sampling,dtype", SAMPLINGS, [np.int32, np.int64])
def test_a_sample_is_that_of_brute_force(sampling, dtype, seeds):
    """On a graph with duplicate edges, hubs, and nodes without neighbours."""
    indptr, indices = random_graph(900, 40, seed=3, dtype=dtype)
    assert np.diff(indptr).max() > 600  # a list that is read in three parts
    topology = Mmap(indptr, indices)
    node = [*np.argsort(-np.diff(indptr))[:4].tolist(), 5, 5, 17, 400]
    fanouts = ([3, 2], [10, 10], [-1, 4], [0, 5], [300, 1])
    for seed, fanout in itertools.product(seeds(1), fanouts):
        sample = sample_of(topology, fanout, node, seed, sampling)
        shared = sampling.numbers(batch_key(1, 0, seed))
        nodes, edges = brute_force(shared, indptr, indices, node, fanout)
        assert sample.node.tolist() == nodes
        assert sample.edge.tolist() == edges
        assert_contract(sample, indptr, indices, node, fanout, False)


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


def test_draws_are_the_same_on_all_machines():
    """A change of these numbers would change the batches of all seeds."""
    shared = Sampling("labor", 10).numbers(batch_key(7, 3, 24))
    assert shared == SharedNumbers(0x8490C52F93C7DF65, 0xA3976447CDA0D08B, 868675383, 631129609)
    sample = sample_of(star(50), [5], [0], 24, Sampling("labor", 10))
    assert sample.edge.tolist() == [5, 11, 15, 30, 42]


def test_weights_are_those_of_a_quarter_circle():
    for step in range(1000):
        shared = Sampling("labor", 1000).numbers(batch_key(0, 0, step))
        angle = step / 1000 * math.pi / 2
        expected = np.array([math.cos(angle), math.sin(angle)]) * WEIGHT_ONE
        assert np.abs([shared.weight, shared.next_weight] - expected).max() < 0.51


# ---- numbers of batches that depend on each other


def test_numbers_move_slowly_and_stay_what_they_are():
    """Consecutive batches order the nodes nearly alike, those of far groups independently."""
    sampling, ids = Sampling("labor", 32), np.arange(3000)

    orders = [numbers_of(sampling.numbers(batch_key(1, 0, batch)), ids) for batch in range(66)]
    for batch in (0, 15, 31, 32, 63, 64):  # across the ends of groups, too
        assert stats.spearmanr(orders[batch], orders[batch + 1]).statistic > 0.99
    assert 0.5 < stats.spearmanr(orders[0], orders[16]).statistic < 0.8
    assert abs(stats.spearmanr(orders[0], orders[64]).statistic) < 0.08


# ---- what is refused


def test_what_cannot_be_is_refused():
    for given, message in (
        (("ladies",), "sampling='ladies': give 'neighbor' or 'labor'"),
        (("neighbor", 8), "batch_dependency=8 .* give sampling='labor', or leave it out"),
    ):
        with pytest.raises(ConfigError, match=message):
            Sampling(*given)
    with pytest.raises(ConfigError, match="replace=True out, or give sampling='neighbor'"):
        Uniform([3], True, sampling=LABOR)


def test_a_damaged_list_is_an_error_even_if_it_is_not_taken():
    """In a window, where a neighbour's number is looked up."""
    for bad in (-1, 6, 2**31 - 1):
        csc, ids, scratch = ffi.new("gd_csc *"), np.arange(6), Scratch()
        source = Mmap(np.array([0, 5, 5, 5, 5, 5, 5]), np.array([1, 2, bad, 4, 5], np.int32))
        csc[0] = source.csc()[0]
        csc.ids, csc.id_bytes = ffi.from_buffer(ids), 8
        shared: Any = ffi.new("gd_shared *", (1, 0, WEIGHT_ONE, 0))
        assert scratch.sample(csc, [0], [2], shared=shared) == -errno.ERANGE
        assert lib.gd_sampler_culprit(scratch.handle, ffi.NULL) == bad


def test_limits_end_a_sample():
    limits = Bounds({None: 301}, {None: 40}, {None: 301})
    with pytest.raises(BatchTooLarge):
        Uniform([41], limits=limits, sampling=LABOR).sample_nodes(np.array([0]), 1, star(300))
