"""Rule 15's order of batches: by epoch, step and rank, without the turns that are void."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gnndrive.host.messages import ProtocolError
from gnndrive.host.turns import Turn, Turns
from gnndrive.testing.loop import run

RANKS, EPOCHS, STEPS = 3, 3, 4
Step = tuple[str, int, int, int]


def turns_of(ranks: int = 2) -> Turns[str]:
    return Turns(range(ranks))


def join(turns: Turns[str], *batches: str) -> None:
    """Join with batches, each as its epoch, step and rank: "012" is step 1 of rank 2."""
    for name in batches:
        epoch, step, rank = map(int, name)
        turns.join(rank, epoch, step, name)


def test_batches_come_by_epoch_then_step_then_rank() -> None:
    turns = turns_of(3)
    join(turns, "002", "012", "102", "001", "011", "101", "000", "010")
    assert turns.peek(99) == ["000", "001", "002", "010", "011", "012"], "rank 0 may have step 2"
    join(turns, "100")
    order = ["000", "001", "002", "010", "011", "012", "100", "101", "102"]
    assert turns.peek(99) == order
    assert turns.peek(4) == order[:4]
    assert [*turns.take_now(2), *turns.take_now(7)] == order
    assert turns.taken == 9


def test_nothing_comes_before_a_rank_that_has_not_joined() -> None:
    turns = turns_of()
    join(turns, "001", "011")
    assert turns.peek(9) == []
    assert turns.awaited == 0
    join(turns, "000")
    assert turns.peek(9) == ["000", "001"]
    assert turns.awaited is None, "a batch can be taken"
    turns.take_now(2)
    assert turns.awaited == 0


def test_a_rank_may_be_many_steps_ahead() -> None:
    turns = turns_of()
    join(turns, "000", "010", "020", "030")
    assert turns.take_now() == ["000"]
    assert turns.peek(9) == []
    assert turns.awaited == 1
    join(turns, "001", "011")
    assert turns.peek(9) == ["001", "010", "011", "020"]


@pytest.mark.parametrize(
    "void",
    [
        pytest.param(lambda turns: turns.end_epoch(0, 0), id="ended"),
        pytest.param(lambda turns: turns.drop(0), id="dropped"),
        pytest.param(lambda turns: turns.join(0, 0, 5, "later"), id="skipped a step"),
        pytest.param(lambda turns: turns.join(0, 1, 0, "later"), id="skipped an epoch"),
    ],
)
def test_void_turns_are_not_waited_for(void: Callable[[Turns[str]], None]) -> None:
    turns = turns_of()
    join(turns, "001")
    assert turns.peek(9) == []
    void(turns)
    assert turns.peek(9)[0] == "001"


def test_the_turn_of_a_removed_batch_is_void() -> None:
    turns = turns_of()
    join(turns, "000", "001", "010", "011")
    turns.remove(0, 0, 0)
    assert turns.peek(9) == ["001", "010", "011"]
    assert not turns.has(0, 0, 0)
    assert turns.has(0, 0, 1)
    with pytest.raises(ProtocolError, match="too late"):
        join(turns, "000")


def test_a_dropped_ranks_batches_are_gone() -> None:
    turns = turns_of()
    join(turns, "000", "001")
    turns.drop(0)
    assert turns.ranks == (1,)
    assert turns.peek(9) == ["001"]
    assert not turns.has(0, 0, 0)
    with pytest.raises(ProtocolError):
        join(turns, "010")
    turns.take_now()
    turns.drop(1)
    assert turns.peek(9) == []
    assert turns.awaited is None, "no rank is left"


@pytest.mark.parametrize("late", ["000", "010", "020", "100"])
def test_a_batch_whose_turn_has_passed_is_refused(late: str) -> None:
    turns = turns_of()
    join(turns, "020")
    turns.end_epoch(0, 0)
    join(turns, "110")
    before = turns.peek(9)
    with pytest.raises(ProtocolError, match="too late"):
        join(turns, late)
    assert turns.peek(9) == before


def test_an_epoch_that_was_ended_before_changes_nothing() -> None:
    turns = turns_of()
    join(turns, "100", "101")
    turns.end_epoch(0, 0)
    turns.end_epoch(1, 0)
    assert turns.peek(9) == ["100", "101"]
    assert turns.awaited is None


@pytest.mark.parametrize(
    "change",
    [
        lambda turns: join(turns, "000"),
        lambda turns: turns.end_epoch(0, 0),
        lambda turns: turns.drop(0),
    ],
)
def test_a_task_that_waits_for_a_batch_is_woken(change: Callable[[Turns[str]], None]) -> None:
    async def main() -> None:
        turns = turns_of()
        join(turns, "001")
        waiting = asyncio.ensure_future(turns.arrival())
        await asyncio.sleep(0)
        assert not waiting.done()
        change(turns)
        await waiting
        assert turns.peek(1)

    run(main())


class Model:
    """What every turn is, one by one, from all that has happened."""

    def __init__(self) -> None:
        self.waiting: dict[Turn, str] = {}
        self.open = {
            (epoch, step, rank)
            for epoch in range(EPOCHS + 1)
            for step in range(STEPS + 1)
            for rank in range(RANKS)
        }

    def close(self, rank: int, below: tuple[int, int]) -> None:
        """The turns of `rank` before (epoch, step) are void."""
        self.open = {turn for turn in self.open if turn[2] != rank or turn[:2] >= below}

    def ready(self) -> Iterator[str]:
        for turn in sorted(self.open | self.waiting.keys()):
            if turn in self.open:
                return
            yield self.waiting[turn]

    @property
    def awaited(self) -> int | None:
        if next(self.ready(), None) is not None or not self.open:
            return None
        return min(self.open)[2]


STEP = st.tuples(
    st.sampled_from(["join"] * 6 + ["take"] * 3 + ["remove", "end", "drop"]),
    st.integers(0, RANKS - 1), st.integers(0, EPOCHS - 1), st.integers(0, STEPS - 1),
)  # fmt: skip


@settings(max_examples=300)
@given(st.lists(STEP, max_size=60))
def test_the_order_is_that_of_a_brute_force_model(steps: list[Step]) -> None:
    turns, model = turns_of(RANKS), Model()
    for what, rank, epoch, step in steps:
        apply(turns, model, what, (epoch, step, rank))
        ready = list(model.ready())
        for most in (1, 2, 99):
            assert turns.peek(most) == ready[:most]
        assert turns.awaited == model.awaited
        for each in model.waiting:
            assert turns.has(each[2], *each[:2])
        assert set(turns.ranks) == {turn[2] for turn in model.open}


def apply(turns: Turns[str], model: Model, what: str, turn: Turn) -> None:
    epoch, step, rank = turn
    there = rank in turns.ranks
    if what == "join":
        name = f"{epoch}{step}{rank}"
        if turn not in model.open:
            with pytest.raises(ProtocolError):
                turns.join(rank, epoch, step, name)
            return
        turns.join(rank, epoch, step, name)
        model.close(rank, (epoch, step + 1))
        model.waiting[turn] = name
    elif what == "take":
        count = min(len(list(model.ready())), step)
        for name in turns.take_now(count):
            first = min(model.waiting)
            assert model.waiting.pop(first) == name
    elif what == "remove" and turn in model.waiting:
        turns.remove(rank, epoch, step)
        del model.waiting[turn]
    elif what == "end" and there:
        turns.end_epoch(rank, epoch)
        model.close(rank, (epoch + 1, 0))
    elif what == "drop" and there:
        turns.drop(rank)
        model.open = {each for each in model.open if each[2] != rank}
        model.waiting = {each: name for each, name in model.waiting.items() if each[2] != rank}
