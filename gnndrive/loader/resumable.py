"""`Resumable`: how a loader's epoch is continued, in the same process or another.

`StoreLoader` inherits it. `state_dict` and `load_state_dict` are those of torchdata's
StatefulDataLoader; `epoch_state.py` has what they keep.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import torch

from gnndrive.common.errors import ConfigError
from gnndrive.loader.assembly import Assembly
from gnndrive.loader.epoch_state import (
    VERSION,
    EpochState,
    fanout_to_json,
    from_state_dict,
    to_state_dict,
)
from gnndrive.loader.ranks import (
    Ranks,
    check_same,
    ranks_of_group,
    resolve_ranks,
    sampler_ranks,
)
from gnndrive.loader.runtime import Runtime
from gnndrive.pyg.collate import Collate
from gnndrive.pyg.subgraph_sampler import SubgraphSampling
from gnndrive.sampling.labor import Labor, sampling_of
from gnndrive.sampling.schedules.base import InputEdges, InputNodes
from gnndrive.store.reader import Store
from gnndrive.strategies.base import PLAIN, Scheme, Strategy, batches_of


class Resumable(torch.utils.data.DataLoader[Any]):
    """Base class of `StoreLoader`, which sets its attributes.

    Attributes:
        epoch: the number of the next epoch, from 0. Its batches depend on `seed` and this number if
            the user gave `seed`, else on the seed that is drawn for the epoch.
    """

    epoch: int
    seed: int | None
    ranks: Any
    num_neighbors: Any
    replace: bool
    sampling: str | Labor
    data: Store
    _from_store = False
    _state: EpochState | None = None  # of the newest epoch
    _resumed: EpochState | None = None  # given to load_state_dict, until the next epoch begins
    _inputs: InputNodes | InputEdges
    _subgraphs: SubgraphSampling | None = None  # see `Assembly.subgraphs`
    _strategy: Strategy
    _scheme: Scheme = PLAIN
    _runtime: Runtime | None = None
    _collate: Collate
    _number = 0  # among the loaders that the ranks have begun
    _shuffle: bool
    _user_samples: bool

    def state_dict(self) -> dict[str, Any]:
        """How far the newest epoch has come, for `load_state_dict` in this process or another.

        As in torchdata's StatefulDataLoader, the state counts the batches that were yielded: save
        it together with the model that was trained on them. With `ranks=` it counts those of all
        ranks, is the same on all of them after the same step, and any number of ranks goes on from
        it.

        Returns:
            A few numbers and texts that JSON can hold. {} with a warning if the data is in memory:
            Lightning asks every loader that has this method when it saves a checkpoint.

        Raises:
            ConfigError: batches come in any order (in_order=False).
        """
        if not self._from_store:
            warnings.warn(
                "state_dict() holds no position, because the data is in memory: an epoch that is "
                "resumed starts again; give a store",
                stacklevel=2,
            )
            return {}
        self._check_resumable()
        state = self._resumed or self._state or EpochState(self.epoch, self.seed)
        settings = self._batch_settings()
        more = self._scheme.state()
        return to_state_dict(state, self.data.identity, settings, self._dealt_to(), more)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Have the next `iter` yield the remaining batches of the state's epoch, or those of the
        next epoch if it was finished.

        If you gave a sampler, it draws the epoch again, and the batches that were yielded are
        skipped. So it must draw the same batches, as a DistributedSampler does, whose epoch is in
        the state.

        Args:
            state: what `state_dict` returned.

        Raises:
            ConfigError: the state is from another store or other settings; or see `state_dict`.
        """
        if not self._from_store and state == {}:
            return
        self._check_resumable()
        before = self._scheme, self._state
        try:
            self._state = None  # of an epoch that does not go on
            if isinstance(state, Mapping):
                self._scheme = self._scheme.resumed(self._bare(), state, self._begun)
            resumed = from_state_dict(
                state, self.data.identity, self._batch_settings(), self._dealt_to(),
                self._draws_apart(), self._scheme.deals,
            )  # fmt: skip
        except ConfigError:
            self._scheme, self._state = before
            raise
        sampler = self._epoch_sampler()
        if sampler is not None and resumed.sampler_epoch is not None:
            sampler.set_epoch(resumed.sampler_epoch)
        self._resumed = resumed
        if resumed.finished:
            self._resumed, self.epoch = None, resumed.epoch + 1

    def set_epoch(self, epoch: int) -> None:
        """Set the number of the next epoch, also in a sampler of yours that has a `set_epoch`, such
        as torch's DistributedSampler."""
        self.epoch = epoch
        sampler = self._epoch_sampler()
        if sampler is not None:
            sampler.set_epoch(epoch)

    def _epoch_sampler(self) -> Any:
        """The sampler or batch sampler that has a `set_epoch`; None: none has."""
        batches: Any = self.batch_sampler
        samplers: list[Any] = [self.sampler, batches, getattr(batches, "sampler", None)]
        return next((each for each in samplers if hasattr(each, "set_epoch")), None)

    def _batches(self) -> Any:
        """The user's batch sampler, or the one that torch made from the user's sampler, or None."""
        return self.batch_sampler if self._user_samples else None

    def _dealt_to(self) -> int | None:
        """To how many ranks the user's sampler, or the scheme, deals batches; None: to one, or
        neither does."""
        if self._scheme.deals:
            world = self._assembly().ranks.per_step
            return world if world > 1 else None
        _, world = sampler_ranks(self._batches()) or (0, 1)
        return world if world > 1 else None

    def _draws_apart(self) -> bool:
        """See `Ranks.draws_apart`."""
        batches = self._batches()
        if self.ranks is not None and batches is None:
            return False  # asked before there is a group
        return resolve_ranks(None, batches).draws_apart

    def _bare(self) -> Assembly:
        """The assembly of the arguments as they are now, without a scheme."""
        raise NotImplementedError

    def _assembly(self) -> Assembly:
        """The assembly of the arguments as they are now."""
        raise NotImplementedError

    def _ranks_now(self) -> Ranks:
        """Which rank this is, of a loader that can begin an epoch."""
        raise NotImplementedError

    @property
    def _begun(self) -> bool:
        """Whether an epoch was begun before; at the first one the ranks make their runtimes
        together, and the loader gets its number."""
        raise NotImplementedError

    def _agreed_seed(self, state: EpochState) -> tuple[Ranks, int]:
        """Which rank this is, and the seed of an epoch that begins: the state's, or one that is
        drawn. It is the same on all ranks that the loader deals to. A rank whose epoch cannot begin
        tells the others, because they would wait for it.

        Raises:
            ConfigError: something that batches depend on differs among these ranks, or the epoch of
                another rank cannot begin.
            ClosedError: the loader was closed.
            StoreError: see `NeighborLoader`.
        """
        told, seed = dict[str, Any](), 0
        error: Exception | None = None
        try:
            ranks = self._ranks_now()
            seed = self._draw_seed() if state.seed is None else state.seed
            if ranks.group is not None:
                number = f"number {self._number} of those that were begun"
                told = {
                    "the loader": number if self._begun else "one that was not begun before",
                    "gnndrive's version of states": VERSION, "the store": self.data.identity,
                    "the epoch": state.epoch, "the number of batches done": state.batches,
                    "the epoch's seed": state.seed, **self._batch_settings(),
                }  # fmt: skip
        except Exception as caught:
            ranks = ranks_of_group(self.ranks)
            if ranks.group is None:
                raise
            error = caught
        everyone = ranks.all_or_none("beginning an epoch", (told, seed), error)
        check_same([told for told, _ in everyone])
        if not self._begun:
            ranks.history.loaders += 1
            self._number = ranks.history.loaders
        return ranks, everyone[0][1]

    def _draw_seed(self) -> int:
        """Draw a seed as torch's loaders do, so that `torch.manual_seed` determines it."""
        return int(torch.empty((), dtype=torch.int64).random_(generator=self.generator).item())

    def _check_resumable(self) -> None:
        """Raise ConfigError if this loader has no state."""
        if not self._from_store:
            raise ConfigError(
                "this loader cannot be resumed, because its data is in memory: give a store"
            )
        if not self._bare().in_order:
            remedy = "give in_order=True"
            if getattr(self, "in_order", True):
                remedy = f"give another strategy than {self._strategy.text}"
            raise ConfigError(
                "the number of batches does not say which were yielded, because they come in any "
                f"order: {remedy}"
            )

    def _batch_settings(self) -> dict[str, Any]:
        """The arguments that batches depend on, beside the store."""
        batches, sampler = self._batches(), None
        sampling = sampling_of(self.sampling)
        if batches is not None:
            inner = type(getattr(batches, "sampler", None)).__name__
            size = getattr(batches, "batch_size", None)
            sampler = f"{type(batches).__name__} of {inner}, {size} at once"
        return {
            "batch_size": self.batch_size, "shuffle": self._shuffle, "drop_last": self.drop_last,
            "sampler": sampler, "inputs": self._inputs.identity,
            "strategy": batches_of(self._strategy),
            "num_neighbors": fanout_to_json(self.num_neighbors), "replace": self.replace,
            "sampling": sampling.name, "batch_dependency": sampling.batch_dependency,
            "seed": self.seed,
            "drawing": None if self._subgraphs is None else self._subgraphs.identity,
            **self._assembly().scheme.settings(),
        }  # fmt: skip
