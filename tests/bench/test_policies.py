"""bench/policies.py: its replay of slot tables beside an exhaustive search and a real loader."""

import argparse
import json
import random
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import _limits
import epoch
import numpy as np
import policies
import pytest
import scale

from gnndrive.common.errors import ConfigError
from gnndrive.common.records import DiskCost, DiskIdentity
from gnndrive.strategies import Ginex
from tests.buffer.test_codes import drawn_sweeps, fewest_loads

NODES = 3000
SMALL = ["--batches", "14", "--batch-size", "20", "--fanout", "3,2", "--samplers", "1"]
DISK = DiskCost(1e-5, 5e-10, 128, "uring", "", DiskIdentity("", "", "", ""), ())


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("policies") / "small.gnn"
    scale.write_powerlaw(path, NODES)
    return path


def options(store: Path, *more: str) -> argparse.Namespace:
    return policies.parse([str(store), *SMALL, *more])


def test_the_optimum_is_that_of_an_exhaustive_search(seeds):
    for seed in seeds(50):
        draw = random.Random(seed)
        rows, slots = draw.randint(6, 9), draw.randint(4, 6)
        sweeps = [sweep[:1] for sweep in drawn_sweeps(draw, rows, slots)]
        trace = policies.Trace(rows, [np.array(batch) for (batch,) in sweeps])
        loads = sum(map(len, policies.belady(trace, slots, in_flight=2)))
        assert loads == fewest_loads(sweeps, slots)


@pytest.mark.parametrize("in_flight", [1, 3])
def test_belady_with_all_batches_known_loads_as_few_rows_as_the_optimum(store, in_flight):
    more = ["--buffers", "300KB,400KB", "--window", "1,3,9,all", "--in-flight", str(in_flight)]
    given = options(store, *more, "--policies", "lru,belady,static")
    found = policies.measure(given)
    for buffer in ("300KB", "400KB"):
        ran = [each for each in found["results"] if each["buffer"] == buffer]
        loads = {(result["policy"], result["window"]): result["loads"] for result in ran}
        fewest = loads[policies.OPTIMUM, None]
        assert loads["belady", 14] == fewest < loads["belady", 9] < loads["lru", 1]
        assert fewest < loads["belady", 3] < loads["belady", 1] == loads["static", 1]
        assert loads.keys() == {
            ("lru", 1), *(("belady", window) for window in (1, 3, 9, 14)), ("static", 1),
            (policies.OPTIMUM, None), (policies.PINNED, None),
        }  # fmt: skip
    lines = policies.table(found, given).splitlines()
    assert f"in flight: {in_flight}, batches a sweep: 1" in lines[0]
    assert lines[3] == "buffer 300KB, 585 slots"
    assert (lines[9].split()[:2], lines[9].split()[-1]) == (["belady", "14"], "1.000")


def test_sweeps_save_requests_and_warm_up_is_left_out(store):
    more = ["--buffers", "90MB", "--scale", "100", "--window", "all", "--policies", "belady"]
    alone, swept, warm = (
        policies.measure(options(store, *more, *each))["results"][0]
        for each in ([], ["--sweep", "auto"], ["--skip", "4"])
    )
    assert alone["slots"] == swept["slots"] == 900_000 // 512
    assert alone["wanted"] == swept["wanted"] > warm["wanted"]
    assert swept["requests"] < alone["requests"]
    assert (alone["batches"], swept["batches"], warm["batches"]) == (14, 14, 10)
    assert warm["hit_rate"] > alone["hit_rate"]


def test_what_is_given_and_what_cannot_be(store):
    opened = policies.gnndrive.open(store)
    cost, gap = policies.disk_of(options(store, "--request-us", "8", "--byte-ns", "2"), opened)
    assert (cost.request_s, cost.byte_s, gap) == pytest.approx((8e-6, 2e-9, 3584))
    assert policies.disk_of(options(store, "--gap", "0"), opened)[1] == 0
    assert policies.arguments_of("ginex:phases=apart:superbatch=64:samplers=2") == {
        "strategy": Ginex(phases="apart", superbatch=64), "samplers": 2,
    }  # fmt: skip
    for wrong in ("ginex:apart", "never"):
        with pytest.raises(ConfigError, match=r"is no argument of|is none of"):
            policies.check(options(store, "--epochs", f"gnndrive,{wrong}"))
    with pytest.raises(ConfigError, match=r"--epochs gnndrive:wrong=1: .*wrong"):
        policies.check(options(store, "--epochs", "gnndrive:wrong=1"))
    with pytest.raises(ConfigError, match="more rows than the 19 slots: give more"):
        policies.measure(options(store, "--buffers", "10KB"))
    for wrong in (["--window", "0"], ["--window", "few"], ["--skip", "14"]):
        with pytest.raises(SystemExit):
            options(store, *wrong)


def test_a_loaders_epoch_counts_what_the_simulation_counts(store, monkeypatch):
    """One batch at a time is extracted and released, and LRU's order is that of the batches. The
    workers are in this process, and the disk is not measured."""

    def spawn(which: str, given: argparse.Namespace, group: Any, script: str) -> dict[str, Any]:
        own = policies.parse([*given.given, "--worker", which])
        return json.loads(json.dumps(policies.work(own))) | {"peak_bytes": 1 << 20}

    monkeypatch.setattr(epoch, "spawn", spawn)
    monkeypatch.setattr(_limits, "calibrate", lambda store: DISK)
    monkeypatch.setattr(_limits, "cost_of", lambda *given: DISK)
    monkeypatch.setattr(policies, "limited", lambda limit: nullcontext((None, "no limit")))
    paper = "gnndrive:policy=lru:sweep=1:extracting_queue=1:training_queue=1:gap=2KiB"
    more = ["--epochs", f"{paper},gnndrive", "--rounds", "2", "--buffer", "600KB"]
    given = options(store, *more)
    found = policies.measure_epochs(given)
    results = found["results"]
    ran = [(result["loader"], result["batches"]) for result in results]
    assert ran == [(paper, 14), ("gnndrive", 14)] * 2
    simulated = policies.measure(
        options(store, "--buffers", "600KB", "--policies", "lru", "--gap", "2KiB")
    )["results"][0]
    real = results[0]
    assert real["buffer_bytes"] // 512 == simulated["slots"]
    assert (real["rows"], real["requests"], real["bytes_read"]) == (
        simulated["wanted"], simulated["requests"], simulated["nbytes"],
    )  # fmt: skip
    assert real["hit_rate"] == pytest.approx(simulated["hit_rate"])
    assert results[2]["requests"] == real["requests"]
    lines = policies.table_of_epochs(found, given).splitlines()
    assert lines[0] == "14 batches a strategy, in turn, rounds: 2; no limit"
    assert [line.split()[0] for line in lines[2:]] == [paper, "gnndrive"]
    assert float(lines[2].split()[1]) == pytest.approx(100 * simulated["hit_rate"], abs=0.06)
    assert float(lines[2].split()[4]) == pytest.approx(DISK.seconds(
        real["requests"], real["bytes_read"]) / 14, abs=1e-3)  # fmt: skip
