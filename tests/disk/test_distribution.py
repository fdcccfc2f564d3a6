"""Cold rows as deltas, and distributing rows to batches, against numpy."""

import errno
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gnndrive.common.records import Int64Array
from gnndrive.disk.distribution import (
    Bytes,
    Deltas,
    Distribution,
    cold_rows,
    decode_rows,
    find_rows,
)

BLOCK_ROWS = 7


def encoded(rows: Any) -> Deltas:
    """The deltas of rows that rise, by the format's definition."""
    found = bytearray()
    for gap in np.diff(np.asarray(rows, np.int64), prepend=-1) - 1:
        left = int(gap)
        while left > 127:
            found.append(left & 127 | 128)
            left >>= 7
        found.append(left)
    return np.frombuffer(bytes(found), np.uint8).copy(), len(rows)


def errno_of(call: Callable[..., Any], *arguments: Any) -> int | None:
    """Call it; the errno of the OSError that it raises, or 0."""
    try:
        call(*arguments)
    except OSError as error:
        return error.errno
    return 0


def no_bits(rows: int) -> Bytes:
    return np.zeros((rows + 7) // 8, np.uint8)


# ---- the rows of a batch


@pytest.mark.parametrize("rows", [1, 9, 300, 5000, 3_000_000])
def test_cold_rows_are_those_of_low_classes_and_those_not_seen(rows: int):
    rng = np.random.default_rng(rows)
    classes, seen, marked = rng.integers(0, 256, rows, np.uint8), no_bits(rows), np.zeros(rows, "?")
    for threshold in (0, 100, 256, 100):
        node = rng.integers(0, rows, rng.integers(0, 2 * min(rows, 3000)))
        found = cold_rows(node, classes, threshold, seen)
        cold = np.unique(node[(classes[node] < threshold) | ~marked[node]])
        marked[node[classes[node] >= threshold]] = True
        assert np.array_equal(decode_rows(found), cold)
        expected, count = encoded(cold)
        assert (found[0].tobytes(), found[1]) == (expected.tobytes(), count)
        assert np.array_equal(np.unpackbits(seen, count=rows, bitorder="little"), marked)


def test_of_threads_one_gets_a_row_that_was_not_seen():
    rng = np.random.default_rng(1)
    rows = 20_000
    classes, seen = np.zeros(rows, np.uint8), no_bits(rows)
    with ThreadPoolExecutor(4) as threads:
        orders = [rng.permutation(rows) for _ in range(4)]
        found = threads.map(lambda node: decode_rows(cold_rows(node, classes, 0, seen)), orders)
    assert np.array_equal(np.sort(np.concatenate(list(found))), np.arange(rows))


def test_rows_beyond_32_bits(tmp_path: Path):
    rows = (1 << 32) + (1 << 30)
    for name, size in (("classes", rows), ("seen", rows // 8)):
        with open(tmp_path / name, "wb") as file:
            file.truncate(size)  # without data: it takes no space
    classes, seen = (np.memmap(tmp_path / name, np.uint8, "r+") for name in ("classes", "seen"))
    node = np.array([rows - 1, 5, 1 << 32, (1 << 31) - 1, (1 << 32) + 1])
    assert np.array_equal(decode_rows(cold_rows(node, classes, 1, seen)), np.sort(node))


@pytest.mark.parametrize("node", [-1, 100, 1 << 62])
def test_a_node_out_of_range_is_refused(node: int):
    nodes = np.array([3, node])
    assert errno_of(cold_rows, nodes, np.zeros(100, np.uint8), 0, no_bits(100)) == errno.ERANGE
    with pytest.raises(ValueError, match="bits"):
        cold_rows(nodes, np.zeros(100, np.uint8), 0, no_bits(80))


def damaged(deltas: Bytes, rng: np.random.Generator) -> Bytes:
    """The bytes with one changed, cut, or with one more."""
    at, found = int(rng.integers(len(deltas))), deltas.copy()
    found[at] ^= 1 << rng.integers(8)
    return [found, deltas[:at].copy(), np.append(deltas, rng.integers(256, dtype=np.uint8))][
        rng.integers(3)
    ]


def test_damaged_deltas_are_refused_or_other_rows():
    rng = np.random.default_rng(2)
    codes: Counter[int | None] = Counter()
    for _ in range(500):
        encoding, count = encoded(np.unique(rng.integers(0, 1 << int(rng.integers(4, 60)), 20)))
        deltas = damaged(encoding, rng), count
        codes[code := errno_of(decode_rows, deltas)] += 1
        if code == 0:
            found = decode_rows(deltas)
            assert len(found) == count
            assert (np.diff(found, prepend=-1) > 0).all()
    assert codes.keys() == {0, errno.EINVAL}


@pytest.mark.parametrize(
    ("deltas", "count"),
    [([], 1), ([0], 0), ([255] * 8 + [127, 0], 2), ([128] * 9 + [1], 1), ([0], 2), ([0, 0], 1)],
)
def test_deltas_that_are_none(deltas: list[int], count: int):
    """Too short, too long, beyond 2^63 - 1, a number of ten bytes."""
    assert errno_of(decode_rows, (np.array(deltas, np.uint8), count)) == errno.EINVAL


def test_the_greatest_row():
    rows = np.array([0, (1 << 63) - 1])
    assert np.array_equal(decode_rows(encoded(rows)), rows)


@pytest.mark.parametrize("span", [1, 64, 3000, 1 << 20, 1 << 45])
def test_rows_are_found(span: int):
    rng = np.random.default_rng(span)
    for size in (0, 1, 5, 2000):
        ids = np.unique(rng.integers(-span, span, size))
        rows = np.unique(np.append(rng.integers(-2 * span, 2 * span, size), ids[: size // 2]))
        rng.shuffle(rows)
        places = np.searchsorted(ids, rows)
        there = (np.append(ids, 2 * span)[places] == rows) if size else np.zeros(len(rows), "?")
        assert np.array_equal(find_rows(ids, rows), np.where(there, places, -1))


def test_what_cannot_be_found():
    assert errno_of(find_rows, np.array([2, 1]), np.array([1])) == errno.EINVAL
    ids = np.array([0, (1 << 63) - 1])
    assert errno_of(find_rows, ids, np.arange(3)) == errno.EOVERFLOW
    assert find_rows(ids, ids[1:]).tolist() == [1]


# ---- from the table to the batches


class Written:
    """Copies a table, part by part, with `spares` buffers at a time; keeps the blocks' bytes."""

    def __init__(self, batches: list[Int64Array], row_bytes: int, spares: int) -> None:
        self.distribution = Distribution(row_bytes, BLOCK_ROWS, [encoded(each) for each in batches])
        buffers = len(batches) + spares
        self.memory = np.full((buffers, BLOCK_ROWS * row_bytes + 5), 255, np.uint8)
        self.spare = list(range(buffers))
        self.spares, self.row_bytes = spares, row_bytes
        self.blocks: list[list[bytes]] = [[] for _ in batches]

    def copy(self, part: Bytes, first: int) -> None:
        done = False
        while not done:
            spare = np.array(self.spare[: self.spares], np.int32)
            full, taken, done = self.distribution.copy(part, first, len(part), self.memory, spare)
            assert done or taken == len(spare)
            assert (full["rows"] == BLOCK_ROWS).all()
            del self.spare[:taken]
            self.take(full)

    def take(self, blocks: Any) -> None:
        for block in blocks:
            of_batch = self.blocks[block["batch"]]
            assert block["ordinal"] == len(of_batch)
            buffer = self.memory[block["buffer"]]
            of_batch.append(buffer[: block["rows"] * self.row_bytes].tobytes())
            assert (buffer[BLOCK_ROWS * self.row_bytes :] == 255).all()
            self.spare.append(int(block["buffer"]))


@pytest.mark.parametrize("row_bytes", [1, 4, 12, 512, 4096])
@pytest.mark.parametrize("spares", [1, 3, 50])
@pytest.mark.parametrize("start", [0, (1 << 40) - 150])
def test_each_batch_gets_its_rows_in_blocks(row_bytes: int, spares: int, start: int):
    rng = np.random.default_rng(row_bytes + spares)
    count = 300
    table = rng.integers(0, 256, (count, row_bytes), np.uint8)
    sizes = [0, 1, BLOCK_ROWS, BLOCK_ROWS + 1, 3 * BLOCK_ROWS, count, *rng.integers(0, count, 6)]
    batches = [start + np.sort(rng.permutation(count)[:size]) for size in sizes]
    written = Written(batches, row_bytes, spares)
    at = 0
    while at < count:
        end = min(at + int(rng.integers(0, 80)), count)
        written.copy(table[at:end], start + at)
        at = end
    written.take(written.distribution.flush())
    assert sorted(written.spare) == list(range(len(batches) + spares))
    for rows, blocks in zip(batches, written.blocks, strict=True):
        assert b"".join(blocks) == table[rows - start].tobytes()
        assert len(blocks) == -(-len(rows) // BLOCK_ROWS)


def test_without_batches():
    distribution = Distribution(4, BLOCK_ROWS, [])
    memory, spare = np.empty((0, 4 * BLOCK_ROWS), np.uint8), np.empty(0, np.int32)
    full, taken, done = distribution.copy(np.empty(8, np.uint8), 0, 2, memory, spare)
    assert (len(full), taken, done, len(distribution.flush())) == (0, 0, True, 0)


def test_parts_that_do_not_rise_or_are_missing():
    written = Written([np.array([1, 5])], 4, 1)
    part = np.zeros((3, 4), np.uint8)
    assert errno_of(written.copy, part, 2) == errno.ERANGE
    written.copy(part, 0)
    assert errno_of(written.distribution.flush) == errno.ENODATA
    written.copy(part, 3)
    written.take(written.distribution.flush())
    assert written.blocks == [[bytes(8)]]


@pytest.mark.parametrize("buffer", [-1, 2])
def test_a_buffer_out_of_range_and_memory_that_is_too_small(buffer: int):
    written = Written([np.array([1])], 4, 1)
    part, spare = np.zeros((3, 4), np.uint8), np.array([buffer], np.int32)
    copy = written.distribution.copy
    assert errno_of(copy, part, 0, 3, written.memory, spare) == errno.EINVAL
    for rows, width in ((4, BLOCK_ROWS * 4), (3, BLOCK_ROWS * 4 - 1)):
        with pytest.raises(ValueError, match="shorter"):
            copy(part, 0, rows, np.empty((2, width), np.uint8), spare)
    assert errno_of(Distribution, 0, 1, []) == errno.EINVAL


def test_damaged_deltas_are_refused_or_distribute_other_rows():
    rng = np.random.default_rng(3)
    part, spare = np.zeros((1000, 4), np.uint8), np.arange(200, dtype=np.int32)
    memory = np.empty((200, BLOCK_ROWS * 4), np.uint8)

    def distribute(deltas: Bytes, count: int) -> None:
        distribution = Distribution(4, BLOCK_ROWS, [(deltas, count)])
        assert distribution.copy(part, 0, 1000, memory, spare)[2]
        distribution.flush()

    codes: Counter[int | None] = Counter()
    for _ in range(300):
        deltas, count = encoded(np.unique(rng.integers(0, 1000, 20)))
        codes[errno_of(distribute, damaged(deltas, rng), count)] += 1
    assert codes.keys() == {0, errno.EINVAL, errno.ENODATA}
