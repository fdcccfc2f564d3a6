"""Look-ahead: rows are kept for batches that are announced, and for no others."""

import functools
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from gnndrive.buffer.policies.belady import Belady
from gnndrive.common.errors import ConfigError
from gnndrive.common.records import Int64Array
from gnndrive.pipeline.epoch import Stages
from gnndrive.testing.simulation import Scenario, Simulation
from tests.pipeline import tight
from tests.pipeline.scenarios import lease_once, run_one
from tests.pipeline.tight import SLOTS, ids, in_virtual_loop, loads

simulation_of = functools.partial(tight.simulation_of, part_rows=4, policy=Belady())


async def visit(simulation: Simulation, index: int | None, wanted: Int64Array) -> int:
    """Lease, wait and release; returns how many rows had to be read."""
    before = loads(simulation)
    await lease_once(simulation, {"x": wanted}, index)
    return loads(simulation) - before


@in_virtual_loop
async def test_a_batch_announced_late_keeps_rows_on_standby(rows):
    """The sample comes after the rows were released: their keys are changed on standby."""
    async with simulation_of(rows) as simulation:
        for index, wanted in enumerate((ids(0, 8), ids(8, 16))):
            simulation.buffer.announce(index, {"x": wanted})
            await visit(simulation, index, wanted)
        simulation.buffer.announce(3, {"x": ids(0, 8)})
        simulation.buffer.announce(2, {"x": ids(16, 24)})
        assert await visit(simulation, 2, ids(16, 24)) == 8
        assert await visit(simulation, 3, ids(0, 8)) == 0


@in_virtual_loop
async def test_a_group_is_announced_with_the_rows_of_all_its_batches(rows, monkeypatch):
    """They are those with which it joins the admission queue."""
    scenario = Scenario(rows, batches=7, policy=Belady(), stages=Stages(group=3))
    async with tight.closing(Simulation(scenario, seed=0)) as simulation:
        buffer, told = simulation.buffer, dict[int, list[list[int]]]()

        def tell(call: Callable[..., Any], *batches: tuple[int, dict[str, Int64Array]]) -> Any:
            for index, wanted in batches:
                told.setdefault(index, []).append(wanted["x"].tolist())
            return call

        announce, join = buffer.announce, buffer.join
        monkeypatch.setattr(buffer, "announce", lambda *one: tell(announce, one)(*one))
        monkeypatch.setattr(buffer, "join", lambda some: tell(join, *some)(some))
        delivered, _ = await run_one(simulation)
        nodes, ends = [batch.node for batch in delivered], (0, 1, 2, 4, 7)
        groups = [np.concatenate(nodes[begin:end]).tolist() for begin, end in pairwise(ends)]
        assert told == {index: [group] * 2 for index, group in enumerate(groups)}


@pytest.mark.parametrize("how", ["withdrawn", "refused", "left", "left behind another"])
@in_virtual_loop
async def test_a_batch_that_does_not_come_keeps_no_rows(rows, how):
    """Such as one that waited for slots when its epoch ended early; the next epoch's indices start
    at 0."""
    async with simulation_of(rows, part_rows=100) as simulation:  # nothing by parts
        buffer = simulation.buffer
        await visit(simulation, None, ids(0, 8))
        held = await buffer.lease({"x": ids(8, 16)})
        await held.ready()
        more = ids(100, 109 if how == "refused" else 104)
        batches = [ids(32, 48)] * ("behind" in how) + [np.concatenate([ids(0, 8), more])]
        wanted = [(index, {"x": one}) for index, one in enumerate(batches)]
        for each in wanted:
            buffer.announce(*each)
        if how == "withdrawn":
            buffer.withdraw(*wanted[0])
        else:
            for ticket in reversed([buffer.join([each])[0] for each in wanted]):
                assert ticket.granted.done() is (how == "refused")
                buffer.leave(ticket)
        if how == "refused":
            with pytest.raises(ConfigError):
                await buffer.granted(ticket)
        held.release()
        await visit(simulation, None, ids(16, 24))
        assert await visit(simulation, None, ids(8, 16)) == 0, "rows 0 … 7 leave first"


@in_virtual_loop
async def test_more_batches_than_the_window_holds(rows):
    """The others get a place as places become free, the next batch first."""
    async with simulation_of(rows) as simulation:
        parts = {index: ids(8 * (index % 3), 8 * (index % 3) + 8) for index in range(20)}
        for index, wanted in parts.items():
            simulation.buffer.announce(index, {"x": wanted})
        assert simulation.table.announced == 20
        read = [await visit(simulation, index, wanted) for index, wanted in parts.items()]
        assert sum(read) == 8 * 11, "Belady's optimum"


@pytest.mark.parametrize("announced", [True, False])
@in_virtual_loop
async def test_the_window_counts_what_fits_together(rows, monkeypatch, announced):
    """Rows are joined and counted only if a batch is not in the window."""
    async with simulation_of(rows) as simulation:
        buffer, joined = simulation.buffer, list[int]()
        monkeypatch.setattr(
            simulation.table, "joined", lambda parts: joined.append(1) or np.concatenate(parts)
        )
        twice = np.concatenate([ids(8, 12), ids(8, 12)])
        batches = [ids(0, 10), twice, ids(10, 17), ids(6, SLOTS)]
        wanted = [(index, {"x": one}) for index, one in enumerate(batches)]
        for each in wanted if announced else ():
            buffer.announce(*each)
        assert buffer.fits_together(wanted[:2])
        assert not buffer.fits_together(wanted[:3])
        assert buffer.fits_together([wanted[0], wanted[1], wanted[3]])
        assert bool(joined) is not announced
        for each in wanted if announced else ():
            buffer.withdraw(*each)


@in_virtual_loop
async def test_a_retired_buffer_neither_admits_nor_withdraws(rows):
    async with simulation_of(rows) as simulation:
        buffer, table, wanted = simulation.buffer, simulation.table, {"x": ids(0, 8)}
        held = await buffer.lease(wanted)
        for index in (1, 2):
            buffer.announce(index, wanted)
        buffer.withdraw(1, wanted)
        buffer.retire()
        (ticket,) = buffer.join([(None, {"x": ids(8, 16)})])
        buffer.withdraw(2, wanted)
        held.release()
        assert table.announced == 1
        assert not ticket.granted.done()
        assert table.stats()["loads"] == 8
        assert table.available == SLOTS - 8
        buffer.leave(ticket)
        table.withdraw(2, wanted["x"])
        table.release(held.alias("x"))
