"""Reserving files: exact, idempotent, refused in time."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gnndrive.common.errors import StoreError
from gnndrive.store.format import ArrayInfo
from gnndrive.store.packed import reserving as module
from gnndrive.store.packed.reserving import reserve


def arrays() -> list[ArrayInfo]:
    return [
        ArrayInfo("rows/x/000", "float32", (1000, 3), ""),
        ArrayInfo("rows/x/001", "float32", (0, 3), ""),
        ArrayInfo("shared/x/000", "bfloat16", (77,), ""),
    ]


def test_files_have_their_full_size_and_keep_their_rows(
    tmp_path: Path, file_system_syncs: list[str]
) -> None:
    for value in (0, 5):
        reserve(tmp_path, arrays())
        for info in arrays():
            found = np.load(tmp_path / info.file, mmap_mode="r+")
            assert found.shape == info.shape
            assert found.dtype == info.storage
            assert (tmp_path / info.file).stat().st_size == info.nbytes
            assert np.all(found == value)
            found[:] = 5
    assert file_system_syncs == [str(tmp_path)] * 2


def test_a_file_of_another_size_is_made_right(tmp_path: Path) -> None:
    reserve(tmp_path, arrays())
    for nbytes in (0, 100, 5000, 1 << 20):
        os.truncate(tmp_path / "rows/x/000.npy", nbytes)
        reserve(tmp_path, arrays())
        assert np.load(tmp_path / "rows/x/000.npy").shape == (1000, 3)


def test_a_disk_that_is_too_small_is_refused_before_anything_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    needed = sum(info.nbytes for info in arrays()) + 1_000_000
    monkeypatch.setattr(module, "free_bytes", lambda folder: needed + (1 << 20) - 1)
    with pytest.raises(StoreError, match=rf"needs {needed:,} more bytes .*free some") as caught:
        reserve(tmp_path, arrays(), 1_000_000)
    assert f"{needed + (1 << 20) - 1:,} are free" in str(caught.value)
    assert list(tmp_path.iterdir()) == []
    reserve(tmp_path, arrays(), 999_999)
    monkeypatch.setattr(module, "free_bytes", lambda folder: 0)
    reserve(tmp_path, arrays())
    with pytest.raises(StoreError, match="needs 1 more bytes"):
        reserve(tmp_path, arrays(), 1)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EIO])
def test_a_disk_that_fills_up_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """The new files are removed; those that were there stay as they are."""
    reserve(tmp_path, arrays()[:1])
    whole, left = os.posix_fallocate, [2]

    def failing(*arguments: Any) -> None:
        left[0] -= 1
        if left[0] < 0:
            raise OSError(number, "simulated")
        whole(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(os, "posix_fallocate", failing)
        match = r"writing .* failed" if number == errno.EIO else r"needs [0-9,]+ more bytes"
        with pytest.raises(StoreError, match=match):
            reserve(tmp_path, arrays())
    found = [path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*.npy")]
    assert found == ["rows/x/000.npy"]
    reserve(tmp_path, arrays())
    assert len(list(tmp_path.rglob("*.npy"))) == 3
