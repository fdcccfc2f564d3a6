"""Ranks whose feature buffers act as one get one process's batches, whatever the seed decides."""

import asyncio
from collections import Counter
from dataclasses import replace
from functools import partial

import pytest

from gnndrive.buffer.policies.belady import Belady
from gnndrive.exchange import slot_copies
from gnndrive.exchange.share import Share
from gnndrive.testing.loop import run
from gnndrive.testing.simulated_exchange import SimulatedExchange
from gnndrive.testing.simulated_ranks import Barrier
from gnndrive.testing.simulation import Scenario
from tests.host.conftest import rows  # noqa: F401
from tests.host.test_simulated_ranks import (
    any_scenario,
    check_all,
    expected,
    run_with_mishaps,
    simulated_ranks,
)


def exchange(scenario, seed, *rest, **given):
    """Every second seed samples ahead."""
    superbatch = seed % 2 * (1 + seed // 2 % 5)
    return SimulatedExchange(replace(scenario, superbatch=superbatch), seed, *rest, **given)


def on_devices(scenario, seed, *rest, **given):
    """Each rank has a device, and rows that leave its slots stay in host memory."""
    device = ("simulated-cuda", "simulated-host-slots")[seed // 3 % 4 == 3]
    victims = 20 * (device == "simulated-cuda")
    scenario = replace(scenario, device=device, tiers=("victim", "disk"), victims=victims)
    return exchange(scenario, seed, *rest, **given)


def with_remote_rows(scenario, seed, *rest, **given):
    """Each rank keeps rows of the others, some or all of them; nothing is sampled ahead."""
    slots = (16, 40, 300)[seed // 3 % 3]
    return SimulatedExchange(scenario, seed, *rest, remote_slots=slots, **given)


@pytest.fixture(autouse=True)
def several_pieces(monkeypatch):
    """Not all rows of a batch leave a device at once."""
    monkeypatch.setattr(slot_copies, "PIECE_BYTES", 400)


KINDS = pytest.mark.parametrize("kind", [exchange, on_devices, with_remote_rows])


@KINDS
def test_whole_epochs(rows, seeds, kind):  # noqa: F811
    served = Counter()

    async def main(seed):
        scenario, given = any_scenario(rows, seed)
        shifted = partial(kind, shift=seed // 2 % 4)
        async with simulated_ranks(scenario, seed, kind=shifted, **given) as simulated:
            for epoch in range(2):
                simulated.begin(epoch)
                await simulated.end()
                check_all(simulated.ranks, expected(scenario, seed, given["count"], epoch))
            for rank in simulated.ranks:
                served[kind] += rank.own.table.tier.rows_served
                served[kind] += sum(each.table.stats()["hits"] for each in rank.kept.values())

    for seed in seeds(20):
        run(main(seed))
    assert (served[kind] > 0) is (kind is not exchange), "rows come back without their owner"


@KINDS
def test_whatever_befalls_the_ranks(rows, seeds, kind):  # noqa: F811
    ends = Counter()
    for seed in seeds(60):
        ends += run_with_mishaps(rows, seed, kind)
    assert ends.keys() == {"NoneType", "early", "PeerError", "ReadError", "BrokenOnPurpose"}


@KINDS
def test_ranks_that_close_after_the_same_batch(rows, seeds, kind):  # noqa: F811
    """Those that are first wait until the others, whom nothing keeps in step, have its rows."""

    async def main(seed):
        scenario, given = any_scenario(rows, seed)
        count, limit = given["count"], 1 + seed % 6
        scenario = replace(scenario, batches=10 * count, consumer_turns_max=50)

        async def use(rank):
            await rank.begin(0, Barrier({rank.number}), limit)
            await rank.share.passed(0, limit)
            for other in simulated.ranks:
                if other is not rank:
                    other.lose(rank, lost=False)

        async with simulated_ranks(scenario, seed, kind=kind, **given) as simulated:
            await asyncio.gather(*map(use, simulated.ranks))
            check_all(simulated.ranks, [e[:limit] for e in expected(scenario, seed, count)])

    for seed in seeds(30):
        run(main(seed))


def loads(rows, world):  # noqa: F811
    """The rows that so many ranks load, of 80 batches, with 80 slots in all and Belady's rule."""
    scenario = Scenario(rows, slots=80 // world, batches=80, superbatch=40, policy=Belady())

    async def main(seed):
        async with simulated_ranks(scenario, seed, world, kind=SimulatedExchange) as simulated:
            simulated.begin(0)
            await simulated.end()
            return sum(rank.own.buffer.stats()["loads"] for rank in simulated.ranks)

    return sum(run(main(seed)) for seed in range(5))


def test_owners_use_what_ranks_know(rows, monkeypatch):  # noqa: F811
    """They load fewer rows than if they knew of announced batches alone."""
    told = loads(rows, 2)
    monkeypatch.setattr(Share, "foresee", lambda *told: None)
    assert told < 0.9 * loads(rows, 2)  # 1,582 and 1,871


def test_owners_load_what_one_buffer_would(rows):  # noqa: F811
    """Batches of all ranks hold few more slots at a time than those of one."""
    assert loads(rows, 8) < 1.25 * loads(rows, 1)  # 1,853 and 1,571; 2,169 with a queue a rank
