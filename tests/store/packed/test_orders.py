"""Orders of the shared rows: what they are, and how much batches then read in vain."""

from __future__ import annotations

from functools import cache
from itertools import pairwise

import numpy as np
import pytest

from gnndrive.common.errors import ConfigError
from gnndrive.store.packed import orders
from gnndrive.store.packed.hot import choose_hot
from gnndrive.store.packed.orders import ORDERS, count_reads, order_rows
from gnndrive.store.packed.places import NodePlaces
from tests.store.packed.uses import HOT, power_law

NODES = 1_000_000  # a tenth of the graph that the design was measured on


@cache
def recorded() -> tuple[NodePlaces, list[np.ndarray]]:
    """The places of the model's nodes, and the cold ids of its batches."""
    batches = power_law(NODES, 100)
    counts = np.zeros(NODES, np.uint32)
    for batch in batches:
        counts[batch] += 1
    places = NodePlaces(NODES, choose_hot(counts, int(HOT * NODES)).node)
    return places, [places.cold(batch, 0) for batch in batches[:16]]


def amplified(segment: int, gap_bytes: int = 0) -> dict[str, float]:
    """What a segment of the model reads for each byte wanted, by order; rows of 400 bytes."""
    places, cold = recorded()
    rows = len(places.begin(cold[:segment]))
    members = [places.members(ids) for ids in cold[:segment]]
    own = [len(ids) - len(used) for ids, used in zip(cold, members, strict=False)]
    return {
        order: count_reads(
            order_rows(order, members, rows, segment), members, own, 400, gap_bytes=gap_bytes
        ).amplification
        for order in ORDERS
    }


def test_of_eight_batches_sets_read_hardly_a_byte_in_vain_and_minhash_saves_a_fifth():
    read = amplified(8)
    assert read["sets"] <= 1.02
    assert read["minhash"] <= 0.8 * read["id"]
    assert read["id"] > 1.7


def test_of_sixteen_batches_sets_read_little_in_vain_and_minhash_saves_two_fifths():
    read = amplified(16)
    assert read["sets"] <= 1.1
    assert read["minhash"] <= 0.6 * read["id"]
    assert read["id"] > 3.4


def test_reading_over_short_gaps_changes_little_of_it():
    eight, sixteen = amplified(8, 4096), amplified(16, 4096)
    assert eight["sets"] <= 1.02
    assert sixteen["sets"] <= 1.1
    assert eight["minhash"] <= 0.8 * eight["id"]
    assert sixteen["minhash"] <= 0.6 * sixteen["id"]


def random_members(seed: int, batches: int) -> tuple[list[np.ndarray], int]:
    random = np.random.default_rng(seed)
    rows = int(random.integers(0, 300))
    return [
        random.integers(0, rows, int(random.integers(0, 2 * rows))) if rows else np.arange(0)
        for _ in range(batches)
    ], rows


def sets_of(members: list[np.ndarray], rows: int) -> list[frozenset[int]]:
    used = [set(each.tolist()) for each in members]
    return [frozenset(b for b, each in enumerate(used) if row in each) for row in range(rows)]


@pytest.mark.parametrize("batches", [1, 2, 7, 8, 9, 16, 17, 32, 33, 63, 64])
def test_sets_lie_together_in_grays_order_and_by_id(batches):
    for seed in range(10):
        members, rows = random_members(seed, batches)
        found = order_rows("sets", members, rows, batches).tolist()
        gray = {}
        for row, used in enumerate(sets_of(members, rows)):
            rank, bit = 0, 0
            for batch in reversed(range(batches)):
                bit ^= batch in used
                rank = 2 * rank + bit
            gray[row] = rank
        assert found == sorted(range(rows), key=lambda row: (gray[row], row))


def test_neighbouring_sets_differ_in_one_batch():
    sets = [[row for row in range(32) if row >> batch & 1] for batch in range(5)]
    found = order_rows("sets", [np.array(each) for each in sets], 32, 5)
    assert {int(a ^ b).bit_count() for a, b in pairwise(found)} == {1}


@pytest.mark.parametrize("batches", [1, 2, 8, 64, 65, 300])
def test_minhash_sorts_by_both_hashes_and_by_id(batches):
    ranks = [orders._ranks(batches, number) for number in (0, 1)]
    assert [sorted(each) for each in ranks] == [list(range(batches))] * 2
    for seed in range(5):
        members, rows = random_members(seed, batches)
        used = sets_of(members, rows)
        found = order_rows("minhash", members, rows, batches).tolist()

        def key(row: int, used: list[frozenset[int]] = used) -> tuple[int, ...]:
            least = [min((each[b] for b in used[row]), default=batches - 1) for each in ranks]
            return (*least, row)

        assert found == sorted(range(rows), key=key)


def test_the_hashes_are_what_they_have_been():
    assert orders._ranks(8, 0) == [7, 0, 1, 2, 3, 4, 5, 6]
    assert orders._ranks(8, 1) == [1, 7, 0, 5, 6, 4, 3, 2]


def test_ids_stay():
    members, rows = random_members(3, 4)
    assert order_rows("id", members, rows, 4).tolist() == list(range(rows))


def test_an_order_that_cannot_be_is_refused():
    with pytest.raises(ConfigError, match="at most 64 batches, and this one has 65"):
        order_rows("sets", [], 0, 65)
    with pytest.raises(ConfigError, match="no order 'gray': take one of sets, minhash, id"):
        order_rows("gray", [], 0, 1)


@pytest.mark.parametrize("seed", range(100))
def test_reads_are_those_of_a_set_of_pages(seed):
    random = np.random.default_rng(seed)
    members, rows = random_members(seed, int(random.integers(1, 5)))
    order = random.permutation(rows)
    own = random.integers(0, 50, len(members)).tolist()
    row_bytes = int(random.choice([1, 100, 400, 1023, 4096, 5000]))
    page = int(random.choice([512, 4096]))
    gap = int(random.choice([0, 1, 512, 4096, 40960]))
    requests = read = wanted = 0
    position = {int(row): at for at, row in enumerate(order)}
    for used, mine in zip(members, own, strict=True):
        pages, distinct = set(), set(used.tolist())
        for row in distinct:
            start = position[row] * row_bytes
            pages |= set(range(start // page, (start + row_bytes - 1) // page + 1))
        wanted += (len(distinct) + mine) * row_bytes
        last = None
        for number in sorted(pages):
            between = 0 if last is None else (number - last - 1) * page
            if last is None or between > gap:
                requests, between = requests + 1, 0
            read += between + page
            last = number
        requests += mine > 0
        read += -(-mine * row_bytes // page) * page
    found = count_reads(order, members, own, row_bytes, page, gap)
    assert (found.requests, found.read_bytes, found.wanted_bytes) == (requests, read, wanted)
    assert found.amplification == (read / wanted if wanted else 1)
