"""Rows in packed files: reserved, equal to the table's, summed, and durable."""

import errno
import json
import math
import os
import random
import re
import threading
from collections.abc import Sequence
from functools import partial
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import DEFAULT, Mock

import numpy as np
import pytest

from gnndrive.common.errors import ConfigError, ReadError, StoreError
from gnndrive.common.io import direct_file, small_files, write_errors
from gnndrive.common.io.small_files import make_durable
from gnndrive.common.records import TableFile
from gnndrive.store.format import DATA_OFFSET, ArrayInfo, npy_header
from gnndrive.store.layout import row_writer, rows
from gnndrive.store.layout import rows as rows_module
from gnndrive.store.layout.rows import Output, RowPacking, budget_for, divide, reserve
from gnndrive.store.layout.table_parts import Part, gather, sum_of_rows
from tests.interrupted import interrupted
from tests.soak import product
from tests.store.kills import counting, refuse_direct
from tests.store.packed.packs import files_of

MEMORY = 64 << 20
MASK = (1 << 64) - 1
GOLDEN = 0x9E3779B97F4A7C15
WIDE = 1 << 15
Rows = np.ndarray[Any, Any]


def make_table(
    folder: Path, name: str, width: int, count: int, seed: int = 0
) -> tuple[TableFile, Rows]:
    """A table of uint8 [count, width] in a file, and its rows."""
    rows = np.random.default_rng(seed).integers(0, 256, (count, width)).astype(np.uint8)
    path = folder / f"{name}.npy"
    path.write_bytes(npy_header(ArrayInfo(name, "uint8", (count, width), "")) + rows.tobytes())
    return TableFile(str(path), DATA_OFFSET, count, width, "uint8", (width,)), rows


def place_all(
    folder: Path, table: TableFile, ids: Sequence[Rows], name: str = "x", file_bytes: int = 100_000
) -> tuple[list[Output], list[ArrayInfo]]:
    """Outputs for each of `ids` in files of `file_bytes` or more in `folder`, and the files."""
    width, outputs, rows = table.row_bytes, [], list[int]()
    for each in ids:
        if not rows or rows[-1] * width >= file_bytes:
            rows.append(0)
        file = folder / f"rows/{name}/{len(rows) - 1:03}.npy"
        outputs.append(Output(file, DATA_OFFSET + rows[-1] * width, each))
        rows[-1] += len(each)
    return outputs, [
        ArrayInfo(f"rows/{name}/{number:03}", table.dtype, (count, *table.row_shape), "")
        for number, count in enumerate(rows)
    ]


def pack(folder: Path, table: TableFile, ids: Sequence[Rows]) -> RowPacking:
    """A packing of `ids` into reserved files."""
    folder.mkdir(exist_ok=True)
    outputs, infos = place_all(folder, table, ids)
    reserve(folder, infos)
    return RowPacking(table, outputs, folder, "x", MEMORY)


def check_outputs(outputs: Sequence[Output], rows: Rows) -> None:
    """Assert that each output's bytes are the rows'."""
    for output in outputs:
        raw, wanted = output.file.read_bytes(), rows[output.ids].tobytes()
        assert raw[output.offset : output.offset + len(wanted)] == wanted


def sets_order(rng: np.random.Generator, count: int, batches: int) -> Rows:
    """Ids sorted by a random set of batches, then by id: at most 2**batches - 1 runs."""
    ids = np.flatnonzero(rng.random(count) < 0.7)
    masks = rng.integers(1, 1 << batches, len(ids))
    return ids[np.lexsort((ids, masks))].astype(np.int32)


# ---- reserving


ARRAYS = [
    ArrayInfo("rows/x/000", "float32", (1000, 3), ""),
    ArrayInfo("rows/x/001", "float32", (0, 3), ""),
    ArrayInfo("shared/x/000", "bfloat16", (77,), ""),
]


def test_files_have_their_full_size_and_keep_their_rows(tmp_path, file_system_syncs):
    for value in (0, 5):
        reserve(tmp_path, ARRAYS)
        for info in ARRAYS:
            found = np.load(tmp_path / info.file, mmap_mode="r+")
            assert (found.shape, found.dtype) == (info.shape, info.storage)
            assert (tmp_path / info.file).stat().st_size == info.nbytes
            assert np.all(found == value)
            found[:] = 5
    assert file_system_syncs == [str(tmp_path)] * 2
    for nbytes in (0, 100, 5000, 1 << 20):
        os.truncate(tmp_path / "rows/x/000.npy", nbytes)
        reserve(tmp_path, ARRAYS)
        assert np.load(tmp_path / "rows/x/000.npy").shape == (1000, 3)


def test_a_disk_that_is_too_small_is_refused_before_anything_is_made(tmp_path, monkeypatch):
    needed = sum(info.nbytes for info in ARRAYS) + 1_000_000
    for module in (rows_module, write_errors):
        monkeypatch.setattr(module, "free_bytes", lambda folder: needed + (1 << 20) - 1)
    with pytest.raises(StoreError, match=rf"needs {needed:,} more bytes .*free some") as caught:
        reserve(tmp_path, ARRAYS, 1_000_000)
    assert f"{needed + (1 << 20) - 1:,} are free" in str(caught.value)
    assert list(tmp_path.iterdir()) == []
    reserve(tmp_path, ARRAYS, 999_999)
    monkeypatch.setattr(rows, "free_bytes", lambda folder: 0)
    reserve(tmp_path, ARRAYS)
    with pytest.raises(StoreError, match="needs 1 more bytes"):
        reserve(tmp_path, ARRAYS, 1)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EIO])
def test_of_a_disk_that_fills_up_meanwhile_new_files_are_removed(tmp_path, monkeypatch, number):
    reserve(tmp_path, ARRAYS[:1])
    effects = [DEFAULT, DEFAULT, OSError(number, "simulated")]
    failing = Mock(wraps=os.posix_fallocate, side_effect=effects)
    monkeypatch.setattr(os, "posix_fallocate", failing)
    match = r"writing .* failed" if number == errno.EIO else r"needs [0-9,]+ more bytes"
    with pytest.raises(StoreError, match=match):
        reserve(tmp_path, ARRAYS)
    assert list(files_of(tmp_path)) == ["rows/x/000.npy"]


# ---- checksums


def sum_of(rows: Rows, position: int) -> int:
    """The checksum as native/pack.c describes it; rows are uint8 [n, row_bytes]."""
    total, width = 0, rows.shape[1]
    for row in rows.tolist():
        content = 0
        for j in range(math.ceil(width / 8)):
            word = int.from_bytes(bytes(row[8 * j : 8 * j + 8]), "little")
            x = word ^ (GOLDEN * (2 * j + 1) & MASK)
            content += word + (x & 0xFFFFFFFF) * (x >> 32)
        total += _mix((content & MASK) ^ _mix((GOLDEN * position + width) & MASK))
        position += 1
    return total & MASK


def _mix(x: int) -> int:
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 & MASK
    x = (x ^ x >> 27) * 0x94D049BB133111EB & MASK
    return x ^ x >> 31


@product("row_bytes,dtype", [1, 2, 3, 4, 7, 8, 9, 100, 512, 1023], [np.int32, np.int64])
def test_the_core_against_the_definition(row_bytes, dtype):
    rng = np.random.default_rng(row_bytes)
    rows = rng.integers(0, 256, (60, row_bytes)).astype(np.uint8)
    part = Part(1000, 60, rows.reshape(-1))
    ids = rng.integers(0, 60, 90).astype(dtype)
    out = np.zeros(91 * row_bytes, np.uint8)
    wanted = sum_of(rows[ids], 12)
    assert gather(part, row_bytes, ids + dtype(1000), 12, out) == wanted
    assert out.tobytes() == rows[ids].tobytes() + bytes(row_bytes)
    assert gather(part, row_bytes, ids + dtype(1000), 12) == wanted
    assert sum_of_rows(rows[ids].reshape(-1), row_bytes, 12) == wanted
    order = rng.permutation(90)
    assert gather(part, row_bytes, ids[order] + dtype(1000), 12 + order) == wanted


@pytest.mark.parametrize("ids", [[999], [1060], [-1], [2**40]])
def test_an_id_outside_the_part_is_refused(ids):
    part = Part(1000, 60, np.zeros(600, np.uint8))
    with pytest.raises(OSError, match="ERANGE"):
        gather(part, 10, np.array([1000, *ids]), 0)


def test_a_failed_sync(tmp_path, monkeypatch):
    monkeypatch.undo()  # the real one
    make_durable(tmp_path)
    monkeypatch.setattr(small_files, "lib", SimpleNamespace(gd_sync_file_system=lambda fd: -5))
    with pytest.raises(OSError, match="EIO"):
        make_durable(tmp_path)


# ---- packing


@product("row_bytes,direct", [1, 4, 100, 400, 512, 1023, 4096, 5000], [True, False])
def test_all_row_sizes(tmp_path, small, monkeypatch, row_bytes, direct):
    """Through direct and buffered reads and writes, in many parts and slices: ascending ids, none,
    all, one, some twice, in "sets" order, in a random order, reversed."""
    rng = np.random.default_rng(row_bytes)
    count = min(100_000 // row_bytes, 2000)
    table, rows = make_table(tmp_path, "t", row_bytes, count)
    packing = pack(tmp_path / "p", table, ids := [
        np.flatnonzero(rng.random(count) < 0.5).astype(np.int32),
        np.empty(0, np.int64),
        np.arange(count),
        np.array([count - 1], np.int32),
        np.sort(rng.integers(0, count, count)),
        sets_order(rng, count, 4),
        rng.permutation(count).astype(np.int32),
        np.arange(count)[::-1],
        np.concatenate([rng.permutation(count)[:300], np.arange(count)]),
    ])  # fmt: skip
    small(2 * 4096 + count * row_bytes // 7, slice_rows=count // 3)
    monkeypatch.setattr(rows_module, "RUNS_MAX", 16)
    monkeypatch.setattr(rows_module, "RUN_BYTES_MIN", 20_000)
    monkeypatch.setattr(rows_module, "_BLOCK_IDS", 61)
    monkeypatch.setattr(row_writer, "BUFFER_BYTES", 8 * 4096)
    monkeypatch.setattr(row_writer, "_DIRECT_BYTES_MIN", 1)
    monkeypatch.setattr(direct_file, "STRETCH_BYTES", 8192)
    if not direct:
        monkeypatch.setattr(os, "O_DIRECT", 0)
        monkeypatch.setattr(row_writer, "_SYNCED_BYTES_MIN", 1)
    packing = RowPacking(table, packing.outputs, tmp_path / "p", "x", MEMORY)
    sums = packing.run()
    check_outputs(packing.outputs, rows)
    assert packing.spool_bytes > 0
    assert not (tmp_path / "p" / "x.spool").exists()
    for output, each, found in zip(packing.outputs, ids, sums, strict=True):
        at = (output.offset - DATA_OFFSET) // row_bytes
        assert found == sum_of_rows(np.ascontiguousarray(rows[each]).reshape(-1), row_bytes, at)


def test_only_many_short_runs_are_spooled(tmp_path):
    rng = np.random.default_rng(3)
    table, _ = make_table(tmp_path, "t", 4, 20_000)
    for batches, spooled in ((8, False), (9, True)):
        outputs = [Output(tmp_path / "f.npy", DATA_OFFSET, sets_order(rng, 20_000, batches))]
        (piece,) = divide(table, outputs, 1 << 30, tmp_path).pieces
        assert (piece.bounds is None) is spooled
    table, rows = make_table(tmp_path, "t", 512, 6000)
    ids = np.concatenate([rng.permutation(6000)[:1000], np.arange(6000)])
    packing = pack(tmp_path / "p", table, [ids])
    assert 900 * 512 < packing.spool_bytes <= 1000 * 512
    packing.run()
    check_outputs(packing.outputs, rows)


def test_only_the_rows_between_the_ids_are_read(tmp_path, small, monkeypatch):
    table, rows = make_table(tmp_path, "t", 4096, 100)
    small(8 * 4096)
    packing = pack(tmp_path / "p", table, [np.array([40, 42, 60]), np.array([50])])
    read, whole = list[int](), os.preadv

    def counting(fd: int, buffers: Any, offset: int) -> int:
        got = whole(fd, buffers, offset)
        read.extend(range(offset // 4096 - 1, (offset + got) // 4096 - 1))
        return got

    monkeypatch.setattr(os, "preadv", counting)
    packing.run()
    check_outputs(packing.outputs, rows)
    assert sorted(read) == list(range(40, 61))


def test_the_least_memory_is_named_and_works():
    for row_bytes, least in ((1, "67.11MB"), (5000, "67.11MB"), (100 << 20, "839MB")):
        with pytest.raises(ConfigError, match=f"give at least {least}"):
            budget_for((64 << 20) - 1, row_bytes)
        nbytes = round(float(least[:-2]) * 10**6)
        budget = budget_for(nbytes, row_bytes)
        writing = row_writer.BUFFERS * row_writer.buffer_bytes(row_bytes)
        assert budget.part_bytes >= row_bytes + 2 * 4096
        assert writing + 2 * budget.part_bytes + budget.dirty_bytes <= nbytes


def test_outputs_that_cannot_be_are_refused(tmp_path):
    (table, _), file = make_table(tmp_path, "t", 4, 100), tmp_path / "f.npy"
    for outputs, said in (
        ([(0, [0, 100])], "make it again"),
        ([(0, [-1, 3])], "make it again"),
        ([(0, [3, 2**40])], "make it again"),
        ([(0, [0, 1]), (4, range(5))], "overlaps"),
        ([(0, [0, 1]), (9, range(5))], "overlaps"),
        ([(0, [0, 1]), (-4, range(5))], "overlaps"),
        ([(0, np.arange(3, dtype=np.uint8))], "int32 or int64"),
    ):
        given = [Output(file, DATA_OFFSET + at, np.asarray(ids)) for at, ids in outputs]
        with pytest.raises(ConfigError, match=said):
            RowPacking(table, given, tmp_path, "x", MEMORY)


def test_files_that_are_not_reserved_are_refused(tmp_path):
    table, _ = make_table(tmp_path, "t", 4, 100)
    packing = pack(tmp_path / "p", table, [np.arange(100)])
    os.truncate(packing.outputs[0].file, DATA_OFFSET + 399)
    with pytest.raises(StoreError, match=r"4,495 bytes and needs 4,496"):
        packing.run()
    packing.outputs[0].file.unlink()
    with pytest.raises(StoreError, match=r"writing .* failed"):
        packing.run()


def test_a_table_that_cannot_be_read(tmp_path, small, monkeypatch):
    table, rows = make_table(tmp_path, "t", 400, 1000)
    small(50_000)
    packing, whole = pack(tmp_path / "p", table, [np.arange(1000)]), os.preadv

    def failing(fd: int, buffers: Any, offset: int) -> int:
        if offset > 200_000:
            raise OSError(errno.EIO, "simulated")
        return whole(fd, buffers, offset)

    with monkeypatch.context() as patch:
        patch.setattr(os, "preadv", failing)
        with pytest.raises(ReadError, match="EIO"):
            packing.run()
    packing.run()
    check_outputs(packing.outputs, rows)
    os.truncate(table.path, 300_000)
    (tmp_path / "p" / "x.rows.json").unlink()
    with pytest.raises(StoreError, match="shorter"):
        packing.run()


def test_a_file_system_that_refuses_direct_reads_and_writes(tmp_path, small, monkeypatch):
    """It accepts the flag when a file is opened, and refuses each read and write."""
    table, rows = make_table(tmp_path, "t", 400, 1000)
    small(150_000)
    packing = pack(tmp_path / "p", table, [np.arange(1000)])
    try:
        os.close(os.open(table.path, os.O_RDONLY | os.O_DIRECT))
        expected = {"pwrite", "preadv"}
    except OSError:  # this one refuses the flag, too
        expected = set()
    refused = refuse_direct(monkeypatch, "pwrite", "preadv")
    packing.run()
    check_outputs(packing.outputs, rows)
    assert refused == expected


def test_dirty_pages_are_bounded_and_small_parts_share_a_sync(
    tmp_path, small, monkeypatch, file_system_syncs
):
    table, _ = make_table(tmp_path, "t", 100, 1000)
    counts, given = [], [(1 << 20, 1 << 30, 1), (1 << 20, 100_000, 1), (10_000, 1 << 30, 35_000)]
    for part_bytes, dirty_bytes, sync_bytes in given:
        small(2 * 4096 + part_bytes, dirty_bytes=dirty_bytes)
        monkeypatch.setattr(rows_module, "SYNC_BYTES", sync_bytes)
        told = list[int]()
        packing = pack(tmp_path / f"{len(counts)}", table, [np.arange(0, 1000, 10)] * 100)
        file_system_syncs.clear()
        packing.run(lambda what, done, total, told=told: told.append(done))
        counts.append(len(file_system_syncs))
        assert set(file_system_syncs) == {str(packing.folder)}
    assert counts[1] >= counts[0] + 5
    assert (counts[2], told) == (4, [0, 400_000, 800_000, 1_000_000])


# ---- interrupted packing


class Cut(BaseException):
    """Stands for a power cut."""


class Work:
    """Reserving and writing two tables, from the beginning.

    Attributes:
        told: what progress was told, by phase.
        calls: how many calls that change the disk the last run has made.
    """

    def __init__(self, folder: Path) -> None:
        rng, count = np.random.default_rng(11), 500
        self.folder = folder / "p"
        self.folder.mkdir()
        self.tables = {
            name: make_table(folder, name, 400, count, seed)[0]
            for seed, name in enumerate(("x", "y"))
        }
        self.ids = [
            np.flatnonzero(rng.random(count) < 0.5),
            sets_order(rng, count, 4),
            rng.permutation(count).astype(np.int32),
        ]
        self.told: dict[str, list[int]] = {}
        self.identity, self.calls = "v1", 0
        self.sums, self.made = self.run(), self.contents()

    def contents(self) -> dict[str, bytes]:
        """The files, but for records of progress."""
        found = files_of(self.folder)
        return {name: raw for name, raw in found.items() if not name.endswith(".rows.json")}

    def run(self) -> list[list[int]]:
        def progress(what: str, done: int, total: int) -> None:
            self.told.setdefault(what, []).append(done)

        sums = []
        for name, table in self.tables.items():
            outputs, infos = place_all(self.folder, table, self.ids, name, 150_000)
            packing = RowPacking(table, outputs, self.folder, name, MEMORY, identity=self.identity)
            reserve(self.folder, infos, packing.spool_bytes)
            sums.append(packing.run(progress))
        return sums

    def interrupt(self, at: int, error: BaseException) -> BaseException | None:
        """Pack into an empty folder with an error at call `at`; returns what was raised, and leaves
        what the disk holds after a power cut: what was not synced is lost."""
        for path in self.folder.rglob("*.*"):
            if path.suffix == ".npy" and at > 16:  # reserved already
                path.write_bytes(b"\xee" * path.stat().st_size)
            else:
                path.unlink()
        self.told, self.calls = {}, 0
        undo: list[tuple[Path, int, bytes]] = []
        pwrite = os.pwrite

        def count() -> None:
            self.calls += 1
            if self.calls >= at:
                raise error

        def write(fd: int, view: Any, offset: int) -> int:
            path = Path(os.readlink(f"/proc/self/fd/{fd}"))
            undo.append((path, offset, path.read_bytes()[offset : offset + len(view)]))
            return pwrite(fd, view, offset)

        def sync(folder: Path) -> None:
            count()
            undo.clear()

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(os, "pwrite", write)
            counting(patch.setattr, count)
            for module in (rows_module, row_writer):
                patch.setattr(module, "make_durable", sync)
            try:
                self.run()
            except (Cut, StoreError) as raised:
                for path, offset, before in reversed(undo):
                    with path.open("r+b") as file:
                        file.seek(offset)
                        file.write(before)
                return raised
        return None

    def resume(self) -> None:
        """Pack again: same sums, same bytes, and no part is repeated that had been reported."""
        before, self.told = self.told, {}
        assert self.run() == self.sums
        assert self.contents() == self.made
        for what, done in before.items():
            assert what not in self.told or self.told[what][0] >= done[-1]
        told = {what: list(done) for what, done in self.told.items()}
        assert self.run() == self.sums, "once more, when all is done"
        assert self.told == told


@pytest.fixture
def work(tmp_path, small, monkeypatch):
    small(50_000, slice_rows=200)
    monkeypatch.setattr(row_writer, "BUFFER_BYTES", 8 * 4096)
    monkeypatch.setattr(row_writer, "_DIRECT_BYTES_MIN", 4096)
    monkeypatch.setattr(rows_module, "RUNS_MAX", 16)  # so that rows are spooled
    return Work(tmp_path)


def test_a_power_cut_or_a_failing_disk_at_any_write_or_sync(work, seeds):
    assert work.interrupt(1 << 30, Cut()) is None
    calls = work.calls
    assert calls > 100
    errors = (errno.ENOSPC, errno.EDQUOT, errno.EIO)
    for seed in seeds(4):
        at, number = random.Random(seed).randint(1, calls), errors[seed % 3]
        if seed % 2:
            assert isinstance(work.interrupt(at, Cut()), Cut)
        else:
            raised = work.interrupt(at, OSError(number, "simulated"))
            full = "the disk is too full for .*the same again"
            wanted = full if number != errno.EIO else "writing .* failed .*run the same again"
            assert re.search(wanted, str(raised)), raised
            assert str(work.folder) in str(raised)
        work.resume()


def test_a_record_of_something_else_is_ignored(work, tmp_path):
    """Other outputs, another content of the table, another file, or no record at all."""
    record, file = work.folder / "x.rows.json", work.folder / "rows/x/000.npy"
    assert json.loads(record.read_text())["files"] == ["rows/x/000.npy", "rows/x/001.npy"]
    for text in ("", "[]", '{"version": 1, "key": 5}'):
        record.write_text(text)
        work.told.clear()
        work.resume()
    file.unlink()
    work.told.clear()
    work.resume()
    make_table(tmp_path, "x", 400, 500, seed=9)
    work.identity = "v2"
    work.run()
    assert files_of(work.folder)["rows/x/000.npy"] != work.made["rows/x/000.npy"]


def test_rows_of_a_spool_that_is_gone_are_written_again(work):
    assert work.interrupt(1 << 30, Cut()) is None
    for at in range(work.calls // 2, 5, -5):
        work.interrupt(at, Cut())
        record = work.folder / "x.rows.json"
        if record.exists() and (work.folder / "x.spool").exists():
            assert json.loads(record.read_text())["rows"]
            (work.folder / "x.spool").unlink()
            work.told.clear()
            work.resume()
            return
    pytest.fail("it was never interrupted behind a part")


def test_an_interrupt_at_any_point_of_writing_leaves_threads_that_end(tmp_path):
    (tmp_path / "rows").write_bytes(bytes(WIDE))

    def write(writer: row_writer.RowWriter) -> None:
        with writer:
            writer.fill(tmp_path / "rows", 0, 8, lambda done, count, out: out.fill(1))

    for number in count():
        writer = row_writer.RowWriter(tmp_path, WIDE // 8, MEMORY)
        there_is_one = interrupted(
            partial(write, writer), number, "/row_writer.py", "/futures/thread.py", "/threading.py"
        )
        ending = threading.Thread(target=writer._threads.shutdown, daemon=True)
        ending.start()
        ending.join(60)
        assert not ending.is_alive(), "a thread of the writer waits for ever"
        if not there_is_one:
            break
    assert number > 30
