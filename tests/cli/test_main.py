"""The command line on a small store: import, train, report, demo, and what ends it early."""

import errno
import gzip
import io
import json
import os
import shutil
import signal
import stat
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.feather as feather
import pytest
import torch
from rich.console import Console
from torch_geometric.data import Data

import gnndrive as gd
from gnndrive.cli import main as main_module
from gnndrive.cli.commands import demo
from gnndrive.cli.commands.loading import load
from gnndrive.cli.main import main
from gnndrive.cli.measure.verdict import FIRST_WORDS
from gnndrive.cli.report import Bars
from tests import forked
from tests.cli.conftest import CLASSES, PROGRAM, QUICK, SMALL
from tests.cli.report.html.conftest import Shown
from tests.cli.report.html.samples import headroom_run, train_run
from tests.test_import import imported_by

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


def test_edges_alone_are_a_graph(gnndrive, tmp_path):
    file = tmp_path / "web.txt.gz"
    file.write_bytes(gzip.compress(b"# Nodes: 3 Edges: 2\n# FromNodeId\tToNodeId\n0\t2\n2\t1\n"))
    made = gnndrive("import", tmp_path / "web.gnn", "--edges", file)
    store = gd.open(tmp_path / "web.gnn")
    assert (store.num_nodes, store.edge_index.tolist()) == (3, [[0, 2], [2, 1]])
    assert "the number of nodes is the largest id + 1" in made.out
    file.write_bytes(gzip.compress(b"1\t3\n3\t2\n"))
    gnndrive("import", tmp_path / "from1.gnn", "--edges", file, "--first-id", "1")
    assert np.array_equal(gd.open(tmp_path / "from1.gnn").edge_index, store.edge_index)


def test_a_store_is_replaced_only_if_told_so(gnndrive, sources, tmp_path):
    words = ["import", tmp_path / "ring.gnn", *import_words(sources)]
    assert gnndrive(*words).code == 0
    assert "--if-exists replace" in gnndrive(*words).refusal
    assert "give --if-exists replace" in gnndrive(*words, "--overwrite").refusal
    sources["edges.csv"].write_text("0,1\n")
    for more, edges in ((("--if-exists", "open"), 60), (("--if-exists", "replace"), 1)):
        assert gnndrive(*words, *more).code == 0
        assert gd.open(tmp_path / "ring.gnn").num_edges == edges


def test_splits_are_given_or_left_out(gnndrive, sources, tmp_path):
    (tmp_path / "few.txt").write_text("3\n5\n")
    given = ("--split", f"train={tmp_path / 'few.txt'}", "--split", f"odd={tmp_path / 'few.txt'}")
    assert gnndrive("import", tmp_path / "a.gnn", *import_words(sources, *given)).code == 0
    assert gd.open(tmp_path / "a.gnn").split("odd").tolist() == [3, 5]
    none = import_words(sources, "--split", "none")
    bare = (none[:4] + none[6:], "labels"), (none[:2] + none[4:], "embeddings")
    for words, lacks in (*bare, (none, "train")):
        out = tmp_path / f"{lacks}.gnn"
        assert gnndrive("import", out, *words).code == 0
        assert gd.open(out).split_names == ()
        assert lacks in gnndrive("train", out).refusal
    for wrong in ("0.6,0.4", "0.9,0.9,0.9"):
        words = import_words(sources, "--split", wrong)
        assert "split" in gnndrive("import", tmp_path / "d.gnn", *words).refusal
    tables = ("--nodes", "n.csv:id", "--edges", "e.csv:s,t")
    for words in (none, import_words(sources, *given), tables, [*tables, "--split", "fold"]):
        refused = gnndrive("import", tmp_path / "e.gnn", *words, "--seed", "1").refusal
        assert "--seed is for splits that are drawn" in refused
    refused = gnndrive("import", tmp_path, tmp_path / "e.gnn", "--seed", "0").refusal
    assert "--seed is for splits that are drawn" in refused
    data = Data(num_nodes=9, edge_index=torch.zeros(2, 1).long(), train_mask=torch.arange(9) < 3)
    torch.save(data, tmp_path / "d.pt")
    words = ("import", tmp_path / "d.pt", tmp_path / "e.gnn", "--split", "0,0.5,0.5", "--seed", "1")
    assert gnndrive(*words).code == 0
    sizes = {name: len(gd.open(words[2]).split(name)) for name in ("train", "val", "test")}
    assert sizes == {"train": 3, "val": 3, "test": 3}


def test_tables_with_keys(gnndrive, tmp_path):
    users, orders = tmp_path / "users.csv", tmp_path / "orders.csv"
    users.write_text("id,f1,f2,fold,churned,since\n" + "".join(
        f"u{n},{n},{n / 2},{'train' if n < 4 else 'test'},{n % 2},2024-01-0{n + 1}\n"
        for n in range(6)
    ))  # fmt: skip
    orders.write_text("user,item,ts\nu5,a,2024-01-01\nu0,b,2024-01-02\n")
    words = ("--nodes", f"user={users}:id", "--edges", f"user,buys,item={orders}:user,item",
             "--x", "f?", "--labels", "churned", "--time", "ts", "--undirected")  # fmt: skip
    for number, (split, train) in enumerate((
        (("--split", "fold"), [0, 1, 2, 3]), (("--split", "since:2024-01-03"), [0, 1]),
        (("--split", "1,0,0"), [0, 1, 2, 3, 4, 5]), (("--split", "none"), None),
    )):  # fmt: skip
        out = tmp_path / f"{number}.gnn"
        assert gnndrive("import", out, *words, *split).code == 0
        user = gd.open(out)["user"]
        assert user.x[5].tolist() == [5, 2.5]
        assert train is None or user.split("train").tolist() == train
    assert gd.open(out)["rev_buys"].num_edges == gd.open(out)["buys"].num_edges == 2
    assert "--map-ids: leave it out" in gnndrive("import", out, *words, "--map-ids").refusal
    refused = gnndrive("import", out, "--edges", orders, "--time", "ts").refusal
    assert "--time names a column of tables: give --nodes" in refused
    folder = tmp_path / "year=2024"
    folder.mkdir()
    orders.rename(folder / "orders.csv")
    one = ("--nodes", f"{users}:id", "--edges", f"{folder}:user,user", "--if-exists", "replace")
    assert gnndrive("import", out, *one).code == 0
    assert gd.open(out).edge_names == ("item", "ts")
    refused = gnndrive("import", out, *one, "--nodes", f"item={users}:id").refusal
    assert "users.csv:id has no type, but other tables have" in refused
    feather.write_feather(pa.table({"s": [0, 1], "t": [1, 0]}), folder / "e.arrow")
    words = ("--edges", folder / "e.arrow", "--split", "none", "--if-exists", "replace")
    assert gnndrive("import", out, *words).code == 0
    assert gd.open(out).num_edges == 2


@pytest.mark.filterwarnings("ignore:nodes/x")
def test_a_row_that_makes_the_loss_nan_is_named_by_its_key(gnndrive, tmp_path):
    users, out = tmp_path / "users.csv", tmp_path / "users.gnn"
    rows = (f"u{n},{'inf' if n == 4 else n},{n % 2}\n" for n in range(6))
    users.write_text(f"id,f,churned\n{''.join(rows)}")
    words = ("--nodes", f"{users}:id", "--x", "f", "--labels", "churned", "--split", "1,0,0")
    assert gnndrive("import", out, *words, "--edges", f"{users}:id,id").code == 0
    assert "node 4 (id 'u4') in column 0" in gnndrive("train", out, *QUICK).refusal


def test_split_links(gnndrive, planted, tmp_path):
    out = tmp_path / "parts.gnn"
    ended = gnndrive("split-links", planted, out, "--num-val", "5", "--num-test", "0.25")
    parts = gd.open_links(out)
    assert f"test  : {parts.test.num_edges:,} edges pass messages" in ended.out
    assert abs(len(parts.val.edge_label) - 10) <= 2
    assert "--if-exists" in gnndrive("split-links", planted, out).refusal
    info = gnndrive("info", out, "--json").json
    labelled = {name: len(part.edge_label) for name, part in parts._asdict().items()}
    (split,) = info["links"]
    assert (split["task"], split["labelled_edges"]) == (None, labelled)
    files = {path.stat().st_ino: path.stat().st_size for path in out.rglob("*") if path.is_file()}
    assert info["bytes_in_all"] == sum(info["sizes"].values()) == sum(files.values())
    assert info["sizes"]["features"] == (out / "nodes/x.npy").stat().st_size  # test/ has a link
    assert f"split: {labelled['train']:,} train, " in gnndrive("info", out).out
    edges = out / "links/val/edges.npy"
    edges.unlink()
    np.save(edges, np.int64(3))
    assert "links  damaged: " in gnndrive("info", out).out
    edges.unlink()
    (split,) = gnndrive("info", out, "--json").json["links"]
    assert (split["state"], "val/edges.npy cannot" in split["problem"]) == ("damaged", True)
    assert "links  damaged: " in gnndrive("info", out).out


def test_training_prints_one_json_object(gnndrive, planted):
    ended = gnndrive("train", planted, *WORDS, "--model", "gcn", "--epochs", "2")
    assert ended.code == 0
    report = ended.json
    assert [epoch["epoch"] for epoch in report["epochs"]] == [1, 2]
    assert report["epochs"][1]["loss"] < report["epochs"][0]["loss"]
    assert [set(each["accuracy"]) for each in report["epochs"]] == [{"val"}, {"val", "test"}]
    assert report["batches"] == 16
    assert report["rows"] == report["rows_hit"] + report["rows_waited"] + report["rows_loaded"]
    assert report["buffer_bytes"] <= 64_000
    assert "epoch 2/2  batch 8/8" in ended.err
    items = report["plan"]["items"]
    assert (report["kind"], items[0]["what"]) == ("train", "feature buffer")
    assert report["verdict"].startswith(FIRST_WORDS)


def test_training_reports_as_text(gnndrive, planted):
    words = ("--epochs", "4", "--lr", "0.03", "--threads", "1", "--tuning", "engine=threads")
    ended = gnndrive("train", planted, *SMALL, "--hidden", "16", *words)
    report = dict(line.split(" : ") for line in ended.out.splitlines()[1:])
    said = {name.strip(): value for name, value in report.items()}
    share, whose = said["test accuracy"].split(", ")
    assert (float(share) > 2 / CLASSES, whose) == (True, "with the parameters of the last epoch")
    assert ("engine=threads" in ended.out, bool(said["verdict"])) == (True, True)


@pytest.mark.parametrize("every", [1, 3, 0])
def test_a_resumed_run_equals_an_unbroken_one(gnndrive, planted, tmp_path, every):
    """The epoch that is the last one of the first run is no longer one to be evaluated."""
    words, file = ("train", planted, *WORDS, "--eval-every", every), tmp_path / "model.pt"
    whole = gnndrive(*words, "--epochs", "3").json
    gnndrive(*words, "--epochs", "2", "--checkpoint", file)
    other = tmp_path / "other.pt"
    shutil.copyfile(file, other)
    rest = gnndrive(*words, "--epochs", "3", "--resume", file).json
    results, resumed = (
        [(each["loss"], each["accuracy"]) for each in run["epochs"]] for run in (whole, rest)
    )
    assert (resumed, rest["batches"]) == (results, 8)
    validated = {1: [1, 2, 3], 3: [3], 0: []}[every]
    assert [each["epoch"] for each in rest["epochs"] if "val" in each["accuracy"]] == validated
    assert [each["epoch"] for each in rest["epochs"] if "test" in each["accuracy"]] == [3]
    refused = gnndrive(*words, "--resume", file, "--hidden", "8", "--model", "gcn").refusal
    assert "hidden is 16 there and 8 here" in refused
    assert "name is 'sage' there and 'gcn' here" in refused
    assert "may change all but --model, --hidden, the number of hops in --fanout" in refused
    assert "give --epochs 4 or more" in gnndrive(*words, "--epochs", "2", "--resume", file).refusal
    before = other.read_bytes()
    gnndrive(*words, "--epochs", "3", "--resume", other, "--checkpoint", file)
    assert other.read_bytes() == before


def test_no_store_and_a_damaged_store(gnndrive, planted, tmp_path):
    assert "gnndrive import" in gnndrive("train", tmp_path / "none.gnn").refusal
    store = shutil.copytree(planted, tmp_path / "damaged.gnn")
    rows = store / "nodes" / "x.npy"
    content = rows.read_bytes()
    rows.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    found = gnndrive("verify", store)
    assert (found.code, found.out) == (1, "")
    assert f"gnndrive: {rows} has another checksum" in found.err
    rows.write_bytes(content[:-1])
    for command, code in (("verify", 1), ("info", 2), ("train", 2)):
        ended = gnndrive(command, store)
        assert (ended.code, "truncated" in ended.err) == (code, True)


def test_info_does_not_read_the_index_pointers(gnndrive, planted, tmp_path):
    store = shutil.copytree(planted, tmp_path / "damaged.gnn")
    pointers = store / "graph" / "indptr.npy"
    pointers.write_bytes(pointers.read_bytes()[:-8] + bytes(8))
    assert gnndrive("info", store).code == 0
    assert f"{pointers} decreases at node" in gnndrive("train", store).refusal


def test_a_warning_is_one_line(sources, tmp_path):
    sources["edges.csv"].write_text("source,target\n")
    words = ["import", str(tmp_path / "none.gnn"), *map(str, import_words(sources))]
    ended = forked.run(PROGRAM, *words)
    (line,) = (line for line in ended.stderr.splitlines() if "no edges" in line)
    assert line.startswith(f"gnndrive: warning: {sources['edges.csv']} holds no edges")
    assert (ended.returncode, "import_graph" in ended.stderr) == (0, False)


def test_debug_shows_the_traceback(gnndrive, tmp_path):
    assert gnndrive("--version").out == f"gnndrive {gd.__version__}\n"
    with pytest.raises(gd.StoreError):
        gnndrive("--debug", "info", tmp_path)
    assert "gnndrive import" in gnndrive("info", tmp_path).refusal


# ---- what is imported for a command


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["--version"], 0),
        (["--help"], 0),
        (["trian"], 2),
        (["info", "STORE"], 0),
        (["info", "STORE/none"], 2),
        (["info", "BARE"], 0),
        (["info", "SPLIT"], 0),
        (["clean", "STORE/.."], 0),
        (["report", "RUN", "-o", "PAGE"], 0),
    ],
)
def test_a_command_that_needs_no_torch_does_not_import_it(words, code, planted, tmp_path):
    run = tmp_path / "run.json"
    run.write_text(json.dumps(train_run()))
    paths = {
        "STORE": planted,
        "RUN": run,
        "PAGE": tmp_path / "page.html",
        "BARE": tmp_path / "bare",
        "SPLIT": tmp_path / "split",
    }
    if "BARE" in words:
        gd.write_store(paths["BARE"], indptr=[0, 1], indices=[0], nodes={})
    if "SPLIT" in words:
        gd.split_links(gd.open(planted), paths["SPLIT"])
    for name, path in paths.items():
        words = [word.replace(name, str(path)) for word in words]
    found = imported_by(
        "from gnndrive.cli.main import main\n"
        f"assert main({words}) == {code}\n"
        "import sys; torch = sys.modules.pop('torch', None)\n"
        "assert type(torch).__name__ in ('_Deferred', 'NoneType')"  # what stands for it, or nothing
    )
    assert found.isdisjoint({"torch", "torch_geometric", "pyarrow", "duckdb", "pandas"})


def test_a_command_that_needs_torch_says_so_before_it_imports_it(planted, monkeypatch, capsys):
    def interrupted(name):
        raise KeyboardInterrupt(name)

    monkeypatch.delitem(sys.modules, "torch")
    monkeypatch.setattr(main_module, "_app", main_module._app.__wrapped__)
    monkeypatch.setattr(main_module, "import_quickly", interrupted)
    assert main(["train", str(planted), "--json"]) == 130
    said, _ = capsys.readouterr().err.splitlines()
    assert said == f"gnndrive train {planted}: importing PyTorch"


# ---- what ends a command early


ONE_EPOCH = ("--epochs", "1", *SMALL, "--hidden", "4")


@pytest.fixture
def full():
    with open("/dev/full", "w") as stream:
        yield stream


@pytest.mark.parametrize("words", [["info"], ["info", "--json"], ["--help"]])
def test_a_full_disk_is_one_line(planted, full, words, monkeypatch, capsys):
    monkeypatch.setattr(sys, "stdout", full)
    assert main([*words, *[str(planted)] * (words[0] != "--help")]) == 2
    said = capsys.readouterr().err
    assert said.splitlines()[-1].startswith("gnndrive: standard output cannot be written to (No sp")
    assert ("Traceback" in said, sys.stdout is full) == (False, True)


def test_training_where_a_stream_is_full(planted, full, monkeypatch, capsys):
    """Without its progress it goes on."""
    words = ["train", str(planted), *ONE_EPOCH]
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", full)
        assert main(words) == 2
    said = capsys.readouterr().err.splitlines()
    assert said[-2].startswith("epoch 1: loss")
    assert "send the output elsewhere" in said[-1]
    with open("/dev/full", "w") as other:
        monkeypatch.setattr(sys, "stderr", other)
        assert main(words) == 0
    assert "batches in" in capsys.readouterr().out


@pytest.mark.parametrize("words", [["info"], ["--help"]])
def test_a_reader_that_has_ended_ends_the_command_quietly(planted, words, monkeypatch, capsys):
    reading, writing = os.pipe()
    os.close(reading)
    with open(writing, "w") as unread:
        monkeypatch.setattr(sys, "stdout", unread)
        assert main([*words, *[str(planted)] * (words != ["--help"])]) == 141
    assert capsys.readouterr().err == ""


def test_the_interpreter_ends_quietly_too(planted):
    """It flushes its streams once more."""
    full = "import os; os.dup2(os.open('/dev/full', os.O_WRONLY), 1)\n"
    ended = forked.run(full + PROGRAM, "info", str(planted))
    assert ended.returncode == 2
    assert len(ended.stderr.splitlines()) == 1
    assert "No space left on device" in ended.stderr


@pytest.mark.parametrize("terminal", [True, False])
def test_the_name_of_a_job_is_shown_without_markup(terminal):
    out = io.StringIO()
    with Bars(Console(file=out, force_terminal=terminal, width=100)) as bars:
        assert not out.getvalue(), "nothing is drawn before the first report"
        bars("rows nodes:x: [bold]", 4, 4)
    assert ("rows nodes:x: [bold]" in out.getvalue(), "100 %" in out.getvalue()) == (True, True)


def test_ctrl_c_ends_training_with_a_whole_checkpoint(planted, tmp_path):
    file = tmp_path / "my model.pt"
    words = ["train", str(planted), "--epochs", "100000", "--batch-size", "40", "--hidden", "8"]
    words += ["--fanout", "3,3", "--buffer", "64KB", "--checkpoint", str(file), "--threads", "1"]
    with forked.Program(PROGRAM, *words) as child:
        assert any(line.startswith("epoch 2/100000 ") for line in child.stderr)
        child.send_signal(signal.SIGINT)
        out, err = child.communicate()
    assert (child.returncode, out, "Traceback" in err) == (130, "", False)
    assert err.count("gnndrive: interrupted") == err.count(f"--resume '{file}' goes on") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["my model.pt"]
    assert len(torch.load(file, weights_only=True)["epochs"]) >= 1


@pytest.fixture
def run(tmp_path):
    path = tmp_path / "run.json"
    path.write_text(json.dumps(train_run()))
    return path


def test_the_page_of_a_training_and_a_plan(gnndrive, planted, tmp_path):
    train, plan, out = tmp_path / "train.json", tmp_path / "plan.json", tmp_path / "a.html"
    words = (planted, *SMALL, "--memory", "60MB")
    train.write_text(gnndrive("train", *words, *QUICK).out)
    plan.write_text(gnndrive("plan", *words, "--json").out)
    ended = gnndrive("report", train, plan, "-o", out)
    assert (ended.code, ended.out, ended.err) == (0, f"{out}\n", "")
    shown = Shown(out.read_text()).text.replace("\xa0", " ")
    for text in (
        "Run 1, train.json: Training on", "Run 2, plan.json: A plan on", str(planted), "hits",
        f"gnndrive train {planted} --fanout 3,2", "val accuracy", "for reads in flight",
        "a batch, from 8 batches drawn from the store", "of the 60 MB given",
    ):  # fmt: skip
        assert text in shown
    assert stat.S_IMODE(out.stat().st_mode) == 0o644


def test_a_page_replaces_an_older_one_but_no_run(gnndrive, run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert gnndrive("report", run).out == "report.html\n"
    run.write_text(json.dumps(headroom_run()))
    assert gnndrive("report", run).code == 0
    out = Path("report.html")
    assert "Where time can be gained" in out.read_text()
    out.unlink()
    out.hardlink_to(run)
    for each in (run, out):
        assert (
            "is one of the runs: give another name" in gnndrive("report", run, "-o", each).refusal
        )
    assert json.loads(run.read_text()) == headroom_run()


def test_a_page_that_cannot_be_written_is_named(gnndrive, run, tmp_path, monkeypatch):
    assert "is no file: give a file's name" in gnndrive("report", run, "-o", tmp_path).refusal
    assert "none.json cannot be read" in gnndrive("report", tmp_path / "none.json").refusal
    out = tmp_path / "a.html"
    out.write_text("older")

    def full(fd):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("os.fsync", full)
    error = gnndrive("report", run, "-o", out).refusal
    assert "a.html cannot be written (No space left on device): give a file" in error
    assert out.read_text() == "older"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.html", "run.json"]


DEMO_NODES = 10_000


@pytest.fixture
def small(monkeypatch):
    """Small figures, and loaders in this process."""

    def run_loading(given, limit, progress):
        progress(1, 1)
        return load(given)

    monkeypatch.setattr(demo, "run_loading", run_loading)
    for name, value in {"DIM": 32, "CLASSES": 8, "LR": 0.02, "TRAIN_BATCHES": 16,
                        "COLD_BATCHES": 2, "LIMITED_BATCHES": 2}.items():  # fmt: skip
        monkeypatch.setattr(demo, name, value)
    monkeypatch.setattr(demo, "OPTIONS", demo.LoaderOptions("5,5", 256, buffer="1MB"))


@pytest.mark.usefixtures("small")
def test_the_demo_prints_its_figures(gnndrive, tmp_path):
    ended = gnndrive("demo", "--dir", tmp_path, "--nodes", DEMO_NODES)
    assert ended.code == 0
    lines = dict(line.split(" : ", 1) for line in ended.out.splitlines() if " : " in line)
    said = {name.strip(): text for name, text in lines.items()}
    accuracy, chance = said["test accuracy"].split("; by chance ")
    assert float(accuracy) > 4 * float(chance)
    assert float(said["ratio"].split()[0]) > 0
    for name, text in (("memory", "peak"), ("reads", "IOPS="), ("rows", "hit"),
                       ("gnndrive", "2 batches"), ("mapped", "2 batches")):  # fmt: skip
        assert text in said[name]
    for step in ("[1/3] generating", "nodes/x: 100 %", "epoch 1/1", "mapped: 100 %"):
        assert step in ended.err
    store = next(tmp_path.iterdir())
    made = (store / "store.json").stat()
    assert demo._graph(store, DEMO_NODES, demo.Console(stderr=True)).num_nodes == DEMO_NODES
    assert (store / "store.json").stat() == made  # found, and not generated again
    (store / "nodes" / "x.npy").write_bytes(b"")
    assert demo._graph(store, DEMO_NODES, demo.Console(stderr=True)).num_features == 32
