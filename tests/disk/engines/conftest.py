"""Fixtures: tables on disk, and memory in which their rows land."""

import mmap
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gnndrive.common.ffi import ffi
from gnndrive.common.records import Landing, Stretch, TableFile
from gnndrive.disk.engines.base import Engine
from gnndrive.disk.layouts.table import TableLayout
from gnndrive.disk.read_job import ReadJob

DATA_OFFSET = 4096


@dataclass
class Rows:
    """A table on disk, its bytes, and slots to read rows into."""

    table: TableLayout
    content: np.ndarray
    memory: np.ndarray
    landing: Landing

    def wrong(self, rows: np.ndarray, slots: np.ndarray) -> int:
        """Return how many of `slots` do not hold their row."""
        return int((self.memory[slots] != self.content[rows]).any(axis=1).sum())


def slot_memory(slots: int, stride: int) -> np.ndarray:
    """Page-aligned memory of `slots` rows, uint8 [slots, stride]."""
    pages = mmap.mmap(-1, max(slots * stride, 1))
    return np.frombuffer(pages, np.uint8)[: slots * stride].reshape(slots, stride)


def make_rows(
    folder: Path,
    row_bytes: int,
    row_count: int,
    slots: int | None = None,
    cut_bytes: int = 0,
    land_direct: bool = True,
    **table: Any,
) -> Rows:
    """A table of random bytes; the file lacks the last `cut_bytes`."""
    content = np.random.default_rng(row_bytes).integers(0, 256, (row_count, row_bytes), np.uint8)
    path = folder / f"rows_{row_bytes}_{row_count}.bin"
    whole = bytes(DATA_OFFSET) + content.tobytes()
    path.write_bytes(whole[: len(whole) - cut_bytes])
    file = TableFile(str(path), DATA_OFFSET, row_count, row_bytes, "uint8", (row_bytes,))
    memory = slot_memory(row_count if slots is None else slots, row_bytes)
    address = int(ffi.cast("uintptr_t", ffi.from_buffer(memory)))
    landing = Landing(address, row_bytes, land_direct)
    return Rows(TableLayout(file, **table), content, memory, landing)


@pytest.fixture
def rows_of(tmp_path: Path) -> Callable[..., Rows]:
    def make(row_bytes: int, row_count: int, **options: Any) -> Rows:
        return make_rows(tmp_path, row_bytes, row_count, **options)

    return make


async def drain(engine: Engine, reads: ReadJob) -> tuple[np.ndarray, list[tuple[int, int, int]]]:
    """Carry out `reads`; return the slots that landed, in that order, and all failures."""
    stretches: list[Stretch] = [stretch async for stretch in engine.read(reads)]
    landed = [stretch.slots for stretch in stretches]
    failures = [failure for stretch in stretches for failure in stretch.failures.tolist()]
    return np.concatenate([np.empty(0, np.int32), *landed]), failures
