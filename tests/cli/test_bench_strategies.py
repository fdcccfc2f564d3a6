"""`gnndrive bench strategies`, with a fake of the runner but once; and the runner's process."""

import json
import os
import re
import shlex
import sys
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

import gnndrive as gd
from gnndrive.cli.commands import bench_strategies, loading, strategy_runs
from gnndrive.cli.commands.loading import (
    NOTHING,
    Loaded,
    Loading,
    LoadingFailed,
    load,
    main,
    run_loading,
)
from gnndrive.plan.strategy_costs import StrategyCost
from gnndrive.store.generate import planted_communities
from gnndrive.store.packed.format import PACKS
from gnndrive.strategies import STRATEGIES
from tests import forked
from tests.cli.conftest import FRACTIONS, NODES, RANDOM, SMALL, Command

COMMAND = ("bench", "strategies")
GIVEN = ("--no-limit", "--memory", "1GB", "--batches", "4")
OWN = 300_000_000  # what a process takes in the runner that only looks like one
PLAIN = {"pyg+", "gnndrive", "ginex", "rolling", "ali+pg", "lsm-gnn"}


def named(found: Any) -> dict[str, Any]:
    """The runs of a JSON by the strategy's name."""
    return {each["strategy"]: each for each in found["strategies"]["runs"]}


def test_all_strategies_run_side_by_side(gnndrive, store, tmp_path, monkeypatch):
    """Their loaders are in this process; the last tests try processes."""

    def run_loading(given, limit=None, progress=lambda *_: None):
        loaded = load(given)
        progress(given.warm_up + given.batches, given.warm_up + given.batches)
        return loaded

    monkeypatch.setattr(strategy_runs, "run_loading", run_loading)
    gnndrive("pack", store, *SMALL, "--segment", "2")
    gnndrive("partition", store, "--parts", "8", "--method", "ldg")
    gnndrive("partition", store, *RANDOM, "--name", "random")
    words = ("--batches", "2", "--warm-up", "1", "--rounds", "1", "--memory", "8GB", "--no-limit")
    ended = gnndrive(*COMMAND, store, *SMALL, *words, "--json")
    assert ended.code == 0, ended.err
    for what in ("a process without a loader", "round 1 of 1"):
        assert f"{what}: 100 %" in ended.err
    content = ended.out[ended.out.index("{\n") :]
    found = json.loads(content)
    runs, section = named(found), found["strategies"]
    assert list(runs) == ["pyg+", *(name for name in STRATEGIES if name != "pyg+")]
    assert "random 64: " in runs["pyg+"]["note"]
    for name, each in runs.items():
        assert (each["failed"], each["same_batches"]) == (None, name in PLAIN), each
        assert each["rounds"] == [each["seconds_per_batch"]]
        assert each["nodes_per_batch"] > 100
        assert each["edges_per_batch"] * each["peak_bytes"] * each["seconds_per_batch"] > 0
    assert len({runs[name]["nodes_per_batch"] for name in PLAIN}) == 1
    assert "recorded" in runs["diskgnn"]["note"]
    assert "inside windows" in runs["hierbatching"]["note"]
    assert "superbatch=2" in runs["ginex"]["note"]
    assert section["loading_bytes"] == 8 * 10**9 - section["process_bytes"] > 0
    (tmp_path / "run.json").write_text(content)
    assert gnndrive("report", tmp_path / "run.json", "-o", tmp_path / "a.html").code == 0


@dataclass
class Fake:
    """In place of `run_loading`: notes what it is asked, and answers what it is told."""

    answers: dict[str, Any] = field(default_factory=dict)
    asked: list[Loading] = field(default_factory=list)
    limits: list[object] = field(default_factory=list)
    predicted: dict[str, StrategyCost] = field(default_factory=dict)

    def __call__(self, given: Loading, limit: object = None, *_: object) -> Loaded:
        if given.loader == NOTHING:
            return Loaded(peak_bytes=OWN)
        self.asked.append(given)
        self.limits.append(limit)
        name = given.loader.partition(":")[0]
        answer = self.answers.get(name, {})
        turn = [each.loader for each in self.asked].count(given.loader) - 1
        answer = answer[turn] if isinstance(answer, list) else answer
        if isinstance(answer, str):
            raise LoadingFailed(answer)
        counters = {"rows_loaded": 40.0, "rows_found": 60.0, "requests": 20.0, "samples": 4.0}
        plain = Loaded(
            8.0, 4, given.warm_up, 0.5, 100, 300, (1, 2, 3), 10**8,
            counters | {"bytes_read": 8e6}, 5,
            facts={"engine": "uring", "topology": "direct", "gathering": "by 4 threads"},
        )  # fmt: skip
        return replace(plain, **answer)


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Fake:
    made = Fake()
    monkeypatch.setattr(strategy_runs, "run_loading", made)
    monkeypatch.setattr(bench_strategies, "predictions_of", lambda *args: made.predicted)
    return made


def bench(gnndrive: Command, store: Path, *words: object) -> Any:
    ended = gnndrive(*COMMAND, store, *SMALL, *GIVEN, "--json", *words)
    assert ended.code == 0, ended.err
    return ended.json


def test_rounds_are_taken_in_turn_with_medians(gnndrive, planted, fake):
    fake.answers["gnndrive"] = [{"seconds": each} for each in (4.0, 16.0, 8.0)]
    found = bench(gnndrive, planted, "--strategies", "pyg+,gnndrive", "--seed", "5")
    assert [each.loader for each in fake.asked] == 3 * ["pyg+", "gnndrive"]
    assert {(each.split, each.seed, each.batches) for each in fake.asked} == {("train", 5, 4)}
    run = named(found)["gnndrive"]
    wanted = {
        "seconds_per_batch": 2.0, "rounds": [1.0, 4.0, 2.0], "nodes_per_batch": 25,
        "edges_per_batch": 75, "hit_share": 0.6, "rows_loaded_per_batch": 10,
        "requests_per_batch": 5, "bytes_read_per_batch": 2e6,
    }  # fmt: skip
    assert run.items() >= wanted.items()
    memory = {each.loader: each.arguments.get("memory") for each in fake.asked}
    assert memory == dict.fromkeys(("pyg+", "gnndrive"), 10**9 - OWN)
    fake.answers.clear()
    again = shlex.split(run["command"])
    assert gnndrive(*again[1:], "--json").json["strategies"]["runs"][0]["strategy"] == "gnndrive"


def test_the_table_says_what_was_measured(gnndrive, planted, fake):
    """A strategy that fails does not end the rest, and is not tried again."""
    fake.predicted["gnndrive"] = StrategyCost("gnndrive", {"disk": 1.5})
    fake.answers = {"gnndrive": {"seconds": 2.0}, "pyg+": {"counters": {}}}
    fake.answers |= {"ginex": [{}, "killed"], "ali+pg": "memory=1 B is too little\nand a plan"}
    words = ("--strategies", "pyg+,gnndrive,ginex,ali+pg", "--rounds", "3")
    ended = gnndrive(*COMMAND, planted, *SMALL, *words, *GIVEN)
    lines = {line.split()[0]: line.split() for line in ended.out.splitlines() if line}
    assert lines["pyg+"][:4] == ["pyg+", "2", "(2–2)", "1.00"]
    assert lines["gnndrive"][:4] == ["gnndrive", "0.5", "(0.5–0.5)", "4.00"]
    assert ("yes" in lines["gnndrive"], lines["pyg+"].count("–")) == (True, 5)
    for said in ("memory=700 MB", "no memory limit: --no-limit", "behind 10 that warm up",
                 "ginex: in round 2: killed", "ali+pg: memory=1 B", "1.5 by disk"):  # fmt: skip
        assert said in ended.out
    runs = named(bench(gnndrive, planted, "--strategies", "pyg+,gnndrive,ali+pg"))
    assert (runs["gnndrive"]["predicted_s"], runs["gnndrive"]["bound_by"]) == (1.5, "disk")
    failed = {"failed": fake.answers["ali+pg"], "seconds_per_batch": None, "predicted_s": None}
    assert runs["ali+pg"].items() >= failed.items()
    assert [each.loader for each in fake.asked].count("ali+pg") == 2  # once in each command
    ended = gnndrive(*COMMAND, planted, *SMALL, "--strategies", "ali+pg")
    assert ended.code == 2  # none has ended


def test_batches_are_compared_as_far_as_both_go(gnndrive, tmp_path, fake):
    store = tmp_path / "plain.gnn"
    planted_communities(store, 2_000, 16, 4, degree=8, fractions={})
    fake.answers = {"pyg+": {"checksums": (1, 2)}, "ginex": {"checksums": (1, 2, 4)}}
    runs = named(bench(gnndrive, store, "--strategies", "pyg+,ginex,gnndrive,diskgnn"))
    same = {name: each["same_batches"] for name, each in runs.items() if not each["failed"]}
    assert same == {"pyg+": True, "ginex": False, "gnndrive": True}
    assert "please report this" in runs["ginex"]["note"]
    # without splits
    assert "gnndrive.pack(" in runs["diskgnn"]["failed"]
    assert {each.split for each in fake.asked} == {None}


def test_what_is_missing_is_listed_with_the_command_that_makes_it(gnndrive, store, fake):
    runs = named(bench(gnndrive, store, "--rounds", "1", "--seed", "5"))
    lacking = {name: each["failed"] for name, each in runs.items() if each["failed"]}
    assert lacking.keys() == {"diskgnn", "hierbatching", "marius"}
    assert {each.loader.partition(":")[0] for each in fake.asked} == PLAIN
    for name in ("hierbatching", "marius", "diskgnn"):
        command = re.search("gnndrive (pack|partition) [^`]*", lacking[name])
        assert command is not None
        assert gnndrive(*shlex.split(command[0])[1:]).code == 0
    assert [pack.info.settings.seed for pack in PACKS.of(gd.open(store)) if pack.info] == [5]
    fake.asked.clear()
    runs = named(bench(gnndrive, store, "--rounds", "1"))
    assert not any(each["failed"] for each in runs.values())
    used = {each.loader for each in fake.asked}
    assert {"hierbatching:partitioned=default", "marius:partitioned=random"} <= used


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ({}, ""),
        ({"warm_up": 3}, "3 batches warmed up in 120 s"),
        ({"batches": 2}, "2 batches were timed in 120 s"),
        ({"evictions_before": 0}, "not full when the timing began: give more --warm-up"),
        ({"holds_all": True, "evictions_before": 0}, "holds all rows"),
        ({"counters": {"samples": 50}}, "50 batches were sampled while 4 were timed"),
    ],
)
def test_what_is_no_steady_state_is_said(gnndrive, planted, fake, answer, said):
    fake.answers["gnndrive"] = answer
    run = named(bench(gnndrive, planted, "--strategies", "gnndrive"))["gnndrive"]
    assert (said in run["note"]) if said else run["note"] == ""


def test_windows_that_were_loaded_meanwhile_are_said(gnndrive, store, fake):
    gnndrive("partition", store, *RANDOM)
    levels = ("a window keeps 61% of the edges",)
    for loads, said in (({"windows": 2, "window_load_s": 3.0}, "2.0 windows"), ({}, "no window")):
        fake.answers["hierbatching"] = {"counters": loads, "levels": levels}
        run = named(bench(gnndrive, store, "--strategies", "hierbatching"))["hierbatching"]
        assert run["same_batches"] is None  # there are none to compare with
        for each in (said, *levels, "compare accuracy before seconds"):
            assert each in run["note"]


def test_arguments_of_one_strategy_follow_its_name(gnndrive, planted, fake):
    words = ("--strategies", "ginex,ginex:phases=apart:superbatch=3,ali+pg:samplers=2")
    tuned = ("--tuning", "samplers=1,engine=threads", "--sampling", "labor")
    runs = named(bench(gnndrive, planted, *words, "--rounds", "1", *tuned))
    assert list(runs) == ["ginex", "ginex:phases=apart:superbatch=3", "ali+pg:samplers=2"]
    assert all(" ".join(each) in runs["ginex"]["command"] for each in (tuned[:2], tuned[2:]))
    given = {"memory": 10**9 - OWN, "samplers": 1, "engine": "threads", "sampling": "labor"}
    assert [(each.loader, each.arguments) for each in fake.asked] == [
        ("ginex:superbatch=4", given),
        ("ginex:superbatch=3,phases=apart", given),
        ("ali+pg", given | {"samplers": 2}),
    ]


def test_the_help_is_that_of_this_command(gnndrive):
    said = gnndrive(*COMMAND, "--help").out
    for words in ("Memory of each process", "train, or all nodes", "default: 10"):
        assert words in " ".join(said.replace("│", " ").split())


def test_the_timed_batches_are_a_superbatch():
    assert [strategy_runs.aligned_warm_up(n) for n in (1, 8, 32, 33, 200)] == [10, 10, 10, 42, 170]


def test_a_limit_that_cannot_be_set_is_said(gnndrive, planted, fake, monkeypatch):
    group = object()

    @contextmanager
    def limited(limit_bytes):
        assert limit_bytes == 10**9
        yield answer

    monkeypatch.setattr(bench_strategies, "memory_limit", limited)
    words = ("--strategies", "pyg+", "--memory", "1GB", "--rounds", "1", "--limit")
    for answer in ((None, "no memory limit: there are no groups"), (group, "1 GB of memory")):
        out = gnndrive(*COMMAND, planted, *words).out
        assert answer[1] in out
        assert ("may hold the whole store" in out) == (answer[0] is None)
    assert fake.limits == [None, group]
    assert "--memory is not given" in gnndrive(*COMMAND, planted, "--strategies", "pyg+").out


# ---- a loader, and its process


BATCH = 300
AN_EPOCH = -(-int(NODES * FRACTIONS["train"]) // BATCH)


def of(store: Path, loader: str, batches: int = 2, **given: Any) -> Loading:
    arguments = {} if loader == "pyg+" else {"buffer": "100KB"}
    given = {"split": "train", "seed": 3, "arguments": arguments} | given
    return Loading(str(store), loader, (3, 2), BATCH, batches, **given)


def test_the_map_gives_the_batches_of_gnndrive_over_several_epochs(planted):
    batches = 2 * AN_EPOCH + 1
    ours, theirs = (load(of(planted, name, batches)) for name in ("gnndrive", "pyg+"))
    assert (ours.checksums, ours.nodes, ours.edges) == (
        theirs.checksums, theirs.nodes, theirs.edges,
    )  # fmt: skip
    assert len(set(ours.checksums)) == batches
    nothing = load(of(planted, NOTHING))  # to see what a process takes
    assert nothing == Loaded(peak_bytes=nothing.peak_bytes)
    assert nothing.peak_bytes > 10**6


@pytest.mark.parametrize("loader", ["gnndrive", "pyg+"])
def test_a_warm_up_is_not_counted(planted, loader, capsys):
    whole, behind = (load(of(planted, loader, n, warm_up=w)) for n, w in ((3, 0), (1, 2)))
    assert (behind.warm_up, behind.batches, behind.checksums) == (2, 1, whole.checksums)
    assert 0 < behind.nodes < whole.nodes
    said = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert said == 2 * [{"done": 1}, {"done": 2}, {"done": 3}]


def test_counters_are_those_of_the_timed_batches(planted):
    cold, warm = (load(of(planted, "gnndrive", 2, warm_up=w)) for w in (0, 3))
    assert cold.evictions_before == 0 < (warm.evictions_before or 0)
    for loaded in (cold, warm):
        assert 0 < loaded.counters["rows_loaded"] < NODES
        assert loaded.counters["bytes_read"] >= loaded.counters["rows_loaded"] * 4
    assert load(of(planted, "gnndrive", arguments={"buffer": "10MB"})).holds_all
    assert not cold.holds_all


def test_time_ends_both_parts(planted):
    short = load(of(planted, "pyg+", 5, warm_up=5, seconds=0))
    assert (short.warm_up, short.batches) == (1, 1)


def test_mistakes_are_said_in_json(planted, capsys, monkeypatch):
    monkeypatch.setattr(loading.Store, "split", lambda store, name: [])
    for given, said in (
        ({"arguments": {"buffer": "nonsense"}}, "no size"),
        ({"loader": "pyg+", "arguments": {"gap": 1}}, "says nothing"),
        ({"store": str(planted / "none")}, "is not there"),
        ({"loader": "pyg+", "split": "train"}, "no nodes to begin with"),
    ):
        fields = {"store": str(planted), "loader": "gnndrive", "fanout": [3], "batch_size": 9}
        main(json.dumps(fields | {"batches": 1} | given))
        (line,) = capsys.readouterr().out.splitlines()
        assert said in json.loads(line)["failed"]


@pytest.fixture
def program(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[str], None]:
    """program("exit 3") makes this script what runs in place of Python."""

    def make(script: str) -> None:
        path = tmp_path / "program"
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)
        monkeypatch.setattr(sys, "executable", str(path))

    return make


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("kill -9 $$", r"killed \(signal 9\)"),
        ("echo first >&2; echo 'MemoryError: 5' >&2; exit 3", "ended with 3: MemoryError: 5"),
        ("exit 0", "its process ended with 0"),
        ("""echo '{"done": 1}'; echo '{"failed": "too little"}'""", "^too little$"),
    ],
)
def test_a_process_that_fails_says_why(planted, program, script, said):
    program(script)
    with pytest.raises(LoadingFailed, match=said):
        run_loading(of(planted, "gnndrive"))


def test_the_process_loads_what_is_asked_for(planted, program, tmp_path, capsys):
    """By `python -m`; its warnings are passed on."""
    program(f"""echo 'a warning' >&2; exec '{forked.interpreter(tmp_path)}' "$@\"""")
    found = run_loading(of(planted, "pyg+"))
    assert tuple(found.checksums) == load(of(planted, "pyg+")).checksums
    assert capsys.readouterr().err.startswith("a warning\n")


def test_ctrl_c_ends_the_process(planted, program, tmp_path):
    os.mkfifo(tmp_path / "never")
    program(f"""echo $$ >{tmp_path}/pid; echo '{{"done": 1}}'; exec cat {tmp_path}/never""")

    def interrupt(done, total):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_loading(of(planted, "gnndrive"), None, interrupt)
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)


def test_a_loaders_refusal_names_the_memory_of_a_process() -> None:
    refused = 'memory=1 MB is too little: give at least memory="2MB". With that it uses\n  plan'
    said = strategy_runs._for_a_process(refused, 400_000_000)
    assert said.endswith(
        'memory="2MB". That is the loader\'s; for a whole process give --memory 410MB'
    )
    assert strategy_runs._for_a_process("killed", 1) == "killed"
