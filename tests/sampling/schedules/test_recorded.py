"""The recorded schedule: which recorded batch comes when."""

from __future__ import annotations

import pytest

from gnndrive.common.errors import ConfigError
from gnndrive.sampling.schedules.base import InputNodes
from gnndrive.sampling.schedules.recorded import Recorded
from tests.sampling.schedules.test_conformance import batches, order, standard, with_recording

BATCHES, EPOCHS = 11, 3


def made(shuffle: bool = True, seed: int = 5) -> Recorded:
    """A schedule that replays three epochs of eleven batches."""
    context = with_recording(InputNodes(105), 10, shuffle, False, seed, EPOCHS)
    return Recorded.make(context)


def recorded(epoch: int) -> list[int]:
    """The batches of the recording that an epoch replays, as they were recorded."""
    first = epoch % EPOCHS * BATCHES
    return list(range(first, first + BATCHES))


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("epoch", range(8))
def test_an_epoch_replays_one_recording(epoch: int, shuffle: bool) -> None:
    assert sorted(order(made(shuffle), epoch)) == recorded(epoch)


@pytest.mark.parametrize("epoch", range(8))
def test_batches_come_as_recorded_the_first_time_or_unshuffled(epoch: int) -> None:
    assert order(made(shuffle=False), epoch) == recorded(epoch)
    assert (order(made(), epoch) == recorded(epoch)) is (epoch < EPOCHS)
    assert (order(made(), epoch) == order(made(seed=6), epoch)) is (epoch < EPOCHS)


def test_seeds_are_unknown_before_a_batch_is_read() -> None:
    for seeds in batches(made().windows(4)):
        assert seeds.node.tolist() == seeds.input_id.tolist() == []
        assert seeds.given is not None
        assert type(seeds.given()) is int


def test_nothing_is_replayed_without_a_pack() -> None:
    with pytest.raises(ConfigError, match="gnndrive pack"):
        Recorded.make(standard(InputNodes(105), 10, True, False, 0))
