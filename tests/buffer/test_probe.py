"""A slot table's answer to whether an admission would succeed, which several tables need."""

from random import Random

import numpy as np
import pytest

from gnndrive.common.ffi import ffi, lib, pointer
from gnndrive.common.records import FAILURE, Stretch
from tests.buffer.test_codes import table_of

ROWS = 12


@pytest.mark.parametrize("fetched", [True, False])
@pytest.mark.parametrize("slots", [7, ROWS])
def test_a_probe_answers_what_c_answers(slots: int, fetched: bool) -> None:
    """Also where it need not ask; with failed rows whose slots are held, and ids out of range. Rows
    fail when they are fetched, or before."""
    draw, table, found = Random(slots), table_of(ROWS, slots), ffi.new("gd_admission *")
    held, answers = [], set[int]()
    for _ in range(2000):
        rows = np.array(
            draw.choices(range(ROWS + draw.randint(0, 1)), k=draw.randint(0, ROWS)), np.int64
        )
        code = lib.gd_buffer_probe(table.handle, pointer(rows), len(rows), found)
        assert table.probe(rows) == (code, found.deficit)
        answers.add(code)
        if not code:
            (code, _, hold) = table.admit(rows)
            assert code == 0
            loads, held = hold.loads[1], [*held, hold]
            if not fetched and not draw.randint(0, 3):
                hold.fail_unfetched()
                continue
            failures = np.zeros(len(loads) and fetched * draw.randint(0, 3) // 3, FAILURE)
            failures["slot"] = loads[: len(failures)]
            table.commit(Stretch(loads[len(failures) :], failures))
        while held and (code or not draw.randint(0, 7)):
            code = 0
            hold = held.pop(draw.randrange(len(held)))
            hold.release(0, len(hold.alias))
    assert len(answers) > 2
