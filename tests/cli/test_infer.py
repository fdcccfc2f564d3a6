"""`gnndrive infer` and evaluation by inference: the rows and accuracies of the model in memory."""

import errno
import os
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch
from torch_geometric.nn import GraphSAGE

import gnndrive as gd
from gnndrive.cli.commands import train as train_module
from gnndrive.cli.commands.train import accuracies, is_cheaper
from gnndrive.cli.training import ModelSettings
from tests.cli.conftest import CLASSES, DIM, NODES, QUICK, SMALL

MODELS = f"""
from torch_geometric.nn import GraphSAGE
def make():
    return GraphSAGE({DIM}, 8, 2, 3)
def with_argument(x):
    return x
def layers():
    return [lambda x, edge_index: x[:, :2]]
"""


@pytest.fixture
def models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of a module in the folder where the command runs."""
    name = f"models_{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{name}.py").write_text(MODELS)
    monkeypatch.chdir(tmp_path)
    return name


def in_memory(model: torch.nn.Module, path: Path) -> torch.Tensor:
    store = gd.open(path)
    with torch.no_grad():
        rows: torch.Tensor = model.eval()(store.x, store.edge_index)
    return rows


def test_what_was_added_is_listed_left_out_of_training_and_removed(gnndrive, store):
    before = gnndrive("plan", store, "--memory", "200MB").out
    gd.infer([lambda x, edge_index: x], gd.open(store), name="twice")
    assert "added by gnndrive infer" in gnndrive("info", store).out
    assert gnndrive("plan", store, "--memory", "200MB").out == before
    trained = gnndrive("train", store, *SMALL, *QUICK).json
    assert "twice" not in trained["plan"]["text"], "it names the tables if there are several"
    unknown = gnndrive("remove", store, "x")
    assert unknown.code == 2
    assert "no attribute 'x' that gnndrive.infer added; it has: twice" in unknown.err
    assert gnndrive("remove", store, "twice").out == f"removed twice of {store}\n"
    assert not (Path(store) / "derived" / "twice.json").exists()
    assert "it has: none" in gnndrive("remove", store, "twice").err


def test_a_checkpoint_of_train(gnndrive, store, tmp_path):
    file = tmp_path / "model.pt"
    words = ("--epochs", "1", "--hidden", "8", "--batch-size", "200", "--checkpoint", file)
    assert gnndrive("train", store, *words).code == 0
    done = gnndrive("infer", store, "--checkpoint", file, "--memory", "90MB")
    assert (done.code, "nodes/h: float32 [2000, 4]" in done.out) == (0, True)
    assert "inference: 100 %" in done.err
    content = torch.load(file, weights_only=True)
    model = ModelSettings(**content["model_settings"]).build()
    model.load_state_dict(content["model"])
    assert torch.allclose(gd.open(store).tensor("h"), in_memory(model, store), atol=1e-5)
    assert gnndrive("info", store, "--json").json["arrays"]["nodes/h"]["shape"] == [2000, CLASSES]
    assert gnndrive("verify", store).code == 0
    assert gnndrive("infer", store, "--checkpoint", file).out == done.out


def test_a_function_and_its_weights(gnndrive, store, models, tmp_path):
    model = GraphSAGE(DIM, 8, 2, 3)
    torch.save(model.state_dict(), tmp_path / "weights.pt")
    words = ("--model", f"{models}:make", "--checkpoint", tmp_path / "weights.pt")
    assert gnndrive("infer", store, *words, "--out", tmp_path / "out").code == 0
    assert "h" not in gd.open(store).node_names
    assert gnndrive("infer", store, *words, "--name", "g", "--threads", "1").code == 0
    assert torch.allclose(gd.open(store).tensor("g"), in_memory(model, store), atol=1e-5)
    assert gnndrive("infer", store, "--model", f"{models}:layers").code == 0
    other = gnndrive("infer", store, "--model", f"{models}:make")
    assert (other.code, "--overwrite" in other.err) == (2, True)


def test_an_interruption_says_that_it_can_go_on(gnndrive, store, models, monkeypatch):
    interrupted = Mock(side_effect=KeyboardInterrupt)
    monkeypatch.setattr("gnndrive.cli.commands.infer.infer", interrupted)
    ended = gnndrive("infer", store, "--model", f"{models}:make")
    assert (ended.code, "the same command goes on where it" in ended.err) == (130, True)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "no model"),
        (("--model", "nowhere_at_all:make"), "a module that Python finds"),
        (("--model", "MODELS:nothing"), "a function in it"),
        (("--model", "MODELS:with_argument"), "without arguments"),
        (("--checkpoint", "MODELS.py"), "no checkpoint"),
        (("--checkpoint", "other.pt"), "--model MODULE:FUNCTION too"),
        (("--model", "MODELS:make", "--checkpoint", "other.pt"), "the weights of this model"),
        (("--model", "MODELS:layers", "--checkpoint", "other.pt"), "in the function"),
        (
            ("--model", "MODELS:make", "--memory", "1KB"),
            "its largest batch: give --memory ",
        ),
        (("--model", "MODELS:make", "--device", "oven"), "device"),
    ],
)
def test_a_mistake_gives_one_message(gnndrive, store, models, words, message):
    torch.save({"lin.weight": torch.zeros(1)}, "other.pt")
    words = (word.replace("MODELS", models) for word in words)
    assert message in gnndrive("infer", store, *words).refusal


# ---- evaluation


ROWS = NODES * DIM * 4


@pytest.mark.parametrize(
    ("count", "fanout", "memory", "on_device", "cheaper"),
    [
        (NODES, (10, 10), ROWS // 2, None, True),
        (20, (10, 10), ROWS // 2, None, False),  # one batch
        (NODES, (10, 10), ROWS, None, False),  # memory holds all rows
        (NODES, (10, 10), None, None, False),
        (NODES, (10, 10), ROWS // 50, None, False),  # too many passes
        (NODES, (10, 10), ROWS // 2, ROWS, False),  # the device holds all rows
        (NODES, (10, 10), ROWS, ROWS // 2, True),  # the host does, once a layer
    ],
)
def test_many_nodes_and_little_memory_make_it_cheaper(
    planted, count, fanout, memory, on_device, cheaper
):
    assert is_cheaper(gd.open(planted), count, fanout, 20, memory, on_device) == cheaper


def test_the_accuracies_are_those_of_the_whole_graph(store):
    """Its rows are no attribute of the store, whatever their name is."""
    store, model = gd.open(store), GraphSAGE(DIM, 8, 2, CLASSES)
    gd.infer(model, store, name="evaluation")
    splits = {name: store.split(name) for name in ("val", "test")}
    found = accuracies(model, store, {**splits, "none": torch.empty(0, dtype=torch.int64)}, "100MB")
    right = store.tensor("evaluation").argmax(-1) == store.tensor("y")
    assert found == {
        name: pytest.approx(float(right[ids].float().mean())) for name, ids in splits.items()
    }
    assert os.listdir(store.path.parent) == ["own.gnn"]
    assert gd.open(store.path).node_names[-1] == "evaluation"


def test_train_uses_it_where_it_is_cheaper(gnndrive, store, monkeypatch):
    store, asked = gd.open(store), []
    monkeypatch.setattr(
        train_module, "is_cheaper", lambda *given: asked.append(given[1:]) or given[1] > 200
    )
    words = ("train", store.path, *SMALL, *QUICK)
    done = gnndrive(*words, "--memory", "150MB")
    assert done.code == 0
    assert "\ntest: evaluated by inference over all nodes" in f"\n{done.err}"
    given = ((3, 2), 100, 150_000_000, None)
    assert asked == [(200, *given), (400, *given)]
    assert set(done.json["epochs"][-1]["accuracy"]) == {"val", "test"}
    assert gnndrive(*words, "--buffer", "300KB").code == 0  # its parts are set by hand
    assert len(asked) == 2

    def refused(*given):
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(train_module, "TemporaryFolder", refused)
    done = gnndrive(*words, "--memory", "150MB")
    assert done.code == 0, done.err
    assert "evaluated with batches" in done.err
    assert set(done.json["epochs"][-1]["accuracy"]) == {"val", "test"}
    with pytest.raises(gd.StoreError, match=r"Read-only.*writable.*--buffer"):
        accuracies(GraphSAGE(DIM, 8, 2, CLASSES), store, {}, "100MB")
