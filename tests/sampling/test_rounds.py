"""Samples that are drawn side by side: who carries out what, and that nobody waits for ever."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable
from typing import Any

import pytest

from gnndrive.common.errors import ClosedError
from gnndrive.sampling.rounds import CombinedFetch, StopToken

LOOKS = 1_000_000
FILE = object()


class Participant(threading.Thread):
    """Wants one thing after another of a round, then leaves."""

    def __init__(
        self, round: CombinedFetch[str], requests: list[tuple[object, str]], carry: Any
    ) -> None:
        super().__init__(daemon=True)
        self.round, self.requests, self.carry = round, requests, carry
        self.place = round.join()
        self.stop = carry.stop
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            for what, request in self.requests:
                self.round.fetch(what, request, self.stop, self.carry)
        except BaseException as error:
            self.error = error
        finally:
            self.place.leave()

    def ended(self) -> BaseException | None:
        self.join(60)
        assert not self.is_alive(), "it waits for ever"
        return self.error


class Carry:
    """Carries out, and remembers what together; an event may hold it up."""

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


def begun(
    round: CombinedFetch[str], requests: list[list[tuple[object, str]]], carry: Carry
) -> list[Participant]:
    """Members with their wishes, who all have entered before the first begins."""
    members = [Participant(round, each, carry) for each in requests]
    for member in members:
        member.start()
    return members


def until(happened: Callable[[], object]) -> None:
    assert any(happened() for _ in range(LOOKS))


def test_all_that_members_want_is_carried_out_together(carry: Carry) -> None:
    members = begun(
        CombinedFetch(), [[(FILE, f"{name}{hop}") for hop in range(3)] for name in "abc"], carry
    )
    assert [member.ended() for member in members] == [None] * 3
    assert carry.together == [["a0", "b0", "c0"], ["a1", "b1", "c1"], ["a2", "b2", "c2"]]


def test_who_has_left_is_not_waited_for(carry: Carry) -> None:
    round: CombinedFetch[str] = CombinedFetch()
    third = round.join()
    short, long = begun(round, [[(FILE, "a")], [(FILE, "b")] * 2], carry)
    until(lambda: len(round._waiting) == 2)
    assert carry.together == [], "the third may still come"
    third.leave()
    third.leave()  # once or more often
    assert (short.ended(), long.ended()) == (None, None)
    assert carry.together == [["a", "b"], ["b"]]


def test_one_alone_waits_for_nobody(carry: Carry) -> None:
    round: CombinedFetch[str] = CombinedFetch()
    round.fetch(FILE, "a", carry.stop, carry)
    round.join()
    round.fetch(FILE, "b", carry.stop, carry)
    assert carry.together == [["a"], ["b"]]


def test_only_wishes_of_the_same_go_together(carry: Carry) -> None:
    """As when one sample is at one edge type and another at the next: none is lost."""
    other = object()
    requests: list[list[tuple[object, str]]] = [
        [(FILE, "a"), (other, "A")],
        [(FILE, "b"), (other, "B")],
        [(other, "C"), (FILE, "c")],
    ]
    assert [member.ended() for member in begun(CombinedFetch(), requests, carry)] == [None] * 3
    assert sorted(request for requests in carry.together for request in requests) == list("ABCabc")
    assert all(
        "".join(requests).isupper() or "".join(requests).islower() for requests in carry.together
    )
    assert carry.together[0] in (["a", "b"], ["C"])


def test_an_error_is_everybodys(carry: Carry) -> None:
    carry.error = MemoryError("no")
    members = begun(CombinedFetch(), [[(FILE, "a")], [(FILE, "b")]], carry)
    assert [member.ended() for member in members] == [carry.error] * 2


def test_an_error_keeps_no_wish_alive(carry: Carry) -> None:
    """A wish may hold megabytes, which are not to wait for the garbage collector."""

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


def test_stopping_ends_who_waits(carry: Carry) -> None:
    round: CombinedFetch[str] = CombinedFetch()
    third = round.join()
    members = begun(round, [[(FILE, "a")], [(FILE, "b")]], carry)
    until(lambda: len(round._waiting) == 2)
    carry.stop.set()
    assert all(isinstance(member.ended(), ClosedError) for member in members)
    with pytest.raises(ClosedError):
        round.fetch(FILE, "late", carry.stop, carry)
    assert (carry.together, round._waiting) == ([], [])
    third.leave()


def test_what_is_being_carried_out_is_waited_for(carry: Carry) -> None:
    """Another thread looks at the sample of whoever it is carried out for."""
    carry.held_up = threading.Event()
    members = begun(CombinedFetch(), [[(FILE, "a")], [(FILE, "b")]], carry)
    until(lambda: carry.together)
    carry.stop.set()
    carry.held_up.set()
    assert [member.ended() for member in members] == [None] * 2
