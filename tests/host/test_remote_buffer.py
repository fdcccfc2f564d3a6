"""A rank's end of the protocol: what it sends, in which order, and what it makes of the answers."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
import torch

from gnndrive.common.errors import HostServiceError, PeerError
from gnndrive.common.records import Int64Array
from gnndrive.host.messages import Kind, Message
from gnndrive.testing.loop import run
from tests.host.answering import (
    ANNOUNCE,
    JOIN,
    LEAVE,
    RELEASE,
    ROW_BYTES,
    WANTED,
    Service,
    ended,
    lease_of,
)


def test_a_batch_goes_its_way() -> None:
    async def main() -> None:
        service = Service(places=4)
        buffer = service.buffer
        buffer.announce(7, {"x": np.array([3, 1, 2])})
        (message,) = service.whole()
        assert (message.kind, message.epoch, message.step) == (ANNOUNCE, 0, 7)
        (rows,) = service.arena.read_rows(message.a)
        assert rows.tolist() == [3, 1, 2]
        (ticket,) = buffer.join([(7, WANTED)])
        waiting = asyncio.ensure_future(buffer.granted(ticket))
        await asyncio.sleep(0)
        assert service.sent() == [(JOIN, 7)]
        assert not waiting.done()
        service.arena.alias(message.a, 0, 3)[:] = [5, 6, 7]
        service.answer(Kind.READY, 7)
        lease = await waiting
        await lease.ready()
        rows_got = lease.gather("x", torch.uint8, (ROW_BYTES,))
        assert rows_got.shape == (3, ROW_BYTES)
        await asyncio.sleep(0)
        tails = service.whole()
        assert [(each.kind, each.a, each.b) for each in tails] == [
            (Kind.RELEASE_TAIL, 0, begin) for begin in (2, 2, 1)
        ]
        await lease.gathered()
        lease.release()
        assert service.sent() == [(RELEASE, 7)]
        assert buffer.idle

    run(main())


def test_a_tail_is_not_released_behind_its_lease() -> None:
    async def main() -> None:
        service = Service(places=4)
        service.announce(0)
        ticket = service.join(0)
        service.answer(Kind.READY)
        lease = lease_of(ticket)
        lease.gather("x", torch.uint8, (ROW_BYTES,))
        lease.release()
        service.sent()
        await asyncio.sleep(0)
        assert service.sent() == []

    run(main())


# ---- errors


def test_a_failed_batch_has_its_error_and_its_place_is_free() -> None:
    async def main() -> None:
        service = Service(places=1)
        service.announce(0, 1)
        tickets = [service.join(step) for step in range(2)]
        service.sent()
        service.answer(Kind.FAILED, 0, error=IndexError("a row id is out of range"))
        assert isinstance(ended(tickets[0]), IndexError)
        assert service.sent() == [(ANNOUNCE, 1), (JOIN, 1)]
        service.buffer.leave(tickets[0])
        assert service.sent() == []

    run(main())


@pytest.mark.parametrize("kind", [Kind.PEER_LOST, Kind.BROKEN])
def test_after_the_death_of_another_rank_nothing_goes_on(kind: Kind) -> None:
    error = PeerError if kind is Kind.PEER_LOST else HostServiceError

    async def main() -> None:
        service = Service(places=5)
        service.announce(0, 1, 2)
        ticket, behind = service.join(0), service.join(1)
        asking = asyncio.ensure_future(service.buffer.awaited())
        await asyncio.sleep(0)
        service.sent()
        service.answer(kind, a=3, error=KeyError("no such table"))
        assert isinstance(ended(ticket), error)
        assert isinstance(ended(behind), error)
        with pytest.raises(error):
            await asking
        with pytest.raises(error):
            service.join(2)
        with pytest.raises(error):
            await service.buffer.awaited()
        service.announce(5)
        service.answer(Kind.READY)
        assert service.sent() == []
        service.buffer.end_epoch()
        assert service.sent() == [(Kind.END, 0)]
        for step in range(3):
            service.answer(Kind.LEFT, step)
        assert service.sent() == [], "no batch is announced any more"
        assert service.buffer.idle

    run(main())


def test_only_the_first_error_counts() -> None:
    async def main() -> None:
        service = Service(places=2)
        service.answer(Kind.PEER_LOST, a=3)
        service.answer(Kind.PEER_LOST, a=1)
        service.buffer.fail(HostServiceError("ended"))
        service.announce(0)
        with pytest.raises(PeerError) as caught:
            service.join(0)
        assert caught.value.rank == 3

    run(main())


# ---- questions


def test_answers_come_to_those_who_asked_in_order() -> None:
    async def main() -> None:
        service = Service(places=2)
        asking = [asyncio.ensure_future(service.buffer.awaited()) for _ in range(3)]
        await asyncio.sleep(0)
        assert [each.kind for each in service.whole()] == [Kind.ASK] * 3
        asking[1].cancel()
        await asyncio.sleep(0)
        for rank in (4, 5, -1):
            service.answer(Kind.AWAITED, a=rank)
        assert [await asking[0], await asking[2]] == [4, -1]
        service.answer(Kind.AWAITED, a=9)  # to a question that no one asked

    run(main())


def test_the_counters_are_the_services() -> None:
    async def main() -> None:
        service = Service(places=2)
        service.arena.counters[:3] = [7, 0, 5]
        stats = service.buffer.stats()
        assert (stats["hits"], stats["waits"], stats["loads"]) == (7, 5, 0)
        assert service.buffer.row_bytes("x") == ROW_BYTES

    run(main())


def rows_of(*ids: int) -> dict[str, Int64Array]:
    return {"x": np.array(ids)}


def test_batches_of_two_epochs_are_different() -> None:
    """A batch of the first epoch is given up and not yet answered when the second one begins."""

    async def main() -> None:
        service = Service(places=2)
        service.announce(0)
        ticket = service.join(0)
        service.buffer.leave(ticket)
        service.buffer.end_epoch()
        service.buffer.begin_epoch()
        service.buffer.announce(0, rows_of(4))
        (again,) = service.buffer.join([(0, rows_of(4))])
        sent = [(each.kind, each.epoch) for each in service.whole()]
        assert sent == [
            (ANNOUNCE, 0), (JOIN, 0), (LEAVE, 0), (Kind.END, 0), (ANNOUNCE, 1), (JOIN, 1),
        ]  # fmt: skip
        service.answer(Kind.LEFT)
        assert again.granted is not None
        assert not again.granted.done()
        service.buffer.receive(Message(Kind.READY, 1, 0))
        lease_of(again).release()
        assert service.buffer.idle

    run(main())
