"""Progress on standard error: of an epoch in one line, of jobs that count steps in bars.

If the output is no terminal, plain lines are printed now and then, so that a log shows the progress
too. The live line has neither a clock nor a thread: rates and the time left come from the stats'
`elapsed_s`, and the line is drawn when the training loop calls `update`.
"""

from __future__ import annotations

from collections import deque

from rich.console import Console
from rich.live import Live
from rich.progress import (
    BarColumn,
    Progress,
    SpinnerColumn,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)
from rich.text import Text

from gnndrive.cli.report.text import Stats, percent, ratio, si
from gnndrive.common.memory import format_size

WINDOW_S = 5.0  # rates are averages over about the last five seconds
REDRAW_S = 0.1  # a terminal is drawn at most ten times a second
_COUNTERS = (
    "elapsed_s", "rows", "rows_hit", "rows_waited", "rows_loaded", "requests", "bytes_read",
)  # fmt: skip


def _counters(stats: Stats) -> tuple[float, ...]:
    return tuple(float(stats.get(name, 0)) for name in _COUNTERS)


def clock(seconds: float) -> str:
    """Seconds as m:ss, or h:mm:ss from an hour on."""
    minutes, second = divmod(round(seconds), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02}:{second:02}" if hours else f"{minute}:{second:02}"


def say(console: Console, line: str) -> None:
    """Print a line unchanged: without colours, markup, emoji or wrapping."""
    console.print(line, highlight=False, markup=False, emoji=False, soft_wrap=True)


class LiveLine:
    """Shows one epoch's progress, and the time left of all; a context manager.

    A terminal gets as many parts of the line as fit into its width.

    Args:
        batches: batches in the epoch.
        label: the beginning of the line, such as "epoch 1/3".
        every: batches between two lines if the output is no terminal.
        since: the stats at the start of the epoch, if they count earlier epochs too.
        later: epochs that follow this one.
        after_s: seconds of what follows these batches; None: `later` epochs take as long as this.
        console: where to draw; None: standard error, so that standard output holds only results.
    """

    def __init__(
        self,
        batches: int,
        *,
        label: str = "epoch",
        every: int = 20,
        since: Stats | None = None,
        later: int = 0,
        after_s: float | None = None,
        console: Console | None = None,
    ) -> None:
        self._batches, self._label, self._every = batches, label, max(every, 1)
        self._later, self._after_s = later, after_s
        self._console = console or Console(stderr=True)
        self._live: Live | None = None
        self._start = _counters(since or {})
        self._window = deque([self._start])
        self._drawn_s = self._start[0]

    def __enter__(self) -> LiveLine:
        if self._console.is_terminal:
            first = f"{self._label}  batch 0/{self._batches}  waiting for the first one"
            self._live = Live(_line(first), console=self._console, auto_refresh=False)
            self._live.start(refresh=True)
        return self

    def __exit__(self, *raised: object) -> None:
        if self._live is not None:
            self._live.refresh()
            self._live.stop()
            self._live = None

    def update(self, batch: int, stats: Stats, *, loss: float | None = None) -> None:
        """Report that `batch` batches of the epoch are done; counters of `stats` never decrease."""
        counters = _counters(stats)
        now = counters[0]
        self._window.append(counters)
        while len(self._window) > 2 and now - self._window[1][0] >= WINDOW_S:
            self._window.popleft()
        last = batch >= self._batches
        if self._live is not None:
            due = last or now - self._drawn_s >= REDRAW_S
            line = self.line(batch, stats, loss, width=self._console.width)
            self._live.update(_line(line), refresh=due)
            self._drawn_s = now if due else self._drawn_s
        elif last or batch % self._every == 0:
            say(self._console, self.line(batch, stats, loss))

    def line(
        self, batch: int, stats: Stats, loss: float | None = None, *, width: int | None = None
    ) -> str:
        """The text of the line after `update`; without the last parts that `width` has no room for,
        but always with the time left."""
        oldest, newest = self._window[0], self._window[-1]
        seconds, rows, hits, waited, loaded, requests, read = (
            new - old for old, new in zip(oldest, newest, strict=True)
        )
        sampling, extracting, training = (
            stats.get(stage, 0) for stage in ("sampling", "extracting", "training")
        )
        each_s = ratio(newest[0] - self._start[0], batch)
        after_s = self._later * each_s * self._batches if self._after_s is None else self._after_s
        left_s = each_s * max(self._batches - batch, 0) + after_s
        first = [self._label, f"batch {batch}/{self._batches}"]
        if loss is not None:
            first.append(f"loss {loss:.3f}")
        line = "  ".join([*first, f"{clock(left_s)} left"])
        for part in (
            f"{si(ratio(rows, seconds))} rows/s",
            f"{format_size(ratio(read, seconds))}/s read",
            f"buffer hits {percent(hits, hits + waited + loaded)}",
            f"{si(ratio(requests, seconds))} reads/s",
            f"batches: {sampling} sampling, {extracting} reading, {training} ready",
        ):
            if width is not None and len(line) + 2 + len(part) > width:
                break
            line += f"  {part}"
        return line


def _line(text: str) -> Text:
    return Text(text, no_wrap=True, overflow="ellipsis")


class Bars:
    """A bar for each kind of work, made at the first report of it; a context manager.

    `Bars()` is accepted wherever gnndrive takes `progress=`, and called as bars(what, done, total).

    Args:
        console: where to draw; None: standard error.
        kept: what the same command need not do again after Ctrl-C, such as "packed", to say so
            then; empty: nothing.
        transient: whether a terminal shows the bars only until the context ends.
    """

    def __init__(
        self, console: Console | None = None, *, kept: str = "", transient: bool = False
    ) -> None:
        self._console, self._kept = console or Console(stderr=True), kept
        self._transient = transient
        self._tasks: dict[str, TaskID] = {}
        self._quarters: dict[str, int] = {}
        self._bars: Progress | None = None

    def __enter__(self) -> Bars:
        return self

    def __exit__(self, kind: type[BaseException] | None, *raised: object) -> None:
        if self._bars is not None:
            self._bars.stop()
            self._bars = None
        if kind is KeyboardInterrupt and self._kept:
            going_on = "the same command goes on where it stopped"
            say(self._console, f"what was {self._kept} is kept: {going_on}")

    def __call__(self, what: str, done: int, total: int) -> None:
        """Report that `done` of `total` steps of `what` are done."""
        if self._console.is_terminal:
            if self._bars is None:
                self._bars = self._started()
            if what not in self._tasks:
                self._tasks[what] = self._bars.add_task(what, total=total)
            self._bars.update(self._tasks[what], completed=done, total=total)
            return
        quarter = 4 * done // total if total else 4
        if quarter > self._quarters.get(what, 0):
            self._quarters[what] = quarter
            say(self._console, f"{what}: {25 * quarter} %")

    def _started(self) -> Progress:
        """Bars on a terminal, each with a spinner, because a step may take long."""
        columns = (
            SpinnerColumn(),
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TextColumn("{task.percentage:>3.0f} %"),
            TimeRemainingColumn(),
        )
        bars = Progress(*columns, console=self._console, transient=self._transient)
        bars.start()
        return bars
