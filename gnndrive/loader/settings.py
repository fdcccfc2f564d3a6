"""`RuntimeSettings`: what a loader's runtime is made from, decided before anything is opened.

`Assembly.settings` makes them; `Runtime` and `BufferPool` read them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from gnndrive.buffer.policies.base import WINDOW
from gnndrive.common.plugins import find
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
        policy: the policy plug-in; None: slots leave the feature buffer in the order of their
            release, which is enough if it holds all rows.
        worker_init: called in each worker thread with its number.
        limits: the largest batch that the plan counts; a larger one makes the loader plan again.
            None: the plan counts the most that the fanout allows.
        after_warm_up: makes the settings that follow a warm-up, from the bytes of device memory
            that loading may use then; None: these settings are not for a warm-up.
        classes: the classes of the rows of tables, by their names.
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
        """Whether batches that are sampled ahead tell when a table's rows are needed next."""
        of_nodes = {table.name for table in self.request.tables if not table.of_edges}
        knows = self.policy is not None and find("policies", self.policy).looks_ahead
        return self.request.ahead is not None and knows and name in of_nodes
