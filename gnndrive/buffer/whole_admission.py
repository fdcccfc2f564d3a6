"""`admit_whole`: admits a sweep to all of its tables in one step, or to none (rule 3).

`FeatureBuffer` uses it for sweeps of no more rows than one part; see `partial_admission.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from gnndrive.buffer.row_table import RowHold, RowTable
from gnndrive.common.records import Codes, Int64Array


def admit_whole(
    tables: Mapping[str, RowTable], rows: Mapping[str, Int64Array], codes: Mapping[str, Codes],
    fits: Callable[[str, int, int], bool],
) -> dict[str, RowHold] | None:  # fmt: skip
    """Admit all of `rows`.

    Args:
        tables: by name, those of `rows`.
        rows: table name → row ids, int64 [n], duplicates allowed.
        codes: table name → the codes of these rows, uint16 [n]; tables that get none are left out.
        fits: called with a table's name and answer (`RowTable.admit`): whether the rows fit now.
            Raises the error of a sweep that never fits.

    Returns:
        Table name → what is held of it; None: there are too few slots now.
    """
    if len(rows) > 1:  # all tables or none: probe each before the first is changed
        found = {name: tables[name].probe(ids) for name, ids in rows.items()}
        answers = [fits(name, *answer) for name, answer in found.items()]
        if not all(answers):
            return None
    holds: dict[str, RowHold] = {}
    try:
        for name, ids in rows.items():
            code, deficit, hold = tables[name].admit(ids, codes.get(name))
            if not fits(name, code, deficit):
                assert not holds, "each of several tables was probed"
                return None
            assert hold is not None
            holds[name] = hold
    except Exception:
        give_up(holds)
        raise
    return holds


def give_up(holds: Mapping[str, RowHold]) -> None:
    """Release what is held, because its rows will not be fetched."""
    for hold in holds.values():
        hold.fail_unfetched()
        hold.release(0, len(hold.alias))
