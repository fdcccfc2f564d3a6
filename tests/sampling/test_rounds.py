"""`CombinedFetch`: which requests are carried out together, and that no thread waits for ever."""

import gc
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import pytest

from gnndrive.common.errors import ClosedError
from gnndrive.sampling.rounds import CombinedFetch, Participant, StopToken

FILE = object()
Requests = list[tuple[object, str]]


class Carry:
    """The `carry_out` of the tests: records the requests of each call; an event may block it."""

    def __init__(self) -> None:
        self.stop = StopToken()
        self.together: list[list[str]] = []
        self.held_up: threading.Event | None = None
        self.error: Exception | None = None

    def __call__(self, requests: list[str]) -> None:
        self.together.append(sorted(requests))
        if self.held_up is not None:
            self.held_up.wait(60)
        if self.error is not None:
            raise self.error


@pytest.fixture
def carry() -> Carry:
    return Carry()


def in_thread(function: Callable[..., Any], *arguments: Any) -> Future[Any]:
    """Call a function in a thread that does not outlive the process, even if it waits for ever."""
    outcome: Future[Any] = Future()

    def call() -> None:
        try:
            outcome.set_result(function(*arguments))
        except BaseException as error:
            outcome.set_exception(error)

    threading.Thread(target=call, daemon=True).start()
    return outcome


TWO: list[Requests] = [[(FILE, "a")], [(FILE, "b")]]


def start(
    combined: CombinedFetch[str], requests: list[Requests], carry: Carry
) -> Callable[[], list[BaseException | None]]:
    """Start a participant for each list of requests, which leaves behind them; all join before the
    first one starts. Returns a function that waits for their errors."""

    def take_part(own: Requests, participant: Participant) -> None:
        try:
            for source, request in own:
                combined.fetch(source, request, carry.stop, carry)
        finally:
            participant.leave()

    joined = [(own, combined.join()) for own in requests]
    started = [in_thread(take_part, *each) for each in joined]
    return lambda: [each.exception(60) for each in started]


def until(happened: Callable[[], object]) -> None:
    assert any(happened() for _ in range(1_000_000))


def test_the_requests_of_all_participants_are_carried_out_together(carry):
    requests: list[Requests] = [[(FILE, f"{name}{hop}") for hop in range(3)] for name in "abc"]
    assert start(CombinedFetch(), requests, carry)() == [None] * 3
    assert carry.together == [["a0", "b0", "c0"], ["a1", "b1", "c1"], ["a2", "b2", "c2"]]


def test_a_participant_that_left_is_not_waited_for(carry):
    combined: CombinedFetch[str] = CombinedFetch()
    third = combined.join()
    ended = start(combined, [[(FILE, "a")], [(FILE, "b")] * 2], carry)
    until(lambda: len(combined._waiting) == 2)
    assert carry.together == [], "the third may still make a request"
    third.leave()
    third.leave()  # a second call does nothing
    assert ended() == [None, None]
    assert carry.together == [["a", "b"], ["b"]]


def test_only_requests_to_the_same_source_are_combined(carry):
    """No request is lost when one sample is at one edge type and another at the next."""
    other = object()
    requests: list[Requests] = [
        [(FILE, "a"), (other, "A")], [(FILE, "b"), (other, "B")], [(other, "C"), (FILE, "c")],
    ]  # fmt: skip
    assert start(CombinedFetch(), requests, carry)() == [None] * 3
    together = ["".join(requests) for requests in carry.together]
    assert sorted("".join(together)) == list("ABCabc")
    assert all(each.isupper() or each.islower() for each in together)
    assert together[0] in ("ab", "C")


def test_an_error_is_raised_in_each_participant_and_keeps_no_request_alive(carry):
    """A request may hold megabytes, which must be freed without the garbage collector."""
    carry.error = MemoryError("no")
    assert start(CombinedFetch(), TWO, carry)() == [carry.error] * 2

    class Large(str): ...

    carry.error, request = MemoryError("no"), Large("a")
    alive = weakref.ref(request)
    gc.disable()
    try:
        try:
            CombinedFetch[str]().fetch(FILE, request, carry.stop, carry)
        except MemoryError:
            carry.error = None
        carry.together.clear()
        del request
        assert alive() is None
    finally:
        gc.enable()


def test_stopping_ends_waiting_participants(carry):
    combined: CombinedFetch[str] = CombinedFetch()
    third = combined.join()
    ended = start(combined, TWO, carry)
    until(lambda: len(combined._waiting) == 2)
    carry.stop.set()
    assert [type(error) for error in ended()] == [ClosedError] * 2
    with pytest.raises(ClosedError):
        combined.fetch(FILE, "late", carry.stop, carry)
    assert (carry.together, combined._waiting) == ([], [])
    third.leave()


def test_stopping_does_not_end_requests_that_are_being_carried_out(carry):
    """Because the thread that carries them out accesses the samples of the others."""
    carry.held_up = threading.Event()
    ended = start(CombinedFetch(), TWO, carry)
    until(lambda: carry.together)
    carry.stop.set()
    carry.held_up.set()
    assert ended() == [None] * 2


def test_a_stop_token_calls_functions_registered_before_and_after_it_is_set():
    stop, calls = StopToken(), []
    with stop.calling(lambda: calls.append("left")):
        assert not stop
    with stop.calling(lambda: calls.append("within")):
        stop.set()
        assert calls == ["within"]
    with stop.calling(lambda: calls.append("late")):
        assert calls == ["within", "late"]
    assert stop
    assert stop.flag[0] == 1
