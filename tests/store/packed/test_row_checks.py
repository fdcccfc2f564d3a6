"""The checksum of rows: one definition, any order of summing; damaged outputs are found."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from gnndrive.common.errors import ConfigError, StoreError
from gnndrive.store.format import DATA_OFFSET
from gnndrive.store.packed import row_checks
from gnndrive.store.packed.durable import sync_file_system
from gnndrive.store.packed.gathering import gather, sum_of_rows
from gnndrive.store.packed.row_checks import stored_sum, table_sums, verify_rows
from gnndrive.store.packed.rows import RowPacking
from gnndrive.store.packed.table_parts import Part
from tests.store.packed.packed_tables import MASK, MEMORY, make_table, reserve_all, sum_of

Small = Callable[..., None]


@pytest.mark.parametrize("row_bytes", [1, 2, 3, 4, 7, 8, 9, 16, 100, 511, 512, 1023, 5000])
@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_the_core_against_the_definition(row_bytes: int, dtype: type) -> None:
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
    scattered = gather(part, row_bytes, ids[order] + dtype(1000), 12 + order)
    assert scattered == wanted


def test_the_checksum_sees_what_a_plain_sum_would_not() -> None:
    rows = np.random.default_rng(0).integers(0, 256, (40, 24)).astype(np.uint8)
    rows[5:8] = 0
    sums = {sum_of_rows(rows.reshape(-1), 24, 0), sum_of_rows(rows.reshape(-1), 24, 1)}
    for change in ("swap rows", "swap words", "bit", "shift", "zero"):
        other = rows.copy()
        if change == "swap rows":
            other[[3, 30]] = other[[30, 3]]
        elif change == "swap words":
            other[3] = np.roll(other[3], 8)
        elif change == "bit":
            other[5, 23] ^= 128
        elif change == "shift":
            other = np.roll(other, 1, axis=0)
        else:
            other[9] = 0
        sums.add(sum_of_rows(other.reshape(-1), 24, 0))
    sums.add(sum_of_rows(rows.reshape(-1), 8, 0))
    assert len(sums) == 8


@pytest.mark.parametrize("ids", [[999], [1060], [-1], [2**40]])
def test_an_id_outside_the_part(ids: list[int]) -> None:
    part = Part(1000, 60, np.zeros(600, np.uint8))
    with pytest.raises(OSError, match="ERANGE"):
        gather(part, 10, np.array([1000, *ids]), 0)


@pytest.mark.parametrize("row_bytes", [1, 100, 1023])
def test_outputs_are_verified(
    tmp_path: Path, small: Small, monkeypatch: pytest.MonkeyPatch, row_bytes: int
) -> None:
    rng = np.random.default_rng(2)
    table, _ = make_table(tmp_path, "t", "uint8", (row_bytes,), 2000)
    ids = [np.arange(0, 2000, 3, np.int32), rng.permutation(2000), np.empty(0, np.int64)]
    folder = tmp_path / "p"
    outputs = reserve_all(folder, table, ids)
    small(2 * 4096 + 300 * row_bytes)
    monkeypatch.setattr(row_checks, "STRETCH_BYTES", 10_000)
    sums = RowPacking(table, outputs, folder, "x", MEMORY).run()
    assert table_sums(table, outputs, folder, MEMORY) == sums
    told: list[tuple[str, int, int]] = []
    verify_rows(table, outputs, folder, MEMORY, lambda *each: told.append(each))
    assert told[-1] == ("table", 2000 * row_bytes, 2000 * row_bytes)
    file = outputs[0].file
    own = [each for each in outputs if each.file == file]
    count = sum(len(each.ids) for each in own)
    whole = stored_sum(file, DATA_OFFSET, count, row_bytes, 0)
    assert whole == sum(sums[: len(own)]) & MASK
    for output in outputs[:2]:
        for place in (0, len(output.ids) * row_bytes // 2, len(output.ids) * row_bytes - 1):
            with output.file.open("r+b") as opened:
                opened.seek(output.offset + place)
                byte = opened.read(1)
                opened.seek(output.offset + place)
                opened.write(bytes([byte[0] ^ 1]))
                opened.flush()
                with pytest.raises(StoreError, match=r"rows [0-9]+ to [0-9]+ of .*pack again"):
                    verify_rows(table, outputs, folder, MEMORY)
                opened.seek(output.offset + place)
                opened.write(byte)
    verify_rows(table, outputs, folder, MEMORY)
    outputs[1].file.unlink()
    with pytest.raises(StoreError, match="cannot be opened"):
        verify_rows(table, outputs, folder, MEMORY)


def test_too_little_memory(tmp_path: Path) -> None:
    table, _ = make_table(tmp_path, "t", "uint8", (4,), 10)
    with pytest.raises(ConfigError, match="at least"):
        table_sums(table, [], tmp_path, 1 << 20)


def test_a_failed_sync(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()  # the real one
    with tmp_path.joinpath("f").open("w") as file:
        sync_file_system(file.fileno())
        fd = file.fileno()
    with pytest.raises(OSError, match="EBADF"):
        sync_file_system(fd)
