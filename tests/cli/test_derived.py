"""`gnndrive pack`, `partition`, what training finds, and `info`, `verify`, `clean`."""

import os
import re
import shlex
import shutil
from pathlib import Path

import numpy as np
import pytest

import gnndrive as gd
from gnndrive.cli.report import Bars
from gnndrive.common.file_lock import try_lock
from gnndrive.store.packed.format import PACK_JSON
from gnndrive.store.partitioned.partitioned import open_partitioned
from gnndrive.store.temporary_folders import size_of
from tests.cli.conftest import NODES, QUICK, RANDOM, SMALL

PACK, PARTITION = ("pack", *SMALL, "--epochs", "3", "--segment", "2"), ("partition", *RANDOM)
KINDS = {"packs": "packed", "partitioned": "partitioned"}


def made_in(store: Path, folder: str) -> Path:
    """The only pack or partition folder of a store."""
    (path,) = (store / folder).iterdir()
    return path


def listed(gnndrive, store, kind):
    (each,) = gnndrive("info", store, "--json").json[kind]
    return each


def test_training_finds_what_packing_makes_without_options(gnndrive, store):
    assert "gnndrive pack" in gnndrive("train", store, "--strategy", "diskgnn", *QUICK).refusal
    made = gnndrive("pack", store)
    assert (made.code, "writing rows of nodes:x: 100 %" in made.err) == (0, True)
    path = made_in(store, "packed")
    assert f"{path}: 1 batches × 1 epoch, fanout 10,10, batch size 1024" in made.out
    words = ("train", store, *QUICK, "--dropout", "0")
    replayed, drawn = gnndrive(*words, "--strategy", "diskgnn").json, gnndrive(*words).json
    assert (replayed["rows"], replayed["edges"]) == (drawn["rows"], drawn["edges"])
    losses = [report["epochs"][0]["loss"] for report in (replayed, drawn)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)  # sums have another order
    assert replayed["epochs"][0]["accuracy"].keys() == {"val", "test"}
    refused = gnndrive(*words, *SMALL, "--strategy", "diskgnn").refusal
    assert "fanout was [10, 10] and is [3, 2]" in refused
    (command,) = re.findall(r"make one with `gnndrive (.*?)`", refused)
    assert gnndrive(*shlex.split(command)).code == 0
    assert gnndrive(*words, *SMALL, "--strategy", "diskgnn").code == 0


def test_a_pack_has_what_training_reads(gnndrive, store):
    gd.infer([lambda x, edge_index: x], gd.open(store), name="h")
    assert gnndrive("pack", store, *SMALL, "--json").code == 0
    assert [each.name for each in (made_in(store, "packed") / "rows/nodes").iterdir()] == ["x.npy"]


def test_verify_goes_on_behind_packs_with_a_removed_attribute_and_damaged_ones(gnndrive, store):
    opened = gd.open(store)
    gd.infer([lambda x, edge_index: x], opened, name="h")
    gd.pack(opened, [3, 2], opened.split("train"), batch_size=100, shuffle=True)
    damaged = store / "packed" / ("0" * 12)
    shutil.copytree(made_in(store, "packed"), damaged)
    (damaged / PACK_JSON).write_text("{}")
    for end in ("removed", "replaced"):
        gnndrive("remove", store, "h")
        if end == "replaced":
            gd.infer([lambda x, edge_index: 2 * x], gd.open(store), name="h")
        with pytest.warns(
            RuntimeWarning, match="packed with nodes/h, removed from the store or re"
        ):
            checked = gnndrive("verify", store)
        assert (checked.code, checked.out.count(": sound, ")) == (1, 2)
        assert f"{damaged / PACK_JSON}" in checked.err
    assert gnndrive("train", store, *SMALL, *QUICK, "--strategy", "diskgnn").code == 0
    assert gnndrive("pack", store, *SMALL, "--overwrite").code == 0
    shutil.rmtree(damaged)
    assert gnndrive("verify", store).code == 0


def test_the_lines_at_the_end_use_the_pack(gnndrive, store, tmp_path):
    gnndrive("pack", store, *SMALL, "--epochs", "2")
    words = (*SMALL, "--epochs", "2", "--order", "id", "--segment", "2")
    labor = ("--sampling", "labor:dependency=4")
    for more in (("--memory", "100MB"), ("--out", tmp_path / "a pack"), labor):
        lines = [line.strip() for line in gnndrive("pack", store, *words, *more).out.splitlines()]
        (train,) = (line for line in lines if line.startswith("gnndrive train "))
        assert ("packed=" in train, "--memory" in train) == (more != labor, "--memory" in more)
        assert gnndrive(*shlex.split(train)[1:], *QUICK).json["batches"] == 8
        (python,) = (line for line in lines if line.startswith("NeighborLoader("))
        given = {"NeighborLoader": gd.NeighborLoader, "store": gd.open(store)}
        with eval(python, given) as loader:
            assert [batch.batch_size for batch in loader] == [100] * 8


def test_a_pack_that_is_there_is_replaced_if_told_so(gnndrive, store):
    words = ("--segment", "1", "--seed", "3", "--no-shuffle", "--disk", "1GB", "--input", "val")
    made = gnndrive("pack", store, *SMALL, *words, "--json").json
    assert (made["batches"], made["epochs"], made["segment"]) == (2, 1, 1)
    settings = made["settings"]
    assert (settings["seed"], settings["shuffle"], settings["disk"]) == (3, False, 10**9)
    path = made_in(store, "packed")
    assert made["path"] == str(path)
    older = path.stat().st_ino
    assert "--overwrite" in gnndrive("pack", store, *SMALL, *words).refusal
    assert gnndrive("pack", store, *SMALL, *words, "--overwrite", "--json").json == made
    assert made_in(store, "packed").stat().st_ino != older


def test_an_evaluation_that_cannot_fit_is_refused_before_training(gnndrive, store):
    gnndrive("pack", store, *SMALL)
    words = (store, *SMALL, "--strategy", "diskgnn")
    least = gnndrive("plan", *words, "--memory", "1MB").refusal
    (least,) = re.findall(r"give at least --memory ([\d.]+MB)", least)
    error = gnndrive("train", *words, *QUICK[:4], "--memory", least).refusal
    assert "batches of the val split are drawn, and --memory" in error
    (enough,) = re.findall(r"give at least --memory ([\d.]+MB)", error)
    assert gnndrive("train", *words, *QUICK[:4], "--memory", enough).code == 0


def test_partitioning_says_what_windows_keep(gnndrive, store):
    made = gnndrive("partition", store, *RANDOM)
    assert (made.code, "writing rows of x: 100 %" in made.err) == (0, True)
    path = store / "partitioned" / "default"
    assert made.out.startswith(f"{path}: 8 partitions, random, seed 0, 4 % static, ")
    info = open_partitioned(path, gd.open(store)).info
    inside = f"{100 * info.share_inside:.3g} %"
    assert f"  edges kept     : {inside} of the in-edges lie inside a partition\n" in made.out
    third = f"{100 * info.share_kept(3):.3g} % in a window of 3 partitions and the hottest"
    assert f"    in a third   : {third}" in made.out
    words = ("--static", "0.1", "--train-first", "--name", "own", "--memory", "100MB", "--json")
    made = gnndrive("partition", store, *RANDOM, *words).json
    assert made["path"] == str(store / "partitioned" / "own")
    assert made["settings"] == {
        "method": "random", "parts": 8, "static": 0.1, "train_first": True, "seed": 0, "file": "",
    }  # fmt: skip
    assert (made["num_nodes"], made["num_parts"], made["num_static"]) == (NODES, 8, NODES // 10)
    assert made["bytes"] == sum(made["arrays"].values())


def test_a_partition_folder_is_replaced_only_if_told_so(gnndrive, store, tmp_path):
    gnndrive(*PARTITION[:1], store, *RANDOM)
    np.save(tmp_path / "mine.npy", np.arange(NODES, dtype=np.uint16) % 3)
    words = ("partition", store, "--method", tmp_path / "mine.npy")
    error = gnndrive(*words).refusal
    assert ("--overwrite" in error, "--name" in error) == (True, True)
    assert "3 partitions, from a file" in gnndrive(*words, "--overwrite").out


@pytest.fixture(params=KINDS)
def kind(request):
    return request.param


@pytest.fixture
def words(kind, store):
    command, *options = PACK if kind == "packs" else PARTITION
    return (command, store, *options)


def interrupted(gnndrive, monkeypatch, *words):
    """Run a command that Ctrl-C ends at the end of its first work."""

    def report(bars: Bars, what: str, done: int, total: int) -> None:
        if done >= total:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Bars, "__call__", report)
        ended = gnndrive(*words)
    assert (ended.code, ended.out) == (130, "")
    assert ended.err.count("gnndrive: interrupted") == 1
    assert "the same command goes on where it stopped" in ended.err


def test_it_goes_on_after_ctrl_c(gnndrive, store, monkeypatch, kind, words):
    """And a whole one that was not put into its place is put there."""
    interrupted(gnndrive, monkeypatch, *words)
    left, doing = listed(gnndrive, store, kind), words[0].removesuffix("ing")
    assert left["state"] == "unfinished"
    assert f"unfinished (gnndrive {doing} goes on with it" in gnndrive("info", store).out
    (lock,) = Path(left["path"]).glob("*.lock")
    held = try_lock(lock)
    assert f"a process is {doing}ing now" in gnndrive("info", store).out
    assert f"another process is {doing}ing" in gnndrive(*words).refusal
    assert gnndrive("clean", store.parent).out == f"nothing to clean in {store.parent}\n"
    os.close(held)
    assert f"remove {left['path']}" in gnndrive("clean", store.parent, "--dry-run").out
    assert gnndrive(*words).code == 0
    assert listed(gnndrive, store, kind)["state"] == "whole"
    path = made_in(store, KINDS[kind])
    hidden = path.rename(path.with_name(f".{path.name}.000000000000.{doing}ing"))
    assert "whole (gnndrive clean puts it into its place)" in gnndrive("info", store).out
    for option in (("--dry-run",), ()):
        assert hidden.exists()
        said = gnndrive("clean", store.parent, *option).out
        assert f"restore {path} from {hidden}" in said
    assert os.listdir(path.parent) == [path.name]
    assert gnndrive("verify", path).code == 0


def test_clean_removes_what_was_killed(gnndrive, store, monkeypatch):
    interrupted(gnndrive, monkeypatch, "pack", store, *SMALL, "--out", store.parent / "p")
    rest = store / "partitioned" / ".default.0123456789ab.partitioning"
    rest.mkdir(parents=True)
    assert "the rest of a partitioned folder that was removed" in gnndrive("info", store).out
    left = [*store.parent.glob(".*.packing"), rest]
    cleaned = gnndrive("clean", store.parent)
    assert (cleaned.code, len(left)) == (0, 2)
    for path in left:
        assert (f"remove {path}" in cleaned.out, path.exists()) == (True, False)


def test_info_and_verify(gnndrive, store, tmp_path, kind, words):
    assert gnndrive("info", store, "--json").json[kind] == []
    assert gnndrive(*words).code == 0
    path, found = made_in(store, KINDS[kind]), listed(gnndrive, store, kind)
    assert (found["path"], found["state"]) == (str(path), "whole")
    packed = kind == "packs"
    said = "8 batches × 3 epochs, fanout 3,2, batch size 100, seed 0, order "
    said = said if packed else "partitioned/default  8 partitions, random, seed 0, 4 % static, "
    assert said in gnndrive("info", store).out
    called = "packs" if packed else "partitions"
    assert gnndrive("info", store, "--json").json["sizes"][called] == size_of(path)
    text, content = gnndrive("info", path).out, gnndrive("info", path, "--json").json
    for line in (r"batches +: 8 × 3 recorded epochs",) if packed else (r"partitions +: 8, 250 ",):
        assert re.search(line, text)
    settings = {"batch_size": 100} if packed else {"parts": 8}
    assert content["settings"].items() >= settings.items()
    sound = gnndrive("verify", store)
    assert (sound.code, f"{path}: sound, " in sound.out) == (0, True)
    assert gnndrive("verify", path).out.startswith(f"{path}: sound, ")
    file = path / "rows" / "nodes" / "x.npy" if packed else path / "x.npy"
    with file.open("r+b") as damaged:
        damaged.seek(5000)
        damaged.write(b"\1\2\3")
    away = tmp_path / "away"
    for place in (store, path):
        ended = gnndrive("verify", place)
        assert (ended.code, "x.npy" in ended.err) == (1, True)
    shutil.move(path, away)
    assert "--of" in gnndrive("verify", away).refusal
    assert gnndrive("verify", away, "--of", store).code == 1
    shutil.move(away, path)
    name = PACK_JSON if packed else "partition.json"
    (path / name).write_text("{")
    assert "damaged: " in gnndrive("info", store).out
    assert listed(gnndrive, store, kind)["state"] == "damaged"
    ended = gnndrive("verify", store)
    assert (ended.code, name in ended.err) == (1, True)


def test_stripe_makes_shows_checks_and_removes_stripes(gnndrive, store, tmp_path):
    disks = [tmp_path / "disk0", tmp_path / "disk1"]
    for disk in disks:
        disk.mkdir()
    made = gnndrive("stripe", store, f"{disks[0]},{disks[1]}")
    assert (made.code, "writing rows of nodes/x: 100 %" in made.err) == (0, True)
    assert "2 disks, on " in made.out
    assert f"striped/default  2 disks, on {disks[0]}, {disks[1]}" in gnndrive("info", store).out
    found = listed(gnndrive, store, "stripes")
    assert (found["state"], len(found["folders"])) == ("whole", 2)
    assert f"rows are read from stripes on {disks[0]}, " in gnndrive("plan", store).out
    assert "striped/default: sound" in gnndrive("verify", store).out
    assert gnndrive("train", store, *QUICK).code == 0
    assert "give either" in gnndrive("stripe", store).refusal
    disks[1].rename(tmp_path / "away")
    assert "--remove" in gnndrive("train", store, *QUICK).refusal
    removed = gnndrive("stripe", store, "--remove")
    assert (removed.code, f"{disks[1]}/" in removed.out) == (0, True)
    assert gnndrive("train", store, *QUICK).code == 0
    assert not list(disks[0].iterdir())


def test_parts_for_several_hosts(gnndrive, store, tmp_path):
    made = gnndrive("shard", store, tmp_path / "out", "--hosts", "2", "--host", "1")
    part = tmp_path / "out/part-1.gnn"
    said = f"1 of 2, from 0: 992 of {NODES:,} rows of nodes/x"
    assert made.out.startswith(f"{part}: ")
    assert made.out.endswith(f"; part {said}\n")
    assert f"part     : {said}\n" in gnndrive("info", part).out
    found = gnndrive("info", part, "--json").json
    assert (found["shard"]["index"], found["shard"]["shards"], found["num_nodes"]) == (1, 2, NODES)
    assert found["bytes"] < gnndrive("info", store, "--json").json["bytes"]
    assert "sound" in gnndrive("verify", part).out
    assert "needs all: give it the whole" in gnndrive("plan", part).refusal
    with open(part / "nodes/x.npy", "r+b") as file:
        file.truncate(file.seek(0, os.SEEK_END) - 1)
    assert gnndrive("verify", part).code == 1
