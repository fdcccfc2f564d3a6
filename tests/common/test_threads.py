"""Functions in a pool's threads: their order, and Ctrl-C while their results are waited for."""

import gc
import signal
import threading
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from itertools import count
from queue import SimpleQueue
from typing import Any

import pytest

from gnndrive.common.threads import in_turn, submit, thread_pool
from tests.interrupted import interrupted

PLACES = "/common/threads.py", "/_base.py", "/futures/thread.py", "/threading.py"


def check_that_it_ends(pool: ThreadPoolExecutor) -> None:
    ending = threading.Thread(target=pool.shutdown, daemon=True)
    ending.start()
    ending.join(60)
    assert not ending.is_alive(), "a thread of the pool waits for ever"


def test_an_interrupt_at_any_point_of_waiting_leaves_no_lock_that_the_thread_needs():
    for number in count():
        pool, may_end = ThreadPoolExecutor(1), SimpleQueue[str]()
        outcome = submit(pool, may_end.get)
        there_is_one = interrupted(partial(outcome.wait, 0), number, *PLACES)
        may_end.put("ended")
        check_that_it_ends(pool)
        assert outcome.result() == "ended"
        if not there_is_one:
            break
    assert number > 1


def test_an_interrupt_at_any_point_leaves_a_pool_that_can_be_closed():
    def call_all(pool: ThreadPoolExecutor) -> list[int]:
        return list(in_turn(pool, ([partial(abs, -each)] for each in range(3)), 1))

    for number in count():
        pool = ThreadPoolExecutor(2)
        there_is_one = interrupted(partial(call_all, pool), number, *PLACES)
        check_that_it_ends(pool)
        if not there_is_one:
            break
    assert number > 30


def test_a_pool_waits_for_its_functions_after_an_interrupt():
    ended = []

    def interrupt() -> None:
        main = threading.main_thread().ident
        assert main is not None
        signal.pthread_kill(main, signal.SIGINT)
        ended.append(True)

    with pytest.raises(KeyboardInterrupt), thread_pool(1, "test") as pool:
        submit(pool, interrupt)
    assert ended


def test_results_come_in_order_and_groups_are_taken_when_results_are():
    taken = []

    def groups() -> Iterator[list[partial[int]]]:
        for first in (0, 2, 4):
            taken.append(first)
            yield [partial(int, first), partial(int, first + 1)]

    with thread_pool(2, "test") as pool:
        found = [(result, list(taken)) for result in in_turn(pool, groups(), 1)]
    assert found == [(0, [0]), (1, [0, 2]), (2, [0, 2]), *((each, [0, 2, 4]) for each in (3, 4, 5))]


def test_functions_of_a_group_may_wait_for_each_other():
    handed: SimpleQueue[str] = SimpleQueue()
    group: list[Any] = [handed.get, partial(handed.put, "mine")]
    with thread_pool(2, "test") as pool:
        assert list(in_turn(pool, [group], 0)) == ["mine", None]


def test_an_error_is_raised_at_its_turn_and_keeps_nothing_alive():
    class Large:
        pass

    large = list[weakref.ref[Large]]()

    def fail() -> None:
        mine = Large()
        large.append(weakref.ref(mine))
        raise ValueError

    gc.disable()
    try:
        with thread_pool(1, "test") as pool:
            results = in_turn(pool, [[int, fail]], 1)
            assert next(results) == 0
            with suppress(ValueError):
                next(results)
                pytest.fail("the error was lost")
        del results
        assert large[0]() is None
    finally:
        gc.enable()
