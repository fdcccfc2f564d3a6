"""What a service promises of its memory, and how it refuses more."""

from __future__ import annotations

import asyncio

import pytest

from gnndrive import ConfigError
from gnndrive.host.budget import NAMED_MAX, Budget


def test_what_is_promised_is_counted_and_given_back():
    async def main():
        budget = Budget(100)
        await budget.take("a", "job a", 60)
        await budget.take("b", "job b", 40)
        assert budget.used == 100
        budget.give("a")
        budget.give("a")
        await budget.take("c", "job c", 60)
        budget.correct("c", 10)
        assert budget.used == 50

    asyncio.run(main())


def test_without_a_limit_all_is_counted():
    async def main():
        budget = Budget(None)
        await budget.take("a", "job a", 1 << 60)
        assert budget.used == 1 << 60

    asyncio.run(main())


def test_an_error_says_what_is_left_and_who_has_the_rest():
    async def main():
        budget = Budget(30_000)
        await budget.take(0, "small", 5_000)
        await budget.take(1, "large", 15_000)
        with pytest.raises(ConfigError) as raised:
            await budget.take(2, "new", 10_001)
        assert "new needs 10 KB of the service, which has 10 KB of --memory 30 KB left: " in str(
            raised.value
        )
        assert "left: large has 15 KB, small has 5 KB. Give the loader less" in str(raised.value)
        assert budget.used == 20_000
        await budget.take(2, "new", 10_000)

    asyncio.run(main())


def test_an_error_is_short_with_many_users():
    async def main():
        budget = Budget(1_000)
        for number in range(NAMED_MAX + 2):
            await budget.take(number, f"job {number}", 100 - number)
        with pytest.raises(ConfigError, match=r"job 7 has 93 B, 2 others have 183 B\. Give"):
            await budget.take("new", "new", 100)

    asyncio.run(main())


def test_memory_that_is_being_freed_is_waited_for():
    async def main():
        budget, freed = Budget(100), asyncio.Event()
        await budget.take("a", "job a", 60)
        await budget.take("b", "job b", 30)

        async def free():
            await freed.wait()
            budget.give("a")

        async def free_nothing():
            budget.give("nobody")

        budget.freed_by(asyncio.create_task(free()))
        budget.freed_by(asyncio.create_task(free_nothing()))
        await budget.take("c", "job c", 10)  # is left
        waiting = asyncio.create_task(budget.take("d", "job d", 60))
        for _ in range(3):
            await asyncio.sleep(0)
        assert not waiting.done()
        freed.set()
        await waiting
        with pytest.raises(ConfigError, match="job e needs 1 B"):
            await budget.take("e", "job e", 1)

    asyncio.run(main())
