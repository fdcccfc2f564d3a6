"""Tables of random rows, outputs of them, and what the outputs' files must hold."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from gnndrive.common.records import TableFile
from gnndrive.store.format import DATA_OFFSET, ArrayInfo, npy_header
from gnndrive.store.packed.outputs import Output
from gnndrive.store.packed.reserving import reserve

MEMORY = 64 << 20
MASK = (1 << 64) - 1
GOLDEN = 0x9E3779B97F4A7C15


def make_table(
    folder: Path, name: str, dtype: str, row_shape: tuple[int, ...], count: int, seed: int = 0
) -> tuple[TableFile, np.ndarray[Any, Any]]:
    """A table in a file, and the bytes of its rows, uint8 [count, row_bytes]."""
    info = ArrayInfo(name, dtype, (count, *row_shape), "")
    width = info.row_bytes
    rows = np.random.default_rng(seed).integers(0, 256, (count, width)).astype(np.uint8)
    if dtype == "bool":
        rows &= 1
    path = folder / f"{name}.npy"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(npy_header(info) + rows.tobytes())
    return TableFile(str(path), DATA_OFFSET, count, width, dtype, row_shape), rows


def place_all(
    folder: Path,
    table: TableFile,
    ids: Sequence[np.ndarray[Any, Any]],
    name: str = "x",
    file_bytes: int = 100_000,
) -> tuple[list[Output], list[ArrayInfo]]:
    """Outputs for each of `ids` in files of `file_bytes` or more in `folder`, and the files."""
    width, outputs, rows = table.row_bytes, [], list[int]()
    for each in ids:
        if not rows or rows[-1] * width >= file_bytes:
            rows.append(0)
        file = folder / f"rows/{name}/{len(rows) - 1:03}.npy"
        outputs.append(Output(file, DATA_OFFSET + rows[-1] * width, each))
        rows[-1] += len(each)
    infos = [
        ArrayInfo(f"rows/{name}/{number:03}", table.dtype, (count, *table.row_shape), "")
        for number, count in enumerate(rows)
    ]
    return outputs, infos


def reserve_all(
    folder: Path, table: TableFile, ids: Sequence[np.ndarray[Any, Any]], name: str = "x"
) -> list[Output]:
    """The same, in reserved files."""
    folder.mkdir(exist_ok=True)
    outputs, infos = place_all(folder, table, ids, name)
    reserve(folder, infos)
    return outputs


def contents(folder: Path) -> dict[str, bytes]:
    """The files below a folder, but for records of progress."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not path.name.endswith(".rows.json")
    }


def check_outputs(outputs: Sequence[Output], rows: np.ndarray[Any, Any]) -> None:
    """Assert that each output's bytes are the rows'."""
    for output in outputs:
        raw, wanted = output.file.read_bytes(), rows[output.ids].tobytes()
        assert raw[output.offset : output.offset + len(wanted)] == wanted
        assert np.load(output.file, mmap_mode="r").dtype.itemsize > 0


def sum_of(rows: np.ndarray[Any, Any], position: int) -> int:
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


def sets_order(rng: np.random.Generator, count: int, batches: int) -> np.ndarray[Any, Any]:
    """Ids sorted by a random set of batches, then by id: at most 2**batches - 1 runs."""
    ids = np.flatnonzero(rng.random(count) < 0.7)
    masks = rng.integers(1, 1 << batches, len(ids))
    return ids[np.lexsort((ids, masks))].astype(np.int32)
