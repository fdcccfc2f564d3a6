"""if_exists and open_or_make: one store among several processes, whichever of them dies."""

import contextlib
import multiprocessing
import multiprocessing.connection
import os
import signal
import warnings
from typing import Any

import numpy as np
import pytest
import torch
from torch_geometric.data import Data, HeteroData

from gnndrive.common.errors import ConfigError
from gnndrive.store import if_exists, write_store
from gnndrive.store import open as open_store
from gnndrive.store.if_exists import settle
from gnndrive.store.importers import from_csv, from_data, from_dataset, from_edges, open_or_make
from tests.store.conftest import left, refused

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
    assert from_data(graph(value=2), path, if_exists="replace").tensor("x")[0, 0] == 2
    assert left(tmp_path) == ["s"]


def test_a_path_may_be_a_link(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "s")
    from_data(graph(), tmp_path / "link", if_exists="open")
    assert from_data(graph(), tmp_path / "link", if_exists="open").num_nodes == 20
    assert left(tmp_path) == ["link", "s"]


def changed(name: str, value: Any) -> Data:
    data = graph()
    data[name], data.num_nodes = value, 20
    return data


def test_another_graph_is_not_opened(tmp_path):
    plain = graph()
    for number, (made, other, words) in enumerate((
        (plain, graph(nodes=21), "it has 20 nodes, and the data has 21 nodes"),
        (plain, graph(edges=61), "it has 60 edges, and the data has 61 edges"),
        (plain, types(), "it has 20 nodes, and the data has no nodes"),
        (types(), types(9), "3 nodes of type 'author', and the data has 9 nodes"),
        (plain, changed("x", torch.zeros(20, 3)), r"has nodes/x int64 \[n, 2\], .*\[n, 3\]"),
        (plain, changed("x", torch.zeros(20, 2).half()), "nodes/x int64 .*nodes/x float16"),
        (plain, changed("x", None), "has nodes/x .*has no nodes/x"),
        (plain, changed("y", torch.zeros(20)), "has no nodes/y, and the data has nodes/y float32"),
        (plain, changed("edge_attr", torch.zeros(60)), "it has no edges/edge_attr"),
    )):  # fmt: skip
        path = tmp_path / str(number)
        from_data(made, path)
        for call in (
            lambda path=path, other=other: from_data(other, path, if_exists="open"),
            lambda path=path, other=other: open_or_make(path, other),
        ):
            with refused(tmp_path, f'{words}.*if_exists="replace"'):
                call()


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
    order = r"not a path.*from_data\(data, path\)"
    one = "not a list; of a dataset give one graph"
    for call, words in (
        (lambda: from_data(graph(), path, if_exists="keep"), 'give "error", "open" or "replace"'),
        (
            lambda: from_data(graph(), path, overwrite=True),
            'no argument any more: give if_exists="',
        ),
        (lambda: from_dataset(tmp_path, path, overwrite=False), "no argument any more: give if_ex"),
        (lambda: from_data(path, graph(), if_exists="open"), order),
        (lambda: open_or_make(graph(), lambda: graph()), order),
        (lambda: from_data(graph(), None), order),
        (lambda: open_or_make(path, [graph()]), one),
        (lambda: open_or_make(path, lambda: [graph()]), one),
    ):
        with refused(tmp_path, words):
            call()
    with pytest.raises(TypeError, match=r"from_data\(\) missing 1 required positional argument"):
        from_data(graph())
    with refused(tmp_path, None, ZeroDivisionError):
        open_or_make(path, lambda: 1 // 0)


@pytest.mark.parametrize("mode", ["open", "replace"])
def test_what_is_no_store_or_damaged_is_left_alone(tmp_path, mode):
    (tmp_path / "s").mkdir()
    (tmp_path / "s" / "letters.txt").write_text("dear")
    with refused(tmp_path / "s", "not a store and is left as it is"):
        from_data(graph(), tmp_path / "s", if_exists=mode)
    with refused(tmp_path, "nowhere is not there"):
        from_data(graph(), tmp_path / "nowhere" / "s", if_exists=mode)
    from_data(graph(), tmp_path / "t")
    (tmp_path / "t" / "nodes" / "x.npy").unlink()
    if mode == "open":
        with refused(tmp_path, r"x\.npy"):
            from_data(graph(), tmp_path / "t", if_exists=mode)


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


@pytest.mark.parametrize("maker", ["makes", "replaces", "is killed", "fails"])
def test_several_processes_end_with_one_store(tmp_path, maker):
    path = tmp_path / "s"
    if maker == "replaces":
        from_data(graph(value=-1), path)

    def work(pipe: Any) -> None:
        def make() -> Data:
            pipe.send("making")
            assert pipe.recv() == "go on"  # the others have begun to wait by then
            return graph(value=os.getpid())

        warnings.simplefilter("always")
        warnings.showwarning = lambda *_: pipe.send("waiting")
        if maker == "replaces":
            store = settle(
                path,
                "replace",
                lambda over: from_data(make(), path, if_exists="replace" if over else "error"),
            )
        else:
            store = open_or_make(path, make)
        pipe.send(store.identity)

    started = []
    for _ in range(3):
        ours, theirs = FORK.Pipe()
        process = FORK.Process(target=work, args=(theirs,))
        process.start()
        started.append((process, ours))
    first = [pipe.recv() for _, pipe in started]
    assert sorted(first) == ["making", "waiting", "waiting"]
    process, making = started[first.index("making")]
    if maker in ("is killed", "fails"):  # then the next one makes
        started.remove((process, making))
        os.kill(process.pid, signal.SIGKILL) if maker == "is killed" else making.send("fail")
        process.join()
        assert process.exitcode != 0
        making = multiprocessing.connection.wait([pipe for _, pipe in started])[0]
        assert making.recv() == "making"
    making.send("go on")
    assert len({pipe.recv() for _, pipe in started}) == 1
    for process, _ in started:
        process.join()
    assert left(tmp_path) == ["s"]
