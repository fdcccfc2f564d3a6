"""The connections between ranks that exchange rows, and how they end."""

import asyncio
import socket
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from unittest.mock import AsyncMock, Mock

import pytest
import torch

from gnndrive.common.errors import ConfigError, PeerError
from gnndrive.exchange import links
from gnndrive.exchange.exchanged_buffer import ExchangedBuffer
from gnndrive.exchange.links import Link, Meeting
from gnndrive.host.arena import ArenaShape
from gnndrive.host.messages import Kind, Message, error_text
from gnndrive.loader import exchanging, sharing
from gnndrive.loader.exchanging import ExchangeBuffers
from gnndrive.loader.iterator import BatchIterator
from gnndrive.loader.sharing import RankBuffers


def connected():
    """A socket of each of two ranks."""
    with Meeting() as first, Meeting() as second:
        addresses = [first.address, second.address]
        ahead = second.connect(1, addresses)[0]  # need not be accepted yet
        return first.connect(0, addresses)[1], ahead


def test_whatever_ends_receiving_is_told():
    def places_of(key):
        raise MemoryError("no memory for a batch")

    async def main():
        ended = [asyncio.Queue() for _ in range(2)]
        links = [
            Link(sock, 1 - rank, 60, 0, False, ["x"], {}, places_of, None, ended[rank].put_nowait)
            for rank, sock in enumerate(connected())
        ]
        for link in links:
            link.start()
        links[0].answer(Message(Kind.READY), [torch.zeros(3, 4, dtype=torch.uint8)])
        async with asyncio.timeout(5):
            assert str(await ended[1].get()) == "no memory for a batch"
            assert str(await ended[0].get()) == "the connection was closed"
        for link in links:
            await link.aclose()

    asyncio.run(main())


def test_an_answer_that_nobody_asked_for_ends_the_connection():
    async def main():
        ended, links = [asyncio.Queue() for _ in range(2)], []
        buffer = ExchangedBuffer({}, {}, ArenaShape(1, ()), [lambda *sent: None] * 2)
        first = SimpleNamespace(_closed=False, buffer=buffer, _places=[0, 1], _links={})
        take = partial(ExchangeBuffers._receive, first, 1)
        for rank, sock in enumerate(connected()):
            told = take, ended[rank].put_nowait
            links.append(Link(sock, 1 - rank, 60, 0, False, [], {}, None, *told))
            links[-1].start()
        first._links[1] = links[0]
        links[1].answer(Message(Kind.FAILED, 2, 3, text=error_text(ValueError())), [])
        async with asyncio.timeout(5):
            why = await ended[0].get()
        assert str(why) == "FAILED of batch 3 of epoch 2, which was not asked for"
        for link in links:
            await link.aclose()

    asyncio.run(main())


def test_a_rank_that_reaches_another_than_it_means_is_not_taken():
    with ExitStack() as stack:
        meetings = [stack.enter_context(Meeting()) for _ in range(3)]
        addresses = [each.address for each in meetings]
        host, port = addresses[1].host, addresses[1].port  # as localhost is on each host
        mistaken = [replace(addresses[0], host=host, port=port), *addresses[1:]]
        first = meetings[2].connect(2, mistaken)
        second = meetings[1].connect(1, addresses)
        first[0].setblocking(False)
        assert first[0].recv(1) == b""
        second[2].sendall(b"x")
        assert first[1].recv(1) == b"x"
        for each in (*first.values(), *second.values()):
            each.close()


def test_a_stranger_that_connects_and_says_nothing_holds_up_no_rank():
    async def main():
        with Meeting() as first, Meeting() as second:
            addresses = [first.address, second.address]
            where = first.address.host, first.address.port
            with socket.create_connection(where), second.connect(1, addresses)[0]:
                async with asyncio.timeout(5):
                    (await asyncio.to_thread(first.connect, 0, addresses))[1].close()

    asyncio.run(main())


def test_of_several_ranks_that_are_lost_the_first_is_named():
    async def main():
        buffer = ExchangedBuffer({}, {}, ArenaShape(1, ()), [lambda *sent: None] * 3)
        buffer.begin_epoch()
        buffer.announce(0, {})
        (ticket,) = buffer.join([(0, {})])
        for rank in (2, 0):
            buffer.lose(rank, PeerError(rank))
        for waiting in (buffer.granted(ticket), buffer.awaited()):
            with pytest.raises(PeerError, match="rank 2"):
                await waiting

    asyncio.run(main())


@pytest.mark.parametrize(
    ("late", "broken", "says"),
    [
        (2, None, "rank 2 is late, has closed its loader or has died, says rank 1, which"),
        (0, PeerError(3), "rank 3 is late"),
        (-1, None, "rank 1 has closed its loader"),
        (0, None, "rank 1 has closed its loader"),  # the one that is told is late
        (1, None, "rank 1 has closed its loader"),  # it is late itself
    ],
)
def test_a_rank_that_closes_because_of_another_names_it(late, broken, says):
    async def main():
        found, links = asyncio.Queue(), []
        closes = SimpleNamespace(
            _closed=False, _taking_own=asyncio.create_task(asyncio.sleep(0)), _pulls=AsyncMock(),
            _share=AsyncMock(), _pool=Mock(drain=AsyncMock()), _own=None,
            buffer=SimpleNamespace(blamed=late, broken=broken),
        )  # fmt: skip
        closes._blamed = ExchangeBuffers._blamed.fget(closes)
        asker = SimpleNamespace(leave=lambda lost: None)
        told = SimpleNamespace(
            _closed=False, _rank=0, _places=[0, 1], _share=SimpleNamespace(askers=[asker] * 2),
            _pulls=SimpleNamespace(shut=lambda rank: None),
            buffer=SimpleNamespace(lose=lambda place, error: found.put_nowait(error)),
        )  # fmt: skip
        ends = [partial(ExchangeBuffers._ended, told, 1), lambda why: None]
        for rank, sock in enumerate(connected()):
            links.append(Link(sock, 1 - rank, 60, 0, False, [], {}, None, None, ends[rank]))
            links[-1].start()
        told._links = dict.fromkeys((1, 2, 3), links[0])
        closes._links = {0: links[1]}
        async with asyncio.timeout(5), asyncio.TaskGroup() as tasks:
            tasks.create_task(ExchangeBuffers.drain(closes))
            assert str(await found.get()).startswith(says)
            await links[0].aclose()

    asyncio.run(main())


@pytest.mark.parametrize(("turn", "blamed"), [(2, 2), (-1, -1), (None, 3)])
def test_the_rank_whose_turn_it_is_or_that_does_not_say_is_blamed(monkeypatch, turn, blamed):
    async def awaited():
        return await asyncio.Event().wait() if turn is None else turn

    monkeypatch.setattr(sharing, "ANSWER_S", 0 if turn is None else 5)
    waits = ExchangeBuffers.__new__(ExchangeBuffers)
    waits.buffer, waits._places = SimpleNamespace(late=1, awaited=awaited), [0, 2, 3, 1]
    waits._rank = 0
    reason = asyncio.run(waits.late_reason())
    assert waits.buffer.blamed == blamed
    assert f"rank {blamed} " in reason or blamed == -1


def test_a_rank_that_was_late_is_not_blamed_once_the_user_asks_again():
    buffer = ExchangedBuffer({}, {}, ArenaShape(1, ()), [lambda *sent: None])
    asks = SimpleNamespace(
        _runtime=SimpleNamespace(check_caller=int), _tell=int, _shared=buffer, _closed=False,
        _yielded=1, _ranks=SimpleNamespace(history=SimpleNamespace(exchanges=0)),
    )  # fmt: skip
    for again in (partial(BatchIterator._ask, asks), buffer.begin_epoch):
        buffer.blamed = 1
        again()
        assert buffer.blamed == -1


def test_closing_tells_whom_it_waits_for(monkeypatch):
    monkeypatch.setattr(exchanging, "TELL_S", 0)

    async def main():
        told = asyncio.Event()
        share = SimpleNamespace(passed=lambda *of: told.wait(), behind=lambda *of: [2, 3])
        given = {"_share": share, "buffer": SimpleNamespace(epoch=0, taken=1), "_closed": False}
        waits = SimpleNamespace(_timeout_s=60, **given)

        def tell(*of):
            ExchangeBuffers._tell_behind(waits, *of)
            told.set()

        waits._tell_behind = tell
        with pytest.warns(UserWarning, match="until ranks 2, 3 have as many"):
            await ExchangeBuffers.unneeded(waits)

    asyncio.run(main())


def test_a_batch_joins_once_a_worker_has_got_memory_of_the_device():
    """The event loop, which serves other ranks, does not wait for that."""

    async def main():
        memory = asyncio.Event()

        class Workers:
            async def run(self, function, *arguments):
                await memory.wait()
                return function(*arguments)

        sends = [lambda *sent: None] * 2
        buffer = ExchangedBuffer({}, {}, ArenaShape(2, ()), sends, workers=Workers())
        buffer.pulled = {0}
        buffer.begin_epoch()
        tickets = []
        for index in range(3):
            buffer.announce(index, {})
            tickets += buffer.join([(index, {})])
        await asyncio.sleep(0)
        buffer.leave(tickets[0])
        assert not any(ticket.owned for ticket in tickets)
        memory.set()
        await tickets[2].joining
        assert [len(ticket.owned) for ticket in tickets] == [0, 2, 2]

    asyncio.run(main())


def test_strangers_do_not_postpone_the_end_of_a_meeting(monkeypatch):
    monkeypatch.setattr(links, "CONNECT_S", -1)
    with Meeting() as first, Meeting() as second:
        addresses = [first.address, second.address]
        with (
            socket.create_connection((first.address.host, first.address.port)),
            pytest.raises(ConfigError, match=r"ranks \[1\] cannot reach rank 0"),
        ):
            first.connect(0, addresses)
        assert not first._strangers, "one was accepted after the end"


def test_a_rank_that_is_lost_while_a_batch_is_late_is_named():
    async def awaited():
        raise PeerError(1, "cannot be reached")

    waits = SimpleNamespace(_awaited=awaited, _rank=0, owner="")
    assert "rank 1 cannot be reached" in asyncio.run(RankBuffers.late_reason(waits))
