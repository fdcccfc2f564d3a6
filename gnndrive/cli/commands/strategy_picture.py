"""The picture of `bench strategies`: seconds and bytes of a batch, a bar for each strategy."""

from __future__ import annotations

import os
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gnndrive.common.errors import ConfigError
from gnndrive.common.memory import format_size

LOG_FROM = 10  # times that values differ
_COMMAND_COLUMNS = 110


def check_picture(path: Path) -> None:
    """Check before a long run that the picture can be drawn behind it.

    Raises:
        ConfigError: matplotlib is not installed, or the file cannot be written.
    """
    _figure_class()
    folder = path.parent
    if path.is_dir() or not folder.is_dir() or not os.access(folder, os.W_OK):
        raise ConfigError(f"--png {path} cannot be written: give a file in a folder that is there")


def draw(content: Mapping[str, Any], path: Path) -> None:
    """Draw the section "strategies" of a run's JSON to a PNG file.

    Args:
        content: the whole JSON of the run, in which at least one strategy has ended.
        path: the file; replaced if it is there.

    Raises:
        ConfigError: matplotlib is not installed, or the file cannot be written.
    """
    figure_class, found = _figure_class(), content["strategies"]
    runs = [each for each in found["runs"] if each["seconds_per_batch"] is not None]
    figure = figure_class(figsize=(11, 2.2 + 0.45 * len(runs)), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True, width_ratios=(3, 2))
    seconds = [each["seconds_per_batch"] for each in runs]
    around = [
        [each["seconds_per_batch"] - min(each["rounds"]) for each in runs],
        [max(each["rounds"]) - each["seconds_per_batch"] for each in runs],
    ]
    _bars(left, seconds, [f"{value:.3g}" for value in seconds], around)
    left.set_xlabel("seconds a batch: median, and the range of the rounds")
    left.set_yticks(range(len(runs)), [each["strategy"] for each in runs])
    left.invert_yaxis()
    read = [each["bytes_read_per_batch"] for each in runs]
    said = ["not known" if value is None else format_size(value) for value in read]
    _bars(right, [(value or 0) / 1e6 for value in read], said)
    right.set_xlabel("MB read a batch")
    memory = "no --memory" if found["memory"] is None else format_size(found["memory"])
    title = (
        f"{content['store']}, {memory}, {found['batches']} batches of {found['batch_size']:,} "
        f"in each run, rounds: {found['rounds']}, {content['date'][:10]}"
    )
    command = textwrap.fill(content["command"], _COMMAND_COLUMNS)
    figure.suptitle(f"{title}\n{command}", fontsize=8)
    try:
        figure.savefig(path, dpi=150, format="png")
    except OSError as error:
        raise ConfigError(
            f"--png {path} cannot be written ({error.strerror}): free some space, or give another "
            "file"
        ) from error


def _bars(
    axes: Any, values: Sequence[float], labels: Sequence[str],
    around: Sequence[Sequence[float]] | None = None,
) -> None:  # fmt: skip
    drawn = axes.barh(range(len(values)), values, 0.6, color="tab:blue", xerr=around, capsize=3)
    axes.bar_label(drawn, labels, padding=4)
    positive = [value for value in values if value > 0]
    if len(positive) == len(values) and max(positive) > LOG_FROM * min(positive):
        axes.set_xscale("log")
    axes.margins(x=0.2)
    axes.grid(axis="x", alpha=0.3)
    axes.set_axisbelow(True)


def _figure_class() -> Any:
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise ConfigError(
            "--png needs matplotlib: pip install 'gnndrive[plot]', or pip install matplotlib"
        ) from None
    return Figure
