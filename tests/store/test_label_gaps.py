"""Labels with large gaps, which would be trained as thousands of classes, are named at import."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from torch_geometric.data import Data

import gnndrive
from gnndrive.store.labels import ClassCount


def gaps_of(*chunks: np.ndarray) -> str | None:
    count = ClassCount()
    for chunk in chunks:
        count.feed(chunk)
    return count.gaps()


def store_of(y: torch.Tensor, path: Path) -> gnndrive.Store:
    data = Data(edge_index=torch.tensor([[0], [1]]), y=y, num_nodes=len(y))
    return gnndrive.from_data(data, path)


@pytest.mark.parametrize("dtype", [torch.int64, torch.int16, torch.float32])
def test_gaps_are_said_with_numbers_and_remedy(tmp_path: Path, dtype: torch.dtype) -> None:
    y = torch.tensor([0, 4000, 1, -1]).to(dtype)
    with pytest.warns(UserWarning, match=r"nodes/y: .*4,001 classes, .*only 3 .*torch\.unique"):
        assert store_of(y, tmp_path / "s").num_classes == 4001


def test_labels_in_csv(tmp_path: Path) -> None:
    (tmp_path / "e.csv").write_text("0,1\n")
    (tmp_path / "y.csv").write_text("7\n4000\n")
    with pytest.warns(UserWarning, match="4,001 classes"):
        gnndrive.from_csv(tmp_path / "e.csv", None, tmp_path / "y.csv", tmp_path / "s")


@pytest.mark.parametrize(
    "y",
    [
        torch.tensor([0, 1, 2, 2]),
        torch.tensor([1, 2, 3, -1]),
        torch.tensor([0, 2, 2, 0]),
        torch.tensor([0.5, 4000.0, 1.0, 2.0]),
        torch.tensor([-1, -1, -1]),
        torch.eye(9)[:3],
        torch.tensor([True, False]),
        torch.tensor([0.0, torch.nan, 1.0]),
        torch.empty(0, dtype=torch.int64),
    ],
)
def test_nothing_is_said_of_classes_that_are_used(tmp_path: Path, y: torch.Tensor) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        gnndrive.write_store(tmp_path / "s", indptr=[0] * (len(y) + 1), indices=[], nodes={"y": y})


def test_named_classes_may_have_no_node(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        gnndrive.write_store(
            tmp_path / "s", indptr=[0, 0], indices=[], nodes={"y": [7]}, classes=list("abcdefgh")
        )


def test_labels_are_counted_over_chunks_and_beyond_the_table() -> None:
    assert gaps_of(np.arange(50), np.arange(50, 100)) is None
    assert "100,000 classes, of which only 101 " in str(gaps_of(np.arange(100), np.array([99_999])))
    text = gaps_of(np.array([3, 1 << 30]), np.array([1 << 30, (1 << 30) + 5]), np.array([3]))
    assert "1,073,741,830 classes, of which only 3 " in str(text)
