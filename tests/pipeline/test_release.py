"""A lease gives its slots up: at once, or in steps for whoever is admitted by parts."""

from __future__ import annotations

import pytest

from gnndrive.books import Table
from gnndrive.records import Int32Array, TableFile
from gnndrive.testing.loop import run
from tests.pipeline.tight import ids, loads, simulation_of, use


def test_a_lease_that_is_waited_for_in_parts_gives_its_slots_up_in_steps(
    rows: TableFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk may stand still meanwhile: the next part is read before all slots are given up."""

    async def main() -> None:
        async with simulation_of(rows) as simulation:
            buffer = simulation.buffer
            first = await buffer.lease({"x": ids(0, 16)})
            (ticket,) = buffer.join([(None, {"x": ids(20, 30)})])
            await first.ready()
            given_up: list[tuple[int, int]] = []
            release = Table.release

            def told(table: Table, alias: Int32Array) -> None:
                given_up.append((len(alias), loads(simulation)))
                release(table, alias)

            monkeypatch.setattr(Table, "release", told)
            first.release()
            assert given_up == [(4, 16), (4, 20), (4, 24), (4, 26)]
            lease = await buffer.granted(ticket)
            await use(simulation, lease, ids(20, 30))
            assert given_up[4:] == [(10, 26)]  # nobody waits

    run(main())


@pytest.mark.parametrize("step", [1, 2, 4])
def test_a_step_that_fails_gives_all_slots_up(
    rows: TableFile, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    async def main() -> None:
        async with simulation_of(rows) as simulation:
            buffer = simulation.buffer
            first = await buffer.lease({"x": ids(0, 16)})
            (ticket,) = buffer.join([(None, {"x": ids(20, 36)})])
            await first.ready()
            advance, steps = buffer.advance, 0

            def fail() -> None:
                nonlocal steps
                steps += 1
                if steps == step:
                    raise MemoryError("none left")
                advance()

            with monkeypatch.context() as patched:
                patched.setattr(buffer, "advance", fail)
                with pytest.raises(MemoryError):
                    first.release()
            await use(simulation, await buffer.granted(ticket), ids(20, 36))

    run(main())
