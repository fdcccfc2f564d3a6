"""`SplitBatches`: the batches of a store's splits, with a live line and one open loader at a time;
`RunRecord`: what a training's JSON says of its loaders beside their counters.

Training and evaluation alternate, so the loader of one split is closed before that of the next one
starts: `memory` and `buffer` then limit the whole run, and not each split. The price is a feature
buffer that starts cold in each epoch.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

from rich.console import Console

from gnndrive.cli.commands.loader_options import LoaderOptions
from gnndrive.cli.report import Bars, LiveLine, plan_section
from gnndrive.common.errors import ConfigError
from gnndrive.common.progress import reporting
from gnndrive.loader.neighbor_loader import NeighborLoader
from gnndrive.pipeline.timeline import Timeline
from gnndrive.plan.strategy_costs import Comparison
from gnndrive.store.reader import Store

INTERVAL_S = 1.0  # so that a minute's training shows its course
INTERVALS_MAX = 600  # after ten minutes, each two become one, and again when there are as many
_WHILE = ("extracting_queue", "training_queue", "output_queue")  # means over an interval


@dataclass(eq=False)
class RunRecord:
    """The plan of the last training loader, its stages, and the intervals of all of them.

    Attributes:
        compares: whether the first training loader compares strategies before it loads anything.
        compared: its comparison.
        intervals: what happened one after the other, at most `INTERVALS_MAX` entries.
    """

    compares: bool = False
    compared: Comparison | None = None
    plan: dict[str, Any] | None = None
    stages: dict[str, Any] | None = None
    intervals: list[dict[str, float]] = field(default_factory=list)

    def arguments(self, earlier_s: float) -> dict[str, Any]:
        """Arguments for a training loader, so that it tells its intervals; `earlier_s`: seconds
        that earlier loaders trained."""

        def listen(interval: Mapping[str, float]) -> None:
            elapsed = earlier_s + interval["elapsed_s"]
            self.intervals.append({**interval, "elapsed_s": elapsed})
            if len(self.intervals) > INTERVALS_MAX:
                pairs = zip(self.intervals[::2], self.intervals[1::2], strict=False)
                odd = self.intervals[len(self.intervals) // 2 * 2 :]
                self.intervals[:] = [*(_joined(*pair) for pair in pairs), *odd]

        return {"on_stats": listen, "stats_interval": INTERVAL_S}

    def compare(self, loader: NeighborLoader) -> None:
        """Have a training loader that has not begun compare strategies, unless one has."""
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


_SUMMED = (
    "batches", "rows", "edges", "rows_hit", "rows_waited", "rows_loaded", "evictions", "requests",
    "bytes_read", "bytes_wanted", "bytes_written", "retries", "samples", "sample_s", "extract_s",
    "gather_s", "wait_s", "wait_disk_s", "wait_sampling_s", "wait_gather_s", "wait_slots_s",
    "elapsed_s", "topology_requests", "topology_bytes_read", "neighbours_wanted",
    "neighbours_cached", "windows", "window_load_s", "window_wait_s",
)  # fmt: skip


@dataclass(eq=False)
class SplitBatches:
    """The batches of a store's splits, for `gnndrive.cli.training.train`; a context manager.

    Attributes:
        epochs: number of epochs that the live line shows.
        console: where the live line is drawn; None: standard error.
        trace: the timeline of the training batches; None: none is written.
        last_loss: the loss that the live line shows.
        seconds: of the epochs that have ended, evaluations included, for the time left.
        stats: sums of the training loaders' counters, in the form of `NeighborLoader.stats`.
        record: what a RUN.json says of the training loaders beside their stats.
    """

    store: Store
    options: LoaderOptions
    epochs: int
    console: Console | None = None
    trace: Timeline | None = None
    last_loss: float | None = None
    seconds: list[float] = field(default_factory=list)
    stats: dict[str, Any] = field(default_factory=dict)
    record: RunRecord = field(default_factory=RunRecord)
    _loader: NeighborLoader | None = None
    _split: str = ""
    _shown: Generator[Any, None, None] | None = None

    def __enter__(self) -> SplitBatches:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def __call__(self, split: str, epoch: int) -> Iterator[Any]:
        """Yield the batches of an epoch, numbered from 0, while a live line shows the progress."""
        loader = self._open(split)
        loader.epoch = epoch  # so that a resumed run draws the same batches as an unbroken one
        self._shown = self._show(loader, split, epoch)
        return self._shown

    def check_drawn(self, splits: Sequence[str]) -> None:
        """Plan the batches of evaluations that are drawn where those of training are replayed, so
        that they are not refused after an epoch."""
        options = self.options.drawn()
        for split in splits if options is not self.options else ():
            try:
                seeds = self.store.split(split)
                with options.loader(self.store, seeds, False) as loader, self._told():
                    loader.plan()
            except ConfigError as error:
                raise ConfigError(f"batches of the {split} split are drawn, and {error}") from None

    def set_loss(self, loss: float) -> None:
        """Set `last_loss`."""
        self.last_loss = loss

    def close(self) -> None:
        """End the live line and close the loader; idempotent."""
        shown, self._shown = self._shown, None
        if shown is not None:
            shown.close()
        loader, self._loader = self._loader, None
        if loader is None:
            return
        stats = loader.stats()
        if self._split == "train" and stats:  # a loader without stats has not planned, either
            self.stats = _sum(self.stats, stats)
            self.record.keep(loader)
        loader.close()

    def _open(self, split: str) -> NeighborLoader:
        if self._loader is None or self._split != split:
            self.close()
            training, seeds = split == "train", self.store.split(split)
            options = self.options if training else self.options.drawn()
            more: dict[str, Any] = {}
            if training:
                more = self.record.arguments(self.stats.get("elapsed_s", 0.0))
                more["trace"] = self.trace
            self._loader = options.loader(self.store, seeds, training, **more)
            self._split = split
            if training:
                with self._told():
                    self.record.compare(self._loader)
        return self._loader

    def _show(self, loader: NeighborLoader, split: str, epoch: int) -> Generator[Any, None, None]:
        training = split == "train"
        if not training:
            self.last_loss = None
        earlier = self.stats if training else {}
        label = f"epoch {epoch + 1}/{self.epochs}{'' if training else ' ' + split}"
        since = _sum(earlier, loader.stats())
        later = self.epochs - epoch - 1
        after_s = self._after_s(later, training, since if training else self.stats)
        with self._told():
            batches = iter(loader)
        with LiveLine(
            len(loader), label=label, since=since, later=later, after_s=after_s,
            console=self.console,
        ) as line:  # fmt: skip
            for number, batch in enumerate(batches, 1):
                yield batch
                line.update(number, _sum(earlier, loader.stats()), loss=self.last_loss)

    @contextmanager
    def _told(self) -> Iterator[None]:
        """Within this context, a terminal shows what a loader does before its first batch."""
        console = self.console or Console(stderr=True)
        bars = Bars(console, transient=True)
        with bars, reporting(bars) if console.is_terminal else nullcontext():
            yield

    def _after_s(self, later: int, training: bool, trained: Mapping[str, Any]) -> float | None:
        """Seconds from a split's last batch to the end, as epochs took so far; `trained`: stats of
        the training before this split. None: no epoch has trained yet."""
        trained_s, count = float(trained.get("elapsed_s", 0.0)), len(self.seconds)
        if not count:
            return None if training else later * trained_s
        mean_s = sum(self.seconds) / count
        evaluation_s = max(mean_s - trained_s / count, 0.0) if training else 0.0
        return later * mean_s + evaluation_s


def _sum(earlier: dict[str, Any], now: dict[str, Any]) -> dict[str, Any]:
    """Merge stats of several loaders: counts are added, other entries are the latest loader's."""
    if not now:
        return earlier
    return {**now, **{name: earlier.get(name, 0) + now[name] for name in _SUMMED if name in now}}
