"""Which of a rank's batches get places, in which order they join, and what becomes of those that it
gives up."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import numpy as np
import pytest

from gnndrive.common.errors import ConfigError, ReadError
from gnndrive.host.messages import Kind
from gnndrive.testing.loop import run
from tests.host.answering import ANNOUNCE, JOIN, LEAVE, RELEASE, WANTED, Service, lease_of

# ---- places


def test_the_last_place_is_kept_for_a_batch_that_joins() -> None:
    async def main() -> None:
        service = Service(places=3)
        service.announce(4, 3, 2, 1)
        assert service.sent() == [(ANNOUNCE, 4), (ANNOUNCE, 3)]
        service.join(1)
        assert service.sent() == [(ANNOUNCE, 1), (JOIN, 1)]
        service.join(2)
        assert service.sent() == [], "there is no place"
        service.answer(Kind.READY, 1)
        assert service.sent() == []

    run(main())


def test_batches_join_in_order_though_a_later_one_has_a_place() -> None:
    """Batches 3 and 4 were sampled first; the service would refuse batch 2 behind them."""

    async def main() -> None:
        service = Service(places=3)
        service.announce(3, 4, 1, 2)
        tickets = [service.join(step) for step in (1, 2, 3, 4)]
        assert service.sent() == [(ANNOUNCE, 3), (ANNOUNCE, 4), (ANNOUNCE, 1), (JOIN, 1)]
        service.answer(Kind.READY, 1)
        lease_of(tickets[0]).release()
        assert service.sent() == [(RELEASE, 1), (ANNOUNCE, 2), (JOIN, 2), (JOIN, 3), (JOIN, 4)]

    run(main())


def test_one_place_is_enough() -> None:
    async def main() -> None:
        service = Service(places=1)
        service.announce(2, 1, 0)
        assert service.sent() == []
        tickets = [service.join(step) for step in range(3)]
        assert service.sent() == [(ANNOUNCE, 0), (JOIN, 0)]
        for step, ticket in enumerate(tickets):
            service.answer(Kind.READY, step)
            lease_of(ticket).release()
            following = [(ANNOUNCE, step + 1), (JOIN, step + 1)] if step < 2 else []
            assert service.sent() == [(RELEASE, step), *following]
        assert service.buffer.idle

    run(main())


def test_the_nearest_batch_gets_a_place_that_has_become_free() -> None:
    async def main() -> None:
        service = Service(places=2)
        service.announce(9, 7, 5, 6)
        assert service.sent() == [(ANNOUNCE, 9)]
        service.buffer.withdraw(9, WANTED)
        assert service.sent() == [(LEAVE, 9)]
        service.answer(Kind.LEFT, 9)
        assert service.sent() == [(ANNOUNCE, 5)]

    run(main())


def test_a_batch_that_is_too_large_for_its_place_is_refused() -> None:
    async def main() -> None:
        service = Service(places=2)
        with pytest.raises(ConfigError, match=r"6 rows of 'x'.*over 5.*host_service=False"):
            service.buffer.announce(0, {"x": np.arange(6)})
        service.buffer.announce(0, {"x": np.arange(5)})
        assert service.sent() == [(ANNOUNCE, 0)]

    run(main())


# ---- batches that are given up


@pytest.mark.parametrize("joined", [False, True])
def test_a_batch_without_a_place_is_given_up_without_a_word(joined: bool) -> None:
    async def main() -> None:
        service = Service(places=1)
        service.announce(0, 1, 2)
        tickets = [service.join(step) for step in range(2)]
        service.sent()
        if joined:
            service.buffer.leave(tickets[1])
        else:
            service.buffer.withdraw(2, WANTED)
        assert service.sent() == []
        service.buffer.leave(tickets[0])
        service.answer(Kind.LEFT, 0)
        assert service.sent() == [(LEAVE, 0)] + ([] if joined else [(ANNOUNCE, 1), (JOIN, 1)])

    run(main())


def test_those_behind_a_batch_without_a_place_go_on_when_it_is_given_up() -> None:
    async def main() -> None:
        service = Service(places=2)
        service.announce(2, 0, 1)
        tickets = [service.join(step) for step in range(3)]
        assert service.sent() == [(ANNOUNCE, 2), (ANNOUNCE, 0), (JOIN, 0)]
        service.buffer.leave(tickets[1])
        assert service.sent() == [(JOIN, 2)]

    run(main())


def test_a_batch_that_has_a_place_and_waits_behind_another_is_given_up() -> None:
    async def main() -> None:
        service = Service(places=2)
        service.announce(2, 0, 1)
        tickets = [service.join(step) for step in range(3)]
        service.sent()
        service.buffer.leave(tickets[2])
        assert service.sent() == [(LEAVE, 2)]
        service.answer(Kind.LEFT, 2)
        assert service.sent() == [(ANNOUNCE, 1), (JOIN, 1)]

    run(main())


@pytest.mark.parametrize("before", [[], [Kind.READY]], ids=["", "ready before"])
@pytest.mark.parametrize("last", [Kind.LEFT, Kind.FAILED])
def test_an_answer_that_crosses_leave_is_no_ones(before: Sequence[Kind], last: Kind) -> None:
    async def main() -> None:
        service = Service(places=2)
        service.announce(0)
        ticket = service.join(0)
        waiting = asyncio.ensure_future(service.buffer.granted(ticket))
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.wait([waiting])
        assert service.sent() == [(ANNOUNCE, 0), (JOIN, 0), (LEAVE, 0)]
        for kind in before:
            service.answer(kind)
            assert not service.buffer.idle
        service.answer(last, error=ReadError("x", 0, 5))
        assert service.buffer.idle
        assert service.sent() == []

    run(main())


def test_a_lease_that_came_in_the_turn_of_the_cancellation_is_released() -> None:
    """Rule 10."""

    async def main() -> None:
        service = Service(places=2)
        service.announce(0)
        waiting = asyncio.ensure_future(service.buffer.granted(service.join(0)))
        await asyncio.sleep(0)
        service.sent()
        service.answer(Kind.READY)
        waiting.cancel()
        await asyncio.wait([waiting])
        assert waiting.cancelled()
        assert service.sent() == [(RELEASE, 0)]
        assert service.buffer.idle

    run(main())
