"""`load` times batches in one way, behind a warm-up; its process ends however it can."""

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gnndrive.cli.commands import loading
from gnndrive.cli.commands.loading import NOTHING, Loaded, Loading, load, main
from gnndrive.cli.commands.loading_process import LoadingFailed, run_loading
from gnndrive.cli.measure.mapped_loader import PYG_PLUS
from tests.cli.conftest import FRACTIONS, NODES

BATCH = 300
AN_EPOCH = -(-int(NODES * FRACTIONS["train"]) // BATCH)


def of(store: Path, loader: str, batches: int = 2, **given: Any) -> Loading:
    arguments = {} if loader == PYG_PLUS else {"buffer": "100KB"}
    given = {"split": "train", "seed": 3, "arguments": arguments} | given
    return Loading(str(store), loader, (3, 2), BATCH, batches, **given)


def test_the_map_gives_the_batches_of_gnndrive_over_several_epochs(planted):
    batches = 2 * AN_EPOCH + 1
    ours, theirs = (load(of(planted, name, batches)) for name in ("gnndrive", PYG_PLUS))
    assert (ours.checksums, ours.nodes, ours.edges) == (
        theirs.checksums, theirs.nodes, theirs.edges,
    )  # fmt: skip
    assert len(set(ours.checksums)) == batches
    nothing = load(of(planted, NOTHING))  # to see what a process takes
    assert nothing == Loaded(peak_bytes=nothing.peak_bytes)
    assert nothing.peak_bytes > 10**6


@pytest.mark.parametrize("loader", ["gnndrive", PYG_PLUS])
def test_a_warm_up_is_not_counted(planted, loader, capsys):
    whole, behind = (load(of(planted, loader, n, warm_up=w)) for n, w in ((3, 0), (1, 2)))
    assert (behind.warm_up, behind.batches, behind.checksums) == (2, 1, whole.checksums)
    assert 0 < behind.nodes < whole.nodes
    said = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert said == 2 * [{"done": 1}, {"done": 2}, {"done": 3}]


def test_counters_are_those_of_the_timed_batches(planted):
    cold, warm = (load(of(planted, "gnndrive", 2, warm_up=w)) for w in (0, 3))
    assert cold.evictions_before == 0 < (warm.evictions_before or 0)
    for loaded in (cold, warm):
        assert 0 < loaded.counters["rows_loaded"] < NODES
        assert loaded.counters["bytes_read"] >= loaded.counters["rows_loaded"] * 4
    assert load(of(planted, "gnndrive", arguments={"buffer": "10MB"})).holds_all
    assert not cold.holds_all


def test_the_mapped_loader_counts_what_the_system_counts(planted, monkeypatch, tmp_path):
    short = load(of(planted, PYG_PLUS, 5, warm_up=5, seconds=0))  # time ends both parts
    assert (short.warm_up, short.batches) == (1, 1)
    assert load(of(planted, PYG_PLUS)).counters.keys() == {"requests", "bytes_read"}
    monkeypatch.setattr(loading, "_IO", tmp_path / "none")
    assert load(of(planted, PYG_PLUS)).counters.keys() == {"requests"}


def test_mistakes_are_said_in_json(planted, capsys, monkeypatch):
    monkeypatch.setattr(loading.Store, "split", lambda store, name: [])
    for given, said in (
        ({"arguments": {"buffer": "nonsense"}}, "no size"),
        ({"loader": PYG_PLUS, "arguments": {"gap": 1}}, "pyg+ takes none"),
        ({"store": str(planted / "none")}, "is not there"),
        ({"loader": PYG_PLUS, "split": "train"}, "no nodes to begin with"),
    ):
        fields = {"store": str(planted), "loader": "gnndrive", "fanout": [3], "batch_size": 9}
        main(json.dumps(fields | {"batches": 1} | given))
        (line,) = capsys.readouterr().out.splitlines()
        assert said in json.loads(line)["failed"]


# ---- the process


@pytest.fixture
def program(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[str], None]:
    """program("exit 3") makes this script what runs in place of Python."""

    def make(script: str) -> None:
        path = tmp_path / "program"
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)
        monkeypatch.setattr(sys, "executable", str(path))

    return make


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("kill -9 $$", r"killed \(signal 9\)"),
        ("echo first >&2; echo 'MemoryError: 5' >&2; exit 3", "ended with 3: MemoryError: 5"),
        ("exit 0", "its process ended with 0"),
        ("""echo '{"done": 1}'; echo '{"failed": "too little"}'""", "^too little$"),
    ],
)
def test_a_process_that_fails_says_why(planted, program, script, said):
    program(script)
    with pytest.raises(LoadingFailed, match=said):
        run_loading(of(planted, "gnndrive"))


def test_the_process_loads_what_is_asked_for(planted, program, capsys):
    """A real `python -m`, as no other test starts one; its warnings are passed on."""
    program(f"""echo 'a warning' >&2; exec '{sys.executable}' "$@\"""")
    found = run_loading(of(planted, PYG_PLUS))
    assert tuple(found.checksums) == load(of(planted, PYG_PLUS)).checksums
    assert capsys.readouterr().err.startswith("a warning\n")


def test_ctrl_c_ends_the_process(planted, program, tmp_path):
    os.mkfifo(tmp_path / "never")
    program(f"""echo $$ >{tmp_path}/pid; echo '{{"done": 1}}'; exec cat {tmp_path}/never""")

    def interrupt(done, total):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_loading(of(planted, "gnndrive"), None, interrupt)
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)
