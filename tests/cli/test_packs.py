"""`gnndrive pack` makes what `train --strategy diskgnn` finds; packs are listed, verified, removed.

Each mistake gives one line that says what to do.
"""

from __future__ import annotations

import errno
import os
import shlex
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest

import gnndrive as gd
from gnndrive.common.file_lock import try_lock
from gnndrive.store.packed.format import PACK_JSON
from gnndrive.store.packed.volumes import failure
from tests import forked
from tests.cli.conftest import Command, Ended
from tests.cli.test_interrupt import PROGRAM

SMALL = ("--fanout", "3,2", "--batch-size", "100")
QUICK = ("--epochs", "1", "--hidden", "8", "--json")


def pack_of(store: Path) -> Path:
    """The only pack of a store."""
    (path,) = (store / "packed").iterdir()
    return path


def refusal(ended: Ended) -> str:
    """The one line of a command that refuses."""
    assert (ended.code, ended.out) == (2, "")
    assert "Traceback" not in ended.err
    assert ended.err.count("gnndrive: ") == 1
    return ended.err


# ---- packing, and training from it


def test_training_finds_what_packing_makes_without_options(gnndrive: Command, store: Path):
    made = gnndrive("pack", store)
    assert made.code == 0
    assert "record: 100 %" in made.err
    assert "rows nodes:x: 100 %" in made.err
    assert f"{pack_of(store)}: 1 batches × 1 epoch, fanout 10,10, batch size 1024" in made.out
    words = ("train", store, *QUICK, "--dropout", "0")
    replayed, drawn = gnndrive(*words, "--strategy", "diskgnn").json, gnndrive(*words).json
    assert (replayed["rows"], replayed["edges"]) == (drawn["rows"], drawn["edges"])
    losses = [report["epochs"][0]["loss"] for report in (replayed, drawn)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)  # sums have another order
    assert replayed["epochs"][0]["accuracy"].keys() == {"val", "test"}


@pytest.mark.parametrize("memory", [(), ("--memory", "100MB")])
def test_the_lines_at_the_end_use_the_pack(
    gnndrive: Command, store: Path, memory: tuple[str, ...], tmp_path: Path
):
    out = tmp_path / "a pack"
    gnndrive("pack", store, *SMALL, *memory, "--epochs", "2")
    words = (*memory, "--epochs", "2", "--order", "id", "--segment", "2")
    for more in ((), ("--out", out)):
        made = gnndrive("pack", store, *SMALL, *words, *more)
        assert made.code == 0
        lines = [line.strip() for line in made.out.splitlines()]
        (train,) = (line for line in lines if line.startswith("gnndrive train "))
        assert ("--packed" in train, "--memory" in train) == (True, bool(memory))
        report = gnndrive(*shlex.split(train)[1:], *QUICK).json
        assert report["batches"] == 8
        (python,) = (line for line in lines if line.startswith("NeighborLoader("))
        given: dict[str, Any] = {"NeighborLoader": gd.NeighborLoader, "store": gd.open(store)}
        with eval(python, given) as loader:
            assert [batch.batch_size for batch in loader] == [100] * 8


def test_packing_prints_one_json_object(gnndrive: Command, store: Path):
    words = ("--segment", "1", "--seed", "3", "--no-shuffle", "--disk", "1GB", "--input", "val")
    made = gnndrive("pack", store, *SMALL, *words, "--json").json
    assert (made["batches"], made["epochs"], made["segment"]) == (2, 1, 1)
    assert made["path"] == str(pack_of(store))
    settings = made["settings"]
    assert (settings["seed"], settings["shuffle"], settings["disk"]) == (3, False, 10**9)
    size = sum(file.stat().st_size for file in pack_of(store).rglob("*") if file.is_file())
    assert made["actual_bytes"] == size
    with gd.NeighborLoader(
        gd.open(store), [3, 2], gd.open(store).split("val"), batch_size=100, strategy="diskgnn"
    ) as loader:
        assert len(list(loader)) == 2


def test_a_plan_of_a_pack_says_its_levels(gnndrive: Command, store: Path):
    gnndrive("pack", store, *SMALL)
    words = ("--strategy", "diskgnn", "--packed", pack_of(store).name)
    planned = gnndrive("plan", store, *SMALL, *words)
    assert planned.code == 0
    assert "a batch's rows: " in planned.out


# ---- mistakes


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--disk", "1KB"), "allow more with disk="),
        (("--memory", "1KB"), "give at least|give memory="),
        (("--packing-memory", "1KB"), "give at least"),
        (("--disk", "much"), "8GB|256MB"),
        (("--fanout", "3;2"), "separated by commas"),
        (("--input", "nothing"), "it has: "),
        (("--segment", "100"), "minhash"),
        (("--out", "/nowhere/pack"), "make the folder"),
    ],
)
def test_what_cannot_be_packed_is_refused(
    gnndrive: Command, store: Path, words: tuple[str, ...], said: str
):
    error = refusal(gnndrive("pack", store, *SMALL, *words))
    assert any(part in error for part in said.split("|")), error


def test_a_pack_that_is_there_is_refused_until_it_is_removed(gnndrive: Command, store: Path):
    gnndrive("pack", store, *SMALL)
    assert "gnndrive unpack" in refusal(gnndrive("pack", store, *SMALL))
    path = pack_of(store)
    assert gnndrive("unpack", store).out == f"removed {path}\n"
    assert not path.exists()
    assert "nothing to remove" in refusal(gnndrive("unpack", store))
    assert gnndrive("pack", store, *SMALL).code == 0


def test_one_of_several_packs_is_named(gnndrive: Command, store: Path):
    gnndrive("pack", store, *SMALL)
    first = pack_of(store).name
    gnndrive("pack", store, *SMALL, "--epochs", "2")
    words = ("train", store, *SMALL, "--strategy", "diskgnn", *QUICK)
    assert first in refusal(gnndrive(*words))
    assert gnndrive(*words, "--packed", first).code == 0
    assert first in refusal(gnndrive("unpack", store))
    assert gnndrive("unpack", store, first).code == 0
    assert gnndrive(*words).code == 0


def test_training_without_its_pack_is_refused(gnndrive: Command, store: Path):
    words = ("train", store, "--strategy", "diskgnn", *QUICK)
    assert "gnndrive pack" in refusal(gnndrive(*words))
    gnndrive("pack", store, *SMALL)
    assert "fanout was [3, 2] and is [10, 10]" in refusal(gnndrive(*words))
    path = pack_of(store)
    assert "strategy='diskgnn'" in refusal(gnndrive("train", store, "--packed", path, *QUICK))
    assert "ginx" in refusal(gnndrive("train", store, "--strategy", "ginx", *QUICK))


def test_an_evaluation_that_cannot_fit_is_refused_before_training(gnndrive: Command, store: Path):
    gnndrive("pack", store, *SMALL)
    words = ("train", store, *SMALL, "--strategy", "diskgnn", *QUICK, "--memory")
    plan = ("plan", store, *SMALL, "--strategy", "diskgnn", "--memory", "1MB")
    little = refusal(gnndrive(*plan))
    least = little.split('memory="')[1].split('"')[0]
    error = refusal(gnndrive(*words, least))
    assert "batches of the val split are drawn, and memory=" in error
    assert "epoch 1/1" not in error
    enough = error.split('at least memory="')[1].split('"')[0]
    assert gnndrive(*words, enough).code == 0


# ---- interruptions


def test_packing_goes_on_after_ctrl_c(gnndrive: Command, store: Path, tmp_path: Path):
    words = ["pack", str(store), *SMALL, "--epochs", "100", "--segment", "2"]
    with forked.Program(PROGRAM, *words) as child:
        next(line for line in child.stderr if line.startswith("record: 25 %"))
        child.send_signal(signal.SIGINT)
        out, err = child.communicate()
    assert (child.returncode, out) == (130, "")
    assert "the same command goes on where it stopped" in err
    assert err.count("gnndrive: interrupted") == 1
    assert "Traceback" not in err
    (left,) = gnndrive("info", store, "--json").json["packs"]
    assert (left["state"], left["settings"]["epochs"]) == ("unfinished", 100)
    assert "unfinished (gnndrive pack goes on with it" in gnndrive("info", store).out
    assert gnndrive(*words).code == 0
    (whole,) = gnndrive("info", store, "--json").json["packs"]
    assert (whole["state"], whole["batches"], whole["epochs"]) == ("whole", 8, 100)
    assert gnndrive("verify", pack_of(store)).code == 0


def test_packing_goes_on_after_a_full_disk(
    gnndrive: Command, store: Path, monkeypatch: pytest.MonkeyPatch
):
    def full(root: Path, *_: Any) -> None:
        raise failure(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), root)

    with monkeypatch.context() as patch:
        patch.setattr("gnndrive.store.packed.pack.reserve", full)
        error = refusal(gnndrive("pack", store, *SMALL))
        assert "the same command goes on" in error
        assert gnndrive("info", store, "--json").json["packs"][0]["state"] == "unfinished"
    made = gnndrive("pack", store, *SMALL)
    assert (made.code, "record: " in made.err) == (0, False)
    assert gnndrive("verify", store).code == 0


def unfinished(gnndrive: Command, store: Path, monkeypatch: pytest.MonkeyPatch, *more: Any) -> Path:
    """Leave an unfinished pack; returns its folder."""

    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("gnndrive.store.packed.pack.reserve", interrupted)
        assert gnndrive("pack", store, *SMALL, *more).code == 130
    folder = Path(more[-1]).parent if more else store / "packed"
    (path,) = folder.glob(".*.packing")
    return path


@pytest.mark.parametrize("outside", [False, True])
def test_clean_removes_what_killed_packers_left(
    gnndrive: Command, store: Path, monkeypatch: pytest.MonkeyPatch, outside: bool
):
    folder = store.parent
    left = unfinished(gnndrive, store, monkeypatch, *(("--out", folder / "p") if outside else ()))
    lock = try_lock(left / "packing.lock")
    assert gnndrive("clean", folder).out == f"nothing to clean in {folder}\n"
    if not outside:
        assert "being packed" in gnndrive("info", store).out
        assert gnndrive("info", store, "--json").json["packs"][0]["state"] == "packing"
    os.close(lock)
    assert f"remove {left}" in gnndrive("clean", folder, "--dry-run").out
    assert left.exists()
    cleaned = gnndrive("clean", folder)
    assert (cleaned.code, f"remove {left}" in cleaned.out) == (0, True)
    assert not left.exists()


def test_unpack_removes_unfinished_packs_too(
    gnndrive: Command, store: Path, monkeypatch: pytest.MonkeyPatch
):
    left = unfinished(gnndrive, store, monkeypatch)
    assert gnndrive("unpack", store).out == f"removed {left}\n"
    assert not left.exists()


# ---- info and verify


def test_info_lists_the_packs_of_a_store(gnndrive: Command, store: Path):
    assert gnndrive("info", store, "--json").json["packs"] == []
    gnndrive("pack", store, *SMALL, "--epochs", "2", "--seed", "5", "--order", "minhash")
    path = pack_of(store)
    (line,) = (line for line in gnndrive("info", store).out.splitlines() if path.name in line)
    said = "8 batches × 2 epochs, fanout 3,2, batch size 100, seed 5, order minhash, segments of"
    assert said in line
    assert line.rstrip().endswith(" KB")
    (listed,) = gnndrive("info", store, "--json").json["packs"]
    assert (listed["path"], listed["state"]) == (str(path), "whole")
    assert listed["actual_bytes"] > 0
    (path / PACK_JSON).write_text("{")
    (line,) = (line for line in gnndrive("info", store).out.splitlines() if path.name in line)
    assert "damaged: " in line
    (listed,) = gnndrive("info", store, "--json").json["packs"]
    assert (listed["state"], "pack the store again" in listed["problem"]) == ("damaged", True)
    assert "pack the store again" in refusal(gnndrive("info", path))


def test_info_describes_one_pack(gnndrive: Command, store: Path):
    gnndrive("pack", store, *SMALL, "--memory", "100MB")
    path = pack_of(store)
    text = gnndrive("info", path).out
    said = {line.split(" : ")[0].strip(): line.split(" : ")[1] for line in text.splitlines()
            if " : " in line}  # fmt: skip
    assert said["batches"] == "8 × 1 recorded epoch"
    assert (said["fanout"], said["shuffle"], said["memory"]) == ("3,2", "yes", "100 MB")
    assert "rows/nodes/x" in text
    content = gnndrive("info", path, "--json").json
    assert set(content["arrays"]) == {"ids", "index", "rows/nodes/x", "samples"}
    assert content["settings"]["batch_size"] == 100


def test_verify_reads_packs_too(gnndrive: Command, store: Path, tmp_path: Path):
    gnndrive("pack", store, *SMALL)
    path = pack_of(store)
    sound = gnndrive("verify", store)
    assert sound.code == 0
    assert f"{path}: sound" in sound.out
    assert f"{path.name} rows nodes/x: 100 %" in sound.err
    assert gnndrive("verify", path).out == f"{path}: sound, {sound.out.split()[-3]} KB read\n"
    away = tmp_path / "away"
    shutil.move(path, away)
    assert "--of" in refusal(gnndrive("verify", away))
    assert gnndrive("verify", away, "--of", store).code == 0
    file = away / "rows" / "nodes" / "x.npy"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    damaged = gnndrive("verify", away, "--of", store)
    assert (damaged.code, damaged.out) == (1, "")
    shutil.move(away, path)
    damaged = gnndrive("verify", store)
    assert (damaged.code, "x.npy" in damaged.err) == (1, True)
    (path / PACK_JSON).write_text("{")
    assert gnndrive("verify", store).code == 1
