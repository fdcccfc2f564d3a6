"""`RuntimeSettings`: what a loader's runtime is made from, decided before anything is opened.

`Assembly.settings` makes them; `Runtime` and `BufferPool` read them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from gnndrive.buffer.policies.base import WINDOW
from gnndrive.buffer.policy_classes import policy_classes
from gnndrive.common.records import EngineSettings
from gnndrive.pipeline.epoch import Stages
from gnndrive.plan.plan import Plan
from gnndrive.plan.request import PlanRequest
from gnndrive.sampling.samplers.base import Bounds
from gnndrive.store.row_classes import Classes
from gnndrive.strategies.base import PLAIN, Scheme, Strategy


@dataclass(frozen=True, slots=True)
class RuntimeSettings:
    """What a runtime is made from.

    Attributes:
        strategy: names the layout and the tiers.
        plan: how much memory is used for what, and where the adjacency lives.
        policy: the policy plug-in, by name or as a class; None: slots leave the feature buffer in
            the order of their release, which is enough if it holds all rows.
        stages: numbers of tasks, and bounds of the queues.
        engine: the engine plug-in, by name or as a class, or "auto".
        engine_settings: the engine's depth and staging.
        request: what the plan was made from.
        scheme: how the loader loads by the strategy.
        worker_init: called in each worker thread with its number; None: nothing is called.
        limits: the largest batch that the plan counts; a larger one makes the loader plan again.
            None: the plan counts the most that the fanout allows.
        after_warm_up: makes the settings that follow a warm-up, from the bytes of device memory
            that loading may use then; None: these settings are not for a warm-up.
        classes: the classes of the rows of tables, by the tables' names; see `with_classes`.
    """

    strategy: Strategy
    plan: Plan
    policy: Any
    stages: Stages
    engine: Any
    engine_settings: EngineSettings
    request: PlanRequest
    scheme: Scheme = PLAIN
    worker_init: Callable[[int], object] | None = None
    limits: Bounds | None = None
    after_warm_up: Callable[[int], RuntimeSettings] | None = None
    classes: Mapping[str, Classes] = field(default_factory=dict)

    @property
    def window(self) -> int:
        """How many batches the policy may know ahead."""
        ahead = self.request.ahead
        return WINDOW if ahead is None else ahead.window(self.request.planned)

    def foresees(self, name: str) -> bool:
        """Whether it is known of batches that are sampled ahead when the rows of a table are needed
        next: those of nodes."""
        of_nodes = {table.name for table in self.request.tables if not table.of_edges}
        return self.request.ahead is not None and name in of_nodes


def with_classes(settings: RuntimeSettings, elsewhere: bool) -> RuntimeSettings:
    """The settings with the classes of the rows that the policy ranks. The first time for a store
    this reads its graph, so the event loop must not call it; and before the feature buffer is made,
    because the plan does not count what it takes meanwhile.

    Tables of edges have no classes, and neither have tables whose rows all fit, because none of
    them ever leaves.

    Args:
        settings: the settings.
        elsewhere: whether another process has the feature buffer, and ranks its rows.

    Raises:
        StoreError: see `policy_classes`.
    """
    if elsewhere or not settings.scheme.whole_graph:
        return replace(settings, classes={})
    short = {table.name for table in settings.plan.tables if table.slots < table.rows}
    leaving = [table for table in settings.request.tables if table.name in short]
    classes = policy_classes(settings.policy, settings.request.store, leaving)
    return replace(settings, classes=classes)
