"""`gnndrive pack`, what training finds of it, and `unpack`, `info`, `verify`, `clean` of packs."""

import errno
import os
import shlex
import shutil
from pathlib import Path

import pytest

import gnndrive as gd
from gnndrive.cli.commands.progress import Bars
from gnndrive.common.file_lock import try_lock
from gnndrive.store.packed.format import PACK_JSON
from gnndrive.store.packed.volumes import failure
from tests.cli.conftest import QUICK, SMALL, Command


def pack_of(store: Path) -> Path:
    """The only pack of a store."""
    (path,) = (store / "packed").iterdir()
    return path


# ---- packing, and training from it


def test_training_finds_what_packing_makes_without_options(gnndrive, store):
    assert "gnndrive pack" in gnndrive("train", store, "--strategy", "diskgnn", *QUICK).refusal
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
    refused = gnndrive(*words, *SMALL, "--strategy", "diskgnn").refusal
    assert "fanout was [10, 10] and is [3, 2]" in refused


def test_the_lines_at_the_end_use_the_pack(gnndrive, store, tmp_path):
    gnndrive("pack", store, *SMALL, "--epochs", "2")
    words = (*SMALL, "--epochs", "2", "--order", "id", "--segment", "2")
    for more in (("--memory", "100MB"), ("--out", tmp_path / "a pack")):
        made = gnndrive("pack", store, *words, *more)
        assert made.code == 0
        lines = [line.strip() for line in made.out.splitlines()]
        (train,) = (line for line in lines if line.startswith("gnndrive train "))
        assert "--packed" in train
        assert ("--memory" in train) == ("--memory" in more)
        assert gnndrive(*shlex.split(train)[1:], *QUICK).json["batches"] == 8
        (python,) = (line for line in lines if line.startswith("NeighborLoader("))
        given = {"NeighborLoader": gd.NeighborLoader, "store": gd.open(store)}
        with eval(python, given) as loader:
            assert [batch.batch_size for batch in loader] == [100] * 8


def test_packing_prints_one_json_object(gnndrive, store):
    words = ("--segment", "1", "--seed", "3", "--no-shuffle", "--disk", "1GB", "--input", "val")
    made = gnndrive("pack", store, *SMALL, *words, "--json").json
    assert (made["batches"], made["epochs"], made["segment"]) == (2, 1, 1)
    assert made["path"] == str(pack_of(store))
    settings = made["settings"]
    assert (settings["seed"], settings["shuffle"], settings["disk"]) == (3, False, 10**9)
    size = sum(file.stat().st_size for file in pack_of(store).rglob("*") if file.is_file())
    assert made["actual_bytes"] == size


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--disk", "1KB"), "allow more with disk="),
        (("--fanout", "3;2"), "separated by commas"),
        (("--input", "nothing"), "it has: "),
        (("--out", "/nowhere/pack"), "make the folder"),
    ],
)
def test_what_cannot_be_packed_is_refused(gnndrive, store, words, said):
    assert said in gnndrive("pack", store, *SMALL, *words).refusal


def test_one_of_several_packs_is_named(gnndrive, store):
    gnndrive("pack", store, *SMALL)
    assert "gnndrive unpack" in gnndrive("pack", store, *SMALL).refusal
    path = pack_of(store)
    gnndrive("pack", store, *SMALL, "--epochs", "2")
    words = ("train", store, *SMALL, "--strategy", "diskgnn", *QUICK)
    assert path.name in gnndrive(*words).refusal
    assert gnndrive(*words, "--packed", path.name).code == 0
    assert path.name in gnndrive("unpack", store).refusal
    assert gnndrive("unpack", store, path.name).out == f"removed {path}\n"
    assert gnndrive("unpack", store).code == 0
    assert "nothing to remove" in gnndrive("unpack", store).refusal


def test_an_evaluation_that_cannot_fit_is_refused_before_training(gnndrive, store):
    gnndrive("pack", store, *SMALL)
    words = (store, *SMALL, "--strategy", "diskgnn")
    least = gnndrive("plan", *words, "--memory", "1MB").refusal.split('memory="')[1].split('"')[0]
    error = gnndrive("train", *words, *QUICK[:4], "--memory", least).refusal
    assert "batches of the val split are drawn, and memory=" in error
    assert "epoch 1/1" not in error
    enough = error.split('at least memory="')[1].split('"')[0]
    assert gnndrive("train", *words, *QUICK[:4], "--memory", enough).code == 0


# ---- interruptions


def interrupted(gnndrive: Command, monkeypatch: pytest.MonkeyPatch, *words: object) -> str:
    """Run a command that Ctrl-C ends in the middle of its first work; returns its complaint."""

    def report(bars: Bars, what: str, done: int, total: int) -> None:
        if 2 * done >= total:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Bars, "__call__", report)
        ended = gnndrive(*words)
    assert (ended.code, ended.out) == (130, "")
    assert ended.err.count("gnndrive: interrupted") == 1
    return ended.err


def test_packing_goes_on_after_ctrl_c(gnndrive, store, monkeypatch):
    words = ("pack", store, *SMALL, "--epochs", "3", "--segment", "2")
    assert "the same command goes on where" in interrupted(gnndrive, monkeypatch, *words)

    def info():
        (pack,) = gnndrive("info", store, "--json").json["packs"]
        return pack

    left = info()
    assert (left["state"], left["settings"]["epochs"]) == ("unfinished", 3)
    assert "unfinished (gnndrive pack goes on with it" in gnndrive("info", store).out
    lock = try_lock(Path(left["path"]) / "packing.lock")
    assert info()["state"] == "packing"
    assert "being packed" in gnndrive("info", store).out
    assert gnndrive("clean", store.parent).out == f"nothing to clean in {store.parent}\n"
    os.close(lock)
    assert f"remove {left['path']}" in gnndrive("clean", store.parent, "--dry-run").out
    assert gnndrive(*words).code == 0
    assert (info()["state"], info()["batches"], info()["epochs"]) == ("whole", 8, 3)
    assert gnndrive("verify", pack_of(store)).code == 0


def test_packing_goes_on_after_a_full_disk(gnndrive, store, monkeypatch):
    def full(root, *_):
        raise failure(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), root)

    with monkeypatch.context() as patch:
        patch.setattr("gnndrive.store.packed.pack.reserve", full)
        assert "the same command goes on" in gnndrive("pack", store, *SMALL).refusal
    made = gnndrive("pack", store, *SMALL)
    assert (made.code, "record: " in made.err) == (0, False)


def test_clean_removes_what_killed_packers_left(gnndrive, store, monkeypatch):
    folder = store.parent
    for more in ((), ("--out", folder / "p")):
        interrupted(gnndrive, monkeypatch, "pack", store, *SMALL, *more)
    left = [*folder.glob(".*.packing"), *(store / "packed").glob(".*.packing")]
    cleaned = gnndrive("clean", folder)
    assert (cleaned.code, len(left)) == (0, 2)
    for path in left:
        assert f"remove {path}" in cleaned.out
        assert not path.exists()


# ---- info and verify


def test_info_shows_packs(gnndrive, store):
    assert gnndrive("info", store, "--json").json["packs"] == []
    words = ("--epochs", "2", "--seed", "5", "--order", "minhash", "--memory", "100MB")
    gnndrive("pack", store, *SMALL, *words)
    path = pack_of(store)

    def listed():
        (line,) = (line for line in gnndrive("info", store).out.splitlines() if path.name in line)
        (pack,) = gnndrive("info", store, "--json").json["packs"]
        return line.rstrip(), pack

    line, pack = listed()
    said = "8 batches × 2 epochs, fanout 3,2, batch size 100, seed 5, order minhash, segments of"
    assert said in line
    assert line.endswith(" KB")
    assert (pack["path"], pack["state"]) == (str(path), "whole")
    assert pack["actual_bytes"] > 0
    text = gnndrive("info", path).out
    shown = dict(line.split(" : ", 1) for line in text.splitlines() if " : " in line)
    shown = {name.strip(): value for name, value in shown.items()}
    assert shown["batches"] == "8 × 2 recorded epochs"
    assert (shown["fanout"], shown["shuffle"], shown["memory"]) == ("3,2", "yes", "100 MB")
    assert "rows/nodes/x" in text
    content = gnndrive("info", path, "--json").json
    assert set(content["arrays"]) >= {"ids", "index", "rows/nodes/x", "samples"}
    assert content["settings"]["batch_size"] == 100
    (path / PACK_JSON).write_text("{")
    line, pack = listed()
    assert "damaged: " in line
    assert (pack["state"], "pack the store again" in pack["problem"]) == ("damaged", True)
    assert "pack the store again" in gnndrive("info", path).refusal
    assert gnndrive("verify", store).code == 1


def test_verify_reads_packs_too(gnndrive, store, tmp_path):
    gnndrive("pack", store, *SMALL)
    path = pack_of(store)
    sound = gnndrive("verify", store)
    assert sound.code == 0
    assert f"{path}: sound" in sound.out
    assert f"{path.name} rows nodes/x: 100 %" in sound.err
    assert gnndrive("verify", path).out == f"{path}: sound, {sound.out.split()[-3]} KB read\n"
    away = tmp_path / "away"
    shutil.move(path, away)
    assert "--of" in gnndrive("verify", away).refusal
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
