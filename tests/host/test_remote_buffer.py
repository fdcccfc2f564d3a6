"""A rank's end of the protocol: what it sends, in which order, and what it makes of the answers;
which of its batches get places, and what becomes of those that it gives up."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
import torch

from gnndrive.buffer.devices.host import Host
from gnndrive.common.errors import ConfigError, HostServiceError, PeerError, ReadError
from gnndrive.host.arena import Arena, ArenaShape
from gnndrive.host.error_text import error_text
from gnndrive.host.messages import Kind, Message
from gnndrive.host.remote_buffer import RemoteBuffer, RemoteLease, RemoteTable, RemoteTicket
from tests.host.spoken import in_loop

ROW_BYTES, ROWS_MAX, SLOTS = 8, 5, 16
WANTED = {"x": np.arange(3)}
ANNOUNCE, JOIN, LEAVE, RELEASE = Kind.ANNOUNCE, Kind.JOIN, Kind.LEAVE, Kind.RELEASE


class Service:
    """The host service's end: keeps what a rank sends, and answers when the test says so."""

    def __init__(self, places: int) -> None:
        shape = ArenaShape(places, (ROWS_MAX,))
        self.arena = Arena(shape, np.zeros(shape.nbytes, np.uint8))
        self._sent: list[Message] = []
        table = RemoteTable(ROW_BYTES, Host().allocate(SLOTS, ROW_BYTES))
        self.buffer = RemoteBuffer({"x": table}, self.arena, self._sent.append)
        self.buffer.begin_epoch()

    def whole(self) -> list[Message]:
        """The messages since the last call."""
        sent = list(self._sent)
        self._sent.clear()
        return sent

    def sent(self) -> list[tuple[Kind, int]]:
        """(kind, step) of each of them."""
        return [(each.kind, each.step) for each in self.whole()]

    def answer(self, kind: Kind, step: int = 0, a: int = 0, error: Exception | None = None) -> None:
        text = {} if error is None else error_text(error)
        self.buffer.receive(Message(kind, 0, step, a, text=text))

    def announce(self, *steps: int) -> None:
        for step in steps:
            self.buffer.announce(step, WANTED)

    def join(self, step: int) -> RemoteTicket:
        (ticket,) = self.buffer.join([(step, WANTED)])
        return ticket


def lease_of(ticket: RemoteTicket) -> RemoteLease:
    assert ticket.granted is not None
    return ticket.granted.result()


@in_loop
async def test_a_batch_goes_its_way():
    service = Service(places=4)
    buffer = service.buffer
    buffer.announce(7, {"x": np.array([3, 1, 2])})
    (message,) = service.whole()
    assert (message.kind, message.epoch, message.step) == (ANNOUNCE, 0, 7)
    assert service.arena.read_rows(message.a)[0].tolist() == [3, 1, 2]
    (ticket,) = buffer.join([(7, WANTED)])
    waiting = asyncio.ensure_future(buffer.granted(ticket))
    await asyncio.sleep(0)
    assert service.sent() == [(JOIN, 7)]
    assert not waiting.done()
    service.arena.alias(message.a, 0, 3)[:] = [5, 6, 7]
    service.answer(Kind.READY, 7)
    lease = await waiting
    await lease.ready()
    assert lease.gather("x", torch.uint8, (ROW_BYTES,)).shape == (3, ROW_BYTES)
    await asyncio.sleep(0)
    tails = [(each.kind, each.a, each.b) for each in service.whole()]
    assert tails == [(Kind.RELEASE_TAIL, 0, begin) for begin in (2, 2, 1)]
    await lease.gathered()
    lease.release()
    assert service.sent() == [(RELEASE, 7)]
    assert buffer.idle


@in_loop
async def test_batches_of_two_epochs_are_different():
    """A batch of the first epoch is given up and not yet answered when the second one begins."""
    service, rows = Service(places=2), {"x": np.array([4])}
    service.announce(0)
    service.buffer.leave(service.join(0))
    service.buffer.end_epoch()
    service.buffer.begin_epoch()
    service.buffer.announce(0, rows)
    (again,) = service.buffer.join([(0, rows)])
    assert [(each.kind, each.epoch) for each in service.whole()] == [
        (ANNOUNCE, 0), (JOIN, 0), (LEAVE, 0), (Kind.END, 0), (ANNOUNCE, 1), (JOIN, 1),
    ]  # fmt: skip
    service.answer(Kind.LEFT)
    assert not again.granted.done()
    service.buffer.receive(Message(Kind.READY, 1, 0))
    lease_of(again).release()
    assert service.buffer.idle


# ---- errors and questions


@pytest.mark.parametrize(
    ("kind", "error"), [(Kind.PEER_LOST, PeerError), (Kind.BROKEN, HostServiceError)]
)
@in_loop
async def test_after_the_death_of_another_rank_nothing_goes_on(kind, error):
    service = Service(places=5)
    service.announce(0, 1, 2)
    tickets = service.join(0), service.join(1)
    asking = asyncio.ensure_future(service.buffer.awaited())
    await asyncio.sleep(0)
    service.sent()
    service.answer(kind, a=3, error=KeyError("no such table"))
    for ticket in tickets:
        assert isinstance(ticket.granted.exception(), error)
    for asked in (asking, service.buffer.awaited()):
        with pytest.raises(error):
            await asked
    with pytest.raises(error):
        service.join(2)
    service.announce(5)
    service.answer(Kind.READY)
    assert service.sent() == []
    service.buffer.end_epoch()
    assert service.sent() == [(Kind.END, 0)]
    for step in range(3):
        service.answer(Kind.LEFT, step)
    assert service.sent() == [], "no batch is announced any more"
    assert service.buffer.idle


@in_loop
async def test_only_the_first_error_counts():
    service = Service(places=2)
    service.answer(Kind.PEER_LOST, a=3)
    service.answer(Kind.PEER_LOST, a=1)
    service.buffer.fail(HostServiceError("ended"))
    service.announce(0)
    with pytest.raises(PeerError) as caught:
        service.join(0)
    assert caught.value.rank == 3


@in_loop
async def test_answers_come_to_those_who_asked_in_order():
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


@in_loop
async def test_the_counters_are_the_services():
    service = Service(places=2)
    service.arena.counters[:3] = [7, 0, 5]
    stats = service.buffer.stats()
    assert (stats["hits"], stats["waits"], stats["loads"]) == (7, 5, 0)
    assert service.buffer.row_bytes("x") == ROW_BYTES


# ---- places


@in_loop
async def test_the_last_place_is_kept_for_a_batch_that_joins():
    service = Service(places=3)
    service.announce(4, 3, 2, 1)
    assert service.sent() == [(ANNOUNCE, 4), (ANNOUNCE, 3)]
    service.join(1)
    assert service.sent() == [(ANNOUNCE, 1), (JOIN, 1)]
    service.join(2)
    assert service.sent() == [], "there is no place"
    service.answer(Kind.READY, 1)
    assert service.sent() == []


@in_loop
async def test_batches_join_in_order_though_a_later_one_has_a_place():
    """Batches 3 and 4 were sampled first; the service would refuse batch 2 behind them."""
    service = Service(places=3)
    service.announce(3, 4, 1, 2)
    tickets = [service.join(step) for step in (1, 2, 3, 4)]
    assert service.sent() == [(ANNOUNCE, 3), (ANNOUNCE, 4), (ANNOUNCE, 1), (JOIN, 1)]
    service.answer(Kind.READY, 1)
    lease_of(tickets[0]).release()
    assert service.sent() == [(RELEASE, 1), (ANNOUNCE, 2), (JOIN, 2), (JOIN, 3), (JOIN, 4)]


@in_loop
async def test_the_nearest_batch_gets_a_place_that_has_become_free():
    service = Service(places=2)
    service.announce(9, 7, 5, 6)
    assert service.sent() == [(ANNOUNCE, 9)]
    service.buffer.withdraw(9, WANTED)
    assert service.sent() == [(LEAVE, 9)]
    service.answer(Kind.LEFT, 9)
    assert service.sent() == [(ANNOUNCE, 5)]


@in_loop
async def test_a_batch_that_is_too_large_for_its_place_is_refused():
    service = Service(places=2)
    with pytest.raises(ConfigError, match=r"6 rows of 'x'.*over 5.*host_service=False"):
        service.buffer.announce(0, {"x": np.arange(6)})
    service.buffer.announce(0, {"x": np.arange(5)})
    assert service.sent() == [(ANNOUNCE, 0)]


# ---- batches that are given up


@pytest.mark.parametrize("joined", [False, True])
@in_loop
async def test_a_batch_without_a_place_is_given_up_without_a_word(joined):
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


@pytest.mark.parametrize("has_place", [False, True])
@in_loop
async def test_others_go_on_when_a_batch_that_waits_is_given_up(has_place):
    service = Service(places=2)
    service.announce(2, 0, 1)
    tickets = [service.join(step) for step in range(3)]
    assert service.sent() == [(ANNOUNCE, 2), (ANNOUNCE, 0), (JOIN, 0)]
    if has_place:
        service.buffer.leave(tickets[2])
        assert service.sent() == [(LEAVE, 2)]
        service.answer(Kind.LEFT, 2)
        assert service.sent() == [(ANNOUNCE, 1), (JOIN, 1)]
    else:
        service.buffer.leave(tickets[1])
        assert service.sent() == [(JOIN, 2)]


@pytest.mark.parametrize("ready_before", [False, True])
@pytest.mark.parametrize("last", [Kind.LEFT, Kind.FAILED])
@in_loop
async def test_an_answer_that_crosses_leave_is_no_ones(ready_before, last):
    service = Service(places=2)
    service.announce(0)
    waiting = asyncio.ensure_future(service.buffer.granted(service.join(0)))
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.wait([waiting])
    assert service.sent() == [(ANNOUNCE, 0), (JOIN, 0), (LEAVE, 0)]
    if ready_before:
        service.answer(Kind.READY)
        assert not service.buffer.idle
    service.answer(last, error=ReadError("x", 0, 5))
    assert service.buffer.idle
    assert service.sent() == []


@in_loop
async def test_a_lease_that_came_in_the_turn_of_the_cancellation_is_released():
    """Rule 10."""
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
