"""Schedules: they say which seeds come next, in windows of batches.

To add one, write one file here with a subclass of `Schedule` (`base.py`) that has a `name` and a
class method `make(context: ScheduleContext)`.
`tests/sampling/schedules/test_conformance.py` holds every plug-in of the kind to its contract.
"""

from __future__ import annotations

from typing import Any

from gnndrive.common.plugins import find
from gnndrive.sampling.schedules._repeated import Repeated
from gnndrive.sampling.schedules.base import Schedule, ScheduleContext
from gnndrive.sampling.schedules.given import Given

__all__ = ["choose"]


def choose(schedule: Any, context: ScheduleContext) -> Schedule:
    """Make a loader's schedule: from the user's batch sampler if there is one, else the strategy's,
    which is given by its name or as its class; its batches come several times if the context says
    that."""
    kind: type[Schedule] = (
        Given if context.batch_sampler is not None else find("schedules", schedule)
    )
    made = kind.make(context)
    return made if context.superbatch is None else Repeated(made, context)
