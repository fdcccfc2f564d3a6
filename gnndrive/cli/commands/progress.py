"""Progress of jobs that count bytes or steps: bars on a terminal, elsewhere a line per quarter.

Progress goes to standard error, so that standard output holds only the result.
"""

from __future__ import annotations

from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from gnndrive.cli.report import say


class Bars:
    """A bar for each kind of work, made at the first report of it; a context manager.

    `Bars()` is accepted wherever gnndrive takes `progress=`, and called as bars(what, done, total).

    Args:
        console: where to draw; None: standard error.
    """

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(stderr=True)
        self._tasks: dict[str, TaskID] = {}
        self._quarters: dict[str, int] = {}
        self._bars: Progress | None = None

    def __enter__(self) -> Bars:
        if self._console.is_terminal:
            columns = (
                TextColumn("{task.description}", markup=False),
                BarColumn(),
                TextColumn("{task.percentage:>3.0f} %"),
            )
            self._bars = Progress(*columns, TimeRemainingColumn(), console=self._console)
            self._bars.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._bars is not None:
            self._bars.stop()
            self._bars = None

    def __call__(self, what: str, done: int, total: int) -> None:
        """Report that `done` of `total` steps of `what` are done."""
        if self._bars is not None:
            if what not in self._tasks:
                self._tasks[what] = self._bars.add_task(what, total=total)
            self._bars.update(self._tasks[what], completed=done, total=total)
            return
        quarter = 4 * done // total if total else 4
        if quarter > self._quarters.get(what, 0):
            self._quarters[what] = quarter
            say(self._console, f"{what}: {25 * quarter} %")
