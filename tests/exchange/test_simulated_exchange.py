"""Ranks whose feature buffers act as one get one process's batches, whatever the seed decides."""

from collections import Counter
from dataclasses import replace
from functools import partial

from gnndrive.testing.loop import run
from gnndrive.testing.simulated_exchange import SimulatedExchange
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


def test_whole_epochs(rows, seeds):  # noqa: F811
    async def main(seed):
        scenario, given = any_scenario(rows, seed)
        kind = partial(exchange, shift=seed // 2 % 4)
        async with simulated_ranks(scenario, seed, kind=kind, **given) as simulated:
            for epoch in range(2):
                simulated.begin(epoch)
                await simulated.end()
                check_all(simulated.ranks, expected(scenario, seed, given["count"], epoch))

    for seed in seeds(20):
        run(main(seed))


def test_whatever_befalls_the_ranks(rows, seeds):  # noqa: F811
    ends = Counter()
    for seed in seeds(60):
        ends += run_with_mishaps(rows, seed, exchange)
    assert ends.keys() == {"NoneType", "early", "PeerError", "ReadError", "BrokenOnPurpose"}
