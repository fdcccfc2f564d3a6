"""`gnndrive partition`, and `info`, `verify` and `clean` of what it makes."""

import os
import re
from pathlib import Path

import numpy as np
import pytest

import gnndrive as gd
from gnndrive.common.file_lock import try_lock
from gnndrive.store.partitioned.folder import PARTITIONS
from gnndrive.store.partitioned.partitioned import open_partitioned
from tests.cli.conftest import NODES, RANDOM


def test_partitioning_says_what_windows_keep(gnndrive, store):
    made = gnndrive("partition", store, *RANDOM)
    assert made.code == 0
    assert re.findall(r"^(\w[\w -]+): 100 %$", made.err, re.M) == [
        "random", "out-edges", "order", "static nodes", "lists", "static lists", "rows x", "check",
    ]  # fmt: skip
    path = store / "partitioned" / "default"
    assert made.out.startswith(f"{path}: 8 partitions, random, seed 0, 4 % static, ")
    info = open_partitioned(path, gd.open(store)).info
    inside = f"{100 * info.share_inside:.3g} %"
    assert f"  edges kept     : {inside} of the in-edges lie inside a partition\n" in made.out
    third = f"{100 * info.share_kept(3):.3g} % in a window of 3 partitions and the hottest"
    assert f"    in a third   : {third}" in made.out
    assert "    in an eighth : " in made.out
    assert "in a window of 1 partition and" in made.out
    assert re.search(r"^  time +: \d+ s$", made.out, re.M)
    assert re.search(r"^  size +: [\d.]+ KB$", made.out, re.M)


def test_partitioning_prints_one_json_object(gnndrive, store):
    words = ("--static", "0.1", "--seed", "5", "--name", "own", "--memory", "100MB", "--json")
    made = gnndrive("partition", store, *RANDOM, *words).json
    assert made["path"] == str(store / "partitioned" / "own")
    assert made["settings"] == {
        "method": "random", "parts": 8, "static": 0.1, "train_first": False, "seed": 5, "file": "",
    }  # fmt: skip
    assert (made["num_nodes"], made["num_parts"], made["num_static"]) == (NODES, 8, NODES // 10)
    assert set(made["share_kept"]) == {"1", "3"}
    assert made["bytes"] == sum(made["arrays"].values())


def test_the_partitions_of_a_file(gnndrive, store, tmp_path):
    part = np.arange(NODES, dtype=np.uint16) % 3
    np.save(tmp_path / "mine.npy", part)
    made = gnndrive("partition", store, "--method", tmp_path / "mine.npy")
    assert made.code == 0
    assert "3 partitions, from a file" in made.out
    opened = open_partitioned(store / "partitioned" / "default", gd.open(store))
    assert np.array_equal(opened.part_of(np.arange(NODES)), part)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--method", "mets"), "one of auto, metis, ldg, random nor"),
        (("--memory", "1KB"), "give at least"),
        (("--static", "2"), "from 0 to 1"),
        (("--name", "a/b"), "name='a/b'"),
    ],
)
def test_what_cannot_be_partitioned_is_refused(gnndrive, store, words, said):
    assert said in gnndrive("partition", store, *RANDOM, *words).refusal


def test_a_folder_that_is_there_is_replaced_only_if_told_so(gnndrive, store):
    gnndrive("partition", store, *RANDOM)
    error = gnndrive("partition", store, *RANDOM, "--seed", "1").refusal
    assert "--overwrite" in error
    assert "--name" in error
    before = open_partitioned(store / "partitioned" / "default", gd.open(store))
    made = gnndrive("partition", store, *RANDOM, "--seed", "1", "--overwrite", "--json").json
    assert made["settings"]["seed"] == 1
    assert os.listdir(store / "partitioned") == ["default"]
    with pytest.raises(gd.StoreError, match="removed or replaced"), before.unchanged():
        pass


# ---- info, verify, clean


def test_folders_are_listed_and_verified(gnndrive, store, tmp_path):
    gnndrive("partition", store, *RANDOM, "--train-first", "--name", "first")
    gnndrive("partition", store, *RANDOM)
    text = gnndrive("info", store).out
    assert "partitioned/default  8 partitions, random, seed 0, 4 % static, " in text
    assert "partitioned/first  8 partitions, random, training nodes first, " in text
    states = [each["state"] for each in gnndrive("info", store, "--json").json["partitioned"]]
    assert states == ["whole", "whole"]
    path = store / "partitioned" / "default"
    alone = gnndrive("info", path)
    assert alone.out.startswith(f"{path}\n  partitions     : 8, 250 nodes each on average\n")
    assert gnndrive("info", path, "--json").json["num_parts"] == 8
    checked = gnndrive("verify", store)
    assert (checked.code, checked.out.count(": sound, ")) == (0, 3)
    assert "default rows x: 100 %" in checked.err
    assert gnndrive("verify", path).out.startswith(f"{path}: sound, ")
    with (path / "x.npy").open("r+b") as file:
        file.seek(5000)
        file.write(b"\1\2\3")
    for damaged in (store, path):
        found = gnndrive("verify", damaged)
        assert found.code == 1
        assert re.search(r"rows 0 to \d+ of .*x.npy are not those of .*nodes/x.npy", found.err)
    path.rename(tmp_path / "elsewhere")
    assert "--of" in gnndrive("verify", tmp_path / "elsewhere").refusal
    assert gnndrive("verify", tmp_path / "elsewhere", "--of", store).code == 1
    (tmp_path / "elsewhere").rename(path)
    (path / "partition.json").write_text("{")
    assert "damaged: " in gnndrive("info", store).out
    assert gnndrive("info", store, "--json").json["partitioned"][0]["state"] == "damaged"
    found = gnndrive("verify", store)
    assert found.code == 1
    assert "partition.json is not valid JSON" in found.err


def test_partitioning_goes_on_after_ctrl_c(gnndrive, store, monkeypatch):
    def interrupt(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("gnndrive.store.partitioned.write.write_static_lists", interrupt)
        ended = gnndrive("partition", store, *RANDOM)
    assert (ended.code, ended.out) == (130, "")
    assert "the same command goes on where it stopped" in ended.err
    (left,) = gnndrive("info", store, "--json").json["partitioned"]
    assert (left["state"], left["settings"]["parts"]) == ("unfinished", 8)
    assert "unfinished (gnndrive partition goes on with it" in gnndrive("info", store).out
    lock = try_lock(Path(left["path"]) / PARTITIONS.lock)
    assert "being partitioned" in gnndrive("info", store).out
    assert "another process is partitioning" in gnndrive("partition", store, *RANDOM).refusal
    assert "nothing to clean" in gnndrive("clean", store.parent).out
    os.close(lock)
    made = gnndrive("partition", store, *RANDOM)
    assert made.code == 0
    assert "out-edges" not in made.err  # it was done


def test_what_a_killed_partitioner_left_is_cleaned(gnndrive, store):
    path = store / "partitioned" / ".default.0123456789ab.partitioning"
    path.mkdir(parents=True)
    (path / "order.npy").write_bytes(bytes(1000))
    assert "the rest of a removed folder" in gnndrive("info", store).out
    assert f"remove {path}" in gnndrive("clean", store.parent).out
    assert not path.exists()
