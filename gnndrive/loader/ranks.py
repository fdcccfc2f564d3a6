"""`Ranks`: which rank of how many this process is, and who deals an epoch's batches to the ranks.

A rank is a process of a group that trains one model together, such as torchrun's. `Assembly`
resolves the argument `ranks=` each time that a loader is used and never when it is made, because a
script may make its loaders before `init_process_group`. Three may deal:

- the loader, with `ranks=`: the ranks yield the batches of one epoch, each once;
- a sampler that has `num_replicas` and `rank`, such as torch's DistributedSampler, which Lightning
  puts into loaders;
- the user, who gives each rank input nodes of its own: then there is a group and no `ranks=`.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

import torch

from gnndrive.common.errors import ConfigError
from gnndrive.common.host_memory import local_ranks
from gnndrive.common.interrupts import interruptible
from gnndrive.sampling.samplers.base import batch_key

T = TypeVar("T")

TIMEOUT_S = 1800.0  # torch's default
ELSE = "another collective call"


@dataclass(slots=True)
class History:
    """How much the ranks of a group have done together; the same on all of them."""

    exchanges: int = 0  # begun
    loaders: int = 0  # begun for the first time


_histories: weakref.WeakKeyDictionary[Any, History] = weakref.WeakKeyDictionary()  # by group


@dataclass(frozen=True, slots=True)
class _Told:
    """What a rank tells the others."""

    purpose: str
    told: Any
    why: str | None


@dataclass(frozen=True, slots=True)
class Ranks:
    """This process among the `world` ranks that train together.

    `dealt_by` decides which batches a rank loads, if there are several. Without `group`, the
    torch.distributed process group that `ranks=` says, nothing is exchanged.
    """

    rank: int = 0
    world: int = 1
    dealt_by: Literal["loader", "sampler", "user"] = "user"
    group: Any = None

    @property
    def per_step(self) -> int:
        """By how many batches of the epoch, as `EpochState` counts them, one yielded batch advances
        it: those of all ranks if the loader deals, else this rank's one."""
        return self.world if self.dealt_by == "loader" else 1

    @property
    def on_host(self) -> int:
        """How many ranks of this host share `memory=`; 1 if the user deals, with one for each."""
        return 1 if self.dealt_by == "user" else min(local_ranks(), self.world)

    @property
    def draws_apart(self) -> bool:
        """Whether one process with the same batches would draw other neighbours for them."""
        several = {"loader": False, "sampler": self.world > 1, "user": self.rank > 0}
        return several[self.dealt_by]

    @property
    def timeout_s(self) -> float | None:
        """How long a collective call of the group waits for a rank; None: there is no group."""
        if self.group is None:
            return None
        try:
            backend = self.group._get_backend(torch.device("cpu"))
            return float(backend.options._timeout.total_seconds())
        except (AttributeError, RuntimeError):  # it has GPUs only, or does not tell
            return TIMEOUT_S

    def number(self, place: int, deals: bool = False) -> int:
        """The number that the random draws of a batch depend on, if the loader does not deal; from
        its place among those of this rank, and whether the schedule `deals` for the loader."""
        apart = self.dealt_by == "sampler" or (deals and self.dealt_by == "loader")
        return place * self.world + self.rank if apart else place

    def drawing_seed(self, seed: int) -> int:
        """The epoch's seed, but for all ranks except the first of a user who deals: their batches
        have the same numbers, and with one seed a node would draw the same neighbours on all."""
        apart = self.dealt_by == "user" and self.rank > 0
        return batch_key(seed, self.rank, 0) if apart else seed

    def exchange(self, told: T) -> list[T]:
        """Tell all ranks of the group an object, and return those of all ranks, by rank; a
        collective call. Without a group, the list has one element."""
        if self.group is None:
            return [told]
        everyone: list[Any] = [None] * self.world
        self.history.exchanges += 1
        with interruptible():
            torch.distributed.all_gather_object(everyone, told, group=self.group)
        return everyone

    @property
    def history(self) -> History:
        """What the ranks of the group have done together."""
        return History() if self.group is None else _histories.setdefault(self.group, History())

    def all_or_none(self, purpose: str, told: T, error: Exception | None) -> list[T]:
        """Tell all ranks of the group an object, or that this one has failed, and return those of
        all ranks, by rank. ConfigError if another one has failed, or exchanges something else.

        A collective call, also for a rank that has failed (`error`, which is raised): the others
        would wait for it until the group's timeout, which is half an hour by default.
        """
        everyone = self.exchange(_Told(purpose, told, None if error is None else str(error)))
        if error is not None:
            raise error
        purposes = [each.purpose if isinstance(each, _Told) else ELSE for each in everyone]
        if len(set(purposes)) > 1:
            raise ConfigError(
                f"the ranks are at different points: {_by_rank(purposes)}. One was interrupted, or "
                "calls something else: begin the same epochs on all ranks, in the same order"
            )
        failed = {rank: each.why for rank, each in enumerate(everyone) if each.why is not None}
        if failed:
            first = min(failed)
            raise ConfigError(f"rank {first} cannot start: {failed[first]}")
        return [each.told for each in everyone]


def resolve_ranks(argument: Any, batch_sampler: Any) -> Ranks:
    """Find out which rank this process is now, by the loader's `ranks=` and the user's batch
    sampler, or the one that torch made from the user's sampler. ConfigError if the two contradict
    each other, or there are to be several processes and is no group yet."""
    split = sampler_ranks(batch_sampler)
    if split is not None:
        return Ranks(*split, "sampler", _group(argument, split))
    if argument is not None and batch_sampler is not None:
        raise ConfigError(
            f"ranks={argument!r} deals the batches that the loader draws, and sampler= or "
            "batch_sampler= draws them here: give shuffle=True instead, or a sampler that splits "
            "by rank, such as torch.utils.data.DistributedSampler"
        )
    distributed = torch.distributed
    initialised = distributed.is_available() and distributed.is_initialized()
    if argument is None:
        if not initialised:
            return Ranks()
        return Ranks(distributed.get_rank(), distributed.get_world_size())
    if argument is True and not initialised:
        said = os.environ.get("WORLD_SIZE", "")
        if said.isdecimal() and int(said) > 1:
            raise ConfigError(
                f"ranks=True, and WORLD_SIZE={said} says that there are several processes, but no "
                "process group: call torch.distributed.init_process_group before the loader is "
                "first used"
            )
        return Ranks(dealt_by="loader")
    return ranks_of_group(argument)


def ranks_of_group(argument: Any) -> Ranks:
    """The ranks of the process group that `ranks=` says, for a rank that has to tell the others why
    it cannot start. Its sampler is not asked; without a group there is one rank."""
    distributed = torch.distributed
    if argument is None or not (distributed.is_available() and distributed.is_initialized()):
        return Ranks()
    group = distributed.group.WORLD if argument is True else argument
    rank, world = distributed.get_rank(group), distributed.get_world_size(group)
    return Ranks(rank, world, "loader", group if world > 1 else None)


def _group(argument: Any, split: tuple[int, int]) -> Any:
    """The process group that `ranks=` says, if any, for a sampler that splits by (rank, world)."""
    found = ranks_of_group(argument)
    if found.dealt_by == "user":  # there is no group
        return None
    if (found.rank, found.world) != split:
        raise ConfigError(
            f"ranks= says rank {found.rank} of {found.world}, and the sampler rank {split[0]} of "
            f"{split[1]}: give the sampler num_replicas={found.world} and rank={found.rank}, or "
            "leave ranks= out"
        )
    return found.group


def checked_ranks(argument: Any) -> Any:
    """Check the loader's argument `ranks=`, without asking which rank this process is."""
    distributed = torch.distributed
    kinds = (distributed.ProcessGroup,) if distributed.is_available() else ()
    if argument is None or argument is True or isinstance(argument, kinds):
        return argument
    raise ConfigError(
        f"ranks={argument!r}: give True for all ranks of torch.distributed, or a process group "
        "that this process is in; or leave it out"
    )


def sampler_ranks(batch_sampler: Any) -> tuple[int, int] | None:
    """By which rank and number of ranks a batch sampler, or its sampler, splits; None: by none."""
    for each in (batch_sampler, getattr(batch_sampler, "sampler", None)):
        rank, world = (getattr(each, name, None) for name in ("rank", "num_replicas"))
        if isinstance(rank, int) and isinstance(world, int):
            return rank, world
    return None


def check_same(told: Sequence[Mapping[str, Any]], ranks: Sequence[int] | None = None) -> None:
    """Raise ConfigError, naming values and ranks, unless these ranks (None: all) told the same."""
    differing = []
    for name in dict.fromkeys(name for each in told for name in each):
        values = [repr(each.get(name)) for each in told]
        if len(set(values)) > 1:
            differing.append(f"{name} is {_by_rank(values, ranks)}")
    if differing:
        raise ConfigError(
            f"ranks= deals the batches of one epoch, which these differ in: {'; '.join(differing)}."
            " Give all ranks the same arguments and states, and begin the same epochs on all ranks,"
            " in the same order"
        )


def _by_rank(values: Sequence[str], ranks: Sequence[int] | None = None) -> str:
    found: dict[str, list[str]] = {}
    for rank, value in zip(ranks or range(len(values)), values, strict=True):
        found.setdefault(value, []).append(str(rank))
    return " and ".join(
        f"{value} on rank{'s' if len(of) > 1 else ''} {', '.join(of)}"
        for value, of in found.items()
    )
