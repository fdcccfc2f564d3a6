"""A rank's end of the protocol: what it sends, in which order, and what it makes of the answers."""

import asyncio

import numpy as np
import pytest
import torch

from gnndrive.buffer.devices.host import Host
from gnndrive.common.errors import ConfigError, HostServiceError, PeerError
from gnndrive.host.arena import Arena, ArenaShape
from gnndrive.host.messages import Kind, Message, error_text
from gnndrive.host.remote_buffer import RemoteBuffer, RemoteTable, RemoteTicket
from tests.host.spoken import in_loop

ROW_BYTES, ROWS_MAX, SLOTS = 8, 5, 16
WANTED = {"x": np.arange(3)}
ANNOUNCE, JOIN, LEAVE, RELEASE = Kind.ANNOUNCE, Kind.JOIN, Kind.LEAVE, Kind.RELEASE


class Service:
    """The host service's end: keeps what a rank sends, and answers when the test says so."""

    def __init__(self, places: int) -> None:
        shape = ArenaShape(places, (ROWS_MAX,))
        self.arena = Arena(shape, np.zeros(shape.nbytes, np.uint8))
        self.whole: list[Message] = []
        table = RemoteTable(ROW_BYTES, Host().allocate(SLOTS, ROW_BYTES))
        self.buffer = RemoteBuffer({"x": table}, self.arena, self.whole.append)
        self.buffer.begin_epoch()

    def sent(self) -> list[tuple[Kind, int]]:
        """(kind, step) of each message since the last call."""
        sent = [(each.kind, each.step) for each in self.whole]
        self.whole.clear()
        return sent

    def answer(self, kind: Kind, step: int = 0, a: int = 0, error: Exception | None = None) -> None:
        text = {} if error is None else error_text(error)
        self.buffer.receive(Message(kind, 0, step, a, text=text))

    def announce(self, *steps: int) -> None:
        for step in steps:
            self.buffer.announce(step, WANTED)

    def join(self, step: int) -> RemoteTicket:
        (ticket,) = self.buffer.join([(step, WANTED)])
        return ticket


@in_loop
async def test_the_tail_of_a_batch_is_released_while_it_is_gathered():
    service = Service(places=4)
    service.announce(7)
    ticket = service.join(7)
    service.answer(Kind.READY, 7)
    lease = await service.buffer.granted(ticket)
    service.whole.clear()
    assert lease.gather("x", torch.uint8, (ROW_BYTES,)).shape == (3, ROW_BYTES)
    await asyncio.sleep(0)
    tails = [(each.kind, each.a, each.b) for each in service.whole]
    assert tails == [(Kind.RELEASE_TAIL, 0, begin) for begin in (2, 2, 1)]
    service.whole.clear()
    await lease.gathered()
    lease.release()
    assert service.sent() == [(RELEASE, 7)]
    lease._release_tail(0, 1)
    assert service.sent() == [], "the service would refuse it"
    assert service.buffer.idle


@pytest.mark.parametrize(
    ("kind", "error"), [(Kind.PEER_LOST, PeerError), (Kind.BROKEN, HostServiceError)]
)
@in_loop
async def test_after_the_first_error_nothing_goes_on(kind, error):
    service = Service(places=5)
    service.announce(0, 1)
    ticket = service.join(0)
    asking = asyncio.ensure_future(service.buffer.awaited())
    await asyncio.sleep(0)
    service.sent()
    service.answer(kind, a=3, error=KeyError("no such table"))
    service.answer(Kind.PEER_LOST, a=1)
    service.buffer.fail(HostServiceError("ended"))
    first = ticket.granted.exception()
    assert isinstance(first, error)
    assert getattr(first, "rank", 3) == 3
    for asked in (asking, service.buffer.awaited()):
        with pytest.raises(error):
            await asked
    with pytest.raises(error):
        service.join(1)
    service.announce(5)
    assert service.sent() == []


@in_loop
async def test_answers_come_to_those_who_asked_in_order():
    service = Service(places=2)
    asking = [asyncio.ensure_future(service.buffer.awaited()) for _ in range(3)]
    await asyncio.sleep(0)
    assert [kind for kind, _ in service.sent()] == [Kind.ASK] * 3
    asking[1].cancel()
    await asyncio.sleep(0)
    for rank in (4, 5, -1):
        service.answer(Kind.AWAITED, a=rank)
    assert [await asking[0], await asking[2]] == [4, -1]
    service.answer(Kind.AWAITED, a=9)  # to a question that no one asked


# ---- users who wait elsewhere


@pytest.mark.parametrize(
    ("step", "exchanges", "passes"),
    [(3, 6, True), (4, 0, True), (2, 6, False), (3, 7, False), (9, 8, False)],
)
@pytest.mark.parametrize("asks_before", [False, True])
@in_loop
async def test_a_rank_whose_user_passes_one_that_waits_elsewhere_says_so(
    step, exchanges, passes, asks_before
):
    """Rank 1's user has taken three batches and waits in exchange 7."""
    service, away = Service(places=2), Message(Kind.AWAY, 0, 3, 7, 1)
    for _ in range(2):
        if not asks_before:
            service.buffer.receive(away)
        if service.buffer.ask_for(step, exchanges):
            service.buffer.say_passed()
        if asks_before:
            service.buffer.receive(away)
        assert service.whole == [Message(Kind.PASSED, 0, step, 1)] * passes
        still_waits = exchanges < 7 and not passes  # else it is forgotten
        assert service.buffer.ask_for(step, exchanges) == still_waits
        service.whole.clear()
    service.buffer.end_epoch()
    service.buffer.begin_epoch()
    service.whole.clear()
    service.buffer.receive(away)
    service.buffer.ask_for(step, exchanges)
    service.buffer.say_passed()
    assert service.whole == [], "it is about the epoch before"


@in_loop
async def test_a_rank_that_waits_elsewhere_ends_its_epoch_when_it_is_passed():
    service, passed = Service(places=2), list[int]()
    service.buffer.say_away(3, 7)
    service.buffer.leave_epoch()
    service.buffer.receive(Message(Kind.PASSED, 0, 4, 0, b=2))
    assert (service.sent(), passed) == ([], []), "no epoch of an iterator runs"
    service.buffer.on_passed(passed.append)
    service.buffer.say_away(3, 7)
    assert service.whole == [Message(Kind.AWAY, 0, 3, 7)]
    service.buffer.receive(Message(Kind.PASSED, 0, 4, 0, b=2))
    service.buffer.receive(Message(Kind.PASSED, 1, 4, 0, b=3))
    service.buffer.end_epoch()
    service.buffer.receive(Message(Kind.PASSED, 0, 4, 0, b=4))
    assert passed == [2]


@in_loop
async def test_a_rank_whose_user_has_come_back_goes_on():
    """Such as when another thread takes the batches, or what the other said comes late."""
    service, passed = Service(places=2), list[int]()
    service.buffer.on_passed(passed.append)
    service.buffer.ask_for(3, 6)  # which is late, so that three batches are taken
    for _ in range(2):
        service.buffer.leave_epoch()
        service.buffer.say_away(3, 7)
        service.buffer.ask_for(3, 7)
        service.buffer.receive(Message(Kind.PASSED, 0, 4, 0, b=2))
    assert passed == []
    service.buffer.leave_epoch()
    service.buffer.say_away(3, 8)
    service.buffer.receive(Message(Kind.PASSED, 0, 4, 0, b=2))
    assert passed == [2]


# ---- places


@in_loop
async def test_batches_join_behind_one_that_is_given_up_without_a_place():
    service = Service(places=2)
    service.announce(2, 0, 1)
    tickets = [service.join(step) for step in range(3)]
    assert service.sent() == [(ANNOUNCE, 2), (ANNOUNCE, 0), (JOIN, 0)]
    service.buffer.leave(tickets[1])
    assert service.sent() == [(JOIN, 2)]


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
