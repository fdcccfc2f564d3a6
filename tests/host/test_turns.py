"""Rule 15's order of batches: by epoch, step and rank, without the turns that are void."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from gnndrive.host.messages import ProtocolError
from gnndrive.host.turns import Turn, Turns

RANKS, EPOCHS, STEPS = 3, 3, 4


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


KINDS = ["join"] * 6 + ["take"] * 3 + ["remove", "end", "drop"]


def test_the_order_is_that_of_a_brute_force_model(seeds):
    for seed in seeds(60):
        follow_the_model(random.Random(seed))


def follow_the_model(draw: random.Random) -> None:
    turns, model = Turns(range(RANKS)), Model()
    for _ in range(40):
        what = draw.choice(KINDS)
        epoch, step, rank = draw.randrange(EPOCHS), draw.randrange(STEPS), draw.randrange(RANKS)
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
        assert not turns.has(rank, epoch, step)
        del model.waiting[turn]
    elif what == "end" and there:
        turns.end_epoch(rank, epoch)
        model.close(rank, (epoch + 1, 0))
    elif what == "drop" and there:
        turns.drop(rank)
        model.open = {each for each in model.open if each[2] != rank}
        model.waiting = {each: name for each, name in model.waiting.items() if each[2] != rank}
