"""Where the result lies: files of others stay, and a result counts only if its files are there."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from gnndrive import ConfigError, Store
from gnndrive.inference import infer
from gnndrive.inference import outcome as outcome_module


def test_folders_of_others_stay(store: Store, tmp_path: Path):
    other = Path("other")
    names = ("mine", "0123456789abcdef", ".0123456789abcdef", ".h-0123456789abcdef")
    for root in (tmp_path / "out", store.path / "derived" / "h"):
        for name in names:
            (root / name).mkdir(parents=True)
            (root / name / "progress.json").write_text("{}")
            (root / name / other).write_text("precious")
    layers = [lambda x, edge_index: x]
    infer(layers, store, out=tmp_path / "out")
    infer(layers, store)
    for root in (tmp_path / "out", store.path / "derived" / "h"):
        assert all((root / name / other).exists() for name in names)


def test_an_unfinished_computation_of_another_name_stays(store: Store, tmp_path: Path):
    def interrupt(what: str, done: int, total: int) -> None:
        if done > total // 2:
            raise KeyboardInterrupt

    layers, out = [lambda x, edge_index: x * 2], tmp_path / "out"
    with pytest.raises(KeyboardInterrupt):
        infer(layers, store, out=out, name="first", batch_size=16, progress=interrupt)
    infer(layers, store, out=out, name="second", batch_size=16)
    begun: list[int] = []
    infer(
        layers, store, out=out, name="first", batch_size=16,
        progress=lambda what, done, total: begun.append(done),
    )  # fmt: skip
    assert begun[0] > store.num_nodes
    assert sorted(each.name for each in out.iterdir()) == [
        ".lock", "first.made-by.txt", "first.npy", "second.made-by.txt", "second.npy",
    ]  # fmt: skip
    with pytest.raises(ConfigError, match="another model"):
        infer([lambda x, edge_index: x], store, out=out, name="first", dtype="float16")


@pytest.mark.parametrize("in_store", [False, True])
def test_a_result_without_its_file_is_computed_again(in_store: bool, store: Store, tmp_path: Path):
    layers = [lambda x, edge_index: x]
    out = None if in_store else tmp_path / "out"
    infer(layers, store, out=out)
    file = next((out or store.path / "derived").rglob("h.npy"))
    content = file.read_bytes()
    file.unlink()
    infer(layers, store, out=out)
    assert file.read_bytes() == content


def test_a_file_of_the_user_is_not_replaced(store: Store, tmp_path: Path):
    (tmp_path / "h.npy").write_text("precious")
    layers = [lambda x, edge_index: x]
    with pytest.raises(ConfigError, match="overwrite=True"):
        infer(layers, store, out=tmp_path)
    assert (tmp_path / "h.npy").read_text() == "precious"
    infer(layers, store, out=tmp_path, overwrite=True)
    assert (tmp_path / "h.npy").stat().st_size > 100


def test_the_folders_of_new_files_are_made_durable(store, tmp_path, monkeypatch):
    synced: list[Path] = []
    monkeypatch.setattr(outcome_module, "fsync_folder", synced.append)
    infer([lambda x, edge_index: x], store)
    file = next((store.path / "derived").rglob("h.npy"))
    assert {file.parent, file.parents[1], file.parents[2], store.path} <= set(synced)
    assert torch.equal(store.tensor("h"), store.tensor("x"))
