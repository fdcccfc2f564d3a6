"""`Compared`: the part of a loader that compares strategies, and chooses one for `"auto"`.

`StoreLoader` inherits it; `strategy_choice.py` makes the comparison. It is made at most once for
the loader's arguments, when the user asks for the plan or, with `strategy="auto"`, before the first
epoch.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

from gnndrive.common.errors import ConfigError
from gnndrive.loader.resumable import Resumable
from gnndrive.loader.strategy_choice import choose, compare
from gnndrive.plan.plan import Plan
from gnndrive.plan.strategy_costs import Comparison
from gnndrive.strategies.base import Strategy


class Compared(Resumable):
    """Base class of `StoreLoader`, which sets its attributes."""

    strategy: str | Strategy
    memory: str | int | None
    num_neighbors: Any
    batch_size: int | None
    _from_store: bool
    _strategy: Strategy
    _start_lock: AbstractContextManager[Any]
    _why = ""  # the loader has this strategy, if "auto" chose it
    _compared: tuple[str, Comparison | None] | None = None  # the arguments, and their comparison

    def compare(self, *, all: bool = True) -> Comparison | None:
        """Predict what a batch costs with each strategy; print the result to read it.

        The first time for a store and settings this draws batches, which takes some ten seconds for
        a large graph; what they need is kept beside the store. Batches are predicted as they are
        once the feature buffer is full, without training.

        Args:
            all: whether to compare all strategies; if not, only the loader's own is predicted, and
                there is no miss-ratio curve.

        Returns:
            The strategies beside each other, with those that change nothing about the batches
            first; None: batches cannot be drawn, such as those of a sampler of yours, several ranks
            load together, or the strategy is a baseline.

        Raises:
            ConfigError: the plan of the loader's own strategy does not fit; or the data is in
                memory.
            StoreError, ReadError: the graph is damaged or cannot be read.
        """
        if not self._from_store:
            raise ConfigError(
                "there is nothing to compare, because the data is in memory: give a store"
            )
        self._choose_strategy()
        assembly = self._assembly()
        depends = repr([all, assembly.own, self._strategy, self.num_neighbors, self.batch_size])
        if self._compared is None or self._compared[0] != depends:
            self._compared = depends, compare(assembly, all)
        found = self._compared[1]
        return None if found is None else replace(found, why=self._why)

    def _choose_strategy(self) -> None:
        """With `strategy="auto"`, choose a strategy, unless one was chosen before.

        Raises:
            ConfigError, StoreError, ReadError: see `choose`.
        """
        with self._start_lock:  # an epoch may begin in another thread
            if self._strategy.name == "auto" and self._runtime is None:
                self._strategy, self._why = choose(self._assembly())
                self._scheme = self._strategy.open(self._bare())

    def _with_comparison(self, plan: Plan) -> Plan:
        """The plan, which also prints the comparison if memory is short."""
        if self.memory is None or plan.holds_everything:
            why = (f"strategy: {self._strategy.name}, {self._why}",) if self._why else ()
            return replace(plan, levels=(*plan.levels, *why))
        found = self.compare()
        if found is None:
            return plan
        return replace(plan, levels=(*plan.levels, *str(found).splitlines()))
