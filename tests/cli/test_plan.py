"""`gnndrive plan`: memory by host and rank, what a step takes, and layouts for several hosts."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import gnndrive as gd
from gnndrive.cli.commands.numbers import parse_count, parse_rate
from gnndrive.cli.commands.plan_text import BY_FORMULA
from gnndrive.common.errors import ConfigError
from gnndrive.common.memory import format_size
from tests.cli.conftest import DIM, NODES, Command

SKETCH = ("--nodes", "1M", "--edges", "20M", "--row-bytes", "512", "--batch-nodes", "50K")
FEW = ("--batch-size", "10", "--fanout", "4,3")


def test_a_rank_on_one_host(gnndrive: Command, planted: Path) -> None:
    ended = gnndrive("plan", planted, *FEW, "--memory", "60MB", "--compute-s", "0.25")
    assert ended.code == 0
    assert ended.out.startswith("feature buffer")
    assert "a batch, from 8 batches drawn from the store" in ended.out
    assert re.search(r"sample +[\d.]+ [mµ]s  4 threads, \d+ processors", ended.out)
    assert "disk          0 s  no rows after the first epoch" in ended.out
    assert "compute    250 ms  as given" in ended.out
    assert "about 250 ms, bound by compute: 250 ms if all else overlaps" in ended.out
    assert "an epoch of 80 steps: about 20 s" in ended.out
    assert "run gnndrive bench disk" in ended.out


def test_what_a_batch_takes_in_all_is_said_once(gnndrive: Command, planted: Path) -> None:
    """By the comparison where there is one, without --compute-s."""
    out = gnndrive("plan", planted, *FEW, "--memory", "60MB").out
    assert BY_FORMULA in out
    assert "all else overlaps" not in out
    assert "an epoch of" not in out
    assert re.search(r"^predicted +a batch +an epoch", out, re.MULTILINE)
    assert re.search(r"^gnndrive +[\d.]+ m?s +[\d.]+ m?s", out, re.MULTILINE)


def test_ranks_that_share_and_ranks_that_do_not(gnndrive: Command, planted: Path) -> None:
    words = ("plan", planted, *FEW, "--memory", "80MB", "--ranks", "2")
    shared = gnndrive(*words).out
    assert shared.startswith("on this host, 2 ranks that share one feature buffer\n")
    assert re.search(r"feature buffer +[\d.]+ KB  shared ", shared)
    assert re.search(r"queued samples +[\d.]+ KB  each × 2 ", shared)
    assert re.search(r"each rank holds [\d.]+ [KM]B, the host once [\d.]+ MB", shared)
    assert "a step, in which each of 2 ranks gets a batch" in shared
    assert "an epoch of 40 steps" in shared
    assert "compute  not known: give the seconds of training on a batch" in shared
    own = gnndrive(*words, "--no-host-service").out
    assert own.startswith("on this host, 2 ranks with a feature buffer each\n")
    assert "shared" not in own
    assert re.search(r"total +([\d.]+) MB  × 2 = [\d.]+ MB  of memory=80 MB", own)


def test_several_hosts_are_compared(gnndrive: Command, planted: Path) -> None:
    words = ("--memory", "80MB", "--ranks", "2", "--hosts", "3", "--net", "1Gbit")
    out = gnndrive("plan", planted, *FEW, *words).out
    assert out.startswith("on each host, 2 ranks that share one feature buffer\n")
    assert "each of 6 ranks gets a batch" in out
    assert "an epoch of 14 steps" in out
    rows = {line[:9].strip(): " ".join(line.split()) for line in reversed(out.splitlines())}
    (total,) = re.findall(r"total +([\d.]+ MB)  of memory=80 MB", out)
    info = gd.open(planted).info
    features = 4 * NODES * DIM
    assert f"{total} {format_size(info.nbytes)} " in rows["full copy"]
    assert format_size(info.nbytes - features * 2 // 3) in rows["shards"]
    assert format_size(info.nbytes - features * 2 // 3) in rows["exchange"]
    assert "exchange does not pay" in out
    assert "they are not built" in out


def test_a_graph_that_is_not_there(gnndrive: Command) -> None:
    words = ("--memory", "400MB", "--hosts", "2", "--net", "10Gbit", "--seeds", "100K")
    out = gnndrive("plan", *SKETCH, *words).out
    assert "mapping table        4 MB" in out
    assert "sample   not known: there is no graph to draw batches from" in out
    assert "from batches of 50,000 nodes" in out
    assert "an epoch of 49 steps" in out
    assert "rows are taken to lie at random" in out
    most = gnndrive("plan", *SKETCH[:6], "--fanout", "5,5").out
    assert "the most that the fanout allows; give fewer with --batch-nodes" in most
    assert "an epoch: not known, give its number of seeds with --seeds" in most
    assert "as asked for" in gnndrive("plan", *SKETCH, "--topology", "direct").out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "give a STORE, or --nodes, --edges and --row-bytes"),
        (("--nodes", "1M", "--edges", "2M"), "--row-bytes is missing"),
        (("--nodes", "many", "--edges", "2M"), "--nodes many: give a whole number"),
        ((*SKETCH, "--hosts", "2"), "--hosts 2: say what they send each other with --net"),
        ((*SKETCH, "--net", "10Gbit"), "--net is what hosts send each other: give --hosts"),
        ((*SKETCH, "--hosts", "2", "--net", "10Gb"), "--net 10Gb: give a rate such as 10Gbit"),
        ((*SKETCH, "--device", "cuda"), "--device needs a STORE"),
        ((*SKETCH, "--strategy", "diskgnn"), "--strategy needs a STORE"),
        ((*SKETCH, "--topology", "cloud"), "direct, mmap, resident"),
        ((*SKETCH, "--memory", "1MB"), "give at least memory="),
        ((*SKETCH, "--memory", "lots"), "--memory='lots' is no size"),
        ((*SKETCH, "--ranks", "0"), "--ranks"),
        ((*SKETCH, "--compute-s", "-1"), "--compute-s"),
    ],
)
def test_what_cannot_be_planned_is_named(
    gnndrive: Command, words: tuple[str, ...], said: str
) -> None:
    ended = gnndrive("plan", *words)
    assert (ended.code, ended.out) == (2, "")
    assert said in ended.err
    assert "Traceback" not in ended.err


def test_a_store_and_numbers_exclude_each_other(gnndrive: Command, planted: Path) -> None:
    ended = gnndrive("plan", planted, "--seeds", "10")
    assert (ended.code, "--seeds is for a store that is not there" in ended.err) == (2, True)


def test_batches_of_a_pack_are_not_compared(gnndrive: Command, store: Path) -> None:
    assert gnndrive("pack", store, "--memory", "80MB", *FEW).code == 0
    words = ("plan", store, "--memory", "80MB", *FEW, "--strategy", "diskgnn")
    out = gnndrive(*words, "--ranks", "2").out
    assert out.startswith("on this host, 2 ranks with a feature buffer each\n")
    assert "a batch takes about" in out
    ended = gnndrive(*words, "--hosts", "2", "--net", "1Gbit")
    assert (ended.code, "those of strategy diskgnn are not" in ended.err) == (2, True)


# ---- numbers


@pytest.mark.parametrize(
    ("text", "count"),
    [("1200", 1_200), ("1,200", 1_200), ("111M", 111_000_000), ("1.62G", 1_620_000_000),
     ("1.5k", 1_500), ("2T", 2 * 10**12), ("4.0", 4)],
)  # fmt: skip
def test_counts(text: str, count: int) -> None:
    assert parse_count(text, "--nodes") == count


@pytest.mark.parametrize("text", ["", "0", "-1", "1.5", "0.0001K", "1e6", "10 GB", "1" * 30])
def test_what_is_no_count(text: str) -> None:
    with pytest.raises(ConfigError, match=r"--nodes .*give a whole number"):
        parse_count(text, "--nodes")


@pytest.mark.parametrize(
    ("text", "rate"),
    [("10Gbit", 1.25e9), ("1Gbit/s", 1.25e8), ("500Mbit", 6.25e7), ("2.5 Gbps", 3.125e8),
     ("800 bit", 100), ("1.25GB/s", 1.25e9), ("125MB", 1.25e8), ("1250000", 1.25e6)],
)  # fmt: skip
def test_rates(text: str, rate: float) -> None:
    assert parse_rate(text, "--net") == rate


@pytest.mark.parametrize("text", ["", "fast", "0Gbit", "0", "10Gb", "10Gb/s", "-1Gbit", "10 Gbyte"])
def test_what_is_no_rate(text: str) -> None:
    with pytest.raises(ConfigError, match=r"--net .*give a rate such as 10Gbit"):
        parse_rate(text, "--net")
