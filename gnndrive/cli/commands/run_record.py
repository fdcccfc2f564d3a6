"""`RunRecord`: what a training's JSON says of its loaders beside their counters."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from gnndrive.cli.report import plan_section
from gnndrive.loader.neighbor_loader import NeighborLoader
from gnndrive.plan.strategy_costs import Comparison

INTERVAL_S = 1.0  # so that a minute's training shows its course
INTERVALS_MAX = 600  # after ten minutes, each two become one, and again when there are as many
_WHILE = ("extracting_queue", "training_queue", "output_queue")  # means over an interval


@dataclass(eq=False)
class RunRecord:
    """The plan of the last training loader, its stages, and the intervals of all of them.

    Attributes:
        compares: whether the first training loader compares strategies before it loads anything.
        compared: its comparison; None: there is none.
        plan, stages: sections of a RUN.json; None: there is none.
        intervals: what happened one after the other, at most `INTERVALS_MAX` entries.
    """

    compares: bool = False
    compared: Comparison | None = None
    plan: dict[str, Any] | None = None
    stages: dict[str, Any] | None = None
    intervals: list[dict[str, float]] = field(default_factory=list)

    def arguments(self, earlier_s: float) -> dict[str, Any]:
        """Arguments for a training loader, so that it tells its intervals.

        Args:
            earlier_s: seconds that earlier loaders trained.
        """
        return {"on_stats": self._listener(earlier_s), "stats_interval": INTERVAL_S}

    def compare(self, loader: NeighborLoader) -> None:
        """Have a training loader that has not begun compare strategies, unless one has.

        Raises:
            ConfigError, StoreError, ReadError: see `NeighborLoader.compare`.
        """
        if self.compares and loader.memory is not None:
            self.compared, self.compares = loader.compare(), False

    def keep(self, loader: NeighborLoader) -> None:
        """Keep what a training loader that has run says of itself, before it is closed."""
        self.plan = plan_section(loader.plan())
        self.stages = loader.stage_stats()

    def sections(self) -> dict[str, Any]:
        """The sections of a RUN.json that there is something for."""
        found = {"plan": self.plan, "stages": self.stages, "intervals": self.intervals}
        more = {} if self.compared is None else self.compared.to_json()
        return {name: section for name, section in found.items() if section} | more

    def _listener(self, earlier_s: float) -> Callable[[Mapping[str, float]], None]:
        def listen(interval: Mapping[str, float]) -> None:
            elapsed = earlier_s + interval["elapsed_s"]
            self.intervals.append({**interval, "elapsed_s": elapsed})
            if len(self.intervals) > INTERVALS_MAX:
                pairs = zip(self.intervals[::2], self.intervals[1::2], strict=False)
                odd = self.intervals[len(self.intervals) // 2 * 2 :]
                self.intervals[:] = [*(_joined(*pair) for pair in pairs), *odd]

        return listen


def _joined(first: Mapping[str, float], second: Mapping[str, float]) -> dict[str, float]:
    """Two intervals as one; percentiles, which cannot be joined, are left out."""
    length = first["interval_s"] + second["interval_s"]
    joined = {
        name: first[name] + second[name]
        for name in first
        if name in second and "_s_p" not in name and not name.endswith("_per_s")
    }
    for name in _WHILE:
        if name in joined and length:
            weighted = first[name] * first["interval_s"] + second[name] * second["interval_s"]
            joined[name] = weighted / length
    return joined | {"elapsed_s": second["elapsed_s"]}
