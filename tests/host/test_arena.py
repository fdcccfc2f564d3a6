"""Row ids and aliases in an arena: each in its own memory, and every count checked."""

from __future__ import annotations

import numpy as np
import pytest

from gnndrive.host.arena import COUNTERS, PAGE, Arena, ArenaShape
from gnndrive.host.messages import ProtocolError

SHAPES = [
    ArenaShape(1, (0,)), ArenaShape(3, (7,)), ArenaShape(4, (5, 1, 600)), ArenaShape(2, ()),
    ArenaShape(4, (5, 1, 600), wide=True), ArenaShape(3, (339, 339, 339)),
]  # fmt: skip


def arena_of(shape: ArenaShape, more: int = 0) -> Arena:
    return Arena(shape, np.zeros(shape.nbytes + more, np.uint8))


@pytest.mark.parametrize("shape", SHAPES)
def test_no_place_touches_another(shape):
    """Write every number of every part once, and read all of them back; then aliases over ids."""
    arena, draw = arena_of(shape), np.random.default_rng(0)
    arena.counters[:] = np.arange(len(COUNTERS))
    rows, aliases = {}, {}
    ids = 2**63 - 1 if shape.wide else 2**31 - 1
    for place in range(shape.places):
        rows[place] = [draw.integers(0, ids, most) for most in shape.rows_max]
        arena.write_rows(place, rows[place])
    assert arena.counters.tolist() == list(range(len(COUNTERS)))
    for place in range(shape.places):
        for got, written in zip(arena.read_rows(place), rows[place], strict=True):
            assert np.array_equal(got, written)
        for table, most in enumerate(shape.rows_max):
            aliases[place, table] = draw.integers(-(2**31), 2**31 - 1, most).astype(np.int32)
            arena.alias(place, table, most)[:] = aliases[place, table]
    for (place, table), alias in aliases.items():
        assert np.array_equal(arena.alias(place, table, len(alias)), alias)


@pytest.mark.parametrize("wide", [False, True])
def test_an_id_that_no_table_can_have_becomes_none_at_all(wide):
    """Not another row's, which it would be without its upper bits."""
    arena = arena_of(ArenaShape(1, (5,), wide))
    arena.write_rows(0, [np.array([3, -7, 2**31 - 1, 2**31, 2**40 + 3])])
    (read,) = arena.read_rows(0)
    large = [2**31, 2**40 + 3] if wide else [-1, -1]
    assert read.tolist() == [3, -1, 2**31 - 1, *large]


def test_rows_are_copied_and_their_counts_checked():
    """The rank may change them."""
    arena = arena_of(ArenaShape(2, (7, 3)), 2 * PAGE)
    arena.write_rows(1, [np.arange(7), np.arange(3)])
    arena.write_rows(1, [np.array([4, 2]), np.arange(0)])
    read = arena.read_rows(1)
    arena._memory[:] = 255
    assert [each.tolist() for each in read] == [[4, 2], []]
    arena.write_rows(1, read)
    for table, count in ((0, -1), (1, 4), (0, 2**40), (1, -(2**63))):
        counts = arena._counts(1)
        counts[:] = 0
        counts[table] = count
        with pytest.raises(ProtocolError, match="at most"):
            arena.read_rows(1)
