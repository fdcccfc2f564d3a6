"""The hybrid and the static policy: traces by hand, and the threshold."""

import weakref

import numpy as np
import pytest

from gnndrive.buffer.policies.base import WINDOW, PolicyContext
from gnndrive.buffer.policies.hybrid import Hybrid
from gnndrive.buffer.policies.static import Static
from gnndrive.buffer.slot_table import SlotTable
from gnndrive.common.ffi import lib
from tests.buffer.test_codes import admit, codes_of, table_of

CLASSES = np.array([10, 40, 70, 20, 90, 35, 30, 80], np.uint8)
# Twelve batches, four slots, and a threshold of one batch: what leaves, and why. "n@c" is a row's
# next use and its class.
TRACE: list[tuple[tuple[int, ...], set[int]]] = [
    ((0, 1), set()),
    ((2, 3), set()),
    ((4, 0), {3}),  # 1 is needed next; of 2 (4@70) and 3 (7@20), both far, the lower class
    ((1, 5), {0}),  # 6@10; 2 and 4 have come near
    ((2, 4), set()),
    ((6, 5), {2}),  # 8@70, and not 4 (7@90); 1 is near
    ((0, 1), {6}),  # 8@30, and not 5 (9@35), which is needed later; 4 is near
    ((3, 4), {0}),  # 9@10, and neither 5 (9@35) nor 1 (10@40), which is needed later
    ((2, 6), {3, 1}),  # 10@20, 10@40, and neither 4 (11@90) nor 5 (9@35), which has come near
    ((5, 0), {6}),  # never needed again; 2 and 4 are far
    ((1, 3, 7), {0, 5, 2}),  # two that are never needed; of 2 and 4, both near, the lower class
    ((4, 2), {3}),  # of 1, 3 and 7, which are never needed, the lowest class
]
BATCHES = [batch for batch, _ in TRACE]


def present(table: SlotTable) -> set[int]:
    return {row for row in range(len(CLASSES)) if lib.gd_buffer_slot_of(table.handle, row) >= 0}


@pytest.mark.parametrize("foreseen", [False, True], ids=["queued samples", "codes"])
def test_a_trace_by_hand(foreseen):
    table = table_of(len(CLASSES), 4, Hybrid(1), CLASSES, foreseen)
    codes, later = codes_of(BATCHES, len(CLASSES))
    if foreseen:
        table.foresee(0, 0, None)
        table.foresee(0, len(BATCHES), later)
    announced = 0
    for index, (batch, leaves) in enumerate(TRACE):
        while announced < min(index + WINDOW, len(BATCHES)):
            table.announce(announced, np.array(BATCHES[announced], np.int64))
            announced += 1
        before = present(table)
        table.withdraw(index, np.array(batch, np.int64))
        admit(table, [batch], [codes[index]], part=0).release(0, len(batch))
        assert before - present(table) == leaves, f"batch {index}"
        table.verify()


def test_the_rows_of_a_withdrawn_batch_are_let_go():
    table = table_of(len(CLASSES), 4, Hybrid(1), CLASSES, foreseen=False)
    rows = np.arange(3)
    held = weakref.ref(rows)
    table.announce(0, rows)
    table.withdraw(0, rows)
    del rows
    assert held() is None


@pytest.mark.parametrize(
    ("slots", "rows", "batch_rows", "window", "threshold"),
    [
        (3_906_250, 10_000_000, 820_000, 256, 7),  # P10M with 2 GB
        (3_906_250, 10_000_000, 820_000, 5, 5),  # no more than are known
        (1_600_000, 10_000_000, 820_000, 256, 4),
        (100, 100, 10, 256, 100),  # nothing is missing
        (100, 1000, 0, 256, 4),  # the size of a batch is unknown
        (1, 1000, 1, 2, 4),
    ],
)
def test_the_threshold_is_what_fills_the_buffer(slots, rows, batch_rows, window, threshold):
    context = PolicyContext("nodes/x", rows, slots, None, batch_rows, window)
    assert Hybrid.make(context).threshold == threshold
    paper = type("Paper", (Hybrid,), {"name": "paper", "threshold": 32})
    assert paper.make(context).threshold == 32


def test_a_row_leaves_by_its_class_alone():
    """With "static", whatever is announced and whichever row was released longest ago."""
    table = table_of(len(CLASSES), 4, Static(), CLASSES)
    table.announce(1, np.arange(8))
    table.foresee(0, 9, np.zeros(8, np.uint16))
    admit(table, [(2, 0, 4, 3)], [np.full(4, 60_000, np.uint16)], part=0).release(0, 4)
    for batch, left in (((1,), {0}), ((5,), {3}), ((6, 0), {5, 1}), ((7, 3, 1), {0, 6, 2})):
        before = present(table)
        codes = np.arange(60_000, 60_000 + len(batch)).astype(np.uint16)
        admit(table, [batch], [codes], part=0).release(0, len(batch))
        assert before - present(table) == left
