"""What a command line cannot mean is refused by one line that names it, before anything runs."""

from pathlib import Path

import pytest
import torch

from gnndrive.cli.commands import strategy_runs
from gnndrive.cli.commands.loading import NOTHING, Loaded
from tests.cli.conftest import RANDOM, SKETCH, SMALL

QUICK = ("--epochs", "1", "--hidden", "4")
OF_DEVICES = {
    ("--device", "cuda:1"): "--device cuda:1: this torch",
    ("--device", "gpu"): "--device gpu is not a torch device",
    (
        "--device-memory",
        "1GB",
    ): "--device-memory is for a GPU: give --memory or --buffer",
}
FANOUT = ("--fanout", "a"), "give a whole number for each hop"
REFUSED = {
    ("train", "STORE", *QUICK): [
        (("--fanout", "10;10"), "10,10"),
        (("--fanout", "-2"), "-1"),
        (("--buffer", "lots"), "8GB"),
        (("--tuning", "engine=steam"), "threads, uring"),
        (("--packed", "a"), "--packed is no option any more: give --strategy diskgnn:packed="),
        (("--samplers=2",), "give --tuning samplers=…"),
        (
            ("--tuning", "engines=2"),
            "is no argument of gnndrive.Tuning (did you mean engine?), which has topology",
        ),
        (("--strategy", "ginx"), "ginx"),
        (("--strategy", "ginex:packed=a"), "ginex has superbatch, folder, phases, paper; write"),
        (("--strategy", "ali+pg:order=x"), "ali+pg has none"),
        (("--strategy", "gnndrive:paper=no"), "paper=no: write True or False"),
        (("--strategy", "auto:paper=True"), "'auto' has no arguments"),
        (("--lr", "0"), "positive"),
        (("--resume", "/nowhere/model.pt"), "/nowhere/model.pt"),
        (("--checkpoint", "/dev/null/model.pt"), "cannot be written"),
        (
            ("--memory", "10MB"),
            "--memory 10MB is too little for this loader, which needs 35.9 MB; most of it, "
            '33.6 MB, is the item "staging": give --tuning io_depth=16, or give --memory 10.79MB '
            "with --tuning io_depth=32, or give at least --memory 35.96MB. With",
        ),
        (("--trace", "a.txt"), "whose name ends in .json"),
        (("--trace", "/nowhere/a.json"), "cannot be written"),
        *OF_DEVICES.items(),
    ],
    ("plan", "STORE"): [
        *OF_DEVICES.items(),
        (("--seeds", "10"), "--seeds is for a store that is not there"),
        (("--sampling", "labor:4"), "write labor:dependency=NUMBER"),
    ],
    ("plan",): [
        ((), "give a STORE, or --nodes, --edges and --row-bytes"),
        (("--nodes", "1M", "--edges", "2M"), "--row-bytes is missing"),
        (("--nodes", "many", "--edges", "2M"), "--nodes many: give a whole number"),
        *(
            ((*SKETCH[:6], *option), f"{option[0]} needs a STORE")
            for option in (("--strategy", "ginex"), ("--sampling", "labor"), ("--device", "cuda"))
        ),
    ],
    ("plan", *SKETCH): [
        (("--hosts", "2"), "--hosts 2: say what they send each other with --net"),
        (("--net", "10Gbit"), "--net is what hosts send each other: give --hosts"),
        (("--hosts", "2", "--net", "10Gb"), "--net 10Gb: give a rate such as 10Gbit"),
        (("--tuning", "topology=cloud"), "direct, mmap, resident"),
        (("--memory", "1MB"), "give at least --memory 17"),
        (("--memory", "lots"), "--memory='lots' is no size"),
    ],
    ("--debug", "--no-debug"): [
        (("train", "STORE", "--packed", "a"), "--packed is no option any more"),
        (("unpack", "STORE"), "unpack is no command any more: a pack is a folder: rm -r"),
    ],
    ("pack", "STORE", *SMALL): [
        (("--disk", "1KB"), "give more --memory for hot rows, or allow more with --disk"),
        (("--fanout", "3;2"), "separated by commas"),
        (("--input", "nothing"), "it has: "),
        (("--out", "/nowhere/pack"), "make the folder"),
    ],
    ("import", "out.gnn", "--edges", "edges.csv"): [
        (("--first-id", "1", "--map-ids"), "--map-ids numbers ids of any kind: leave out --first-"),
        (("--edge-column", "c"), "leave it out of --edge-column"),
        (
            ("--num-nodes", "2"),
            "from 1, give --first-id 1; or give --num-nodes 3, and",
        ),
    ],
    ("import", "out.gnn", "--nodes", "edges.csv:a", "--edges", "edges.csv:a,b"): [
        (("--split", "1,0,0"), "--split draws from labelled nodes, and there are none: give --lab"),
    ],
    ("split-links", "STORE"): [(("--time", "t"), "--time t: edges/t is not there; the edges have")],
    ("inspect",): [((), "there is no command gnndrive inspect: give one of import, verify")],
    ("bench", "disc"): [((), "there is no command gnndrive bench disc (did you mean disk?)")],
    ("partition", "STORE", *RANDOM): [
        (("--method", "mets"), "one of auto, metis, ldg, random nor"),
        (("--memory", "1KB"), "give at least"),
        (("--static", "2"), "from 0 to 1"),
        (("--name", "a/b"), "--name a/b: give"),
    ],
    ("bench", "io"): [
        ((), "--filename FILE"),
        (("--filename", "BLOCKS", "--rows", "x"), "--filename FILE"),
        (("--filename", "BLOCKS", "--share", "0.5"), "--rows STORE"),
        (("--filename", "BLOCKS", "--bs", "4ki"), "write 512, 4k, 1m or 2g"),
        (("--filename", "gone"), "cannot be read"),
        (("--rows", "gone"), "is not a store"),
        (("--rows", "STORE", "--numjobs", 2, "--against-fio"), "--numjobs is for --filename"),
        (("--rows", "STORE", "--runtime", 3), "--runtime is for --filename"),
    ],
    ("bench", "headroom", "STORE"): [
        FANOUT,
        (("--warm-up", "0"), "give at least 1"),
        (("--step-ms", 1, "--model", "gcn"), "leave out --model and --hidden"),
        (("--step-ms", 1, "--hidden", 8), "leave out --model and --hidden"),
        (("--strategy", "diskgnn"), "gnndrive pack"),
        (("--buffer", "1KB"), "(128KB holds any batch), or a smaller --batch-size or --fanout"),
        (("--tuning", "engine=simulator"), "no engine is called 'simulator'"),
    ],
    ("bench", "strategies", "STORE"): [
        FANOUT,
        (("--strategies", "gnndrive,none"), "'none' is none of pyg+, gnndrive, ginex"),
        (("--strategies", "ginex,gnndrive,ginex"), "names ginex twice"),
        (("--strategies", "ginex:phase=apart"), "'phase=apart' is no argument"),
        (("--strategies", "ginex:phases"), "'phases' is no argument"),
        (("--engine", "uring"), "give --tuning engine=…"),
        (("--packed", "a"), "give --strategies diskgnn:packed=…"),
        (("--tuning", "engines=2"), "'engines=2' is no argument of gnndrive.Tuning"),
        (("--split", "none"), "--split none is none of the splits"),
        (("--memory", "300MB"), "nothing is left for loading: give "),
        (("--memory", "lots"), "is no size"),
    ],
}


@pytest.fixture(autouse=True)
def _no_gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


@pytest.mark.parametrize("command", REFUSED, ids=lambda words: "-".join(words[:2]))
def test_what_a_command_cannot_do_is_one_line(gnndrive, store, blocks, monkeypatch, command):
    def loads_nothing(given, *_):
        assert given.loader == NOTHING
        return Loaded(peak_bytes=300_000_000)

    monkeypatch.setattr(strategy_runs, "run_loading", loads_nothing)
    monkeypatch.chdir(store.parent)
    Path("edges.csv").write_text("a,b,c\n1,2,u\n2,1,v\n")
    places = {"STORE": store, "BLOCKS": blocks}
    for words, said in REFUSED[command]:
        error = gnndrive(*(places.get(word, word) for word in (*command, *words))).refusal
        assert said in " ".join(error.split()), words


@pytest.mark.parametrize(
    "words",
    [
        ("steam",),
        ("train", "STORE", "--model", "resnet"),
        ("train", "STORE", "--batch-size", "0"),
        ("train", "STORE", "--steam"),
        ("bench", "headroom", "STORE", "--batches", "0"),
        ("bench", "headroom", "STORE", "--rounds", "0"),
        ("bench", "headroom", "STORE", "--step-ms", "-1"),
    ],
)
def test_unknown_words_and_numbers_out_of_range_are_refused(gnndrive, planted, words):
    ended = gnndrive(*(planted if word == "STORE" else word for word in words))
    assert (ended.code, words[-2 if len(words) > 3 else -1] in ended.err) == (2, True)
