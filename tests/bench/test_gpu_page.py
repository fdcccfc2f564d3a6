"""The page that `run.sh --all` fills in, from fakes of its parts and from a rehearsal."""

import argparse
import contextlib
import itertools
import json
import signal
from typing import Any

import _gpu_loaders
import _gpu_machine
import _gpu_moves
import _gpu_page
import _gpu_parts
import epoch
import gpu
import gpu_all
import pytest
from _loaders import Meter

from gnndrive.buffer.devices._kernels import WAYS
from tests.bench.fake_parts import InProcess, row
from tests.project_files import ROOT

PAGE = (ROOT / "docs" / "gpu-results.md").read_text(encoding="utf-8")


def test_the_page_asks_what_the_script_answers():
    assert list(_gpu_page.questions(PAGE)) == list(_gpu_page.ROWS)


def test_every_row_is_filled_in(run, tmp_path):
    page = run()["page"]
    assert len(list((tmp_path / "out").iterdir())) <= 8
    assert "not measured" not in page
    for question, says in {
        "tests/gpu": "1 passed, 1 failed, 2 skipped; test_io::test_d failed: wrong; "
        "2 skipped: no CuPy",
        "rows into the feature": "zero-copy, 512 B: 0.95 (0.95–0.95)",
        "which way is faster": "zero-copy: 0.95 of the plain copy, copy+kernel 0.80",
        "gather beside": "staged, 3,072 B: 0.60 (0.60–0.60)",
        "seconds a batch beside PyG's way": "2.00 (2.00–2.00) times as fast; 2 rounds of 8 batches",
        "seconds a batch beside one copy a row": "3.00 (3.00–3.00) times as fast",
        "GPU idle share": "gnndrive 0.25 (0.25–0.25)",
        "the disk's two constants": "10.0 µs a request, 0.500 ns a byte, 128 at once, engine uring",
        "rows moved with each switch": "blocks=128: h2d 512 B -0.05",
        "seconds a batch with each switch": "gather_stream=on: 3.000 s",
    }.items():
        assert says in row(page, question)
        assert "`python" in row(page, question)
    for text in ("an H200", "commit abc", "/ /dev/vda ext4 rw", "## How to run it"):
        assert text in page
    assert "fake" not in page.partition("## Results")[2]


def test_a_filled_page_can_be_filled_again(run):
    found = run()
    assert _gpu_page.page(found, found["page"]) == found["page"]
    found["parts"]["machine"]["result"]["mount"] = "/tmp tmpfs tmpfs rw"
    assert "the folder is in memory" in row(_gpu_page.page(found, PAGE), "the disk's two constants")


def test_figures_of_a_rehearsal_are_marked(run):
    page = run("--rehearse")["page"]
    results = page.partition("## Results")[2].partition("### How the parts ended")[0]
    for line in results.splitlines():
        if line.startswith(
            ("| rows", "| gather", "| seconds a", "| h2d", "| epochs", "| GPU idle")
        ):
            assert _gpu_page.FAKE in line
    assert "A rehearsal on a fake GPU" in page


def test_figures_of_different_batches_are_not_shown(fake, run):
    fake.checksums = {"pinned": 2}
    page = run()["page"]
    for question in ("seconds a batch beside PyG's way", "GPU idle share"):
        line = row(page, question)
        assert "not measured: the loaders did not train on the same batches" in line


@pytest.mark.parametrize("why", ["the smaller graph", "no limit"])
def test_features_that_fit_into_memory_do_not_answer_the_question(fake, run, why):
    question, warning = "seconds a batch beside PyG's way", "this does not answer the question"
    assert warning not in row(run()["page"], question)
    if why == "the smaller graph":
        fake.now, fake.seconds = 0.0, {"12": 10_000.0}
    else:
        fake.now, fake.limited = 0.0, False
    line = row(run()["page"], question)
    assert f"{'fit' if why == 'the smaller graph' else 'may fit'} into the host's memory" in line
    assert warning in line


# ---- the machine ----


def test_the_mount_is_found_without_findmnt(tmp_path):
    text = (
        "21 1 254:0 / / rw,relatime - ext4 /dev/vda rw\n"
        f"40 21 0:35 / {tmp_path.parent} rw,nosuid shared:2 - tmpfs none rw,size=1\n"
        "41 21 0:36 / /elsewhere rw - ext4 /dev/vdb rw\n"
    )
    assert _gpu_machine.of_mountinfo(text, tmp_path) == f"{tmp_path.parent} none tmpfs rw,nosuid"


def test_a_machine_without_tools_is_described(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(_gpu_machine, "limits", lambda: 1 / 0)
    found = _gpu_machine.describe(tmp_path, rehearse=False)
    assert found["limits"] == "unknown (division by zero)"
    assert found["engine"] in ("uring", "threads")
    assert len(found["mount"].split()) == 4
    assert found["commit"].startswith("unknown") or len(found["commit"].split()[0]) == 40


# ---- the rehearsal ----


def run_worker(name: str, options: argparse.Namespace, *_: Any) -> dict[str, Any]:
    """In the place of `epoch.spawn`: run a loader in this process."""
    _, worker = gpu.parse([*options.given, "--worker", name])
    assert worker is not None
    return _gpu_loaders.RUNS[name](worker) | {"peak_bytes": 1}


def test_a_loaders_first_batch_counts_from_the_end_of_its_set_up():
    meter = Meter("gnndrive")
    meter.set_up, meter.first_s = {"set_up_s": 2.0, "set_up_cpu_s": 1.0}, 2.5
    found = _gpu_loaders.figures(meter, {"elapsed_s": 3.0}, hit_rate=0.5)
    assert [found[name] for name in ("first_s", "elapsed_s", "hit_rate")] == [0.5, 3.0, 0.5]


def test_a_rehearsal_fills_every_table(tmp_path, monkeypatch):
    monkeypatch.setattr(epoch, "spawn", run_worker)
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    monkeypatch.setattr(gpu_all, "SWITCHES", gpu_all.SWITCHES[:2])  # the others take as long each
    monkeypatch.setattr(gpu, "tried_limit", lambda *_: contextlib.nullcontext((None, "no limit")))

    def make(*given, **named):
        return _gpu_parts.Parts(*given, **named, start=InProcess, clock=lambda: 0.0)

    words = [str(tmp_path / "out"), "--rehearse", "--folder", str(tmp_path / "graphs")]
    status = gpu_all.run(gpu_all.parse(words), make)
    results = json.loads((tmp_path / "out" / "results.json").read_text())
    assert status == 0, {name: part["error"] for name, part in results["parts"].items()}
    page = (tmp_path / "out" / "gpu-results.md").read_text()
    assert "not measured" not in page
    moves = results["parts"]["moves"]["result"]["moves"]
    assert {(move["part"], move["way"], move["row_bytes"]) for move in moves} == set(
        itertools.product(("h2d", "gather"), WAYS, _gpu_moves.ROW_BYTES)
    )
    epochs = results["parts"]["epochs"]["result"]["epochs"]
    assert {(one["loader"], one["run"]) for one in epochs} == set(
        itertools.product(_gpu_loaders.RUNS, range(2))
    )
    for name in ("switches", "switch-epochs"):
        found = results["parts"][name]["result"]
        measured = {one["switches"] for one in found["moves"] + found["epochs"]}
        assert measured == {"defaults", *gpu_all.SWITCHES}
