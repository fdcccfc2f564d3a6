"""Everything that a loader's runtime is made of, decided before anything is opened."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from gnndrive.common.records import EngineSettings
from gnndrive.pipeline.epoch import Stages
from gnndrive.plan.plan import Plan
from gnndrive.store.feature_tables import FeatureTable
from gnndrive.strategies import Strategy


@dataclass(frozen=True, slots=True)
class RuntimeSettings:
    """Everything that a runtime is made of.

    Attributes:
        strategy: which plug-ins.
        tables: what goes through the feature buffer.
        plan: how much memory for what, and which topology.
        policy: what leaves the feature buffer first; None: the slot that was released longest
            ago, where the buffer holds everything.
        stages: tasks and queues.
        engine: an engine plug-in, or "auto".
        engine_settings: depth, staging.
        device: a device plug-in, and which of its kind, or None.
        gap_bytes_max: rows at most this far apart on disk are read as one.
        worker_init: called in each worker thread with its number, or None.
        after_warm_up: settings for so many bytes of device memory, if these are for a warm-up.
    """

    strategy: Strategy
    tables: tuple[FeatureTable, ...]
    plan: Plan
    policy: Any
    stages: Stages
    engine: Any
    engine_settings: EngineSettings
    device: tuple[Any, torch.device | None]
    gap_bytes_max: int
    worker_init: Callable[[int], object] | None = None
    after_warm_up: Callable[[int], RuntimeSettings] | None = None
