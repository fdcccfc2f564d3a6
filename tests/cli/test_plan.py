"""`gnndrive plan`: memory by host and rank, what a step takes, and layouts for several hosts."""

import re

import pytest

import gnndrive as gd
from gnndrive.cli.commands.numbers import parse_count, parse_rate
from gnndrive.cli.commands.plan_text import BY_FORMULA
from gnndrive.common.errors import ConfigError
from gnndrive.common.memory import format_size
from tests.cli.conftest import DIM, NODES, SKETCH

FEW = ("--batch-size", "10", "--fanout", "4,3")


def test_a_rank_on_one_host(gnndrive, planted):
    words = ("plan", planted, *FEW, "--memory", "60MB")
    out = gnndrive(*words, "--compute-s", "0.25").out
    assert out.startswith("feature buffer")
    assert "a batch, from 8 batches drawn from the store" in out
    assert re.search(r"sample +[\d.]+ [mµ]s  4 threads, \d+ processors", out)
    assert "disk          0 s  no rows after the first epoch" in out
    assert "compute    250 ms  as given" in out
    assert "about 250 ms, bound by compute: 250 ms if all else overlaps" in out
    assert "an epoch of 80 steps: about 20 s" in out
    assert "run gnndrive bench disk" in out
    out = gnndrive(*words).out  # only the comparison prints the time of a whole batch
    assert BY_FORMULA in out
    assert "all else overlaps" not in out
    assert "an epoch of" not in out
    assert re.search(r"^predicted +a batch +an epoch", out, re.MULTILINE)
    assert re.search(r"^gnndrive +[\d.]+ m?s +[\d.]+ m?s", out, re.MULTILINE)


def test_ranks_that_share_and_ranks_that_do_not(gnndrive, planted):
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


def test_several_hosts_are_compared(gnndrive, planted):
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


def test_a_graph_that_is_not_there(gnndrive):
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
        ((*SKETCH, "--hosts", "2"), "--hosts 2: say what they send each other with --net"),
        ((*SKETCH, "--net", "10Gbit"), "--net is what hosts send each other: give --hosts"),
        ((*SKETCH, "--hosts", "2", "--net", "10Gb"), "--net 10Gb: give a rate such as 10Gbit"),
        ((*SKETCH, "--device", "cuda"), "--device needs a STORE"),
        ((*SKETCH, "--topology", "cloud"), "direct, mmap, resident"),
        ((*SKETCH, "--memory", "1MB"), "give at least memory="),
        ((*SKETCH, "--memory", "lots"), "--memory='lots' is no size"),
        (("--nodes", "many", "--edges", "2M"), "--nodes many: give a whole number"),
    ],
)
def test_what_cannot_be_planned_is_named(gnndrive, words, said):
    assert said in gnndrive("plan", *words).refusal


def test_a_store_and_numbers_exclude_each_other(gnndrive, planted):
    said = gnndrive("plan", planted, "--seeds", "10").refusal
    assert "--seeds is for a store that is not there" in said


def test_batches_of_a_pack_are_not_compared(gnndrive, store):
    assert gnndrive("pack", store, "--memory", "80MB", *FEW).code == 0
    words = ("plan", store, "--memory", "80MB", *FEW, "--strategy", "diskgnn")
    out = gnndrive(*words, "--ranks", "2").out
    assert out.startswith("on this host, 2 ranks with a feature buffer each\n")
    assert "a batch's rows: " in out
    assert "a batch takes about" in out
    said = gnndrive(*words, "--hosts", "2", "--net", "1Gbit").refusal
    assert "those of strategy diskgnn are not" in said


@pytest.mark.parametrize(
    ("parse", "values", "wrong", "said"),
    [
        (
            parse_count,
            {"1200": 1_200, "1,200": 1_200, "1.62G": 1_620_000_000, "1.5k": 1_500, "4.0": 4},
            ["", "0", "-1", "1.5", "0.0001K", "1e6", "10 GB", "1" * 30],
            "give a whole number",
        ),
        (
            parse_rate,
            {"10Gbit": 1.25e9, "1Gbit/s": 1.25e8, "500Mbit": 6.25e7, "2.5 Gbps": 3.125e8,
             "800 bit": 100, "1.25GB/s": 1.25e9, "1250000": 1.25e6},
            ["", "fast", "0Gbit", "0", "10Gb", "10Gb/s", "-1Gbit", "10 Gbyte"],
            "give a rate such as 10Gbit",
        ),
    ],
)  # fmt: skip
def test_numbers(parse, values, wrong, said):
    assert {text: parse(text, "--option") for text in values} == values
    for text in wrong:
        with pytest.raises(ConfigError, match=f"--option .*{said}"):
            parse(text, "--option")
