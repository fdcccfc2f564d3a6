"""Where an epoch stands, and how another process takes it up: `state_dict` and `load_state_dict`.

As in torchdata's StatefulDataLoader the state counts the batches that were yielded, those ahead in
the queues not among them, and goes with the state of the model that has seen them. What a batch
holds depends on (seed, epoch, its place in the epoch) alone, so the state is a few numbers, and the
batches that are skipped cost neither a sample nor a read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gnndrive.common.errors import ConfigError

VERSION = 2  # another where the same seed no longer gives the same batches


@dataclass(slots=True)
class EpochState:
    """Where an epoch stands.

    Attributes:
        epoch: its number.
        seed: what its order and its draws depend on, with the number; None: not drawn yet.
        batches: how many were yielded.
        finished: whether those are all.
        sampler_epoch: the `epoch` of a sampler of the user's that has one, as DistributedSampler
            has; None: there is none.
    """

    epoch: int
    seed: int | None = None
    batches: int = 0
    finished: bool = False
    sampler_epoch: int | None = None


def to_state_dict(state: EpochState, store: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """What `state_dict` returns: nothing but what JSON knows.

    Args:
        standing: of the newest epoch.
        store: what tells the store from others.
        settings: what batches depend on beside the seed and the store.
    """
    return {
        "version": VERSION, "store": store, "settings": dict(settings), "epoch": state.epoch,
        "seed": state.seed, "batches": state.batches, "finished": state.finished,
        "sampler_epoch": state.sampler_epoch,
    }  # fmt: skip


def by_name(fanout: Any) -> Any:
    """`num_neighbors` as JSON can hold it: a list, or lists by the edge type's name."""
    if not isinstance(fanout, Mapping):
        return fanout
    return {", ".join(type): list(each) for type, each in fanout.items()}


def from_state_dict(state: Any, store: str, settings: Mapping[str, Any]) -> EpochState:
    """Where the epoch stood whose `to_state_dict` this is.

    Raises:
        ConfigError: it is no state, or that of another store or of other settings.
    """
    if not isinstance(state, Mapping) or state.get("version") != VERSION:
        raise ConfigError(
            "this is no state of a gnndrive loader, or another gnndrive's: give what its "
            "state_dict() returned"
        )
    if state.get("store") != store:
        raise ConfigError(
            "the state is from a loader of another store, or of this one before it was written "
            "anew: open the store that it was saved with, or begin the epoch afresh"
        )
    saved = state.get("settings")
    saved = saved if isinstance(saved, Mapping) else {}
    differing = [
        f"{name} was {saved.get(name)!r} and is {value!r}"
        for name, value in settings.items()
        if saved.get(name) != value
    ]
    if differing:
        raise ConfigError(
            f"the state is from a loader of other settings: {', '.join(differing)}; the rest of "
            "its epoch would be another. Make the loader as it was, or begin the epoch afresh"
        )
    numbers = [state.get("epoch"), state.get("batches")]
    maybe = [state.get("seed"), state.get("sampler_epoch")]
    whole = all(type(number) is int and number >= 0 for number in numbers)
    whole = whole and all(number is None or type(number) is int for number in maybe)
    if not (whole and type(state.get("finished")) is bool):
        raise ConfigError("the state is damaged: give what state_dict() returned")
    return EpochState(state["epoch"], maybe[0], state["batches"], state["finished"], maybe[1])
