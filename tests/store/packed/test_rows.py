"""Rows in packed files equal the table's: all dtypes, row sizes, orders, budgets."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gnndrive.common.errors import ConfigError, ReadError, StoreError
from gnndrive.store.format import DATA_OFFSET
from gnndrive.store.packed import outputs as outputs_module
from gnndrive.store.packed import row_writer, table_parts
from gnndrive.store.packed import rows as rows_module
from gnndrive.store.packed.outputs import Output, divide
from gnndrive.store.packed.rows import RowPacking, budget_for
from tests.store.packed.packed_tables import (
    MASK,
    MEMORY,
    check_outputs,
    contents,
    make_table,
    reserve_all,
    sets_order,
    sum_of,
)

DTYPES = (
    "bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "float16",
    "bfloat16", "float32", "float64",
)  # fmt: skip
ROW_BYTES = (1, 4, 100, 400, 512, 1023, 4096, 5000)
Small = Callable[..., None]


def some_ids(rng: np.random.Generator, count: int) -> list[np.ndarray[Any, Any]]:
    """Ascending ids, none, all, one, some twice, in "sets" order, in a random order."""
    return [
        np.flatnonzero(rng.random(count) < 0.5).astype(np.int32),
        np.empty(0, np.int64),
        np.arange(count),
        np.array([count - 1], np.int32),
        np.sort(rng.integers(0, count, count)),
        sets_order(rng, count, 4),
        rng.permutation(count).astype(np.int32),
        np.concatenate([rng.permutation(count)[:300], np.arange(count)]),
    ]


@pytest.mark.parametrize("row_bytes", ROW_BYTES)
@pytest.mark.parametrize("direct", [True, False])
def test_all_row_sizes(
    tmp_path: Path,
    small: Small,
    monkeypatch: pytest.MonkeyPatch,
    row_bytes: int,
    direct: bool,
) -> None:
    """Through direct and buffered reads and writes, in many parts and slices."""
    rng = np.random.default_rng(row_bytes)
    count = min(400_000 // row_bytes, 5000)
    table, rows = make_table(tmp_path, "t", "uint8", (row_bytes,), count)
    ids = some_ids(rng, count)
    outputs = reserve_all(tmp_path / "p", table, ids)
    small(2 * 4096 + count * row_bytes // 7, slice_rows=count // 3)
    monkeypatch.setattr(outputs_module, "RUNS_MAX", 16)
    monkeypatch.setattr(outputs_module, "RUN_BYTES_MIN", 20_000)
    monkeypatch.setattr(outputs_module, "_BLOCK_IDS", 61)
    monkeypatch.setattr(row_writer, "BUFFER_BYTES", 8 * 4096)
    monkeypatch.setattr(row_writer, "_DIRECT_BYTES_MIN", 1)
    monkeypatch.setattr(table_parts, "STRETCH_BYTES", 8192)
    if not direct:
        monkeypatch.setattr(os, "O_DIRECT", 0)
        monkeypatch.setattr(row_writer, "_SYNCED_BYTES_MIN", 1)
    packing = RowPacking(table, outputs, tmp_path / "p", "x", MEMORY)
    sums = packing.run()
    check_outputs(outputs, rows)
    assert packing.spool_bytes > 0
    assert not (tmp_path / "p" / "x.spool").exists()
    for output, found in zip(outputs, sums, strict=True):
        assert found == sum_of(rows[output.ids], (output.offset - DATA_OFFSET) // row_bytes)


@pytest.mark.parametrize("dtype", DTYPES)
def test_all_dtypes(tmp_path: Path, small: Small, dtype: str) -> None:
    """The files are arrays of the dtype, and hold the table's values; several tables."""
    rng = np.random.default_rng(1)
    small(20_000)
    for name, shape in (("x", (3, 5)), ("y", ())):
        table, rows = make_table(tmp_path, name, dtype, shape, 3000)
        outputs = reserve_all(tmp_path / "p", table, some_ids(rng, 3000), name)
        RowPacking(table, outputs, tmp_path / "p", name, MEMORY).run()
        check_outputs(outputs, rows)
        stored = np.load(table.path)
        for output in outputs:
            found, first = np.load(output.file), output.position(table.row_bytes)
            wanted = stored[output.ids]
            assert found.dtype == stored.dtype
            assert found[first : first + len(wanted)].tobytes() == wanted.tobytes()


def test_the_sum_of_a_file_is_that_of_its_outputs(tmp_path: Path, small: Small) -> None:
    table, rows = make_table(tmp_path, "t", "float32", (3,), 900)
    ids = [np.arange(0, 900, 2), np.arange(1, 900, 2), np.arange(899, -1, -1)]
    outputs = reserve_all(tmp_path / "p", table, ids)
    assert len({output.file for output in outputs}) == 1
    small(9000)
    sums = RowPacking(table, outputs, tmp_path / "p", "x", MEMORY).run()
    assert sum(sums) & MASK == sum_of(rows[np.concatenate(ids)], 0)


def test_few_runs_need_no_spool(tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    table, _ = make_table(tmp_path, "t", "int32", (), 20_000)
    for batches, spooled in ((8, False), (9, True)):
        ids = sets_order(rng, 20_000, batches)
        outputs = [Output(tmp_path / "f.npy", DATA_OFFSET, ids)]
        division = divide(table, outputs, 1 << 30, tmp_path)
        assert len(division.pieces) == 1
        assert (division.pieces[0].bounds is None) is spooled


def test_long_runs_of_a_disordered_output_are_not_spooled(tmp_path: Path) -> None:
    rng = np.random.default_rng(4)
    table, rows = make_table(tmp_path, "t", "uint8", (512,), 6000)
    ids = np.concatenate([rng.permutation(6000)[:1000], np.arange(6000)])
    outputs = reserve_all(tmp_path / "p", table, [ids])
    packing = RowPacking(table, outputs, tmp_path / "p", "x", MEMORY)
    assert 900 * 512 < packing.spool_bytes <= 1000 * 512
    packing.run()
    check_outputs(outputs, rows)


def test_only_the_rows_between_the_ids_are_read(
    tmp_path: Path, small: Small, monkeypatch: pytest.MonkeyPatch
) -> None:
    table, rows = make_table(tmp_path, "t", "uint8", (4096,), 100)
    outputs = reserve_all(tmp_path / "p", table, [np.array([40, 42, 60]), np.array([50])])
    small(8 * 4096)
    read, whole = [], os.preadv

    def counting(fd: int, buffers: Any, offset: int) -> int:
        got = whole(fd, buffers, offset)
        read.append((offset, got))
        return got

    monkeypatch.setattr(os, "preadv", counting)
    RowPacking(table, outputs, tmp_path / "p", "x", MEMORY).run()
    check_outputs(outputs, rows)
    spans = [(at // 4096 - 1, got // 4096) for at, got in read]
    assert sorted(row for at, n in spans for row in range(at, at + n)) == list(range(40, 61))


def test_mapped_ids(tmp_path: Path, small: Small) -> None:
    table, rows = make_table(tmp_path, "t", "uint8", (7,), 5000)
    np.save(tmp_path / "ids.npy", np.arange(0, 5000, 3, np.int32))
    ids = np.load(tmp_path / "ids.npy", mmap_mode="r")
    outputs = reserve_all(tmp_path / "p", table, [ids, ids[::-1]])
    small(10_000)
    RowPacking(table, outputs, tmp_path / "p", "x", MEMORY).run()
    check_outputs(outputs, rows)


def test_progress(tmp_path: Path, small: Small) -> None:
    table, _ = make_table(tmp_path, "t", "uint8", (100,), 5000)
    shuffled = np.random.default_rng(5).permutation(5000)
    outputs = reserve_all(tmp_path / "p", table, [np.arange(5000), shuffled])
    small(50_000)
    told: list[tuple[str, int, int]] = []
    packing = RowPacking(table, outputs, tmp_path / "p", "x", MEMORY)
    packing.run(lambda *each: told.append(each))
    for what, nbytes in (("rows x", 1_000_000), ("order x", packing.spool_bytes)):
        done = [each[1] for each in told if each[0] == what]
        assert done == sorted(done)
        assert {each[2] for each in told if each[0] == what} == {nbytes}
        assert (done[0], done[-1]) == (0, nbytes)
        assert len(done) > 10


@pytest.mark.parametrize(
    ("row_bytes", "least"), [(1, "67.11MB"), (5000, "67.11MB"), (100 << 20, "839MB")]
)
def test_too_little_memory(row_bytes: int, least: str) -> None:
    """The least that works is named, and works."""
    with pytest.raises(ConfigError, match=f"give at least {least}"):
        budget_for((64 << 20) - 1, row_bytes)
    nbytes = round(float(least[:-2]) * 10**6)
    budget = budget_for(nbytes, row_bytes)
    writing = row_writer.BUFFERS * row_writer.buffer_bytes(row_bytes)
    assert budget.part_bytes >= row_bytes + 2 * 4096
    assert writing + 2 * budget.part_bytes + budget.dirty_bytes <= nbytes


@pytest.mark.parametrize("ids", [[0, 100], [-1, 3], [3, 2**40]])
def test_an_id_that_is_no_row(tmp_path: Path, ids: list[int]) -> None:
    table, _ = make_table(tmp_path, "t", "uint8", (4,), 100)
    outputs = reserve_all(tmp_path / "p", table, [np.array(ids)])
    with pytest.raises(ConfigError, match="record the batches again"):
        RowPacking(table, outputs, tmp_path / "p", "x", MEMORY)


@pytest.mark.parametrize("offset", [DATA_OFFSET + 4, DATA_OFFSET + 9, DATA_OFFSET - 4])
def test_outputs_that_overlap(tmp_path: Path, offset: int) -> None:
    table, _ = make_table(tmp_path, "t", "uint8", (4,), 100)
    file = tmp_path / "f.npy"
    outputs = [Output(file, DATA_OFFSET, np.arange(2)), Output(file, offset, np.arange(5))]
    with pytest.raises(ConfigError, match="overlaps"):
        RowPacking(table, outputs, tmp_path, "x", MEMORY)


def test_other_dtypes_of_ids(tmp_path: Path) -> None:
    table, _ = make_table(tmp_path, "t", "uint8", (4,), 100)
    outputs = [Output(tmp_path / "f.npy", DATA_OFFSET, np.arange(3, dtype=np.uint8))]
    with pytest.raises(ConfigError, match="int32 or int64"):
        RowPacking(table, outputs, tmp_path, "x", MEMORY)


def test_files_that_are_not_reserved(tmp_path: Path) -> None:
    table, _ = make_table(tmp_path, "t", "uint8", (4,), 100)
    outputs = reserve_all(tmp_path / "p", table, [np.arange(100)])
    packing = RowPacking(table, outputs, tmp_path / "p", "x", MEMORY)
    os.truncate(outputs[0].file, DATA_OFFSET + 399)
    with pytest.raises(StoreError, match=r"4,495 bytes and needs 4,496"):
        packing.run()
    outputs[0].file.unlink()
    with pytest.raises(StoreError, match=r"writing .* failed"):
        packing.run()


def test_a_table_that_cannot_be_read(
    tmp_path: Path, small: Small, monkeypatch: pytest.MonkeyPatch
) -> None:
    table, rows = make_table(tmp_path, "t", "uint8", (400,), 1000)
    outputs = reserve_all(tmp_path / "p", table, [np.arange(1000)])
    small(50_000)
    packing, whole = RowPacking(table, outputs, tmp_path / "p", "x", MEMORY), os.preadv

    def failing(fd: int, buffers: Any, offset: int) -> int:
        if offset > 200_000:
            raise OSError(errno.EIO, "simulated")
        return whole(fd, buffers, offset)

    with monkeypatch.context() as patch:
        patch.setattr(os, "preadv", failing)
        with pytest.raises(ReadError, match="EIO"):
            packing.run()
    packing.run()
    check_outputs(outputs, rows)
    os.truncate(table.path, 300_000)
    (tmp_path / "p" / "x.rows.json").unlink()
    with pytest.raises(StoreError, match="shorter"):
        packing.run()


def opens_direct(path: str) -> bool:
    """Whether the file system of `path` takes O_DIRECT when a file is opened."""
    try:
        os.close(os.open(path, os.O_RDONLY | os.O_DIRECT))
    except OSError:
        return False
    return True


def test_a_file_system_that_refuses_direct_reads_and_writes(
    tmp_path: Path, small: Small, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It accepts the flag when a file is opened, and refuses each read and write."""
    table, rows = make_table(tmp_path, "t", "uint8", (400,), 1000)
    outputs = reserve_all(tmp_path / "p", table, [np.arange(1000)])
    small(150_000)
    refused = []

    def refusing(function: Callable[..., int]) -> Callable[..., int]:
        def wrapped(fd: int, *arguments: Any) -> int:
            with open(f"/proc/self/fdinfo/{fd}", encoding="ascii") as lines:
                flags = next(int(line.split()[1], 8) for line in lines if "flags" in line)
            if flags & os.O_DIRECT:
                refused.append(function)
                raise OSError(errno.EINVAL, "simulated")
            return function(fd, *arguments)

        return wrapped

    whole = {os.pwrite, os.preadv} if opens_direct(table.path) else set()
    for name in ("pwrite", "preadv"):
        monkeypatch.setattr(os, name, refusing(getattr(os, name)))
    RowPacking(table, outputs, tmp_path / "p", "x", MEMORY).run()
    check_outputs(outputs, rows)
    assert set(refused) == whole


def test_many_files(tmp_path: Path, small: Small) -> None:
    """More than are open at the same time; all descriptors are closed."""
    table, rows = make_table(tmp_path, "t", "uint8", (100,), 1000)
    outputs = reserve_all(tmp_path / "p", table, [np.arange(1000)] * 70)
    assert len({output.file for output in outputs}) == 70
    small(50_000, dirty_bytes=100_000)
    before = len(os.listdir("/proc/self/fd"))
    RowPacking(table, outputs, tmp_path / "p", "x", MEMORY).run()
    assert len(os.listdir("/proc/self/fd")) == before
    check_outputs(outputs, rows)


def test_dirty_pages_are_bounded(
    tmp_path: Path, small: Small, file_system_syncs: list[str]
) -> None:
    table, _ = make_table(tmp_path, "t", "uint8", (100,), 1000)
    ids = [np.arange(0, 1000, 10)] * 100
    counts = []
    for dirty_bytes in (1 << 30, 100_000):
        outputs = reserve_all(tmp_path / "p", table, ids)
        file_system_syncs.clear()
        small(1 << 20, dirty_bytes=dirty_bytes)
        (tmp_path / "p" / "x.rows.json").unlink(missing_ok=True)
        RowPacking(table, outputs, tmp_path / "p", "x", MEMORY).run()
        counts.append(len(file_system_syncs))
        assert set(file_system_syncs) == {str(tmp_path / "p")}
    assert counts[1] >= counts[0] + 5


def test_small_parts_share_a_sync(
    tmp_path: Path, small: Small, monkeypatch: pytest.MonkeyPatch, file_system_syncs: list[str]
) -> None:
    table, rows = make_table(tmp_path, "t", "uint8", (100,), 1000)
    outputs = reserve_all(tmp_path / "p", table, [np.arange(1000)])
    small(2 * 4096 + 10_000)
    monkeypatch.setattr(rows_module, "SYNC_BYTES", 35_000)
    file_system_syncs.clear()
    told: list[int] = []
    packing = RowPacking(table, outputs, tmp_path / "p", "x", MEMORY)
    packing.run(lambda what, done, total: told.append(done))
    check_outputs(outputs, rows)
    assert told == [0, 40_000, 80_000, 100_000]
    assert len(file_system_syncs) == 4  # and one at the end


def test_nothing_to_write(tmp_path: Path) -> None:
    table, _ = make_table(tmp_path, "t", "uint8", (100,), 10)
    assert RowPacking(table, [], tmp_path, "x", MEMORY).run() == []
    outputs = reserve_all(tmp_path / "p", table, [np.empty(0, np.int32)])
    assert RowPacking(table, outputs, tmp_path / "p", "x", MEMORY).run() == [0]
    assert list(contents(tmp_path / "p")) == ["rows/x/000.npy"]
