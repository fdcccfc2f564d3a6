"""Schedules: which seeds come next, in windows."""

from __future__ import annotations

from typing import Any

from gnndrive.common.plugins import find
from gnndrive.sampling.schedules.base import Schedule, ScheduleContext
from gnndrive.sampling.schedules.given import Given

__all__ = ["choose"]


def choose(schedule: Any, context: ScheduleContext) -> Schedule:
    """The schedule of a loader: the user's batch sampler where there is one, else the strategy's.

    Args:
        schedule: the strategy's: a name, or the class itself.
        context: what it is made from.
    """
    kind: type[Schedule] = (
        Given if context.batch_sampler is not None else find("schedules", schedule)
    )
    return kind.make(context)
