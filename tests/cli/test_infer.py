"""`gnndrive infer` computes what the model computes in memory, and says what was wrong."""

from pathlib import Path

import pytest
import torch
from torch_geometric.nn import GraphSAGE

import gnndrive as gd
from gnndrive.cli.training import ModelSettings
from tests.cli.conftest import CLASSES, DIM

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
    target = torch.arange(store.num_nodes).repeat_interleave(
        torch.from_numpy(store.indptr[1:] - store.indptr[:-1])
    )
    edges = torch.stack([torch.from_numpy(store.indices.astype("i8")), target])
    with torch.no_grad():
        rows: torch.Tensor = model.eval()(store.tensor("x"), edges)
    return rows


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
    def interrupted(*given, **named):
        raise KeyboardInterrupt

    monkeypatch.setattr("gnndrive.cli.commands.infer.infer", interrupted)
    ended = gnndrive("infer", store, "--model", f"{models}:make")
    assert ended.code == 130
    assert "the same command goes on where it stopped" in ended.err


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
        (("--model", "MODELS:make", "--memory", "1KB"), "give memory="),
        (("--model", "MODELS:make", "--device", "oven"), "device"),
    ],
)
def test_a_mistake_gives_one_message(gnndrive, store, models, words, message):
    torch.save({"lin.weight": torch.zeros(1)}, "other.pt")
    words = (word.replace("MODELS", models) for word in words)
    assert message in gnndrive("infer", store, *words).refusal
