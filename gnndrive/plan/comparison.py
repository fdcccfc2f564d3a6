"""`Comparison`: what a batch costs with each strategy, and what more memory gives."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gnndrive.common.memory import format_size
from gnndrive.plan.strategy_costs import MissRatio, StrategyCost

WITHIN = 1.05  # a strategy that costs up to so many times the least is as good
_UNITS = ((1e-3, 1e6, "µs"), (1.0, 1e3, "ms"), (300.0, 1.0, "s"), (18e3, 1 / 60, "min"))


@dataclass(frozen=True, slots=True)
class Comparison:
    """What a batch costs with each strategy.

    Attributes:
        strategy: the loader's own.
        costs: of the strategies; the loader's own first, then those with the same batches.
        why: why the loader has this strategy; empty: the user named it.
        more: bytes more of `memory=`, and the seconds of a batch with them; None: not known.
        curve: the miss-ratio curve of the largest table; None: all rows fit, or nothing is known.
        notes: limits of the prediction, a sentence each.
    """

    strategy: str
    costs: tuple[StrategyCost, ...]
    why: str = ""
    more: tuple[int, float] | None = None
    curve: MissRatio | None = None
    notes: tuple[str, ...] = ()

    @property
    def own(self) -> StrategyCost | None:
        """The cost of the loader's own strategy; None: it is not known."""
        return next((each for each in self.costs if each.strategy == self.strategy), None)

    def __str__(self) -> str:
        rows = [("predicted", "a batch", "an epoch", "bound by", "hits", "")]
        for each in self.costs:
            if each.refused:
                rows.append((each.strategy, "", "", "", "", each.refused))
                continue
            hits = "" if each.hit_share is None else f"{each.hit_share:.0%}"
            epoch = "" if each.epoch_s is None else duration(each.epoch_s)
            rows.append(
                (each.strategy, duration(each.batch_s), epoch, each.bound_by, hits, each.note)
            )
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = []
        for row in rows:
            cells = [f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)]
            lines.append("  ".join(cells).rstrip())
        own = self.own
        if self.more is not None and own is not None and not own.refused:
            nbytes, seconds = self.more
            lines.append(
                f"with {format_size(nbytes)} more: {duration(seconds)} a batch "
                f"({seconds / own.batch_s - 1:+.0%})"
            )
        if self.why:
            lines.append(f"strategy: {self.strategy}, {self.why}")
        return "\n".join([*lines, *self.notes])

    def to_json(self) -> dict[str, Any]:
        """The sections "choice" and "miss_ratio" of a run's JSON."""
        costs = [
            {
                "strategy": each.strategy,
                "seconds_per_batch": None if each.refused else each.batch_s,
                "seconds_per_epoch": None if each.refused else each.epoch_s,
                "bound_by": each.bound_by,
                "hit_share": each.hit_share,
                "parts": dict(each.seconds),
                "same_batches": each.same_batches,
                "note": each.refused or each.note,
            }
            for each in self.costs
        ]
        found: dict[str, Any] = {"choice": costs}
        if self.curve is not None:
            found["miss_ratio"] = self.curve.to_json()
        return found


def cheapest(costs: Sequence[StrategyCost]) -> StrategyCost | None:
    """The strategy to take, of those that run and have the same batches: the first, if its batches
    cost at most `WITHIN` times the least; else the one with the least. None: there is none."""
    known = [each for each in costs if each.same_batches and not each.refused and each.seconds]
    if not known:
        return None
    least = min(known, key=lambda each: each.batch_s)
    return known[0] if known[0].batch_s <= WITHIN * least.batch_s else least


def duration(seconds: float) -> str:
    """Seconds in the unit that leaves a number from 1 on, as far as there is one."""
    if seconds == 0:
        return "0 s"
    for limit, factor, unit in _UNITS:
        if seconds < limit:
            return f"{seconds * factor:.3g} {unit}"
    return f"{seconds / 3600:.3g} h"
