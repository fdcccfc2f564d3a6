"""Rows of mapped files: a page that cannot be read is an error, and a signal goes where it did."""

import faulthandler
import mmap
import os
import resource
import signal
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from gnndrive.common.errors import ReadError, StoreError
from gnndrive.common.records import TableFile
from gnndrive.store.mapped_rows import pick_rows
from tests.soak import product

PAGE = mmap.PAGESIZE
ROWS = 4 * PAGE


def table(tmp_path: Path, dtype: str = "int64", shape: tuple[int, ...] = ()) -> Any:
    """A file of a page of header and rows that tell their number, and its map."""
    rows = np.arange(ROWS).reshape(-1, *([1] * len(shape))) % 251 + np.zeros(shape)
    path = tmp_path / "x.npy"
    path.write_bytes(bytes(PAGE) + rows.astype(dtype).tobytes())
    row_bytes = int(np.prod(shape, dtype=int)) * np.dtype(dtype).itemsize
    file = TableFile(str(path), PAGE, ROWS, row_bytes, dtype, shape)
    return file, np.memmap(path, dtype, "r", PAGE, (ROWS, *shape))


@pytest.fixture
def cut(tmp_path):
    """A file of which only the page of header is left, and its map."""
    file, mapped = table(tmp_path)
    os.truncate(file.path, PAGE)
    return file, mapped


def pick(file: TableFile, mapped: Any, rows: Any) -> torch.Tensor:
    wanted = np.asarray(rows, np.int64)
    out = torch.empty((len(wanted), *file.row_shape), dtype=getattr(torch, file.dtype))
    return pick_rows(file, mapped, wanted, out)


@product("dtype,shape", ["int8", "float16", "int32", "float64"], [(), (3,), (2, 2), (0,)])
def test_rows_of_any_width(tmp_path, dtype, shape):
    file, mapped = table(tmp_path, dtype, shape)
    rows = np.random.default_rng(0).integers(0, ROWS, 500)
    assert np.array_equal(pick(file, mapped, rows).numpy(), mapped[rows])
    assert len(pick(file, mapped, [])) == 0


def test_a_row_that_is_not_there(tmp_path):
    file, mapped = table(tmp_path)
    for row in (-1, ROWS, 1 << 62, -(1 << 63)):
        with pytest.raises(StoreError, match=f"no row {row}"):
            pick(file, mapped, [0, row])


def test_a_file_that_becomes_shorter(tmp_path):
    """Rows that are still there can be read; afterwards too, and by several threads."""
    file, mapped = table(tmp_path)
    os.truncate(file.path, 3 * PAGE)
    there, last = PAGE // 8, 2 * PAGE // 8 - 1

    def look() -> None:
        for _ in range(10):
            assert pick(file, mapped, [0, last]).tolist() == mapped[[0, last]].tolist()
            with pytest.raises(ReadError, match=r"at byte 12288 failed: ENODATA") as caught:
                pick(file, mapped, [there, last + 1])
            assert (caught.value.path, caught.value.offset) == (file.path, 3 * PAGE)

    with ThreadPoolExecutor(4) as pool:
        for each in [pool.submit(look) for _ in range(4)]:
            each.result()
    look()


def in_child(work: Callable[[], object], stderr: Path) -> tuple[int, str]:
    """Run `work` in a forked child with SIGBUS as Python leaves it; returns the signal that ended
    the child, or 0, and what it wrote to standard error."""
    with open(stderr, "w+", encoding="utf-8") as file:
        child = os.fork()
        if not child:
            os.dup2(file.fileno(), 2)
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            signal.alarm(20)
            faulthandler.disable()  # pytest has enabled it
            signal.signal(signal.SIGBUS, signal.SIG_DFL)
            try:
                work()
            except BaseException as error:
                os.write(2, repr(error).encode())
            finally:
                os._exit(0)
        _, status = os.waitpid(child, 0)
    return os.WTERMSIG(status), stderr.read_text()


def kill(_: Any) -> None:
    os.kill(os.getpid(), signal.SIGBUS)


def touch(mapped: Any) -> None:
    mapped[-1].item()


ENABLE, DISABLE = partial(faulthandler.enable, file=2), faulthandler.disable


@pytest.mark.parametrize(
    ("before", "between", "at_last", "then", "text"),
    [
        (object, object, object, touch, ""),
        (object, object, object, kill, ""),
        (ENABLE, object, object, touch, "Fatal Python error: Bus error"),
        (object, ENABLE, object, touch, "Fatal Python error: Bus error"),
        (object, ENABLE, object, kill, "Fatal Python error: Bus error"),
        (object, ENABLE, DISABLE, touch, ""),
    ],
)
def test_other_bus_errors_do_what_they_did(cut, tmp_path, before, between, at_last, then, text):
    """`object` does nothing."""

    def work() -> None:
        before()
        for step in (between, at_last, object):
            with pytest.raises(ReadError):
                pick(*cut, [7])
            step()
        then(cut[1])

    ended, stderr = in_child(work, tmp_path / "stderr")
    assert ended == signal.SIGBUS
    assert stderr.startswith(text)
    assert bool(stderr) == bool(text)


def test_a_handler_of_python_is_called(cut, tmp_path):
    def work() -> None:
        signal.signal(signal.SIGBUS, lambda *_: os.write(2, b"mine"))
        for step in (kill, kill, lambda _: None):
            with pytest.raises(ReadError):
                pick(*cut, [7])
            step(cut[1])

    assert in_child(work, tmp_path / "stderr") == (0, "minemine")


def test_a_child_forked_while_threads_read(tmp_path, seeds):
    """A lock that a thread held at the fork would stay locked in the child."""
    file, mapped = table(tmp_path)
    ended = threading.Event()

    def look() -> None:
        while not ended.is_set():
            pick(file, mapped, [5])

    with ThreadPoolExecutor(3) as pool, ExitStack() as until_end:
        until_end.callback(ended.set)
        for _ in range(3):
            pool.submit(look)
        for _ in seeds(3):
            assert in_child(lambda: pick(file, mapped, [5]), tmp_path / "stderr") == (0, "")
