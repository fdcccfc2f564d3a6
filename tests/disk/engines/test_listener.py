"""What all engines hand out: the iterator over the log of reads."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from gnndrive.common.ffi import lib
from gnndrive.disk.engines._listener import Listener
from gnndrive.testing.loop import run

from .test_machine import Machine


def test_others_run_though_there_is_news_at_every_look() -> None:
    machine = Machine([0, 4, 8, 12, 16], 512)
    reads: Any = SimpleNamespace(handle=machine.reads)
    got: list[int] = []

    def land() -> None:
        """The next extent, or the end."""
        extent = lib.gd_reads_take(machine.reads)
        if extent < 0:
            lib.gd_reads_let_go(machine.reads)
        else:
            assert machine.complete(512, extent) == lib.GD_WHOLE

    async def listen() -> None:
        async for stretch in Listener(reads):
            got.extend(stretch.slots.tolist())
            land()

    async def main() -> None:
        land()
        listening, seen = asyncio.ensure_future(listen()), set()
        while not listening.done():
            seen.add(len(got))
            await asyncio.sleep(0)
        await listening
        assert got == [0, 4, 8, 12, 16]
        assert seen == set(range(5)), "somebody runs between any two"

    run(main())


def test_who_is_forgotten_has_been_told() -> None:
    """The ring lets go between any two looks at its progress."""
    for look in range(1, 4):
        reads: Any = SimpleNamespace(handle=Machine([0], 512).reads)
        listener = Listener(reads)
        looks = iter([0] * look + [1] * 4)

        class Progress:
            landed = failed = 0
            let_go = property(lambda _, looks=looks: next(looks))

        listener._progress = Progress()
        while not listener.poke():
            pass
        assert listener._news.is_set()
