"""Options of the loader in `gnndrive train`, `plan` and `pack`: timelines, sampling, windows."""

import pytest

from gnndrive.cli.commands import loader_options
from tests.cli.conftest import NODES, QUICK, RANDOM, SKETCH, SMALL
from tests.pipeline.traces import check_batches, read

LABOR = ("--sampling", "labor", "--batch-dependency", "4")
PARTS = {"hierbatching": "default", "marius": "other"}


# ---- --trace


def test_all_epochs_are_in_one_timeline(gnndrive, planted, tmp_path):
    path = tmp_path / "run.json.gz"
    words = (*SMALL, *QUICK, "--epochs", "2", "--buffer", "1MB")
    ended = gnndrive("train", planted, *words, "--trace", path)
    assert ended.code == 0
    found = check_batches(read(path))
    assert len(found) == ended.json["batches"] == 16
    assert {epoch for epoch, _, _ in found} == {0, 1}
    spans = sorted((spans[0][1], epoch) for (epoch, _, _), spans in found.items())
    assert [epoch for _, epoch in spans] == [0] * 8 + [1] * 8, "epochs follow each other"


def test_a_timeline_that_cannot_be_is_refused(gnndrive, planted, tmp_path):
    for name, said in (("a.txt", "whose name ends in .json"), ("no/a.json", "cannot be written")):
        ended = gnndrive("train", planted, *SMALL, "--trace", tmp_path / name)
        assert said in " ".join(ended.refusal.split())


# ---- --sampling, --batch-dependency


def test_training_with_shared_numbers_has_fewer_rows(gnndrive, planted):
    words = ("train", planted, "--fanout", "4,4", "--batch-size", "100", *QUICK)
    apart, shared = gnndrive(*words).json, gnndrive(*words, *LABOR).json
    assert shared["batches"] == apart["batches"]
    assert shared["rows"] < 0.97 * apart["rows"]


def test_a_pack_is_found_by_the_sampling_in_the_line_at_its_end(gnndrive, store):
    made = gnndrive("pack", store, *SMALL, *LABOR)
    line = next(each for each in made.out.splitlines() if "gnndrive train" in each)
    assert "--sampling labor --batch-dependency 4" in line
    assert 'sampling="labor", batch_dependency=4' in made.out
    words = ("train", store, *SMALL, *QUICK, "--strategy", "diskgnn")
    assert gnndrive(*words, *LABOR).code == 0
    assert "sampling was 'labor, batch_dependency 4'" in gnndrive(*words).refusal
    said = gnndrive("plan", store, *SMALL, "--batch-dependency", "4").refusal
    assert "give sampling='labor', or leave it out" in said


# ---- strategies that sample inside windows


@pytest.fixture
def partitioned(gnndrive, store):
    for name in PARTS.values():
        gnndrive("partition", store, *RANDOM, "--name", name)
    return store


def test_training_samples_inside_windows_and_evaluation_does_not(
    gnndrive, partitioned, monkeypatch
):
    made, make = [], loader_options.NeighborLoader

    def noted(*args, **given):
        made.append(given)
        return make(*args, **given)

    monkeypatch.setattr(loader_options, "NeighborLoader", noted)
    for strategy, name in PARTS.items():
        made.clear()
        words = ("--strategy", strategy, "--partitioned", name)
        report = gnndrive("train", partitioned, *SMALL, *words, *QUICK).json
        assert report["batches"] == 0.4 * NODES // 100  # all partitions fit into one window
        used = [(each["strategy"], each["partitioned"], each["samplers"]) for each in made]
        assert used.count((strategy, name, "auto")) == 1
        assert used.count(("gnndrive", None, loader_options.SAMPLERS)) == len(used) - 1 >= 1


def test_training_in_several_windows(gnndrive, partitioned):
    words = ("--strategy", "hierbatching", "--partitioned", "default", "--megabatch", "2")
    words = ("train", partitioned, *SMALL, *QUICK, *words)
    once, twice = gnndrive(*words).json, gnndrive(*words, "--passes", "2").json
    assert (once["batches"], once["windows"]) == (8 + 4 - 1, 4)
    assert (twice["batches"], twice["windows"]) == (2 * once["batches"], once["windows"])


def test_a_plan_lists_the_windows(gnndrive, partitioned):
    words = ("plan", partitioned, *SMALL, "--strategy", "hierbatching")
    said = gnndrive(*words).refusal
    assert "give partitioned='default', partitioned='other'" in said
    words = (*words, "--partitioned", "other", "--megabatch", "2")
    out = gnndrive(*words, "--static", "0.03").out
    assert "60 static ones and two of 4 windows, each of 2 of 8 partitions" in out
    assert "window graphs" in out
    assert "a window keeps " in gnndrive(*words, "--memory", "100MB").out
    said = gnndrive(*words, "--compute-s", "1").refusal
    assert "of strategy hierbatching are not: leave them out" in said


@pytest.mark.parametrize(
    "option", [("--partitioned", "default"), ("--megabatch", "2"), ("--passes", "2"),
               ("--static", "0.1"), ("--sampling", "labor")],
)  # fmt: skip
def test_options_that_need_a_store_and_a_strategy(gnndrive, planted, option):
    assert f"{option[0]} needs a STORE" in gnndrive("plan", *SKETCH[:6], *option).refusal
    if option[0] != "--sampling":
        assert "is for a strategy that samples ins" in gnndrive("train", planted, *option).refusal
