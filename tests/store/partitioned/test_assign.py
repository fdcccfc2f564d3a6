"""Partitions at random, by METIS (or a module in its place), by LDG or from the user; kills."""

import os
import random
import signal
from collections.abc import Callable, Iterator, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gnndrive.common.errors import ConfigError, StoreError
from gnndrive.common.ffi import ffi, lib, pointer
from gnndrive.store import Store, write_store
from gnndrive.store import open as open_store
from gnndrive.store.partitioned import assign as assigning
from gnndrive.store.partitioned import ldg, metis, symmetric
from gnndrive.store.partitioned.assign import GivenParts, assign, choose_method, default_parts
from tests.forked import Program
from tests.soak import product
from tests.store.conftest import poke
from tests.store.kills import calls_of, fails_at, killed_at
from tests.store.partitioned.made import MEMORY, Chosen, draw_edges, edge_store, neighbours, run

NODES, EDGES = 600, 3000
Fake = Callable[[str], None]
TRAIN = range(3, NODES, 9)
RUN = """
import sys
from pathlib import Path
import gnndrive
from tests.store.partitioned.made import Chosen, run
sys.path.insert(0, sys.argv[3])
run(gnndrive.open(sys.argv[1]), Path(sys.argv[2]), Chosen("metis", 4))
"""


def ignore(*_: object) -> None:
    """Progress that is not told."""


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return edge_store(tmp_path / "graph.gnn", NODES, draw_edges(NODES, EDGES), TRAIN)


# ---- random


@pytest.mark.parametrize("parts", [1, 7, NODES])
def test_random_partitions_are_even(store: Store, tmp_path: Path, parts: int):
    found = [run(store, tmp_path / str(n), Chosen("random", parts, seed=n)) for n in (0, 1)]
    for part in found:
        sizes = np.bincount(part, minlength=parts)
        assert sizes.max() - sizes.min() <= 1
        assert len(sizes) == parts
    assert found[0] != found[1] or parts == 1
    assert run(store, tmp_path / "again", Chosen("random", parts)) == found[0]


@pytest.mark.parametrize("parts", [1, 8])
def test_training_nodes_fill_the_first_partitions(store: Store, tmp_path: Path, parts: int):
    chosen = Chosen("random", parts, train_first=True, seed=2)
    part = np.array(run(store, tmp_path / "work", chosen))
    sizes = np.bincount(part, minlength=parts)
    assert sizes.max() - sizes.min() <= 1
    train = part[list(TRAIN)]
    last = train.max()
    assert np.array_equal(np.bincount(train, minlength=parts)[:last], sizes[:last])
    assert np.bincount(train).sum() == len(TRAIN) <= sizes[: last + 1].sum()
    others = np.setdiff1d(np.arange(NODES), TRAIN)
    assert (np.diff(train) < 0).any() or last == 0
    if parts > 1:
        assert (np.diff(part[others]) < 0).any()


# ---- from the user


def written(folder: Path, part: Any, form: str) -> Any:
    """The partitions in one of the forms that are accepted."""
    if form == "npy":
        np.save(folder / "assign.npy", np.array(part, np.uint16))
        return str(folder / "assign.npy")
    if form == "text":
        (folder / "assign.txt").write_text("".join(f"{number}\n" for number in part))
        return folder / "assign.txt"
    return np.array(part, np.int64) if form == "array" else list(part)


@pytest.mark.parametrize("form", ["npy", "text", "array", "list"])
def test_partitions_from_the_user(store, tmp_path, monkeypatch, form):
    monkeypatch.setattr(assigning, "_STEP", 300)
    part = [(node + 1) % 5 for node in range(NODES)]
    found = GivenParts(written(tmp_path, part, form), NODES)
    assert found.parts == 5
    assert found.digest == sha256(np.array(part, np.int32).tobytes()).hexdigest()
    assert run(store, tmp_path / "work", Chosen("file", 5), given=found) == part


def test_empty_partitions_are_counted(store: Store, tmp_path: Path):
    found = GivenParts([4 * (node % 2) for node in range(NODES)], NODES)
    with pytest.warns(UserWarning, match="4 of 6 given partitions are empty: give fewer parts"):
        run(store, tmp_path / "work", Chosen("file", 6), given=found)


def test_what_is_no_partition_is_refused_and_files_are_named(tmp_path: Path):
    for source, said in (
        ([0, 1], r"the array of partitions holds int64 \[2\]: give whole numbers \[3\], the"),
        ([0.0, 1.0, 2.0], r"holds float64 \[3\]: give whole numbers"),
        ([0, 1, -1], "has a number below 0 .*, -1 of node 2: give the partition of each node"),
        ([0, (1 << 31) - 1, 1], r"or above \d+, 2147483647 of node 1: .* counted from 0"),
    ):
        with pytest.raises(ConfigError, match=said):
            GivenParts(source, 3)
    path = tmp_path / "given"
    for content, said in (
        (None, "neither one of auto, metis, ldg, random nor .*No such file"),
        ("0\n1\n2\n3\n", r"holds int64 \[4\]: give whole numbers \[3\]"),
        ("0\n1\ntwo\n", "nor a file of partitions that can be read .*: give a .npy file of"),
    ):
        if content is not None:
            path.write_text(content)
        with pytest.raises(ConfigError, match=f"{path}.*{said}"):
            GivenParts(path, 3)


# ---- settings


def test_the_number_of_partitions(tmp_path: Path):
    for nodes, row, parts in (
        (100, 4, 16),
        (9, 4, 9),
        (400_000, 512, 48),  # nodes / 8,192
        (400_000, 128, 16),  # rows of 4 MiB would be 12
        (400_000, 256, 24),  # rows of 4 MiB
    ):
        x, indptr = np.zeros((nodes, row), np.uint8), np.zeros(nodes + 1, np.int64)
        path = tmp_path / f"{nodes} {row}.gnn"
        assert default_parts(write_store(path, indptr=indptr, indices=[], nodes={"x": x})) == parts


def test_auto_takes_metis_where_it_fits(store: Store, monkeypatch: pytest.MonkeyPatch):
    assert choose_method(store, 88 * 2 * EDGES) == "metis"
    assert choose_method(store, 88 * 2 * EDGES - 1) == "ldg"
    monkeypatch.setattr("gnndrive.store.partitioned.metis.find_spec", lambda _: None)
    assert choose_method(store, MEMORY) == "ldg"


@pytest.mark.parametrize(
    ("chosen", "memory", "said"),
    [
        (Chosen("ldg", 4, True), MEMORY, "train_first is for method='random'"),
        (Chosen("random", 4), 1 << 20, "memory=1.05 MB is too little .* give at least 3"),
        (Chosen("ldg", 4), 1 << 20, "memory=1.05 MB is too little .* give at least 2"),
    ],
)
def test_settings_that_cannot_work(store, tmp_path, chosen, memory, said):
    with pytest.raises(ConfigError, match=said):
        run(store, tmp_path / "work", chosen, memory)


def test_training_nodes_first_need_a_split(tmp_path: Path):
    store = edge_store(tmp_path / "g.gnn", 20, [(0, 1)])
    with pytest.raises(ConfigError, match="has no split 'train', its splits are: none; import"):
        run(store, tmp_path / "work", Chosen("random", 2, train_first=True))


def test_a_finished_assignment_is_taken_as_it_is(store: Store, tmp_path: Path):
    part = run(store, tmp_path / "work", Chosen("random", 4))
    again = assign(store, Chosen("random", 4), tmp_path / "work", 1, ignore)
    assert again.tolist() == part
    np.save(tmp_path / "work" / "part.npy", np.zeros(3, np.int32))
    with pytest.raises(StoreError, match=r"part.npy is damaged: remove .*, and partition again"):
        assign(store, Chosen("random", 4), tmp_path / "work", 1, ignore)


# ---- METIS in a child process


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Fake:
    """Sets what another pymetis does in the place of partitioning."""

    def put(body: str) -> None:
        folder = tmp_path / "modules"
        folder.mkdir(exist_ok=True)
        (folder / "pymetis.py").write_text(
            "import os, signal, sys\n"
            "class Options:\n    def __init__(self, seed): pass\n"
            f"def part_graph(parts, xadj, adjncy, options):\n    {body}\n"
        )
        monkeypatch.syspath_prepend(str(folder))

    return put


def test_metis_cuts_few_edges(store, tmp_path):
    part = np.array(run(store, tmp_path / "work", Chosen("metis", 8)))
    assert 0 <= part.min() <= part.max() < 8
    assert np.bincount(part).max() <= 1.1 * NODES / 8 + 1
    targets = np.repeat(np.arange(NODES), np.diff(store.indptr))
    cuts = part[store.indices] != part[targets]
    assert cuts.mean() < 0.6 < 7 / 8, "at random it would be 7/8"
    assert set(run(store, tmp_path / "one", Chosen("metis", 1))) == {0}


def test_metis_is_given_the_symmetric_lists(store: Store, tmp_path: Path, fake: Fake):
    """The other pymetis numbers nodes by a checksum of their neighbours."""
    fake("return 0, [int(sum(adjncy[a:b])) % 7 for a, b in zip(xadj[:-1], xadj[1:])]")
    expected = [sum(each) % 7 for each in neighbours(NODES, draw_edges(NODES, EDGES))]
    assert run(store, tmp_path / "work", Chosen("metis", 7)) == expected


@pytest.mark.parametrize(
    ("body", "kind", "said"),
    [
        ("os.abort()", ConfigError, "METIS was ended by SIGABRT, probably because memory ran out"),
        ("raise MemoryError('no')", ConfigError, r"failed \(exit status 1\): .*it said: .*no"),
        ("print('Input Error'); os._exit(3)", ConfigError, r"\(exit status 3\): .* more memory"),
        ("return 0, [0, 1]", StoreError, "METIS has left no partitions of 600 nodes"),
        (f"return 0, [4] * {NODES}", StoreError, "METIS has left no partitions of 600 nodes"),
    ],
)
def test_a_child_that_dies_or_leaves_no_result_is_explained(
    store, tmp_path, fake, body, kind, said
):
    fake(body)
    with pytest.raises(kind, match=said) as raised:
        run(store, tmp_path / "work", Chosen("metis", 4))
    assert "give method='ldg'" in str(raised.value)
    assert not (tmp_path / "work" / "part.npy").exists()


def test_what_metis_needs_is_named(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(metis, "BYTES_AN_ENTRY", 1 << 20)
    with pytest.raises(ConfigError, match=r"give at least .*GB, or give method='ldg'"):
        run(store, tmp_path / "work", Chosen("metis", 4))
    monkeypatch.setattr(metis, "find_spec", lambda _: None)
    with pytest.raises(ConfigError, match="needs pymetis: install it with pip install"):
        run(store, tmp_path / "other", Chosen("metis", 4))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_the_child_ends_with_its_parent(store, tmp_path, fake, number):
    """The child holds a pipe open; it is closed when the child has ended."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    fake(f"out = open({str(pipe)!r}, 'wb', 0); out.write(b'x'); signal.pause()")
    parent = Program(RUN, str(store.path), str(tmp_path / "work"), str(tmp_path / "modules"))
    with open(pipe, "rb", 0) as said:
        assert said.read(1) == b"x"
        parent.send_signal(number)
        assert said.read(1) == b""
    with parent:
        _, errors = parent.communicate()
    assert parent.returncode == -number
    assert ("KeyboardInterrupt" in errors) == (number == signal.SIGINT)
    (tmp_path / "modules" / "pymetis.py").unlink()
    assert not (tmp_path / "work" / "part.npy").exists()


# ---- LDG and symmetric lists, held against the plain way


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
    monkeypatch.setattr(symmetric, "PART_BYTES", 3 * 4096)
    monkeypatch.setattr(symmetric, "_CHUNK_NUMBERS", 7)


@pytest.mark.usefixtures("small_parts")
@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_partitions_are_those_of_the_plain_way(tmp_path, monkeypatch, dtype, seeds):
    monkeypatch.setattr("gnndrive.store.writer.index_dtype", lambda _: dtype)
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
@product("most,in_file", [500, 1000, 100_000, 100_000], [False, True, False, True])
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
    poke(store.indices_path, 4096 + 4 * 300, NODES.to_bytes(4, "little"))
    with pytest.raises(StoreError, match=r"indices.npy has an id of no node: .*verify"):
        run(open_store(store.path), tmp_path / "work", Chosen("ldg", 4))


def test_lists_that_were_damaged_are_named(store: Store, tmp_path: Path):
    (tmp_path / "work").mkdir()
    file = tmp_path / "work" / "lists"
    made = symmetric.symmetric_lists(store, file, MEMORY, ignore, 0, in_file=True)
    for number in (NODES, 2):
        poke(file, 0, number.to_bytes(4, "little"))
        with pytest.raises(StoreError, match=r"lists is damaged: remove .*work, and partition"):
            ldg.assign_ldg(made, tmp_path / "work", NODES, 4, ignore)


def test_a_pass_that_cannot_begin_is_refused():
    error = ffi.new("int *")
    for part, parts, cap, code in (
        ([0, 2], 2, 1, -34), ([0, -2], 2, 1, -34), ([0, 1], 1, 1, -22), ([0, 1], 0, 2, -22),
    ):  # fmt: skip
        array = np.array(part, np.int32)
        assert lib.gd_ldg_new(pointer(array), 2, parts, cap, error) == ffi.NULL
        assert error[0] == code


# ---- the writer of long files


# ---- interrupted


@pytest.fixture(params=["ldg", "ldg in a file", "random", "metis"])
def work(request, tmp_path, monkeypatch) -> tuple[Callable[[], object], Path]:
    """What assigns the nodes of a store, or goes on, and where."""
    monkeypatch.setattr(symmetric, "PART_BYTES", 5 * 4096)
    if request.param == "ldg in a file":
        monkeypatch.setattr(symmetric, "NUMBERS_MOST", 2500)
    store, folder = edge_store(tmp_path / "g.gnn", 400, draw_edges(400, 3000)), tmp_path / "work"
    folder.mkdir()
    chosen = Chosen(request.param.split()[0], 8)
    return lambda: assign(store, chosen, folder, MEMORY, ignore), folder


def test_an_assignment_that_is_killed_or_whose_disk_fails_goes_on(work, monkeypatch, seeds):
    """A failing disk is a StoreError; the next call ends with the same bytes."""
    do, folder = work
    calls = calls_of(do)
    whole = (folder / "part.npy").read_bytes()
    for seed in seeds(4 if calls > 10 else 2):
        for path in folder.iterdir():
            path.unlink()
        at = random.Random(seed).randint(1, calls)
        if seed % 2:
            assert killed_at(do, at)
            killed_at(do, at // 2 + 1)
        else:
            assert fails_at(do, monkeypatch, at, OSError(28, "simulated")) is not None
        do()
        assert [path.name for path in folder.iterdir()] == ["part.npy"]
        assert (folder / "part.npy").read_bytes() == whole
