"""Cancelling at every await: after each turn of the loop at which a task waits where none did yet.

Most turns move no task, or end with tasks at awaits at which others have been: cancelling there
again would resume the same code. Other combinations of awaits come with other seeds.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from types import CoroutineType
from typing import Any

from gnndrive.testing.loop import run

NO_FRAME = -2  # -1: it has not begun
Wait = Callable[[], Awaitable[None]]
Place = tuple[tuple[Any, int], ...]


def cancel_after_each_turn(
    main: Callable[[Wait], Coroutine[Any, Any, bool]], turns_max: int
) -> int:
    """Run `main(wait)` once for each turn with a new await; returns how many there are.

    Args:
        main: begins, awaits `wait()` once, cancels, and returns whether all had ended by itself.
        turns_max: more turns than it takes until all has ended.
    """
    first: dict[Place, int] = {}  # the turns after which a task is at this place

    async def watch() -> None:
        for turns in range(turns_max):
            others = asyncio.all_tasks() - {asyncio.current_task()}
            if not others:
                return
            for task in others:
                first.setdefault(place(task), turns)
            await asyncio.sleep(0)
        raise AssertionError(f"still running after {turns_max} turns")

    assert run(main(watch)), "it has not ended by itself"
    cancelled = 0
    for turns in sorted(set(first.values())):

        async def wait(turns: int = turns) -> None:
            for _ in range(turns):
                await asyncio.sleep(0)

        cancelled += not run(main(wait))
    return cancelled


def place(task: asyncio.Task[Any]) -> Place:
    """The code and the instruction of each frame in a task's chain of awaits; and whether what it
    waits for is there, so that only its turn has not come."""
    coroutine: Any = task.get_coro()
    awaited: asyncio.Future[Any] | None = task._fut_waiter  # type: ignore[attr-defined]
    chain: list[tuple[Any, int]] = [(None, awaited is not None and awaited.done())]
    while isinstance(coroutine, CoroutineType):
        frame = coroutine.cr_frame
        chain.append((coroutine.cr_code, frame.f_lasti if frame else NO_FRAME))
        coroutine = coroutine.cr_await
    return tuple(chain)
