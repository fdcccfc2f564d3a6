"""Rows that a device copies out of owners' slots."""

import asyncio
import weakref
from types import SimpleNamespace

import numpy as np
import torch

from gnndrive.exchange.exchanged_buffer import Arriving
from gnndrive.exchange.pulled_rows import PulledRows
from gnndrive.testing.loop import run
from gnndrive.testing.simulation import InlineWorkers


def test_an_error_that_is_kept_does_not_keep_the_slots_open():
    def pull(slots, *rest):
        try:
            raise RuntimeError("of torch")
        except RuntimeError as error:
            raise MemoryError("no memory") from error

    async def main():
        pulled = PulledRows(SimpleNamespace(pull=pull, shut_slots=list.clear), InlineWorkers())
        opened, places = [torch.zeros(4, 1, dtype=torch.uint8)], np.arange(2, dtype=np.int32)
        slots, ended = weakref.ref(opened[0]), asyncio.get_running_loop().create_future()
        pulled.add(1, opened)
        pulled.pull(1, [Arriving(torch.zeros(2, 1), places, True)], [places], ended.set_result)
        assert str(await ended) == "no memory"
        pulled.shut(1)
        assert slots() is None
        await pulled.aclose()

    run(main())
