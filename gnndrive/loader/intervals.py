"""`Intervals`: tells the user's `on_stats` what happened in each interval.

`StoreLoader` makes one if `on_stats=` is given, and its iterators call `tell` between batches, in
the user's thread. When not to use it: `loader.stats()` has the sums since the start.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Mapping
from numbers import Real
from typing import Any, TypeAlias

from gnndrive.common.errors import ConfigError
from gnndrive.pipeline.stage_times import Snapshot, StageTimes

OnStats: TypeAlias = Callable[[dict[str, float]], object]

COUNTED = ("batches", "bytes_read", "requests", "rows_hit", "rows_loaded")
"""The counters of `loader.stats()` whose increase `on_stats` gets."""


def check_on_stats(own: Mapping[str, Any]) -> None:
    """Check `on_stats=` and `stats_interval=`.

    Args:
        own: the values of `OWN_ARGUMENTS`.

    Raises:
        ConfigError: they are no function and no positive number.
    """
    on_stats, interval = own["on_stats"], own["stats_interval"]
    if on_stats is not None and not callable(on_stats):
        raise ConfigError(
            f"on_stats={on_stats!r}: give a function that takes a dict, such as "
            "on_stats=print, or None"
        )
    number = isinstance(interval, Real) and not isinstance(interval, bool)
    if not number or not 0 < float(interval) < math.inf:
        raise ConfigError(f"stats_interval={interval!r}: give a positive number of seconds")


class Intervals:
    """The intervals of one loader, whose iterators may run in several threads.

    Args:
        read: returns `loader.stats()`.
        times: what the loader's epochs report to.
        on_stats: the user's function.
        interval_s: the seconds after which it is called again.
    """

    def __init__(
        self, read: Callable[[], Mapping[str, Any]], times: StageTimes, on_stats: OnStats,
        interval_s: float,
    ) -> None:  # fmt: skip
        self._read, self._times = read, times
        self._on_stats, self._interval_s = on_stats, interval_s
        self._lock = threading.RLock()
        self._counted, self._snapshot = self._now()

    def tell(self, ended: bool = False) -> None:
        """Call `on_stats` if an interval has passed, or the epoch has `ended`. What it raises is
        the caller's."""
        with self._lock:
            passed_s = (self._times.clock() - self._snapshot.at_ns) / 1e9
            if passed_s < self._interval_s and not ended:
                return
            stats = self._since_last()
        self._on_stats(stats)

    def _now(self) -> tuple[dict[str, float], Snapshot]:
        read = self._read()
        names = (*COUNTED, "elapsed_s")
        return {name: float(read[name]) for name in names}, self._times.snapshot()

    def _since_last(self) -> dict[str, float]:
        (before, earlier), (now, snapshot) = (self._counted, self._snapshot), self._now()
        self._counted, self._snapshot = now, snapshot
        interval_s = max(snapshot.at_ns - earlier.at_ns, 1) / 1e9
        counted = {name: now[name] - before[name] for name in COUNTED}
        return {
            "elapsed_s": now["elapsed_s"],
            "interval_s": interval_s,
            **counted,
            "batches_per_s": counted["batches"] / interval_s,
            **snapshot.since(earlier),
        }
