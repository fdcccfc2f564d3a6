"""if_exists and open_or_make: one store among several processes, whichever of them dies."""

from __future__ import annotations

import contextlib
import multiprocessing
import multiprocessing.connection
import os
import signal
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch_geometric.data import Data, HeteroData

from gnndrive.common.errors import ConfigError, StoreError
from gnndrive.store import if_exists, write_store
from gnndrive.store import open as open_store
from gnndrive.store.if_exists import settle
from gnndrive.store.importers import from_csv, from_data, from_edges, open_or_make
from tests.store.conftest import left

FORK = multiprocessing.get_context("fork")


def graph(nodes: int = 20, edges: int = 60, value: float = 0) -> Data:
    return Data(
        x=torch.full((nodes, 2), value), edge_index=torch.arange(2 * edges).view(2, -1) % nodes
    )


def types(authors: int = 3) -> HeteroData:
    data = HeteroData()
    data["paper"].x = torch.zeros(4, 2)
    data["author"].num_nodes = authors
    data["author", "writes", "paper"].edge_index = torch.tensor([[0, 1], [2, 3]])
    return data


# ---- one process


def test_open_keeps_and_replace_makes_anew(tmp_path):
    path = tmp_path / "s"
    made = from_data(graph(value=1), path, if_exists="open")
    for again in (
        lambda: from_data(graph(value=2), path, if_exists="open"),
        lambda: open_or_make(path, graph(value=2)),
        lambda: (os.rename(path, tmp_path / ".s.01234567.old"),  # a killed replacement began so
                 from_data(graph(value=2), path, if_exists="open"))[1],
    ):  # fmt: skip
        assert again().identity == made.identity
        assert left(tmp_path) == ["s"]
    with pytest.raises(ConfigError, match='if_exists="open"'):
        from_data(graph(), path)
    for value, how in ((2, {"if_exists": "replace"}), (3, {"overwrite": True})):
        assert from_data(graph(value=value), path, **how).tensor("x")[0, 0] == value
        assert left(tmp_path) == ["s"]


def test_a_path_may_be_a_link(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "s")
    from_data(graph(), tmp_path / "link", if_exists="open")
    assert from_data(graph(), tmp_path / "link", if_exists="open").num_nodes == 20
    assert left(tmp_path) == ["link", "s"]


@pytest.mark.parametrize(
    ("made", "other", "words"),
    [
        (graph(), graph(nodes=21), "it has 20 nodes, and the data has 21 nodes"),
        (graph(), graph(edges=61), "it has 60 edges, and the data has 61 edges"),
        (graph(), types(), "it has 20 nodes, and the data has no nodes"),
        (types(), types(9), "3 nodes of type 'author', and the data has 9 nodes"),
    ],
)
def test_another_graph_is_not_opened(tmp_path, made, other, words):
    from_data(made, tmp_path / "s")
    from_data(made, tmp_path / "s", if_exists="open")
    for call in (
        lambda: from_data(other, tmp_path / "s", if_exists="open"),
        lambda: open_or_make(tmp_path / "s", other),
    ):
        with pytest.raises(ConfigError, match=f'{words}.*if_exists="replace"'):
            call()


def test_other_attributes_are_not_opened(tmp_path):
    from_data(graph(), tmp_path / "s")
    for name, value, words in (
        ("x", torch.zeros(20, 3), r"it has nodes/x int64 \[n, 2\], and the data has .*\[n, 3\]"),
        ("x", torch.zeros(20, 2).half(), "nodes/x int64 .*nodes/x float16"),
        ("x", None, "has nodes/x .*has no nodes/x"),
        ("y", torch.zeros(20), "it has no nodes/y, and the data has nodes/y float32"),
        ("edge_attr", torch.zeros(60), "it has no edges/edge_attr"),
    ):
        other = graph()
        other[name], other.num_nodes = value, 20
        with pytest.raises(ConfigError, match=f'{words}.*if_exists="replace"'):
            open_or_make(tmp_path / "s", other)


def test_every_kind_of_attribute_is_opened_again(tmp_path, recwarn):
    data = graph()
    data.half, data.wide = torch.zeros(20).bfloat16(), torch.zeros(20, 1, 3, dtype=torch.uint8)
    data.train_mask, data.numbers = torch.ones(20).bool(), np.zeros((20, 2), np.uint16)
    data.edge_attr, data.name, data.list = torch.zeros(60, 1), "left out", [1] * 20
    made = open_or_make(tmp_path / "s", data)
    assert any("left out" in str(each.message) for each in recwarn)
    recwarn.clear()
    assert open_or_make(tmp_path / "s", data).identity == made.identity
    assert not recwarn
    open_or_make(tmp_path / "t", types())
    assert open_or_make(tmp_path / "t", types()).is_hetero


def test_arrays_and_files_are_compared_or_not_even_read(tmp_path):
    def write(*indptr: int) -> Any:
        indices = np.zeros(indptr[-1], int)
        path = tmp_path / "arrays"
        return write_store(path, indptr=indptr, indices=indices, nodes={}, if_exists="open")

    write(0, 1, 2)
    assert write(0, 0, 2).indptr.tolist() == [0, 1, 2]
    with pytest.raises(ConfigError, match="it has 2 edges, and the data has 3 edges"):
        write(0, 1, 3)
    (tmp_path / "edges.csv").write_text("0,1\n1,2\n")
    np.save(tmp_path / "x.npy", np.zeros((3, 2), np.float32))
    files = tmp_path / "edges.csv", tmp_path / "x.npy", None
    from_csv(*files, tmp_path / "s", splits=None, if_exists="open")
    for path in tmp_path.glob("*.*"):
        path.unlink()
    assert from_csv(*files, tmp_path / "s", splits=None, if_exists="open").num_edges == 2
    assert from_edges(files[0], tmp_path / "s", if_exists="open").num_edges == 2


def test_wrong_calls_are_refused(tmp_path):
    path = tmp_path / "s"
    for given, words in (
        ({"if_exists": "keep"}, 'give "error", "open" or "replace"'),
        ({"if_exists": "open", "overwrite": True}, "give one of them"),
    ):
        with pytest.raises(ConfigError, match=words):
            from_data(graph(), path, **given)
    with pytest.raises(TypeError, match=r"from_data\(\) missing 1 required positional argument"):
        from_data(graph())
    for call in (
        lambda: from_data(path, graph(), if_exists="open"),
        lambda: open_or_make(graph(), lambda: graph()),
        lambda: from_data(graph(), None),
    ):
        with pytest.raises(ConfigError, match=r"not a path.*from_data\(data, path\)"):
            call()
    for make in ([graph()], lambda: [graph()]):
        with pytest.raises(ConfigError, match=r"not a list; of a dataset give one graph"):
            open_or_make(path, make)
    with pytest.raises(ZeroDivisionError):
        open_or_make(path, lambda: 1 // 0)
    assert left(tmp_path) == []


@pytest.mark.parametrize("mode", ["open", "replace"])
def test_what_is_no_store_is_left_alone(tmp_path, mode):
    (tmp_path / "s").mkdir()
    (tmp_path / "s" / "letters.txt").write_text("dear")
    with pytest.raises(ConfigError, match="not a store and is left as it is"):
        from_data(graph(), tmp_path / "s", if_exists=mode)
    assert left(tmp_path / "s") == ["letters.txt"]
    with pytest.raises(ConfigError, match="nowhere is not there"):
        from_data(graph(), tmp_path / "nowhere" / "s", if_exists=mode)


def test_a_damaged_store_is_not_opened(tmp_path):
    from_data(graph(), tmp_path / "s")
    (tmp_path / "s" / "nodes" / "x.npy").unlink()
    with pytest.raises(StoreError, match=r"x\.npy"):
        from_data(graph(), tmp_path / "s", if_exists="open")


def test_undirected_is_pygs(tmp_path):
    data = Data(x=torch.zeros(3, 1), edge_index=torch.tensor([[0, 1, 1], [1, 0, 2]]))
    store = from_data(data, tmp_path / "s", undirected=True, if_exists="open")
    assert (store.num_edges, data.num_edges) == (4, 3)
    data.edge_attr = torch.zeros(3)  # what it becomes is known only when it has been made
    assert open_or_make(tmp_path / "s", data, undirected=True).num_edges == 4
    both = from_data(types(), tmp_path / "t", undirected=True)
    assert both.edge_types[1] == ("paper", "rev_writes", "author")


def test_a_store_that_is_being_replaced_is_opened(tmp_path, monkeypatch):
    from_data(graph(), tmp_path / "new")
    (tmp_path / "s").mkdir()  # seen between the two renames of a replacement

    @contextlib.contextmanager
    def wait(*_: object) -> Any:
        (tmp_path / "s").rmdir()
        (tmp_path / "new").rename(tmp_path / "s")
        yield True

    monkeypatch.setattr(if_exists, "locked", wait)
    assert from_data(graph(), tmp_path / "s", if_exists="open").num_nodes == 20


def test_the_function_is_called_once_and_may_write_the_store_itself(tmp_path):
    calls = []

    def make() -> Data:
        calls.append(None)
        return graph()

    for _ in range(2):
        assert open_or_make(tmp_path / "s", make, splits={"train": [1, 2]}).num_nodes == 20
    assert len(calls) == 1
    path = tmp_path / "a"
    assert open_or_make(path, lambda: from_data(graph(), path)).num_nodes == 20
    other = tmp_path / "b"
    assert open_or_make(other, lambda: from_data(graph(), other, if_exists="open")).num_nodes == 20
    with pytest.raises(ConfigError, match=f"returned the store {path}: write it at"):
        open_or_make(tmp_path / "u", lambda: open_store(path))


# ---- several processes


def run(work: Callable[[Any], None], count: int) -> list[Any]:
    """Processes that run `work`, each with its end of a pipe; and the other ends."""
    pairs = [FORK.Pipe() for _ in range(count)]
    processes = [FORK.Process(target=work, args=(theirs,)) for _, theirs in pairs]
    for process in processes:
        process.start()
    return [(process, ours) for process, (ours, _) in zip(processes, pairs, strict=True)]


@pytest.mark.parametrize("mode", ["open_or_make", "replace"])
def test_several_processes_end_with_one_store(tmp_path, mode):
    path = tmp_path / "s"
    if mode == "replace":
        from_data(graph(value=-1), path)

    def work(pipe: Any) -> None:
        def make() -> Data:
            with (tmp_path / "made").open("a") as file:
                file.write("made\n")
            pipe.send("making")
            assert pipe.recv() == "go on"  # the others have begun to wait by then
            return graph(value=os.getpid())

        warnings.simplefilter("always")
        warnings.showwarning = lambda *_: pipe.send("waiting")
        if mode == "replace":
            store = settle(path, mode, lambda over: from_data(make(), path, overwrite=over))
        else:
            store = open_or_make(path, make)
        pipe.send(store.identity)

    started = run(work, 3)
    first = [pipe.recv() for _, pipe in started]
    assert sorted(first) == ["making", "waiting", "waiting"]
    started[first.index("making")][1].send("go on")
    assert len({pipe.recv() for _, pipe in started}) == 1
    for process, _ in started:
        process.join()
    assert (tmp_path / "made").read_text() == "made\n"
    assert left(tmp_path) == ["made", "s"]


@pytest.mark.parametrize("how", ["killed", "failed"])
def test_if_the_maker_dies_the_next_one_makes(tmp_path, how):
    def work(pipe: Any) -> None:
        def make() -> Data:
            pipe.send("making")
            assert pipe.recv() == "go on"
            return graph()

        warnings.showwarning = lambda *_: pipe.send("waiting")
        warnings.simplefilter("always")
        pipe.send(open_or_make(tmp_path / "s", make).num_nodes)

    started = run(work, 3)
    first = [pipe.recv() for _, pipe in started]
    process, pipe = started.pop(first.index("making"))
    if how == "killed":
        os.kill(process.pid, signal.SIGKILL)
    else:
        pipe.send("fail")
    process.join()
    assert process.exitcode != 0
    ready: Any = multiprocessing.connection.wait([pipe for _, pipe in started])[0]
    assert ready.recv() == "making"
    ready.send("go on")
    assert [pipe.recv() for _, pipe in started] == [20, 20]
    for process, _ in started:
        process.join()
    assert left(tmp_path) == ["s"]
