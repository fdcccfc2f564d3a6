"""The commands from import to resume on a small store; each mistake gives one line."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

import gnndrive as gd
from tests import forked
from tests.cli.conftest import CLASSES, DIM, NODES, Command
from tests.cli.test_interrupt import PROGRAM

QUICK = ("--fanout", "5,5", "--batch-size", "100", "--hidden", "16", "--buffer", "64KB")


@pytest.fixture
def sources(tmp_path: Path) -> dict[str, Path]:
    """A ring of 60 nodes in CSV, with features and labels in text."""
    files = {name: tmp_path / name for name in ("edges.csv", "features.npy", "labels.csv")}
    ring = [f"{node},{(node + 1) % 60}" for node in range(60)]
    files["edges.csv"].write_text("\n".join(["source,target", *ring]))
    np.save(files["features.npy"], np.arange(180, dtype=np.uint8).reshape(60, 3))
    labels = [f"{node},{'odd' if node % 2 else 'even'}" for node in range(60)]
    files["labels.csv"].write_text("\n".join(["node,label", *labels]))
    return files


def import_words(sources: dict[str, Path], *more: object) -> list[object]:
    words: list[object] = ["--edges", sources["edges.csv"], "--features", sources["features.npy"]]
    return [*words, "--labels", sources["labels.csv"], *more]


def test_import_then_info_then_verify(gnndrive: Command, sources: dict[str, Path], tmp_path: Path):
    out = tmp_path / "ring.gnn"
    more = ("--undirected", "--split", "0.5,0.25,0.25", "--dtype", "float16")
    made = gnndrive("import", out, *import_words(sources, *more))
    assert made.code == 0
    assert "nodes/x: 100 %" in made.err
    info = gnndrive("info", out, "--json").json
    assert (info["num_nodes"], info["num_edges"], info["num_features"]) == (60, 120, 3)
    assert info["classes"] == ["even", "odd"]
    assert info["splits"] == {"train": 30, "val": 15, "test": 15}
    assert info["arrays"]["nodes/x"]["dtype"] == "float16"
    assert "2 (even, odd)" in gnndrive("info", out).out
    sound = gnndrive("verify", out)
    assert (sound.code, "sound" in sound.out) == (0, True)


def test_a_store_is_replaced_only_with_overwrite(
    gnndrive: Command, sources: dict[str, Path], tmp_path: Path
):
    words = ["import", tmp_path / "ring.gnn", *import_words(sources)]
    assert gnndrive(*words).code == 0
    again = gnndrive(*words)
    assert (again.code, "overwrite" in again.err) == (2, True)
    assert gnndrive(*words, "--overwrite").code == 0
    made = gd.open(tmp_path / "ring.gnn").identity
    sources["edges.csv"].write_text("0,1\n")
    assert gnndrive(*words, "--if-exists", "open").code == 0
    assert gd.open(tmp_path / "ring.gnn").identity == made
    assert gnndrive(*words, "--if-exists", "replace").code == 0
    assert gd.open(tmp_path / "ring.gnn").num_edges == 1


def test_split_links(gnndrive: Command, planted: Path, tmp_path: Path):
    out = tmp_path / "parts.gnn"
    ended = gnndrive("split-links", planted, out, "--num-val", "5", "--num-test", "0.25")
    parts = gd.open_links(out)
    assert (ended.code, str(out) in ended.out) == (0, True)
    assert f"test  : {parts.test.num_edges:,} edges pass messages" in ended.out
    assert abs(len(parts.val.edge_label) - 10) <= 2
    again = gnndrive("split-links", planted, out)
    assert (again.code, "--if-exists" in again.err) == (2, True)


def test_splits_are_given_or_left_out(gnndrive: Command, sources: dict[str, Path], tmp_path: Path):
    (tmp_path / "few.txt").write_text("3\n5\n")
    given = ("--split", f"train={tmp_path / 'few.txt'}", "--split", f"odd={tmp_path / 'few.txt'}")
    assert gnndrive("import", tmp_path / "a.gnn", *import_words(sources, *given)).code == 0
    assert gd.open(tmp_path / "a.gnn").split("odd").tolist() == [3, 5]
    none = import_words(sources, "--split", "none")
    assert gnndrive("import", tmp_path / "b.gnn", *none).code == 0
    assert gd.open(tmp_path / "b.gnn").split_names == ()


@pytest.mark.parametrize("model", ["sage", "gcn", "gat"])
def test_training_prints_one_json_object(gnndrive: Command, planted: Path, model: str):
    ended = gnndrive("train", planted, *QUICK, "--model", model, "--epochs", "2", "--json")
    assert ended.code == 0
    report = ended.json
    assert [epoch["epoch"] for epoch in report["epochs"]] == [1, 2]
    assert report["epochs"][1]["loss"] < report["epochs"][0]["loss"]
    assert set(report["epochs"][1]["accuracy"]) == {"val", "test"}
    assert report["batches"] == 16
    assert report["rows"] == report["rows_hit"] + report["rows_waited"] + report["rows_loaded"]
    assert report["buffer_bytes"] <= 64_000
    assert "epoch 2/2 8/8" in ended.err
    assert "epoch 2/2 test 4/4" in ended.err


def test_training_reads_the_adjacency_from_disk(gnndrive: Command, planted: Path):
    words = ("train", planted, *QUICK, "--epochs", "1", "--json")
    direct = gnndrive(*words, "--topology", "direct", "--neighbour-cache", "0").json
    assert direct["topology"] == "direct"
    assert direct["topology_requests"] > 0
    assert direct["neighbours_wanted"] == direct["edges"]
    mapped = gnndrive(*words, "--topology", "mmap").json
    assert mapped["epochs"][0]["loss"] == direct["epochs"][0]["loss"]


def test_training_learns_and_reports(gnndrive: Command, planted: Path):
    words = ("--epochs", "6", "--lr", "0.02", "--threads", "1", "--engine", "threads")
    ended = gnndrive("train", planted, *QUICK, *words)
    assert ended.code == 0
    report = dict(line.split(" : ") for line in ended.out.splitlines()[1:])
    accuracy = {name.strip(): value for name, value in report.items()}["test accuracy"]
    assert float(accuracy) > 2 / CLASSES
    assert "engine=threads" in ended.out


def test_a_resumed_run_equals_an_unbroken_one(gnndrive: Command, planted: Path, tmp_path: Path):
    words = ("train", planted, *QUICK, "--json")
    whole = gnndrive(*words, "--epochs", "3").json
    file = tmp_path / "new" / "model.pt"
    file.parent.mkdir()
    gnndrive(*words, "--epochs", "2", "--checkpoint", file)
    assert [path.name for path in file.parent.iterdir()] == ["model.pt"]
    rest = gnndrive(*words, "--epochs", "3", "--resume", file).json

    def results(report: dict[str, list[dict[str, object]]]) -> list[tuple[object, object]]:
        return [(epoch["loss"], epoch["accuracy"]) for epoch in report["epochs"]]

    assert results(rest) == results(whole)
    assert rest["batches"] == 8


def test_plan_lists_the_uses_of_memory(gnndrive: Command, planted: Path):
    ended = gnndrive("plan", planted, "--batch-size", "10", "--buffer", "64KB")
    assert ended.code == 0
    assert ended.out.startswith("feature buffer")
    assert gnndrive("plan", planted, "--memory", "1KB").code == 2
    words = ("--topology", "direct", "--neighbour-cache", "50KB")
    assert "direct, as asked for; neighbour cache 50 KB" in gnndrive("plan", planted, *words).out


# ---- mistakes


def complaint(gnndrive: Command, *words: object) -> str:
    """Run a command that must fail; return its complaint, which must be all of its output."""
    ended = gnndrive(*words)
    assert ended.code == 2
    assert ended.out == ""
    assert "Traceback" not in ended.err
    assert ended.err.startswith("gnndrive: ")
    return ended.err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--fanout", "10;10"), "10,10"),
        (("--fanout", "-2"), "-1"),
        (("--buffer", "lots"), "256MB|8GB"),
        (("--buffer", "1"), "one row is 64 bytes"),
        (("--engine", "steam"), "threads, uring"),
        (("--dropout", "1.5"), "below 1"),
        (("--lr", "0"), "positive"),
        (("--resume", "/nowhere/model.pt"), "/nowhere/model.pt"),
        (("--checkpoint", "/dev/null/model.pt"), "cannot be written"),
    ],
)
def test_a_wrong_option_is_named(
    gnndrive: Command, planted: Path, words: tuple[str, ...], said: str
):
    ended = gnndrive("train", planted, "--epochs", "1", "--hidden", "4", *words)
    assert ended.code == 2
    assert any(part in ended.err for part in said.split("|"))
    assert "Traceback" not in ended.err
    assert ended.err.count("gnndrive: ") == 1


def test_unknown_words_are_refused(gnndrive: Command, planted: Path):
    for words in (("--model", "resnet"), ("--batch-size", "0"), ("--steam",)):
        ended = gnndrive("train", planted, *words)
        assert (ended.code, words[0] in ended.err) == (2, True)
    assert gnndrive("steam").code == 2


def test_a_missing_store_label_or_split_is_named(
    gnndrive: Command, sources: dict[str, Path], tmp_path: Path
):
    assert "gnndrive import" in complaint(gnndrive, "train", tmp_path / "none.gnn")
    assert "gnndrive import" in complaint(gnndrive, "info", tmp_path)
    words = ["--edges", sources["edges.csv"], "--features", sources["features.npy"]]
    assert gnndrive("import", tmp_path / "bare.gnn", *words).code == 0
    assert "labels" in complaint(gnndrive, "train", tmp_path / "bare.gnn")
    assert (
        gnndrive("import", tmp_path / "a.gnn", *import_words(sources, "--split", "none")).code == 0
    )
    assert "train" in complaint(gnndrive, "train", tmp_path / "a.gnn")


@pytest.mark.parametrize("split", ["0.6,0.4", "a,b,c", "0.9,0.9,0.9"])
def test_a_split_that_cannot_work_is_refused(
    gnndrive: Command, sources: dict[str, Path], tmp_path: Path, split: str
):
    words = import_words(sources, "--split", split)
    assert "split" in complaint(gnndrive, "import", tmp_path / "a.gnn", *words)


def test_a_checkpoint_of_another_model_is_refused(gnndrive: Command, planted: Path, tmp_path: Path):
    file = tmp_path / "model.pt"
    words = ("train", planted, *QUICK, "--epochs", "1")
    assert gnndrive(*words, "--checkpoint", file).code == 0
    other = complaint(gnndrive, *words, "--resume", file, "--hidden", "8", "--model", "gcn")
    assert "hidden is 16 there and 8 here" in other
    assert "name is 'sage' there and 'gcn' here" in other
    assert "epochs=2" in complaint(gnndrive, *words, "--resume", file)


def test_a_damaged_store_is_found(gnndrive: Command, planted: Path, tmp_path: Path):
    store = shutil.copytree(planted, tmp_path / "damaged.gnn")
    rows = store / "nodes" / "x.npy"
    content = bytearray(rows.read_bytes())
    content[-1] ^= 1
    rows.write_bytes(content)
    found = gnndrive("verify", store)
    assert (found.code, found.out) == (1, "")
    assert f"gnndrive: {rows} has another checksum" in found.err
    rows.write_bytes(content[:-1])
    for command, code in (("verify", 1), ("info", 2), ("train", 2)):
        ended = gnndrive(command, store)
        assert (ended.code, "truncated" in ended.err) == (code, True)


def test_a_warning_is_one_line(sources: dict[str, Path], tmp_path: Path):
    sources["edges.csv"].write_text("source,target\n")
    words = ["import", str(tmp_path / "none.gnn"), *map(str, import_words(sources))]
    ended = forked.run(PROGRAM, *words)
    assert ended.returncode == 0
    (line,) = (line for line in ended.stderr.splitlines() if "no edges" in line)
    assert line.startswith(f"gnndrive: warning: {sources['edges.csv']} holds no edges")
    assert "import_graph" not in ended.stderr


def test_the_version_is_printed(gnndrive: Command):
    ended = gnndrive("--version")
    assert (ended.code, ended.out) == (0, f"gnndrive {gd.__version__}\n")


def test_debug_shows_the_traceback(gnndrive: Command, tmp_path: Path):
    with pytest.raises(gd.StoreError):
        gnndrive("--debug", "info", tmp_path)
    assert gnndrive("info", tmp_path).code == 2


def test_info_describes_the_planted_store(gnndrive: Command, planted: Path):
    info = gnndrive("info", planted, "--json").json
    assert (info["num_nodes"], info["num_features"], info["num_classes"]) == (NODES, DIM, CLASSES)


def test_import_with_memory_sorts_by_duckdb(gnndrive: Command, tmp_path: Path):
    edges, out = tmp_path / "edges.csv", tmp_path / "g.gnn"
    edges.write_text("from,to,weight\nanna,bert,1.5\nbert,carla,2.5\n", encoding="utf-8")
    said = gnndrive(
        "import", out, "--edges", edges, "--memory", "500MB", "--map-ids", "--header",
        "--edge-column", "weight", "--split", "none",
    )  # fmt: skip
    assert said.code == 0, said.err
    assert "edges    : 2" in said.out
    assert gnndrive("verify", out).code == 0
    wrong = gnndrive("import", out, "--edges", edges, "--memory", "500MB", "--split", "none")
    assert wrong.code == 2
    assert "exists: choose another path" in wrong.err
