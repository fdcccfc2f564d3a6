"""LDG and symmetric lists, held against the plain way on small graphs."""

import random
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest

from gnndrive.common.errors import ConfigError, StoreError
from gnndrive.common.ffi import ffi, lib, pointer
from gnndrive.store import Store
from gnndrive.store import open as open_store
from gnndrive.store.partitioned import edge_stream, ldg, symmetric
from tests.soak import product
from tests.store.partitioned.made import MEMORY, Chosen, draw_edges, edge_store, neighbours, run

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


@pytest.mark.usefixtures("small_parts")
@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_partitions_are_those_of_the_plain_way(tmp_path, monkeypatch, dtype, seeds):
    monkeypatch.setattr("gnndrive.store.arrays.index_dtype", lambda _: dtype)
    for seed in seeds(4):
        draw = random.Random(seed)
        nodes = draw.randint(1, 24)
        edges = [(draw.randrange(nodes), draw.randrange(nodes)) for _ in range(draw.randrange(60))]
        store, parts = edge_store(tmp_path / f"{seed}.gnn", nodes, edges), draw.randint(1, nodes)
        assert store.indices.dtype == dtype
        found = run(store, tmp_path / f"{seed}", Chosen("ldg", parts))
        assert found == brute_ldg(neighbours(nodes, edges), parts)[0]


def listed(numbers: list[int]) -> Iterator[list[int]]:
    """The lists in a stream of lengths and neighbours."""
    at = 0
    while at < len(numbers):
        yield numbers[at + 1 : at + 1 + numbers[at]]
        at += 1 + numbers[at]


@pytest.mark.usefixtures("small_parts")
@product("most,in_file", [200, 400, 100_000, 100_000], [False, True, False, True])
def test_lists_are_the_same_whatever_the_memory(store, tmp_path, monkeypatch, most, in_file):
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


@pytest.mark.parametrize(
    ("part", "parts", "cap", "code"),
    [([0, 2], 2, 1, -34), ([0, -2], 2, 1, -34), ([0, 1], 1, 1, -22), ([0, 1], 0, 2, -22)],
)
def test_a_pass_that_cannot_begin_is_refused(part: list[int], parts: int, cap: int, code: int):
    error, given_part = ffi.new("int *"), np.array(part, np.int32)
    assert lib.gd_ldg_new(pointer(given_part), 2, parts, cap, error) == ffi.NULL
    assert error[0] == code
