"""`EpochState`: how far an epoch has come, and its form as a dict that JSON can hold.

The state counts the batches that were yielded, without those in the queues. Because a batch depends
only on the seed, the epoch and its index, the state is a few numbers, and batches that are skipped
are neither sampled nor read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gnndrive.common.errors import ConfigError
from gnndrive.loader.assembly import Assembly
from gnndrive.loader.ranks import resolve_ranks

VERSION = 3  # increase it when the same seed no longer gives the same batches
_SAME_FOR_ONE = 2  # gives the same batches, except to ranks that draw apart (`Ranks.draws_apart`)
_ADDED = {"sampling": "neighbor", "batch_dependency": 1}
"""Settings that states of earlier loaders lack, with the values that those had."""


@dataclass(slots=True)
class EpochState:
    """How far an epoch has come.

    Attributes:
        seed: the seed that the epoch's batches depend on, beside its number; None: not drawn yet.
        batches: how many were yielded, by all ranks if the loader deals to them, else by this one.
        sampler_epoch: the attribute `epoch` of the user's sampler; None: it has none.
    """

    epoch: int
    seed: int | None = None
    batches: int = 0
    finished: bool = False
    sampler_epoch: int | None = None


def to_state_dict(state: EpochState, assembly: Assembly) -> dict[str, Any]:
    """What `state_dict` returns for the newest epoch's state; JSON can hold it."""
    return {
        "version": VERSION, "store": assembly.store.identity, "settings": assembly.batch_settings,
        "epoch": state.epoch, "seed": state.seed, "batches": state.batches,
        "finished": state.finished, "sampler_epoch": state.sampler_epoch,
        "dealt_to": assembly.dealt_to, **assembly.scheme.state(),
    }  # fmt: skip


def from_state_dict(state: Any, assembly: Assembly) -> EpochState:
    """The epoch state that `load_state_dict` got; ConfigError: of another store or settings."""
    settings = assembly.batch_settings
    version = state.get("version") if isinstance(state, Mapping) else None
    if version not in (VERSION, _SAME_FOR_ONE):
        raise ConfigError(
            "this is no state of a gnndrive loader, or one of another version of gnndrive: give "
            "what state_dict() returned"
        )
    if state.get("store") != assembly.store.identity:
        raise ConfigError(
            "the state is from a loader of another store, or of this store before it was written "
            "again: open the store that the state was saved with, or start the epoch again"
        )
    saved = state.get("settings")
    saved = _ADDED | dict(saved) if isinstance(saved, Mapping) else {}
    differing = [
        f"{name} was {saved.get(name)!r} and is {value!r}"
        for name, value in settings.items()
        if saved.get(name) != value
    ]
    if differing:
        raise ConfigError(
            f"the state is from a loader with other settings: {', '.join(differing)}. Its epoch "
            "would go on with other batches: make the loader with the settings that the state was "
            "saved with, or start the epoch again"
        )
    epoch: Any = state.get("epoch")
    batches: Any = state.get("batches")
    finished: Any = state.get("finished")
    seed, sampler_epoch = state.get("seed"), state.get("sampler_epoch")
    valid = all(type(number) is int and number >= 0 for number in (epoch, batches))
    valid = valid and all(number is None or type(number) is int for number in (seed, sampler_epoch))
    if not (valid and type(finished) is bool):
        raise ConfigError("the state is damaged: give what state_dict() returned")
    if batches and not finished:
        _check_ranks(version, state.get("dealt_to"), assembly)
    return EpochState(epoch, seed, batches, finished, sampler_epoch)


def _check_ranks(version: int, was: Any, assembly: Assembly) -> None:
    """Refuse the state of an epoch that ranks would not go on with as it was begun."""
    now, batches = assembly.dealt_to, assembly.batch_sampler
    if was != now and batches is None:
        raise ConfigError(
            f"the windows of this epoch were dealt to {was or 1} ranks and are dealt to "
            f"{now or 1} now, so it would repeat some seeds and leave out others: resume with "
            f"as many ranks and per_rank={was is not None}, or start the epoch again"
        )
    # A loader with ranks= and no sampler draws together, and may be asked before there is a group.
    may_draw_apart = assembly.own["ranks"] is None or batches is not None
    if version == _SAME_FOR_ONE and may_draw_apart and resolve_ranks(None, batches).draws_apart:
        raise ConfigError(
            "the state is from a version of gnndrive in which all ranks drew the same neighbours: "
            "start the epoch again"
        )
    if version == VERSION and was != now:
        raise ConfigError(
            f"a sampler dealt this epoch to {was or 1} ranks (its num_replicas) and deals it to "
            f"{now or 1} now, so it would repeat some seeds and leave out others: resume with "
            "as many ranks, or start the epoch again; the epoch of a loader with ranks=True and no "
            "sampler goes on with any number of ranks"
        )
