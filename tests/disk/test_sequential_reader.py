"""Long reads: which numbers a stretch has, and that nothing is read behind those asked for."""

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gnndrive.common.io.direct_file import PAGE_BYTES, STRETCH_BYTES
from gnndrive.common.records import TableFile
from gnndrive.disk.sequential_reader import SequentialReader

COUNT = 3 * STRETCH_BYTES // 4 + 77


@pytest.fixture
def file(tmp_path: Path) -> TableFile:
    """The numbers 0 … COUNT - 1."""
    np.arange(COUNT, dtype=np.int32).tofile(tmp_path / "numbers")
    return TableFile(str(tmp_path / "numbers"), 0, COUNT, 4, "int32", ())


@pytest.mark.parametrize(
    ("first", "last"),
    [(0, None), (0, COUNT), (5, 6), (1023, 1025), (1024, 2048), (70, 70), (COUNT - 1, COUNT),
     (STRETCH_BYTES // 4 - 3, 2 * STRETCH_BYTES // 4 + 5), (COUNT - 2000, None)],
)  # fmt: skip
def test_no_more_is_read_than_whole_pages(file, monkeypatch, first, last):
    nbytes, read = 0, os.preadv

    def counted(fd: int, into: Any, offset: int) -> int:
        nonlocal nbytes
        got = read(fd, into, offset)
        nbytes += got
        return got

    monkeypatch.setattr(os, "preadv", counted)
    end = COUNT if last is None else last
    with SequentialReader(file) as reader:
        found = [np.empty(0, np.int32)]
        for position, numbers in reader.stretches(first, last):
            assert position == numbers[0]
            found.append(numbers.copy())
    assert np.array_equal(np.concatenate(found), np.arange(first, end))
    pages = -(-4 * end // PAGE_BYTES) - 4 * first // PAGE_BYTES
    assert nbytes <= (pages + len(found) - 2) * PAGE_BYTES if end > first else nbytes == 0
