"""`gnndrive plan`: memory by host and rank, what a step takes, and layouts for several hosts."""

import re
import shlex

import pytest

import gnndrive as gd
from gnndrive.cli.commands.plans import _whether_it_pays, parse_count, parse_rate
from gnndrive.common.duration import duration
from gnndrive.common.errors import ConfigError
from gnndrive.common.memory import format_size
from gnndrive.plan.scale import Layout
from tests.cli.conftest import DIM, NODES, SKETCH

FEW = ("--batch-size", "10", "--fanout", "4,3")


def test_a_rank_on_one_host(gnndrive, planted):
    words = ("plan", planted, *FEW, "--memory", "60MB")
    out = gnndrive(*words, "--compute-s", "250", "-v").out
    assert out.startswith("feature buffer")
    assert re.search(r"sampling +[\d.]+ [mµ]s  4 threads, \d+ processors", out)
    for said in (
        "a batch, from 8 batches drawn from the store",
        "disk           0 s  no rows after the first epoch",
        "compute      250 s  as given",
        "about 250 s, bound by compute: 250 s if all overlaps",
        "an epoch of 80 steps: about 5.56 h",
        "run gnndrive bench disk",
    ):
        assert said in out
    out = gnndrive(*words, "--compute-s", "250").out
    uses = re.findall(r"^(\w+) +[\d.]+ [KM]B +\d+ %", out, re.MULTILINE)
    assert uses == ["features", "graph", "batches", "reading", "unused"]
    for said in ("8 batches drawn from the store: about 250 s, bound by compute\n", "80 steps: "):
        assert said in out
    out = gnndrive(*words, "-v").out  # only the comparison prints the time of a whole batch
    assert not re.search("all overlaps|an epoch of", out)
    assert "the training step is not counted" in out
    assert re.search(r"^predicted +a batch +an epoch", out, re.MULTILINE)
    assert re.search(r"^gnndrive +[\d.]+ m?s +[\d.]+ m?s", out, re.MULTILINE)


def test_a_plan_as_json(gnndrive, planted):
    words = ("plan", planted, *FEW, "--memory", "60MB")
    found = gnndrive(*words, "--json").json
    assert (found["kind"], found["store"]) == ("plan", str(planted))
    plan = found["plan"]
    assert (plan["memory"], {item["where"] for item in plan["items"]}) == (60_000_000, {"host"})
    # The seconds are of batches that are drawn and timed anew.
    assert plan["text"].split("\n\n")[0] == gnndrive(*words, "-v").out.split("\n\n")[0]
    tight = gnndrive("plan", planted, *FEW[2:], "--batch-size", "13", "--memory", "34MB")
    for what in ("drawing batches", "drawing more batches", "comparing strategies"):
        assert f"{what}: 100 %" in tight.err
    own = found["choice"][0]
    for part in ("sampling", "disk", "admission", "gather", "hand-over"):
        line = f"  {part:<10}{duration(own['parts'][part]):>8}  "
        assert line in plan["text"], "as the comparison says"
    assert f"{own['strategy']}      {duration(own['seconds_per_batch'])} " in plan["text"]
    found = gnndrive("plan", *SKETCH, "--memory", "400MB", "--json").json
    assert ("store" in found, "at random" in found["plan"]["text"]) == (False, True)


def test_ranks_that_share_and_ranks_that_do_not(gnndrive, planted):
    words = ("plan", planted, *FEW, "--memory", "80MB", "--ranks", "2")
    shared = gnndrive(*words).out
    assert shared.startswith("on this host, 2 ranks that share one feature buffer\n")
    assert re.search(r"each rank holds [\d.]+ [KM]B, the host once [\d.]+ MB", shared)
    assert "an epoch of 40 steps" in shared
    own = gnndrive(*words, "--no-host-service").out
    assert own.startswith("on this host, 2 ranks with a feature buffer each\n")
    assert re.search(r"total +[\d.]+ MB  of --memory 80MB", own)


def test_several_hosts_are_compared(gnndrive, planted):
    words = ("--memory", "160MB", "--ranks", "2", "--hosts", "3", "--net", "1Gbit")
    out = gnndrive("plan", planted, *FEW, *words).out
    assert out.startswith("on each host, 2 ranks that share one feature buffer\n")
    assert "an epoch of 14 steps" in out
    rows = {line[:9].strip(): " ".join(line.split()) for line in reversed(out.splitlines())}
    (total,) = re.findall(r"total +([\d.]+ MB)  of --memory 160MB", out)
    whole = gd.open(planted).info.nbytes
    assert f"{total} {format_size(whole)} " in rows["full copy"]
    for name in ("shards", "exchange"):
        assert format_size(whole - 4 * NODES * DIM * 2 // 3) in rows[name]
    assert "exchange does not pay" in out


@pytest.mark.parametrize(
    ("net", "cached_net", "says"),
    [
        (
            0.06,
            0.01,
            ["exchange pays: of a step it takes 60 ms of the net", "with cache it pays: "],
        ),
        (0.20, 0.06, ["exchange does not pay: ", "with cache it pays: "]),
        (0.30, 0.20, ["exchange does not pay: ", "with cache it does not pay either: "]),
    ],
)
def test_exchange_pays_if_its_step_takes_less(net, cached_net, says):
    """Also if the net takes longer than the disk time that it saves, 50 ms here."""
    full, exchange, cached = (
        Layout(name, 1, 1, 1.0, {"disk": disk, "net": seconds, "gather": 0.01}, cache_bytes=10**6)
        for name, disk, seconds in (
            ("full copy", 0.1, 0.0), ("exchange", 0.05, net), ("with cache", 0.05, cached_net)
        )
    )  # fmt: skip
    lines = _whether_it_pays([full, full, exchange, cached])
    for line, said in zip(lines, says, strict=True):
        assert line.startswith(said)


def test_a_graph_that_is_not_there(gnndrive):
    words = ("--memory", "400MB", "--hosts", "2", "--net", "10Gbit", "--seeds", "100K")
    out = gnndrive("plan", *SKETCH, *words, "-v").out
    for said in (
        "mapping table        4 MB",
        "sampling  not known: there is no graph to draw batches from",
        "from batches of 50,000 nodes",
        "seconds, are of a step without training",
    ):
        assert said in out
    assert re.search(r"\nan epoch of 49 steps: about \S+ m?s without training\n", out)
    most = gnndrive("plan", *SKETCH[:6], "--fanout", "5,5").out
    assert "the most that the fanout allows; give fewer with --batch-nodes" in most
    assert "an epoch: not known, give its number of seeds with --seeds" in most
    assert "as asked for" in gnndrive("plan", *SKETCH, "--tuning", "topology=direct").out


def test_the_command_that_packs_makes_the_pack_that_is_meant(gnndrive, store):
    words = ("plan", store, "--memory", "80MB", *FEW)
    (command,) = re.findall(r"^    (gnndrive pack .*)", gnndrive(*words, "-v").out, re.MULTILINE)
    assert gnndrive(*shlex.split(command)[1:]).code == 0
    packed = gnndrive(*words, "-v").out
    assert "1 epoch of samples, replayed\n" in packed
    assert "    gnndrive pack" not in packed
    replayed = gnndrive(*words, "--strategy", "diskgnn").out
    assert "of --memory 80MB" in replayed


def test_batches_of_a_pack_are_not_compared(gnndrive, store):
    assert gnndrive("pack", store, "--memory", "80MB", *FEW).code == 0
    words = ("plan", store, "--memory", "80MB", *FEW, "--strategy", "diskgnn")
    assert re.search("^predicted +a batch", gnndrive(*words).out, re.MULTILINE)
    out = gnndrive(*words, "--ranks", "2").out
    for said in ("on this host, 2 ranks with a feature buffer each\n", "a batch's rows:"):
        assert said in out
    for more in (("--hosts", "2", "--net", "1Gbit"), ("--compute-s", "1")):
        assert "those of strategy diskgnn are not" in gnndrive(*words, *more).refusal


@pytest.mark.parametrize(
    ("parse", "values", "wrong", "said"),
    [
        (
            parse_count,
            {"1200": 1_200, "1,200": 1_200, "1.62G": 1_620_000_000, "1.5k": 1_500, "4.0": 4},
            ["", "0", "1.5", "0.0001K", "10 GB", "1" * 30],
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
