"""Rows that a device copies out of owners' slots."""

import asyncio
import weakref
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from gnndrive.common.owners import Owners
from gnndrive.exchange.exchanged_buffer import Arriving, ExchangedBuffer
from gnndrive.exchange.pulled_rows import PulledRows
from gnndrive.host.arena import ArenaShape
from gnndrive.host.messages import Kind, Message
from gnndrive.loader.exchanging import ExchangeBuffers
from gnndrive.testing.loop import run
from gnndrive.testing.simulation import InlineWorkers

PLACES = np.arange(2, dtype=np.int32)


def test_a_copy_that_fails_is_the_error_of_its_batch_alone():
    def pull(*given):
        raise MemoryError("no memory")

    def send(message, asked):
        said.append(message.kind)
        if message.kind is Kind.PULLED:
            buffer.receive(0, Message(Kind.READY, 0, 0))

    said = []
    device = SimpleNamespace(rows=torch.zeros, pull=pull)
    owners, shape, workers = {"x": Owners(2, 1, 0)}, ArenaShape(1, (2,)), InlineWorkers()
    buffer = ExchangedBuffer(owners, {"x": 1}, shape, [send], device=device, workers=workers)

    async def main():
        pulls = PulledRows(device, workers)
        pulls.add(0, [torch.zeros(4, 1)])
        rank = SimpleNamespace(buffer=buffer, _places=[0], _pulls=pulls, _send=[send])
        buffer.pulled = {0}
        buffer.begin_epoch()
        buffer.announce(0, {"x": np.arange(2)})
        (ticket,) = buffer.join([(0, {})])
        await ticket.joining
        ExchangeBuffers._pull(rank, 0, Message(Kind.SLOTS, 0, 0), [PLACES])
        with pytest.raises(MemoryError, match="no memory"):
            await buffer.granted(ticket)
        assert said[-2:] == [Kind.PULLED, Kind.RELEASE]
        assert buffer.idle
        assert not buffer.broken

    run(main())


def test_an_error_that_is_kept_does_not_keep_the_slots_open():
    def pull(slots, *rest):
        try:
            raise RuntimeError("of torch")
        except RuntimeError as error:
            raise MemoryError("no memory") from error

    async def main():
        pulled = PulledRows(SimpleNamespace(pull=pull, shut_slots=list.clear), InlineWorkers())
        opened = [torch.zeros(4, 1, dtype=torch.uint8)]
        slots, ended = weakref.ref(opened[0]), asyncio.get_running_loop().create_future()
        pulled.add(1, opened)
        pulled.pull(1, [Arriving(torch.zeros(2, 1), PLACES, True)], [PLACES], ended.set_result)
        assert str(await ended) == "no memory"
        pulled.shut(1)
        assert slots() is None
        await pulled.aclose()

    run(main())
