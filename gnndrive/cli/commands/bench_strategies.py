"""`gnndrive bench strategies`: all strategies side by side, in one run and one memory limit.

`strategy_runs.py` measures, `strategy_figures.py` makes the JSON and the table.
"""

from __future__ import annotations

import json
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Annotated

import typer

from gnndrive.cli.commands import strategy_figures, strategy_runs
from gnndrive.cli.commands.loader_options import LoaderOptions, with_loader_options
from gnndrive.cli.commands.loading import StrategySource
from gnndrive.cli.commands.options import (
    INPUT,
    Json,
    Rounds,
    Split,
    StorePath,
    TimedBatches,
    WarmUp,
)
from gnndrive.cli.commands.progress import Bars
from gnndrive.cli.commands.strategy_runs import Comparison, Measured, loading_of
from gnndrive.cli.measure.memory_limit import Cgroup, memory_limit
from gnndrive.cli.report import run_envelope
from gnndrive.common.errors import ConfigError, GNNDriveError
from gnndrive.plan.strategy_costs import StrategyCost
from gnndrive.store.reader import Store, open_homogeneous
from gnndrive.store.reader import open as open_store

COMMAND = "gnndrive bench strategies"


@with_loader_options("strategy", "buffer", "device", "device_memory")
def strategies(
    options: LoaderOptions,
    store: StorePath,
    names: Annotated[
        str | None,
        typer.Option(
            "--strategies",
            help="Separated by commas; behind a name its loader's arguments, as "
            "ginex:phases=apart. Default: all that can run on STORE, pyg+ first.",
        ),
    ] = None,
    batches: TimedBatches = 24,
    warm_up: WarmUp = None,
    rounds: Rounds = 3,
    seconds: Annotated[
        float, typer.Option(min=0, help="A run's warm-up, or timed part, ends after so long.")
    ] = strategy_runs.SECONDS,
    split: Split = None,
    limit: Annotated[
        bool, typer.Option(help="Whether the memory of each process is limited, if possible.")
    ] = True,
    as_json: Json = False,
) -> None:
    """Time strategies side by side: the same batches, in one memory limit, cold, in turn.

    --memory is that of each process, Python and page cache included.
    """
    opened = open_homogeneous(store, COMMAND)
    asked = Comparison(
        store, strategy_runs.parse_choices(names), options, _split(opened, split), batches,
        strategy_runs.aligned_warm_up(batches) if warm_up is None else warm_up, seconds, rounds,
        limit,
    )  # fmt: skip
    limited = _limit(asked)
    strategy_runs.loading_of(asked, asked.choices[0], None)  # refuses what cannot work
    asked = replace(asked, choices=tuple(each.suited(opened) for each in asked.choices))
    lacking = strategy_runs.missing(opened, asked)
    del opened  # pages that a process maps cannot be dropped from the page cache
    with limited as (group, words), Bars() as bars:
        measured = strategy_runs.measure(asked, lacking, group, words, bars)
    predictions = predictions_of(asked, measured)
    found = strategy_figures.section(asked, measured, predictions)
    content = {**run_envelope("strategies"), "store": str(asked.store), "strategies": found}
    if as_json:
        print(json.dumps(content, indent=2, allow_nan=False))
    else:
        print(strategy_figures.report(asked, found, measured))
    if all(each.failed is not None for each in measured.runs):
        raise typer.Exit(2)


def _split(store: Store, named: str | None) -> str | None:
    """The split whose nodes are the seeds; None: all nodes."""
    if named is None:
        return INPUT if INPUT in store.split_names else None
    if named not in store.split_names:
        there = ", ".join(store.split_names) or "none: leave --split out to take all nodes"
        raise ConfigError(f"--split {named} is none of the splits of {store.path}: {there}")
    return named


def _limit(asked: Comparison) -> AbstractContextManager[tuple[Cgroup | None, str]]:
    """A memory limit for the processes and what it is in words, as far as there is to be one."""
    if asked.memory is None:
        return nullcontext((None, "no memory limit: --memory is not given"))
    if not asked.limited:
        return nullcontext((None, "no memory limit: --no-limit"))
    return memory_limit(asked.memory)


def predictions_of(asked: Comparison, measured: Measured) -> dict[str, StrategyCost]:
    """Predict a batch of each strategy that ran, in the memory that its loader had; batches are
    drawn, so call this after the measurement.

    Returns:
        By the texts of the choices; without a baseline, and those whose batches cannot be drawn.
    """
    store, found = open_store(asked.store), dict[str, StrategyCost]()
    seeds = None if asked.split is None else store.split(asked.split)
    for run in measured.runs:
        choice = run.choice
        if run.failed is not None:
            continue
        given, _ = loading_of(asked, choice, measured.loading_bytes)
        try:
            cost = StrategySource(given, store, seeds).predicted()
        except GNNDriveError:
            continue
        if cost is not None:
            found[choice.text] = cost
    return found
