"""The next use of a row, of all that the ranks have said of their superbatches."""

import random
from types import SimpleNamespace

import numpy as np

from gnndrive.common.ffi import lib
from gnndrive.common.records import NextUses
from gnndrive.exchange.next_uses import SharedUses
from gnndrive.host.group import STEP_BITS

ROWS, STEPS = 30, 12


def next_use(batches, row, behind):
    """The code of the first of the known batches behind one that needs a row."""
    found = [order for order, rows in batches.items() if order > behind and row in rows]
    return min(found) % lib.GD_NO_CODE if found else lib.GD_NO_CODE


def test_the_nearest_batch_of_any_rank(seeds):
    for seed in seeds(20):
        check(random.Random(seed))


def check(draw):
    world, begin = draw.randint(1, 4), draw.randint(0, 3) << STEP_BITS
    shared, known = SharedUses(world, {"x": ROWS}), {}
    shared.begin(begin)
    drawn = [
        [draw.choices(range(ROWS), k=draw.randint(1, 9)) for _ in range(STEPS)]
        for _ in range(world)
    ]
    done, told = [0] * world, [0] * world  # steps that were admitted, and that are known

    def order(rank, step):
        return begin + step * world + rank

    def tell(rank):
        first, told[rank] = told[rank], min(told[rank] + draw.randint(1, 5), STEPS)
        new = {order(rank, step): drawn[rank][step] for step in range(first, told[rank])}
        later = [next_use(new, row, -1) for row in range(ROWS)]
        codes = shared.learn_of(rank, {"x": np.array(later, np.uint16)})["x"]
        known.update(new)
        for index, rows in new.items():
            uses = np.array([next_use(new, row, index) for row in rows], np.uint16)
            shared[index] = {"x": np.array(rows)}, {"x": NextUses(uses, None)}
        now = min(order(rank, step) for rank, step in enumerate(done))
        assert codes.tolist() == [next_use(known, row, now - 1) for row in range(ROWS)]

    while min(done) < STEPS:
        rank = min(range(world), key=lambda each: order(each, done[each]))
        for each in range(world):
            while told[each] < STEPS and (told[each] <= done[rank] + 1 or draw.random() < 0.2):
                tell(each)
        waiting = sorted(index for index in known if index in shared)
        tickets = [SimpleNamespace(index=i) for i in waiting[: draw.randint(1, 3)]]
        for count in (*range(len(tickets), 0, -1), len(tickets)):  # an admission tries fewer
            tried = tickets[:count]
            found = shared.joined(tried)["x"].tolist()
            rows = [row for each in tried for row in known[each.index]]
            assert found == [next_use(known, row, tried[-1].index) for row in rows]
        for each in tickets:
            shared.pop(each.index)
            done[(each.index - begin) % world] += 1


def test_rows_that_are_out_of_range_have_no_next_use():
    shared = SharedUses(1, {"x": 2})
    shared[0] = {"x": np.array([-1, 5])}, {"x": NextUses(np.array([7, 7], np.uint16), None)}
    found = shared.joined([SimpleNamespace(index=0)])["x"]
    assert found.tolist() == [lib.GD_NO_CODE] * 2
