"""Files of hidden states: whole, checksummed, and gone on with behind any row."""

from __future__ import annotations

import errno
import os
import sys
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from gnndrive import StoreError
from gnndrive.inference import hidden
from gnndrive.inference.hidden import HiddenWriter
from gnndrive.store import ArrayInfo
from tests.soak import product


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hidden, "PIECE_BYTES", 2 * 4096)


@product("columns,stop,checksum", [7, 1, 1024, 3000], [1, 40, 99, 100], [False, True])
def test_it_goes_on_behind_any_row(columns, stop, checksum, tmp_path):
    rows = torch.randn(100, columns)
    info = ArrayInfo("nodes/h", "float32", (100, columns), "", "below")
    writer = HiddenWriter(tmp_path, info, 0, checksum)
    writer.write(rows[:stop])
    writer.sync()
    assert writer.done == stop
    writer.write(rows[stop : stop + 20] + 1)  # not durable, so it is written again
    writer.close()
    writer = HiddenWriter(tmp_path, info, stop, checksum)
    for row in rows[stop:].split(13):
        writer.write(row)
    done = writer.finish()
    path = tmp_path / done.file
    assert np.array_equal(np.load(path), rows.numpy())
    assert path.stat().st_size == info.nbytes
    assert done.sha256 == (sha256(path.read_bytes()).hexdigest() if checksum else "")


@pytest.mark.parametrize("refused", ["open", "pwrite"])
def test_a_file_system_without_direct_writes(refused, tmp_path, monkeypatch):
    whole: Any = getattr(os, refused)
    direct: list[bool] = []

    def invalid(first: Any, *given: Any) -> Any:
        if bool(given[0] & os.O_DIRECT) if refused == "open" else not direct:
            direct.append(True)
            raise OSError(errno.EINVAL, "Invalid argument")
        return whole(first, *given)

    monkeypatch.setattr(os, refused, invalid)
    rows = torch.randn(50, 300)
    info = ArrayInfo("nodes/h", "float32", (50, 300), "", "")
    writer = HiddenWriter(tmp_path, info, 0, True)
    writer.write(rows)
    done = writer.finish()
    monkeypatch.undo()
    assert direct
    assert np.array_equal(np.load(tmp_path / "nodes" / "h.npy"), rows.numpy())
    assert done.sha256 == sha256((tmp_path / "nodes" / "h.npy").read_bytes()).hexdigest()


def test_a_file_that_became_shorter(tmp_path: Path):
    info = ArrayInfo("nodes/h", "float32", (50, 300), "", "")
    writer = HiddenWriter(tmp_path, info, 0, True)
    writer.write(torch.randn(30, 300))
    writer.sync()
    writer.close()
    os.truncate(tmp_path / "nodes" / "h.npy", 5000)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "posix_fallocate", lambda *given: None)
        with pytest.raises(StoreError, match="became shorter"):
            HiddenWriter(tmp_path, info, 30, True)


@pytest.mark.parametrize("failing", ["pwrite", "fdatasync"])
def test_after_a_failure_nothing_counts_as_durable(failing, tmp_path, monkeypatch):
    info = ArrayInfo("nodes/h", "float32", (100, 1024), "", "")
    writer = HiddenWriter(tmp_path, info, 0, True)
    writer.write(torch.zeros(1, 1024))
    writer.sync()
    whole, left = getattr(os, failing), [1]

    def once(*given: Any) -> Any:
        left[0] -= 1
        if left[0] == 0:
            raise OSError(errno.EIO, "Input/output error")
        return whole(*given)

    monkeypatch.setattr(os, failing, once)

    def write_on() -> None:
        writer.write(torch.zeros(20, 1024))
        writer.sync()

    for again in (write_on, writer.sync, write_on, writer.sync):
        with pytest.raises(StoreError, match="Input/output error"):
            again()
    assert writer.done == 1
    writer.close()


def test_interrupted_anywhere_what_was_put_is_durable(tmp_path: Path):
    """Ctrl-C in any line of a write: `sync` still makes the rows before it durable."""
    rows = torch.randn(16, 1024)
    info = ArrayInfo("nodes/h", "float32", (16, 1024), "", "")
    stops, before = 0, sys.gettrace()
    while True:
        left = [stops]
        writer = HiddenWriter(tmp_path, info, 0, False)
        writer.write(rows[:6])

        def trace(frame: Any, event: str, arg: Any, left: list[int] = left) -> Any:
            if frame.f_code.co_filename != hidden.__file__:
                return None
            if event == "line":
                left[0] -= 1
                if left[0] < 0:
                    raise KeyboardInterrupt
            return trace

        sys.settrace(trace)
        try:
            writer.write(rows[6:])
        except KeyboardInterrupt:
            pass
        finally:
            sys.settrace(before)
        writer.sync()
        writer.close()
        assert np.array_equal(np.load(tmp_path / info.file)[:6], rows[:6].numpy())
        if left[0] >= 0:
            break
        stops += 1
    assert stops > 30
