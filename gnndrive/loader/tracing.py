"""What `trace=` adds to a loader: a `Timeline` of its batches, and counters every 10 ms.

`StoreLoader` opens the timeline when the loader starts, so that it is an error then if the file
cannot be written; `Runtime` closes it. `TraceCounters` reads, in the loop thread, what no batch
says: reads in flight, bytes a second, slots, queues. Without `trace=` there is neither.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from gnndrive.buffer.feature_buffer import FeatureBuffer
from gnndrive.common.errors import ConfigError
from gnndrive.disk.engines.base import Engine
from gnndrive.loader.ranks import Ranks
from gnndrive.pipeline.epoch import Epoch
from gnndrive.pipeline.timeline import Timeline

TICK_S = 0.01
ENDINGS = (".json", ".json.gz")


def check_trace(own: Mapping[str, Any]) -> None:
    """Check that `trace=`, one of `OWN_ARGUMENTS`, is a path that ends in one of `ENDINGS`."""
    trace = own["trace"]
    if trace is None or isinstance(trace, Timeline):
        return
    path = os.fspath(trace) if isinstance(trace, str | os.PathLike) else None
    if not isinstance(path, str) or not path.endswith(ENDINGS):
        raise ConfigError(
            f"trace={trace!r}: give a file whose name ends in .json, or in .json.gz to compress it"
        )


def named_apart(trace: Any, word: str) -> Any:
    """`trace=` with a word in the file's name: "epoch.json.gz" → "epoch.WORD.json.gz"."""
    if trace is None or isinstance(trace, Timeline):
        return trace
    path = Path(trace)
    ending = next(each for each in reversed(ENDINGS) if path.name.endswith(each))
    return path.with_name(f"{path.name.removesuffix(ending)}.{word}{ending}")


def open_timeline(trace: Any, ranks: Ranks) -> Timeline | None:
    """The timeline of `trace=`; None: none is written."""
    if trace is None:
        return None
    if isinstance(trace, Timeline):
        return trace.share()
    if ranks.world > 1:
        trace = named_apart(trace, f"rank{ranks.rank}")
    return Timeline(Path(trace), ranks.rank)


class TraceCounters:
    """Adds counters to a timeline when they have changed, as long as one of `epochs` runs. Its
    methods run in the loop thread. There is no engine if the host service reads the rows."""

    def __init__(
        self, timeline: Timeline, engine: Engine | None, epochs: Callable[[], Iterable[Epoch]],
        call_later: Callable[[float, Callable[[], None]], object] | None = None,
    ) -> None:  # fmt: skip
        self._timeline, self._engine, self._epochs = timeline, engine, epochs
        self._call_later, self._ticking = call_later or _call_later, False
        self._values: dict[str, float] = {}
        self._read = 0, 0  # when, and how many bytes had been read

    def start(self) -> None:
        """An epoch begins."""
        if not self._ticking:
            self._ticking = True
            self._read = self._timeline.clock(), self._stats().get("bytes", 0)
            self._tick()

    def _tick(self) -> None:
        epochs = list(self._epochs())
        self.add(epochs)
        self._ticking = bool(epochs)
        if epochs:
            self._call_later(TICK_S, self._tick)

    def _stats(self) -> dict[str, int]:
        return {} if self._engine is None else self._engine.stats()

    def add(self, epochs: list[Epoch]) -> None:
        """Add what has changed."""
        now, values = self._timeline.clock(), dict[str, float]()
        if self._engine is not None:
            stats = self._stats()
            (before, bytes_before), self._read = self._read, (now, stats["bytes"])
            if "inflight" in stats:
                values["reads in flight"] = stats["inflight"]
            passed_s = max(now - before, 1) / 1e9
            values["MB/s read"] = round((stats["bytes"] - bytes_before) / passed_s / 1e6, 1)
        queues = {
            "extracting queue": sum(len(epoch.extracting) for epoch in epochs),
            "training queue": sum(len(epoch.training) for epoch in epochs),
            "output queue": sum(epoch.output.ready for epoch in epochs),
        }
        buffers = {epoch.buffer for epoch in epochs if isinstance(epoch.buffer, FeatureBuffer)}
        if buffers:
            unused = [buffer.unused() for buffer in buffers]
            values["slots free"] = sum(free for free, _ in unused)
            values["slots on standby"] = sum(standby for _, standby in unused)
        for name, value in (values | queues).items():
            if self._values.get(name) != value:
                self._values[name] = value
                self._timeline.counter(now, name, value)


def _call_later(delay_s: float, function: Callable[[], None]) -> None:
    asyncio.get_running_loop().call_later(delay_s, function)
