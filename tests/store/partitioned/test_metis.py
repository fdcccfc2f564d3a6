"""METIS runs in a child process: what it finds, and what is said when it ends early.

Some tests put another module in the place of pymetis, whose process ends as METIS's may.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from gnndrive.common.errors import ConfigError, StoreError
from gnndrive.store import Store
from gnndrive.store.partitioned import metis
from tests.store.partitioned.assigned import Chosen, draw_edges, make_store, neighbours, run

NODES, EDGES = 600, 3000
Fake = Callable[[str], None]
ROOT = Path(__file__).resolve().parents[3]
RUN = """
import sys
from pathlib import Path
import gnndrive
from tests.store.partitioned.assigned import Chosen, run
run(gnndrive.open(sys.argv[1]), Path(sys.argv[2]), Chosen("metis", 4))
"""


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return make_store(tmp_path / "graph.gnn", NODES, draw_edges(NODES, EDGES))


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


def cut(store: Store, part: list[int]) -> int:
    """The edges between two partitions."""
    targets = np.repeat(np.arange(NODES), np.diff(store.indptr))
    there = np.array(part)
    return int((there[store.indices] != there[targets]).sum())


@pytest.mark.parametrize("parts", [1, 2, 8, 64])
def test_metis_cuts_few_edges(store: Store, tmp_path: Path, parts: int):
    part = run(store, tmp_path / "work", Chosen("metis", parts))
    assert 0 <= min(part) <= max(part) < parts
    assert np.bincount(part).max() <= 1.1 * NODES / parts + 1
    if parts > 1:
        assert cut(store, part) < cut(store, run(store, tmp_path / "r", Chosen("random", parts)))
    assert run(store, tmp_path / "again", Chosen("metis", parts)) == part
    assert run(store, tmp_path / "auto", Chosen("auto", parts)) == part


def test_metis_is_given_the_symmetric_lists(store: Store, tmp_path: Path, fake: Fake):
    """The other pymetis numbers nodes by a checksum of their neighbours."""
    fake("return 0, [int(sum(adjncy[a:b])) % 7 for a, b in zip(xadj[:-1], xadj[1:])]")
    expected = [sum(each) % 7 for each in neighbours(NODES, draw_edges(NODES, EDGES))]
    assert run(store, tmp_path / "work", Chosen("metis", 7)) == expected


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("os.abort()", "METIS was ended by SIGABRT, probably because memory ran out: give"),
        ("os.kill(os.getpid(), 9)", "METIS was ended by SIGKILL, probably because memory ran out"),
        ("os.kill(os.getpid(), 11)", "METIS was ended by SIGSEGV: give method='ldg' [(]--method"),
        ("raise MemoryError('no room')", r"METIS failed \(exit status 1\): .*it said: .*no room"),
        ("print('Input Error'); os._exit(3)", r"METIS failed \(exit status 3\): .* more memory"),
    ],
)
def test_a_child_that_dies_is_explained(
    store: Store, tmp_path: Path, fake: Fake, body: str, said: str
):
    fake(body)
    with pytest.raises(ConfigError, match=said) as raised:
        run(store, tmp_path / "work", Chosen("metis", 4))
    assert "give method='ldg' (--method ldg)" in str(raised.value)
    assert not (tmp_path / "work" / "part.npy").exists()


@pytest.mark.parametrize("body", ["return 0, [0, 1]", f"return 0, [4] * {NODES}"])
def test_a_result_that_is_none_is_refused(store: Store, tmp_path: Path, fake: Fake, body: str):
    fake(body)
    with pytest.raises(StoreError, match="METIS has left no partitions of 600 nodes"):
        run(store, tmp_path / "work", Chosen("metis", 4))


def test_what_metis_needs_is_named(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(metis, "BYTES_AN_ENTRY", 1 << 20)
    with pytest.raises(ConfigError, match=r"give at least .*GB, or give method='ldg'"):
        run(store, tmp_path / "work", Chosen("metis", 4))
    monkeypatch.setattr(metis, "find_spec", lambda _: None)
    with pytest.raises(ConfigError, match="needs pymetis: install it with pip install"):
        run(store, tmp_path / "other", Chosen("metis", 4))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_the_child_ends_with_its_parent(
    store: Store, tmp_path: Path, fake: Fake, number: signal.Signals
):
    """The child holds a pipe open; it is closed when the child has ended."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    fake(f"out = open({str(pipe)!r}, 'wb', 0); out.write(b'x'); signal.pause()")
    paths = os.pathsep.join([str(tmp_path / "modules"), str(ROOT)])
    parent = subprocess.Popen(
        [sys.executable, "-c", RUN, str(store.path), str(tmp_path / "work")],
        env={**os.environ, "PYTHONPATH": paths}, stderr=subprocess.PIPE,
    )  # fmt: skip
    with open(pipe, "rb", 0) as said:
        assert said.read(1) == b"x"
        parent.send_signal(number)
        assert said.read(1) == b""
    _, errors = parent.communicate()
    assert parent.returncode == -number
    assert (b"KeyboardInterrupt" in errors) == (number == signal.SIGINT)
    (tmp_path / "modules" / "pymetis.py").unlink()
    assert not (tmp_path / "work" / "part.npy").exists()
