"""Sampling over several types, in disjoint trees, by time, by weight, and induced, against a plain
definition of what each option means."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from itertools import pairwise, product
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gnndrive.common.errors import ConfigError, StoreError
from gnndrive.sampling.samplers._native import (
    Native,
    Relation,
    SamplingOptions,
    SeededBatch,
    SeedGroup,
)
from gnndrive.sampling.topologies.mmap import Mmap
from tests.sampling.samplers.graphs import Case, Edges, Found, check, graph_of_degrees, star


@st.composite
def cases(draw: st.DrawFn) -> Case:
    random = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    counts = draw(st.lists(st.integers(1, 12), min_size=1, max_size=3))
    kind = st.integers(0, len(counts) - 1)
    times = draw(st.sampled_from(["none", "node", "edge"]))
    node_time = [random.integers(0, 6, count) for count in counts]
    edges = []
    for source, target in draw(st.lists(st.tuples(kind, kind), max_size=4)):
        # Several may connect the same nodes.
        degrees = random.integers(0, 9, counts[target])
        indptr = np.concatenate([[0], np.cumsum(degrees)]).astype(np.int64)
        dtype = [np.int32, np.int64][int(random.integers(2))]
        indices = random.integers(0, counts[source], indptr[-1]).astype(dtype)
        of_edges = random.integers(0, 6, len(indices)) if times == "edge" else None
        of_nodes = node_time[source] if times == "node" else None
        edges.append(Edges(source, target, indptr, indices, of_edges, of_nodes))
    hops = draw(st.integers(0, 3))
    fanout = st.lists(st.integers(-1, 4), min_size=hops, max_size=hops)
    seeds = []
    for number, count in enumerate(counts):
        node = np.array(draw(st.lists(st.integers(0, count - 1), max_size=4)), np.int64)
        time = random.integers(0, 7, len(node)) if times != "none" else None
        seeds.append(SeedGroup(node, number, time))
    key, replace, latest = draw(st.tuples(st.integers(0, 2**64 - 1), st.booleans(), st.booleans()))
    options = SamplingOptions(key, replace, times != "none" or draw(st.booleans()), latest)
    return Case(counts, edges, [draw(fanout) for _ in edges], seeds, options)


def relations_of(case: Case) -> list[Relation]:
    return [e.relation(f) for e, f in zip(case.edges, case.fanouts, strict=True)]


def sampled(case: Case, native: Native | None = None) -> Found:
    relations = relations_of(case)
    with (native or Native()).sampled(relations, case.counts, case.seeds, case.options) as result:
        nodes = [result.nodes(kind) for kind in range(len(case.counts))]
        return found_of(nodes, [result.edges(number) for number in range(len(relations))])


def found_of(nodes: Iterable[Any], edges: Iterable[Any]) -> Found:
    found = Found([], [], [], [])
    for node, tree, per_hop in nodes:
        trees = [0] * len(node) if tree is None else tree.tolist()
        found.nodes.append(list(zip(trees, node.tolist(), strict=True)))
        found.nodes_per_hop.append(per_hop)
    for row, colptr, edge, per_hop in edges:
        col = np.repeat(np.arange(len(colptr) - 1), np.diff(colptr))
        found.edges.append(list(zip(row.tolist(), col.tolist(), edge.tolist(), strict=True)))
        found.edges_per_hop.append(per_hop)
    return found


@settings(max_examples=80)
@given(cases())
def test_a_sample_matches_its_case(case):
    check(case, sampled(case))


@settings(max_examples=15)
@given(cases(), cases())
def test_scratch_serves_one_job_after_another(one, other):
    native = Native()
    for case in (one, other, one):
        assert sampled(case, native) == sampled(case)


@settings(max_examples=15)
@given(cases(), st.integers(0, 3))
def test_a_group_is_what_its_batches_are_and_ends_at_the_first_that_fails(case, good):
    relations, native = relations_of(case), Native()
    keys = [case.options.key + number for number in range(4)]
    batches = [SeededBatch(key, case.seeds) for key in keys]
    batches[good] = SeededBatch(keys[good], [SeedGroup(np.array([99]), 0, np.array([0]))])
    with native.sampled_group(relations, case.counts, batches, case.options) as group:
        nodes = [list(group.nodes(kind)) for kind in range(len(case.counts))]
        edges = [list(group.edges(number)) for number in range(len(relations))]
        assert len(group) == good
        with pytest.raises(ConfigError, match="seed 99 is not a node"):
            raise group.error
    for number, key in enumerate(keys[:good]):
        of_types = [each[number] for each in nodes], [each[number] for each in edges]
        assert found_of(*of_types) == sampled(replace(case, options=replace(case.options, key=key)))


@pytest.mark.parametrize(("fanout", "replace"), [(5, False), (5, True), (36, False)])
def test_a_nodes_draw_depends_on_key_edge_type_node_and_tree_only(fanout, replace):
    indptr, indices = graph_of_degrees([40] * 6, seed=1)

    def drawn(seeds: list[int], key: int = 1, types: int = 1, disjoint: bool = False) -> Any:
        edges = [Edges(0, 0, indptr, indices)] * types
        options, group = SamplingOptions(key, replace, disjoint), SeedGroup(np.array(seeds))
        found = sampled(Case([6], edges, [[fanout]] * types, [group], options))
        return [
            [[e for _, col, e in each if col == place] for place in range(len(seeds))]
            for each in found.edges
        ]

    (alone,) = drawn([3])
    assert drawn([1, 3])[0][1] == alone[0]
    both = drawn([3], types=2)
    assert both[0] == alone != both[1]
    assert drawn([3], key=2)[0] != alone
    (twice,) = drawn([3, 3], disjoint=True)
    assert twice[0] != twice[1]
    assert drawn([3, 1], disjoint=True)[0][0] == twice[0]


def weighted(weight: Any, k: int, nodes: int = 1, replace: bool = False) -> Any:
    """The edges that are drawn for each of so many nodes with edges of these weights."""
    degree = len(weight)
    topology = Mmap(np.arange(nodes + 1) * degree, np.zeros(nodes * degree, np.int32), "graph")
    weights, seeds = np.tile(np.asarray(weight), nodes), [SeedGroup(np.arange(nodes))]
    relation = Relation(topology, np.array([k]), weight=weights)
    with Native().sampled([relation], [nodes], seeds, SamplingOptions(5, replace)) as result:
        _, colptr, edge, _ = result.edges(0)
        return [(edge[a:b] % degree).tolist() for a, b in pairwise(colptr)]


@pytest.mark.parametrize(("dtype", "replace"), [(np.float32, False), (np.float64, True)])
def test_neighbours_are_drawn_in_proportion_to_weight(dtype, replace):
    """Without replacement one after the other."""
    weight = np.array([1, 0, 2, 5], dtype)
    pairs = Counter(map(tuple, weighted(weight, 2, 8000, replace)))
    assert sum(pairs.values()) == 8000
    for first, second in product([0, 2, 3], repeat=2):
        left = 8 if replace else 8 - weight[first]
        share = (replace or first != second) * weight[first] / 8 * weight[second] / left
        assert pairs[first, second] / 8000 == pytest.approx(share, abs=0.02)


@pytest.mark.parametrize("replace", [False, True])
def test_edges_of_weight_zero_are_never_drawn(replace):
    for fanout in (-1, 1, 2, 3, 4, 5):
        (drawn,) = weighted([0.0, 1, 0, 1], fanout, replace=replace)
        assert set(drawn) <= {1, 3}
        assert len(drawn) == (2 if fanout < 0 else fanout if replace else min(fanout, 2))
        assert weighted([0.0, 0, 0], fanout, replace=replace) == [[]]


@settings(max_examples=25)
@given(cases())
def test_induced_edges_are_all_between_the_nodes(case):
    for edges in case.edges:
        edges.edge_time = edges.node_time = None
    options = SamplingOptions(case.options.key, case.options.replace)
    seeds = [SeedGroup(np.unique(group.node), group.type) for group in case.seeds]
    case = replace(case, seeds=seeds, options=options)
    found = sampled(replace(case, options=replace(options, induced=True)))
    assert found.nodes == sampled(case).nodes
    for number, edges in enumerate(case.edges):
        place = {node: at for at, (_, node) in enumerate(found.nodes[edges.source])}
        expected = [
            (place[source], at, position)
            for at, (_, node) in enumerate(found.nodes[edges.target])
            for position in edges.existing(node, None)
            if (source := int(edges.indices[position])) in place
        ]
        assert found.edges[number] == expected


def test_what_cannot_be_sampled_is_refused():
    """An error names its edge type."""
    one, two, options = np.array([1]), np.array([1, 2]), SamplingOptions(0)
    of_node_0, trees = [SeedGroup(np.array([0]))], SamplingOptions(0, disjoint=True)
    bad = Mmap(np.array([0, 1]), np.array([7], np.int32), "author__writes__paper")
    huge = Mmap(np.array([0, 0]), np.array([], np.int32), "graph")
    huge.csc().nodes = 1 << 62
    wrong: list[tuple[str, Any]] = [
        ("weight", np.ones(3)), ("edge_time", np.ones(5, int)), ("node_time", np.ones(4, int))
    ]  # fmt: skip
    for error, message, *arguments in (
        *((ConfigError, "a number for each", [Relation(star(4), one, **{name: values})], [5],
           of_node_0, trees) for name, values in wrong),
        (ConfigError, "give all as many", [Relation(star(3), one), Relation(star(3), two)], [4], [],
         options),
        (StoreError, r"author__writes__paper: a neighbour is node 7.*0 to 0",
         [Relation(star(3), one), Relation(bad, one, 1, 1)], [4, 1],
         [SeedGroup(np.array([0]), 1)], options),
        (ConfigError, "lower batch_size", [Relation(huge, one)], [1 << 62],
         [SeedGroup(np.zeros(4, np.int64))], trees),
    ):  # fmt: skip
        with pytest.raises(error, match=message), Native().sampled(*arguments):
            pass
    for weight in (-1.0, np.nan, np.inf):
        with pytest.raises(ConfigError, match=r"position 2 is negative, infinite or no number"):
            weighted([1.0, 1, weight, 1], 2)
