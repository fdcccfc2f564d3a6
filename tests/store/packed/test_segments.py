"""The segment search counts exactly what packing would write, and takes the smallest that fits."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from gnndrive.store.packed.places import NodePlaces
from gnndrive.store.packed.segments import (
    choose_segment,
    rows_by_segment,
)
from tests.store.packed.uses import small


def brute_force(batches: list[np.ndarray], segment: int) -> int:
    """Chunks and shared files written out: rows used once, and rows used more often."""
    rows = 0
    for start in range(0, len(batches), segment):
        uses = Counter(id for batch in batches[start : start + segment] for id in batch.tolist())
        shared = {id for id, count in uses.items() if count > 1}
        chunks = [
            [id for id in batch.tolist() if id not in shared]
            for batch in batches[start : start + segment]
        ]
        rows += len(shared) + sum(map(len, chunks))
    return rows


class Recorded:
    """Batches that are read one at a time and can be read again, as from files."""

    def __init__(self, batches):
        self.batches = batches
        self.passes = 0

    def __iter__(self):
        self.passes += 1
        for batch in self.batches:
            yield batch.copy()


def test_500_searches_equal_brute_force():
    random = np.random.default_rng(25)
    found = Counter()
    for _ in range(500):
        batches, nodes = small(random)
        order = str(random.choice(["sets", "minhash", "id"]))
        asked = int(random.integers(1, 50)) if random.integers(4) == 0 else None
        row_bytes = random.integers(1, 5000, int(random.integers(1, 4))).tolist()
        fixed, per_file = int(random.integers(0, 10000)), int(random.choice([0, 8192]))
        sizes = sorted({1 << power for power in range(7)} | ({asked} - {None}))
        sizes = [size for size in sizes if size < 2 * len(batches) or size in (1, asked)]
        needed = {
            size: fixed
            + brute_force(batches, size) * sum(row_bytes)
            + -(-len(batches) // size) * len(row_bytes) * per_file
            for size in sizes
        }
        limit = None
        if random.integers(5):
            limit = int(random.choice(list(needed.values()))) - int(random.integers(2))
        recorded = Recorded(batches)
        rows, count = rows_by_segment(recorded, nodes, asked)
        found_bytes = {
            size: fixed + each * sum(row_bytes) + -(-count // size) * len(row_bytes) * per_file
            for size, each in rows.items()
        }
        choice = choose_segment(found_bytes, limit, order, asked)
        fits = [size for size in sizes if limit is None or needed[size] <= limit]
        may = fits
        if asked is not None:
            may = [size for size in fits if size == asked]
        elif order == "sets":
            may = [size for size in fits if min(8, max(sizes)) <= size <= 64]
        assert choice.needed == needed
        assert choice.fitting == fits
        assert choice.segment == (min(may) if may else None)
        assert choice.bytes == (needed[min(may)] if may else None)
        assert recorded.passes == 1
        found[choice.segment is None] += 1
    assert min(found[True], found[False]) > 50


@pytest.mark.parametrize("seed", range(30))
def test_the_rows_counted_are_those_that_are_placed(seed):
    random = np.random.default_rng(seed)
    batches, nodes = small(random)
    for segment in (1, 2, 3, 8, 100):
        rows, places = 0, NodePlaces(nodes)
        for start in range(0, len(batches), segment):
            mine = batches[start : start + segment]
            rows += len(places.begin(mine))
            rows += sum(len(ids) - len(places.members(ids)) for ids in mine)
        assert rows_by_segment(batches, nodes, segment)[0][segment] == rows


def test_sizes_double_up_to_all_batches():
    batches = [np.array([0, 1]), np.array([1, 2]), np.array([0, 1]), np.array([3]), np.array([3])]
    assert rows_by_segment(batches, 4) == ({1: 8, 2: 7, 4: 5, 8: 4}, 5)
    assert rows_by_segment(batches, 4, 3) == ({1: 8, 2: 7, 3: 4, 4: 5, 8: 4}, 5)
    assert rows_by_segment([], 4) == ({1: 0}, 0)


def test_without_a_limit_sets_take_eight_batches_and_minhash_one():
    needed = {1: 100, 2: 90, 4: 80, 8: 70, 16: 60, 32: 50, 64: 40, 128: 30}
    assert choose_segment(needed, None, "sets").segment == 8
    assert choose_segment(needed, None, "minhash").segment == 1
    assert choose_segment({1: 100, 2: 90, 4: 80}, None, "sets").segment == 4


def test_where_none_fits_it_says_what_each_would_need():
    needed = {1: 100, 2: 90, 4: 80, 8: 70, 16: 60, 32: 50, 64: 40, 128: 30}
    choice = choose_segment(needed, 35, "sets")
    assert choice.segment is None
    assert choice.bytes is None
    assert choice.candidates == [8, 16, 32, 64]
    assert choice.needed == needed
    assert choice.fitting == [128]
    assert choose_segment(needed, 35, "minhash").segment == 128
    assert choose_segment(needed, 75, "sets", 2).segment is None
    assert choose_segment(needed, 75, "sets", 2).fitting == [8, 16, 32, 64, 128]


@pytest.mark.parametrize("id", [-1, 4, 1 << 40])
def test_an_id_out_of_range_is_refused(id):
    with pytest.raises(ValueError, match="batch 1 has ids outside 0 to 3"):
        rows_by_segment([np.array([0]), np.array([1, id])], 4)
