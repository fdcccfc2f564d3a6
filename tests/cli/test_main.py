"""The commands from import to resume on a small store; each mistake gives one line."""

import shutil

import numpy as np
import pytest

import gnndrive as gd
from gnndrive.cli.measure.verdict import FIRST_WORDS
from tests import forked
from tests.cli.conftest import CLASSES, PROGRAM, QUICK, SMALL

WORDS = (*SMALL, *QUICK, "--hidden", "16", "--buffer", "64KB")


@pytest.fixture
def sources(tmp_path):
    """A ring of 60 nodes in CSV, with features and labels in text."""
    files = {name: tmp_path / name for name in ("edges.csv", "features.npy", "labels.csv")}
    ring = [f"{node},{(node + 1) % 60}" for node in range(60)]
    files["edges.csv"].write_text("\n".join(["source,target", *ring]))
    np.save(files["features.npy"], np.arange(180, dtype=np.uint8).reshape(60, 3))
    labels = [f"{node},{'odd' if node % 2 else 'even'}" for node in range(60)]
    files["labels.csv"].write_text("\n".join(["node,label", *labels]))
    return files


def import_words(sources, *more):
    words = ["--edges", sources["edges.csv"], "--features", sources["features.npy"]]
    return [*words, "--labels", sources["labels.csv"], *more]


def test_import_then_info_then_verify(gnndrive, sources, tmp_path):
    out = tmp_path / "ring.gnn"
    more = ("--undirected", "--split", "0.5,0.25,0.25", "--dtype", "float16")
    made = gnndrive("import", out, *import_words(sources, *more))
    assert (made.code, "nodes/x: 100 %" in made.err) == (0, True)
    info = gnndrive("info", out, "--json").json
    assert (info["num_nodes"], info["num_edges"], info["num_features"]) == (60, 120, 3)
    assert (info["num_classes"], info["classes"]) == (2, ["even", "odd"])
    assert info["splits"] == {"train": 30, "val": 15, "test": 15}
    assert info["arrays"]["nodes/x"]["dtype"] == "float16"
    assert "2 (even, odd)" in gnndrive("info", out).out
    sound = gnndrive("verify", out)
    assert (sound.code, "sound" in sound.out) == (0, True)


def test_a_store_is_replaced_only_if_told_so(gnndrive, sources, tmp_path):
    words = ["import", tmp_path / "ring.gnn", *import_words(sources)]
    assert gnndrive(*words).code == 0
    assert "overwrite" in gnndrive(*words).refusal
    sources["edges.csv"].write_text("0,1\n")
    for more, edges in ((("--if-exists", "open"), 60), (("--overwrite",), 1)):
        assert gnndrive(*words, *more).code == 0
        assert gd.open(tmp_path / "ring.gnn").num_edges == edges


def test_import_with_memory_sorts_by_duckdb(gnndrive, tmp_path):
    edges, out = tmp_path / "edges.csv", tmp_path / "g.gnn"
    edges.write_text("from,to,weight\nanna,bert,1.5\nbert,carla,2.5\n", encoding="utf-8")
    words = ("import", out, "--edges", edges, "--memory", "500MB", "--split", "none")
    said = gnndrive(*words, "--map-ids", "--header", "--edge-column", "weight")
    assert said.code == 0, said.err
    assert "edges    : 2" in said.out
    assert gnndrive("verify", out).code == 0
    assert "exists: choose another path" in gnndrive(*words).refusal


def test_splits_are_given_or_left_out(gnndrive, sources, tmp_path):
    (tmp_path / "few.txt").write_text("3\n5\n")
    given = ("--split", f"train={tmp_path / 'few.txt'}", "--split", f"odd={tmp_path / 'few.txt'}")
    assert gnndrive("import", tmp_path / "a.gnn", *import_words(sources, *given)).code == 0
    assert gd.open(tmp_path / "a.gnn").split("odd").tolist() == [3, 5]
    none = import_words(sources, "--split", "none")
    for words, lacks in ((none[:4] + none[6:], "labels"), (none, "train")):
        out = tmp_path / f"{lacks}.gnn"
        assert gnndrive("import", out, *words).code == 0
        assert gd.open(out).split_names == ()
        assert lacks in gnndrive("train", out).refusal
    for wrong in ("0.6,0.4", "0.9,0.9,0.9"):
        words = import_words(sources, "--split", wrong)
        assert "split" in gnndrive("import", tmp_path / "d.gnn", *words).refusal


def test_split_links(gnndrive, planted, tmp_path):
    out = tmp_path / "parts.gnn"
    ended = gnndrive("split-links", planted, out, "--num-val", "5", "--num-test", "0.25")
    parts = gd.open_links(out)
    assert (ended.code, str(out) in ended.out) == (0, True)
    assert f"test  : {parts.test.num_edges:,} edges pass messages" in ended.out
    assert abs(len(parts.val.edge_label) - 10) <= 2
    assert "--if-exists" in gnndrive("split-links", planted, out).refusal


# ---- training


@pytest.mark.parametrize("model", ["sage", "gcn", "gat"])
def test_training_prints_one_json_object(gnndrive, planted, model):
    ended = gnndrive("train", planted, *WORDS, "--model", model, "--epochs", "2")
    assert ended.code == 0
    report = ended.json
    assert [epoch["epoch"] for epoch in report["epochs"]] == [1, 2]
    assert report["epochs"][1]["loss"] < report["epochs"][0]["loss"]
    assert set(report["epochs"][1]["accuracy"]) == {"val", "test"}
    assert report["batches"] == 16
    assert report["rows"] == report["rows_hit"] + report["rows_waited"] + report["rows_loaded"]
    assert report["buffer_bytes"] <= 64_000
    assert "epoch 2/2 8/8" in ended.err
    items = report["plan"]["items"]
    assert (report["kind"], items[0]["what"]) == ("train", "feature buffer")
    assert report["verdict"].startswith(FIRST_WORDS)


def test_training_reads_the_adjacency_from_disk(gnndrive, planted):
    words = ("train", planted, *WORDS)
    direct = gnndrive(*words, "--topology", "direct", "--neighbour-cache", "0").json
    assert direct["topology"] == "direct"
    assert direct["topology_requests"] > 0
    assert direct["neighbours_wanted"] == direct["edges"]
    mapped = gnndrive(*words, "--topology", "mmap").json
    assert mapped["epochs"][0]["loss"] == direct["epochs"][0]["loss"]
    words = ("--batch-size", "10", "--topology", "direct", "--neighbour-cache", "50KB")
    out = gnndrive("plan", planted, *words, "--buffer", "64KB").out
    assert "direct, as asked for; neighbour cache 50 KB" in out


def test_training_reports_as_text(gnndrive, planted):
    words = ("--epochs", "4", "--lr", "0.03", "--threads", "1", "--engine", "threads")
    ended = gnndrive("train", planted, *SMALL, "--hidden", "16", *words)
    report = dict(line.split(" : ") for line in ended.out.splitlines()[1:])
    said = {name.strip(): value for name, value in report.items()}
    assert float(said["test accuracy"]) > 2 / CLASSES
    assert ("engine=threads" in ended.out, bool(said["verdict"])) == (True, True)


def test_a_resumed_run_equals_an_unbroken_one(gnndrive, planted, tmp_path):
    words, file = ("train", planted, *WORDS), tmp_path / "model.pt"
    whole = gnndrive(*words, "--epochs", "3").json
    gnndrive(*words, "--epochs", "2", "--checkpoint", file)
    rest = gnndrive(*words, "--epochs", "3", "--resume", file).json
    results, resumed = (
        [(each["loss"], each["accuracy"]) for each in run["epochs"]] for run in (whole, rest)
    )
    assert (resumed, rest["batches"]) == (results, 8)
    other = gnndrive(*words, "--resume", file, "--hidden", "8", "--model", "gcn").refusal
    assert "hidden is 16 there and 8 here" in other
    assert "name is 'sage' there and 'gcn' here" in other
    assert "give epochs=3" in gnndrive(*words, "--epochs", "2", "--resume", file).refusal


# ---- mistakes


def test_no_store_and_a_damaged_store(gnndrive, planted, tmp_path):
    assert "gnndrive import" in gnndrive("train", tmp_path / "none.gnn").refusal
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


def test_a_warning_is_one_line(sources, tmp_path):
    sources["edges.csv"].write_text("source,target\n")
    words = ["import", str(tmp_path / "none.gnn"), *map(str, import_words(sources))]
    ended = forked.run(PROGRAM, *words)
    assert ended.returncode == 0
    (line,) = (line for line in ended.stderr.splitlines() if "no edges" in line)
    assert line.startswith(f"gnndrive: warning: {sources['edges.csv']} holds no edges")
    assert "import_graph" not in ended.stderr


def test_debug_shows_the_traceback(gnndrive, tmp_path):
    assert gnndrive("--version").out == f"gnndrive {gd.__version__}\n"
    with pytest.raises(gd.StoreError):
        gnndrive("--debug", "info", tmp_path)
    assert "gnndrive import" in gnndrive("info", tmp_path).refusal
