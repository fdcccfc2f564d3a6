"""Fixtures: tables on disk, and memory in which their rows land."""

import mmap
from collections.abc import AsyncIterable, Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gnndrive.common.ffi import ffi
from gnndrive.common.records import Landing, Stretch, TableFile
from gnndrive.disk.engines.base import Engine
from gnndrive.disk.layouts._rows_file import RowsFile
from gnndrive.disk.layouts.table import TableLayout
from gnndrive.disk.read_job import ReadJob

DATA_OFFSET = 4096
UNTOUCHED = 0xEE


@dataclass
class Rows:
    """The bytes of a table, slots to read rows into, and its file and layout if it is on disk."""

    content: np.ndarray
    memory: np.ndarray
    landing: Landing
    file: Any = None
    table: Any = None

    def locate(self, rows: np.ndarray, slots: np.ndarray | None = None) -> ReadJob:
        """Plan to read rows into slots; None: each into the slot of its number."""
        slots = rows.astype(np.int32) if slots is None else slots
        return self.table.locate(rows, slots, self.landing)

    def writes(self, rows: np.ndarray, slots: np.ndarray) -> ReadJob:
        """Fill the slots with random bytes, which are what the rows should hold from now on, and
        plan to write them."""
        layout = RowsFile(self.file, self.file.row_bytes, write=True)
        self.memory[:] = np.random.default_rng(1).integers(0, 256, self.memory.shape, np.uint8)
        self.content[rows] = self.memory[slots]
        return layout.locate(rows, slots, self.landing)

    def lost(self) -> list[int]:
        """Return the rows that the file does not hold as they should be."""
        stored = np.fromfile(self.file.path, np.uint8, offset=DATA_OFFSET)
        differ = stored.reshape(self.content.shape) != self.content
        return np.flatnonzero(differ.any(axis=1)).tolist()

    def wrong(self, rows: Any, slots: Any) -> int:
        """Return how many of `slots` do not hold their row."""
        return int((self.memory[slots] != self.content[rows]).any(axis=1).sum())

    async def ended(
        self, stretches: AsyncIterable[Stretch], rows: np.ndarray, slots: np.ndarray
    ) -> tuple[list[int], list[tuple[int, int, int]]]:
        """Follow stretches to their end: each slot fails or lands, once, and has its row when it is
        reported. Returns the slots that landed, in that order, and all failures."""
        row_of = dict(zip(slots.tolist(), rows.tolist(), strict=True))
        landed, failures = list[int](), list[Any]()
        async for stretch in stretches:
            some = stretch.slots.tolist()
            assert not self.wrong([row_of[slot] for slot in some], some), "a wrong row"
            landed += some
            failures += stretch.failures.tolist()
        assert not self.wrong([row_of[slot] for slot in landed], landed), "written over later"
        ended = [*landed, *(slot for slot, _, _ in failures)]
        assert sorted(ended) == sorted(slots.tolist()), "not each slot once"
        return landed, failures

    async def bring(
        self, engine: Engine, rows: np.ndarray, slots: np.ndarray | None = None
    ) -> ReadJob:
        """Read rows into slots, or each into that of its number; all of them must land."""
        slots = rows.astype(np.int32) if slots is None else slots
        given, job = (rows.copy(), slots.copy()), self.locate(rows, slots)
        assert not (await self.ended(engine.read(job), rows, slots))[1]
        assert np.array_equal(rows, given[0]), "the rows were changed"
        assert np.array_equal(slots, given[1]), "the slots were changed"
        return job


def slot_memory(slots: int, stride: int) -> np.ndarray:
    """Page-aligned memory of `slots` rows, uint8 [slots, stride]."""
    pages = mmap.mmap(-1, max(slots * stride, 1))
    return np.frombuffer(pages, np.uint8)[: slots * stride].reshape(slots, stride)


def make_rows(
    folder: Path, row_bytes: int, row_count: int, slots: int = 0, stride: int = 0,
    cut_bytes: int = 0, direct: bool = True, **table: Any,
) -> Rows:  # fmt: skip
    """A table of random bytes; the file lacks the last `cut_bytes`. Without `slots` there is one
    for each row, without `stride` they lie side by side; all their bytes are `UNTOUCHED`."""
    content = np.random.default_rng(row_bytes).integers(0, 256, (row_count, row_bytes), np.uint8)
    path = folder / f"rows{len(list(folder.iterdir()))}"
    whole = bytes(DATA_OFFSET) + content.tobytes()
    path.write_bytes(whole[: len(whole) - cut_bytes])
    file = TableFile(str(path), DATA_OFFSET, row_count, row_bytes, "uint8", (row_bytes,))
    memory = slot_memory(slots or row_count, stride or row_bytes)
    memory[:] = UNTOUCHED
    address = int(ffi.cast("uintptr_t", ffi.from_buffer(memory)))
    landing = Landing(address, stride or row_bytes, direct, memory)
    return Rows(content, memory[:, :row_bytes], landing, file, TableLayout(file, **table))


@pytest.fixture
def rows_of(tmp_path: Path) -> Callable[..., Rows]:
    return partial(make_rows, tmp_path)


async def drain(engine: Engine, reads: ReadJob) -> tuple[np.ndarray, list[tuple[int, int, int]]]:
    """Carry out `reads`; return the slots that landed, in that order, and all failures."""
    stretches: list[Stretch] = [stretch async for stretch in engine.read(reads)]
    landed = [stretch.slots for stretch in stretches]
    failures = [failure for stretch in stretches for failure in stretch.failures.tolist()]
    return np.concatenate([np.empty(0, np.int32), *landed]), failures
