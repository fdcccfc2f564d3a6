"""`plan_for_ranks`: plans a loader as it is for any number of ranks, and says what a step costs.

`gnndrive plan` calls it. A loader that runs plans for the ranks that there are (`assembly.py`).
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from gnndrive.loader.neighbor_loader import NeighborLoader
from gnndrive.plan.choice import loading_of
from gnndrive.plan.costs import Loading
from gnndrive.plan.planner import Planner
from gnndrive.strategies.base import Strategy


class RanksPlan(NamedTuple):
    """A loader's planner, and what a step costs by.

    Attributes:
        planner: makes the plan.
        loading: what a step costs by; None: the loader's batches cannot be drawn, such as those
            that were drawn before, or its strategy is a baseline.
        strategy: the loader's; the chosen one if it was to be chosen.
    """

    planner: Planner
    loading: Loading | None
    strategy: Strategy


def plan_for_ranks(loader: NeighborLoader, ranks: int, shared: bool) -> RanksPlan:
    """Plan a loader for `ranks` ranks on this host; may draw batches.

    Args:
        loader: its `memory=` and `buffer=` are for all of them.
        ranks: how many there are.
        shared: whether they share one feature buffer.

    Raises:
        ConfigError: an argument cannot work, or the memory is too little.
        StoreError, ReadError: the graph is damaged or cannot be read.
    """
    loader._choose_strategy()
    assembly = loader._assembly()
    request = replace(assembly.request(), ranks=ranks, shared=shared)
    for_plan, for_steps = assembly.drawing(), assembly.drawing(for_plan=False)
    if assembly.strategy.baseline:
        for_steps = None
    if for_plan is not None:
        request = for_plan.drawn_for(request)
    planner = assembly.scheme.planner(request)
    drawn = None if for_steps is None else for_steps.drawn(request)
    loading = None if drawn is None else loading_of(request, planner, drawn)
    return RanksPlan(planner, loading, assembly.strategy)
