"""Packing that is interrupted at any moment goes on, repeats one part at most, and ends alike."""

from __future__ import annotations

import errno
import json
import os
import random
import re
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gnndrive.common.errors import StoreError
from gnndrive.common.records import TableFile
from gnndrive.store.format import ArrayInfo
from gnndrive.store.packed import durable, row_writer
from gnndrive.store.packed.outputs import Output
from gnndrive.store.packed.reserving import reserve
from gnndrive.store.packed.rows import RowPacking
from tests.store.packed.packed_tables import (
    MEMORY,
    check_outputs,
    contents,
    make_table,
    place_all,
    sets_order,
)

Small = Callable[..., None]
Whole = tuple[list[list[int]], dict[str, bytes]]  # the sums, and the files
COUNT, ROW_BYTES = 1000, 400
CALLS = ("pwrite", "posix_fallocate", "ftruncate", "replace", "fsync", "unlink")


class Killed(BaseException):
    """Stands for a process that is killed."""


class Work:
    """Reserving and writing two tables, from the beginning.

    Attributes:
        told: what progress was told, by phase.
    """

    def __init__(self, folder: Path) -> None:
        rng = np.random.default_rng(11)
        self.folder = folder / "p"
        self.folder.mkdir(exist_ok=True)
        self.tables, self.rows = dict[str, TableFile](), dict[str, Any]()
        for seed, name in enumerate(("x", "y")):
            made = make_table(folder, name, "uint8", (ROW_BYTES,), COUNT, seed)
            self.tables[name], self.rows[name] = made
        self.ids = [
            np.flatnonzero(rng.random(COUNT) < 0.5),
            sets_order(rng, COUNT, 4),
            rng.permutation(COUNT).astype(np.int32),
        ]

        self.told: dict[str, list[int]] = {}
        self.identity = "v1"

    def outputs(self, name: str) -> list[Output]:
        return self._placed(name)[0]

    def packing(self, name: str) -> RowPacking:
        outputs, infos = self._placed(name)
        packing = RowPacking(
            self.tables[name], outputs, self.folder, name, MEMORY, identity=self.identity
        )
        reserve(self.folder, infos, packing.spool_bytes)
        return packing

    def _placed(self, name: str) -> tuple[list[Output], list[ArrayInfo]]:
        return place_all(self.folder, self.tables[name], self.ids, name, 300_000)

    def run(self) -> list[list[int]]:
        def progress(what: str, done: int, total: int) -> None:
            self.told.setdefault(what, []).append(done)

        return [self.packing(name).run(progress) for name in self.tables]

    def progress(self) -> list[tuple[int, int, bool]]:
        """What the records count, by table: rows, spooled pieces in order, ended."""
        found = []
        for name in self.tables:
            try:
                record = json.loads((self.folder / f"{name}.rows.json").read_text())
            except FileNotFoundError:
                record = {"rows": 0, "ordered": 0, "ended": False}
            found.append((record["rows"], record["ordered"], record["ended"]))
        return found


@pytest.fixture
def work(tmp_path: Path, small: Small, monkeypatch: pytest.MonkeyPatch) -> Work:
    small(100_000, slice_rows=400)
    monkeypatch.setattr(row_writer, "BUFFER_BYTES", 8 * 4096)
    monkeypatch.setattr(row_writer, "_DIRECT_BYTES_MIN", 4096)
    return Work(tmp_path)


@pytest.fixture
def whole(work: Work, tmp_path: Path) -> Whole:
    """What a run without interruption makes; the folder is empty again afterwards."""
    sums = work.run()
    for name in work.tables:
        check_outputs(work.outputs(name), work.rows[name])
    made = contents(work.folder)
    os.rename(work.folder, tmp_path / "whole")
    work.folder.mkdir()
    return sums, made


def empty(folder: Path, keep: bool = True) -> None:
    """Remove all files, or `keep` the volumes but destroy what is in them, which is faster."""
    for path in sorted(folder.rglob("*"), reverse=True):
        if path.suffix == ".npy" and keep:
            path.write_bytes(b"\xee" * path.stat().st_size)
        elif path.is_file():
            path.unlink()
        elif not keep:
            path.rmdir()


class PowerCut:
    """Counts calls that change the disk; at call number `at` it undoes every write since the last
    sync and raises. It stands in `os`, and in `durable` for the sync."""

    def __init__(self, patch: pytest.MonkeyPatch, at: int, error: BaseException) -> None:
        self.calls, self._at, self._error = 0, at, error
        self._undo: list[tuple[Path, int, bytes]] = []
        self._pwrite, self._pread = os.pwrite, os.pread
        for name in ("posix_fallocate", "ftruncate", "replace", "fsync"):
            patch.setattr(os, name, self._counting(getattr(os, name)))
        patch.setattr(os, "pwrite", self._write)
        patch.setattr(durable, "sync_file_system", self._sync)
        patch.setattr(row_writer, "sync_file_system", self._sync)

    def _count(self) -> None:
        self.calls += 1
        if self.calls >= self._at:
            raise self._error

    def _counting(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*arguments: Any, **given: Any) -> Any:
            self._count()
            return function(*arguments, **given)

        return wrapped

    def _write(self, fd: int, view: Any, offset: int) -> int:
        self._count()
        path = Path(os.readlink(f"/proc/self/fd/{fd}"))
        with path.open("rb") as file:
            file.seek(offset)
            self._undo.append((path, offset, file.read(len(view))))
        return self._pwrite(fd, view, offset)

    def _sync(self, fd: int) -> None:
        self._count()
        self._undo.clear()

    def lose(self) -> None:
        """Undo what was not synced."""
        for path, offset, before in reversed(self._undo):
            with path.open("r+b") as file:
                file.seek(offset)
                file.write(before)


def interrupt(work: Work, at: int, error: BaseException) -> BaseException | None:
    """Pack into an empty folder with an error at call `at`; returns what was raised, and leaves
    what the disk holds after a power cut. None: there are fewer calls."""
    empty(work.folder, keep=at > 16)
    work.told.clear()
    with pytest.MonkeyPatch.context() as patch:
        cut = PowerCut(patch, at, error)
        try:
            work.run()
        except (Killed, StoreError) as raised:
            cut.lose()
            return raised
    return None


def resume(work: Work, whole: Whole) -> None:
    """Pack again: same sums, same bytes, and no part is repeated that had been reported."""
    sums, made = whole
    before, work.told = work.told, {}
    assert work.run() == sums
    assert contents(work.folder) == made
    for what, done in before.items():
        assert what not in work.told or work.told[what][0] >= done[-1]
    told = {what: list(done) for what, done in work.told.items()}
    assert work.run() == sums, "once more, when all is done"
    assert work.told == told


def test_a_power_cut_at_each_write_and_sync(work: Work, whole: Whole) -> None:
    """What was not synced is lost; what the record counts is there."""
    at = 1
    while (raised := interrupt(work, at, Killed())) is not None:
        assert isinstance(raised, Killed)
        resume(work, whole)
        at += 7
    assert at > 150


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EIO])
def test_a_failing_disk_at_each_write_and_sync(work: Work, whole: Whole, number: int) -> None:
    at = 1
    while (raised := interrupt(work, at, OSError(number, "simulated"))) is not None:
        full = "the disk is too full for .*the same again"
        wanted = full if number != errno.EIO else "writing .* failed .*run the same again"
        assert re.search(wanted, str(raised)), raised
        assert str(work.folder) in str(raised)
        assert not any(ended for _, _, ended in work.progress()[1:])
        resume(work, whole)
        at += 37
    assert at > 150


def killed_at(work: Work, at: int) -> bool:
    """Pack in a child that kills itself before call `at`; returns whether it came so far."""
    child = os.fork()
    if not child:
        try:
            left = [at]

            def killing(function: Callable[..., Any]) -> Callable[..., Any]:
                def wrapped(*arguments: Any, **given: Any) -> Any:
                    left[0] -= 1
                    if left[0] <= 0:
                        os.kill(os.getpid(), signal.SIGKILL)
                    return function(*arguments, **given)

                return wrapped

            for name in CALLS:
                setattr(os, name, killing(getattr(os, name)))
            work.run()
        finally:
            os._exit(0)
    return os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGKILL


def test_killed_at_seeded_moments(work: Work, whole: Whole) -> None:
    """Twelve runs, each killed up to three times before one ends."""
    rng, kills = random.Random(5), 0
    for _ in range(12):
        empty(work.folder)
        work.told.clear()
        for _ in range(3):
            before = work.progress()
            kills += killed_at(work, rng.randrange(1, 300))
            assert all(new >= old for new, old in zip(work.progress(), before, strict=True))
        resume(work, whole)
    assert kills >= 15


def test_a_killed_process_repeats_one_part_at_most(work: Work, whole: Whole) -> None:
    """The record counts each part that was finished before the next one is written."""
    part_rows = (100_000 - 2 * 4096) // ROW_BYTES
    seen = set()
    for at in range(10, 400, 40):
        empty(work.folder, keep=False)
        if not killed_at(work, at):
            break
        rows = work.progress()[0][0]
        highest = max(written_rows(work), default=-1)
        assert highest < rows + part_rows
        seen.add(rows)
    assert len(seen) >= 3


def written_rows(work: Work) -> Iterator[int]:
    """The rows of table x that are in the file of the first output."""
    output = work.outputs("x")[0]
    try:
        raw = np.fromfile(output.file, np.uint8, offset=output.offset)
    except FileNotFoundError:
        return
    found = raw[: len(output.ids) * ROW_BYTES].reshape(-1, ROW_BYTES)
    for row, content in zip(output.ids.tolist(), found, strict=False):
        if content.any():
            yield row


def test_a_record_of_something_else_is_ignored(work: Work, whole: Whole) -> None:
    """Other outputs, another content of the table, another file, or no record at all."""
    work.run()
    record = work.folder / "x.rows.json"
    assert json.loads(record.read_text())["files"] == ["rows/x/000.npy", "rows/x/001.npy"]
    for text in ("", "[]", "{}", "nonsense", '{"version": 1}', '{"version": 1, "key": 5}'):
        record.write_text(text)
        work.told.clear()
        resume(work, whole)
    file = work.outputs("x")[0].file
    content = file.read_bytes()
    file.unlink()
    work.told.clear()
    resume(work, whole)
    assert file.read_bytes() == content
    make_table(work.folder.parent, "x", "uint8", (ROW_BYTES,), COUNT, seed=9)
    work.identity = "v2"
    work.run()
    assert file.read_bytes() != content


def test_a_spool_that_is_gone(work: Work, whole: Whole) -> None:
    """Its rows are written again."""
    for at in range(200, 5, -5):
        if interrupt(work, at, Killed()) is not None and work.progress()[0][0]:
            (work.folder / "x.spool").unlink()
            work.told.clear()
            resume(work, whole)
            return
    pytest.fail("it was never interrupted behind a part")
