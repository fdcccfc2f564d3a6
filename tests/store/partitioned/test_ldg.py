"""LDG and symmetric lists, held against the plain way on small graphs."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest

from gnndrive.common.errors import ConfigError, StoreError
from gnndrive.common.ffi import ffi, lib, pointer
from gnndrive.store import Store
from gnndrive.store import open as open_store
from gnndrive.store.generate import planted_communities
from gnndrive.store.partitioned import edge_stream, ldg, symmetric
from tests.soak import product
from tests.store.partitioned.made import (
    MEMORY,
    Chosen,
    draw_edges,
    edge_store,
    neighbours,
    run,
)

NODES, EDGES = 120, 1_000
PAGE = 4096


def ignore(*_: object) -> None:
    """Progress that is not told."""


def brute_ldg(lists: Sequence[set[int]], parts: int) -> tuple[list[int], int]:
    """The partition of each node as the design says, and the number of passes."""
    nodes = len(lists)
    cap = max(105 * nodes // (100 * parts), -(-nodes // parts))
    part, size = [-1] * nodes, [0] * parts
    number = moved = 0
    while number < 1 or (number < 10 and 100 * moved >= nodes):
        number, moved = number + 1, 0
        for node, near in enumerate(lists):
            before = part[node]
            if before >= 0:
                size[before] -= 1
            placed = [part[other] for other in near if part[other] >= 0]
            room = [p for p in range(parts) if size[p] < cap]
            best = min(room, key=lambda p: (-placed.count(p) * (cap - size[p]), size[p], p))
            part[node] = best
            size[best] += 1
            moved += best != before
    return part, number


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Edges and lists are read a thousand numbers at a time."""
    for module in (edge_stream, symmetric):
        monkeypatch.setattr(module, "PART_BYTES", 3 * PAGE)
    monkeypatch.setattr(symmetric, "_CHUNK_NUMBERS", 7)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return edge_store(tmp_path / "graph.gnn", NODES, draw_edges(NODES, EDGES))


def test_partitions_are_those_of_the_plain_way(tmp_path, seeds):
    for seed in seeds(6):
        draw = random.Random(seed)
        nodes = draw.randint(1, 24)
        edges = [(draw.randrange(nodes), draw.randrange(nodes)) for _ in range(draw.randrange(60))]
        store, parts = edge_store(tmp_path / f"{seed}.gnn", nodes, edges), draw.randint(1, nodes)
        found = run(store, tmp_path / f"{seed}", Chosen("ldg", parts))
        assert found == brute_ldg(neighbours(nodes, edges), parts)[0]


@pytest.mark.parametrize("parts", [1, 7, NODES])
def test_with_more_nodes(store: Store, tmp_path: Path, parts: int):
    told: list[str] = []
    lists = neighbours(NODES, draw_edges(NODES, EDGES))
    found, passes = brute_ldg(lists, parts)
    folder = tmp_path / "work"
    folder.mkdir()
    made = symmetric.symmetric_lists(store, folder / "lists", MEMORY, ignore, 0)
    ldg.assign_ldg(made, folder, NODES, parts, lambda what, *_: told.append(what))
    assert np.load(folder / "part.npy").tolist() == found
    assert list(dict.fromkeys(told)) == [f"ldg pass {n}" for n in range(1, passes + 1)]
    assert np.bincount(found).max() <= ldg.largest_part(NODES, parts)


def listed(numbers: list[int]) -> Iterator[list[int]]:
    """The lists in a stream of lengths and neighbours."""
    at = 0
    while at < len(numbers):
        yield numbers[at + 1 : at + 1 + numbers[at]]
        at += 1 + numbers[at]


@pytest.mark.usefixtures("small_parts")
@product("most,in_file", [200, 400, 100_000, 100_000], [False, True, False, True])
def test_lists_are_the_same_whatever_the_memory(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: int, in_file: bool
):
    whole = symmetric.symmetric_lists(store, tmp_path / "none", MEMORY, ignore, 0)
    expected = [number for chunk in whole.chunks() for number in chunk.tolist()]
    assert [sorted(each) for each in listed(expected)] == [
        sorted(each) for each in neighbours(NODES, draw_edges(NODES, EDGES))
    ]
    monkeypatch.setattr(symmetric, "NUMBERS_MOST", most)  # of a range
    found = symmetric.symmetric_lists(store, tmp_path / "lists", MEMORY, ignore, 0, in_file)
    assert (found.path is None) == (most == 100_000 and not in_file)
    assert [number for chunk in found.chunks() for number in chunk.tolist()] == expected
    assert found.entries == whole.entries == len(expected) - NODES
    assert not (tmp_path / "none").exists()


def test_the_least_memory_that_an_error_names_works(tmp_path: Path):
    """A node with very many neighbours needs more than the others, which is known later."""
    nodes = 20_000
    edges = [(node, 0) for node in range(1, nodes)]
    store = edge_store(tmp_path / "star.gnn", nodes, edges)
    memory, refusals = 1, 0
    while True:
        try:
            found = run(store, tmp_path / f"work{refusals}", Chosen("ldg", 3), memory)
        except ConfigError as error:
            named = str(error).rsplit("give at least ", 1)[1]
            assert named.endswith("MB")
            assert memory < float(named[:-2]) * 1e6
            memory, refusals = int(float(named[:-2]) * 1e6), refusals + 1
        else:
            break
    assert refusals == 2
    assert found == run(store, tmp_path / "work", Chosen("ldg", 3))


def test_an_index_that_is_no_node_is_named(store: Store, tmp_path: Path):
    with open(store.indices_path, "r+b") as file:
        file.seek(PAGE + 4 * 300)
        file.write((NODES).to_bytes(4, "little"))
    with pytest.raises(StoreError, match=r"indices.npy names a node that is not in the store"):
        run(open_store(store.path), tmp_path / "work", Chosen("ldg", 4))


def test_lists_that_were_damaged_are_named(store: Store, tmp_path: Path):
    (tmp_path / "work").mkdir()
    made = symmetric.symmetric_lists(
        store, tmp_path / "work" / "lists", MEMORY, ignore, 0, in_file=True
    )
    for number in (NODES, 2):
        with open(tmp_path / "work" / "lists", "r+b") as file:
            file.write((number).to_bytes(4, "little"))
        with pytest.raises(StoreError, match=r"lists is damaged: remove .*work, and partition"):
            ldg.assign_ldg(made, tmp_path / "work", NODES, 4, ignore)


# ---- the C functions, with numbers of four and of eight bytes


class Native:
    """The symmetric lists of random edges, made by calls for a few edges each."""

    def __init__(self, width: int, cut: int) -> None:
        self.width, self.dtype = width, np.dtype(f"int{8 * width}")
        edges = draw_edges(NODES, EDGES, 4)
        targets = np.array([target for _, target in edges])
        order = np.argsort(targets, kind="stable")
        self.sources = np.array([source for source, _ in edges], self.dtype)[order]
        self.indptr = np.concatenate([[0], np.cumsum(np.bincount(targets, minlength=NODES))])
        self.lists, self.cut = neighbours(NODES, edges), cut
        self.csc = ffi.new("gd_csc *")
        self.csc.indptr, self.csc.indptr_bytes = ffi.cast("void *", self.indptr.ctypes.data), 8
        self.csc.index_bytes, self.csc.nodes, self.csc.edges = width, NODES, EDGES

    def each(self) -> Iterator[object]:
        edges = ffi.new("gd_edges *")
        edges.csc = self.csc
        for first in range(0, EDGES, self.cut):
            sources = self.sources[first : first + self.cut].copy()
            edges.sources = ffi.cast("void *", sources.ctypes.data)
            edges.first, edges.count = first, len(sources)
            yield edges

    def numbers(self, ends: list[int]) -> list[int]:
        """The stream of lengths and neighbours, made for ranges of nodes with these ends."""
        counts, found = np.zeros(NODES, np.uint32), list[int]()
        seen = np.zeros(NODES // 8 + 1, np.uint8)
        places = ffi.cast("uint32_t *", counts.ctypes.data)
        assert [lib.gd_symmetric_count(each, places) for each in self.each()].count(0)
        for first, last in zip([0, *ends], [*ends, NODES], strict=True):
            most = int(counts[first:last].sum()) + last - first
            assert lib.gd_symmetric_fitting(places, NODES, first, most) == last
            assert lib.gd_symmetric_fitting(places, NODES, first, most - 1) == max(last - 1, first)
            assert lib.gd_symmetric_places(places, first, last) == most
            lists = np.zeros(most, self.dtype)
            into = ffi.cast("void *", lists.ctypes.data)
            for each in self.each():
                assert lib.gd_symmetric_fill(each, first, last, places, into, most) == 0
            left = lib.gd_symmetric_close(
                places, first, last, NODES, self.width, pointer(seen), into, most
            )
            assert not seen.any()
            found += lists[:left].tolist()
        return found


@product("cut,width", [1, 37, EDGES], [4, 8])
def test_in_c(width: int, cut: int):
    native = Native(width, cut)
    numbers = native.numbers([40, 60])
    assert [set(each) for each in listed(numbers)] == native.lists
    assert [len(each) for each in listed(numbers)] == [len(each) for each in native.lists]
    assert native.numbers([]) == numbers
    part, error = np.full(NODES, -1, np.int32), ffi.new("int *")
    cap = ldg.largest_part(NODES, 5)
    first_pass = None
    for number in range(10):
        state = lib.gd_ldg_new(pointer(part), NODES, 5, cap, error)
        for first in range(0, len(numbers), cut):
            chunk = np.array(numbers[first : first + cut], native.dtype)
            data = ffi.cast("void *", chunk.ctypes.data)
            done = lib.gd_ldg_feed(state, data, len(chunk), width)
        moved = lib.gd_ldg_moved(state)
        lib.gd_ldg_free(state)
        assert done == NODES
        first_pass = moved if number == 0 else first_pass
        if 100 * moved < NODES:
            break
    assert first_pass == NODES
    assert part.tolist() == brute_ldg(native.lists, 5)[0]


def test_edges_that_were_not_counted_are_refused():
    native = Native(4, EDGES)
    counts, seen = np.zeros(NODES, np.uint32), np.zeros(NODES // 8 + 1, np.uint8)
    places = ffi.cast("uint32_t *", counts.ctypes.data)
    assert [lib.gd_symmetric_count(each, places) for each in native.each()] == [0]
    most = lib.gd_symmetric_places(places, 0, NODES)
    lists = np.zeros(most, np.int32)
    into = ffi.cast("void *", lists.ctypes.data)
    assert [lib.gd_symmetric_fill(e, 0, NODES, places, into, most) for e in native.each()] == [0]
    again = [lib.gd_symmetric_fill(e, 0, NODES, places, into, most) for e in native.each()]
    assert again == [-34]
    for wrong in (most + 1, 0):
        counts[NODES - 1] = wrong
        arguments = places, 0, NODES, NODES, 4, pointer(seen), into, most
        assert lib.gd_symmetric_close(*arguments) == -34


@pytest.mark.parametrize(
    ("part", "parts", "cap", "code"),
    [([0, 2], 2, 1, -34), ([0, -2], 2, 1, -34), ([0, 1], 1, 1, -22), ([0, 1], 0, 2, -22)],
)
def test_a_pass_that_cannot_begin_is_refused(part: list[int], parts: int, cap: int, code: int):
    error, given_part = ffi.new("int *"), np.array(part, np.int32)
    assert lib.gd_ldg_new(pointer(given_part), 2, parts, cap, error) == ffi.NULL
    assert error[0] == code


# ---- how good the partitions are


def test_planted_communities_are_found(tmp_path: Path):
    """Repeated LDG keeps what METIS keeps; four fifths of the edges are within communities."""
    planted_communities(tmp_path / "g.gnn", 10_000, dim=4, classes=100, degree=15)
    store, shares = open_store(tmp_path / "g.gnn"), dict[str, float]()
    sources = np.asarray(store.indices)
    targets = np.repeat(np.arange(store.num_nodes), np.diff(np.asarray(store.indptr)))
    for method in ("ldg", "metis"):
        part = np.array(run(store, tmp_path / method, Chosen(method, 20)))
        shares[method] = float((part[sources] == part[targets]).mean())
    assert shares["ldg"] > 0.785
    assert shares["ldg"] > shares["metis"] > 0.77
