"""`gnndrive bench strategies`: all strategies side by side, in one run and one memory limit.

`strategy_runs.py` measures; here are the command, its JSON, and the table and notes made of that.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from statistics import median
from typing import Annotated, Any

import typer

from gnndrive.cli.commands import strategy_runs
from gnndrive.cli.commands.loader_options import LoaderOptions, with_loader_options
from gnndrive.cli.commands.loading import Loaded, loader_of
from gnndrive.cli.commands.options import INPUT, Json, Rounds, StorePath, TimedBatches
from gnndrive.cli.commands.strategy_runs import Comparison, Measured, StrategyRuns, loading_of
from gnndrive.cli.measure.memory_limit import Cgroup, memory_limit
from gnndrive.cli.report import Bars, run_envelope
from gnndrive.cli.report.text import aligned, si
from gnndrive.common.errors import ConfigError, GNNDriveError
from gnndrive.common.memory import format_size
from gnndrive.plan.choice import without_plan
from gnndrive.plan.strategy_costs import StrategyCost
from gnndrive.store.reader import Store, open_homogeneous
from gnndrive.store.reader import open as open_store
from gnndrive.strategies.base import batches_of
from gnndrive.strategies.diskgnn import DiskGNN
from gnndrive.strategies.pyg_plus import PyGPlus
from gnndrive.strategies.windows.scheme import InsideWindows

PLAIN = "gnndrive"  # the strategy whose batches the others are compared with
AHEAD = 10  # batches that loaders may be ahead of their user without sampling superbatches
UNKNOWN = "–"
LEGEND = (
    "s/batch: median of the rounds; × …: times as fast; first s: until the first batch. From nodes "
    "to read: of a batch.",
    f"read: reads of the adjacency included; those of {PyGPlus.name} are page faults that had to "
    "read rows. same: as gnndrive's, node by node.",
)


@with_loader_options(
    "strategy",
    "buffer",
    "device",
    "device_memory",
    memory="Memory of each process, Python and page cache included, such as 8GB.",
)
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
    warm_up: Annotated[
        int | None,
        typer.Option(min=0, help="Batches before these; default: 10, or to a superbatch's end."),
    ] = None,
    rounds: Rounds = 3,
    seconds: Annotated[
        float, typer.Option(min=0, help="A run's warm-up, or timed part, ends after so long.")
    ] = strategy_runs.SECONDS,
    split: Annotated[
        str | None,
        typer.Option(help="Split whose nodes are the seeds; default: train, or all nodes."),
    ] = None,
    limit: Annotated[
        bool, typer.Option(help="Whether the memory of each process is limited, if possible.")
    ] = True,
    as_json: Json = False,
) -> None:
    """Time strategies side by side: the same batches, in one memory limit, cold, in turn."""
    opened = open_homogeneous(store, "gnndrive bench strategies")
    asked = Comparison(
        store, strategy_runs.parse_choices(names), options, _split(opened, split), batches,
        strategy_runs.aligned_warm_up(batches) if warm_up is None else warm_up, seconds, rounds,
        limit,
    )  # fmt: skip
    limited = _limit(asked)
    loading_of(asked, asked.choices[0], None)  # refuses what cannot work
    suited = [replace(each, strategy=each.strategy.suited(opened)) for each in asked.choices]
    asked = replace(asked, choices=tuple(suited))
    lacking = strategy_runs.missing(opened, asked)
    del opened  # pages that a process maps cannot be dropped from the page cache
    with limited as (group, words), Bars() as bars:
        measured = strategy_runs.measure(asked, lacking, group, words, bars)
    found = section(asked, measured, predictions_of(asked, measured))
    content = {**run_envelope("strategies"), "store": str(asked.store), "strategies": found}
    if as_json:
        print(json.dumps(content, indent=2, allow_nan=False))
    else:
        print(report(asked, found, measured))
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
    """Predict a batch of each strategy that ran, in the memory that its loader had, by the texts of
    the choices; without those whose batches cannot be drawn.

    It draws batches, so it comes after the measurement.
    """
    store, found = open_store(asked.store), dict[str, StrategyCost]()
    for run in measured.runs:
        if run.failed is not None:
            continue
        given, _ = loading_of(asked, run.choice, measured.loading_bytes)
        try:
            with loader_of(given, store) as loader:
                compared = loader.compare(all=False)
        except GNNDriveError:
            continue
        if compared is not None and compared.own is not None:
            found[run.choice.text] = compared.own
    return found


# ---- JSON


def section(
    asked: Comparison, measured: Measured, predictions: Mapping[str, StrategyCost]
) -> dict[str, Any]:
    """The section "strategies" of a RUN.json."""
    plain = [each for each in measured.runs if each.rounds and _is_plain(each)]
    reference = min(plain, key=lambda each: each.choice.strategy.name != PLAIN, default=None)
    return {
        "memory": asked.memory, "batches": asked.batches, "rounds": asked.rounds,
        "warm_up": asked.warm_up, "process_bytes": measured.process_bytes,
        "loading_bytes": measured.loading_bytes, "limit": measured.limit,
        "fanout": list(asked.options.hops), "batch_size": asked.options.batch_size,
        "split": asked.split,
        "runs": [
            _run_dict(asked, measured, each, reference, predictions.get(each.choice.text))
            for each in measured.runs
        ],
    }  # fmt: skip


def _is_plain(runs: StrategyRuns) -> bool:
    """Whether a strategy should have gnndrive's batches."""
    return batches_of(runs.choice.strategy) == PLAIN


def _run_dict(
    asked: Comparison, measured: Measured, runs: StrategyRuns, reference: StrategyRuns | None,
    prediction: StrategyCost | None,
) -> dict[str, Any]:  # fmt: skip
    done = runs.rounds if runs.failed is None else ()
    seconds = [each.seconds / each.batches for each in done]
    same = None if reference is None or not done else _same(done, reference.rounds)
    return {
        "strategy": runs.choice.text, "paper": runs.choice.strategy.published,
        "command": strategy_runs.command_of(asked, runs.choice),
        "seconds_per_batch": median(seconds) if seconds else None, "rounds": seconds,
        "first_batch_s": _median(done, lambda each: each.first_s),
        "nodes_per_batch": _median(done, lambda each: each.nodes / each.batches),
        "edges_per_batch": _median(done, lambda each: each.edges / each.batches),
        "rows_loaded_per_batch": _median(done, _loaded),
        "requests_per_batch": _median(done, lambda each: _a_batch(each, "requests")),
        "bytes_read_per_batch": _median(done, lambda each: _a_batch(each, "bytes_read")),
        "hit_share": _median(done, _hit_share),
        "peak_bytes": max((each.peak_bytes for each in done), default=None),
        "same_batches": same, "note": "; ".join(_notes(asked, measured, runs, same)),
        "predicted_s": None if prediction is None else prediction.batch_s,
        "bound_by": None if prediction is None else prediction.bound_by,
        "failed": runs.failed, "timed_batches": [each.batches for each in done],
        "topology": done[0].facts.get("topology") if done else None,
        "engine": done[0].facts.get("engine") if done else None,
    }  # fmt: skip


def _median(done: Sequence[Loaded], figure: Callable[[Loaded], float | None]) -> float | None:
    found = [value for value in map(figure, done) if value is not None]
    return median(found) if found else None


def _a_batch(loaded: Loaded, name: str) -> float | None:
    """A counter by the batches for which rows were looked up while batches were timed; a loader
    admits several at once, so these are not always as many as it delivers."""
    value = loaded.counters.get(name)
    rows = sum(loaded.counters.get(each, 0) for each in ("rows_loaded", "rows_found"))
    admitted = float(loaded.batches)
    if rows and loaded.nodes:
        admitted *= rows / loaded.nodes
    return None if value is None else value / admitted


def _loaded(loaded: Loaded) -> float | None:
    """Rows of a batch that had to be read; None: they are not counted."""
    return None if _hit_share(loaded) is None else _a_batch(loaded, "rows_loaded")


def _hit_share(loaded: Loaded) -> float | None:
    """The share of rows that needed no read of their own; None: it is not counted."""
    found, read = (loaded.counters.get(name) for name in ("rows_found", "rows_loaded"))
    if found is None or read is None or not found + read:
        return None
    return found / (found + read)


def _same(done: Sequence[Loaded], reference: Sequence[Loaded]) -> bool:
    """Whether all rounds have the reference's batches, as far as both go."""
    return all(
        mine == theirs
        for each in done
        for other in reference
        for mine, theirs in zip(each.checksums, other.checksums, strict=False)
    )


# ---- what else is to be known


def _notes(
    asked: Comparison, measured: Measured, runs: StrategyRuns, same: bool | None
) -> list[str]:
    if not runs.rounds:
        return []
    strategy, done, notes = runs.choice.strategy, runs.rounds, list[str]()
    levels = [text.removeprefix("disk: ") for text in done[0].levels]
    if isinstance(strategy, PyGPlus):
        if not measured.enforced:
            notes.append("no limit: the page cache may hold the whole store")
        notes += [f"gathered {each.facts['gathering']}" for each in done]
    elif isinstance(strategy, DiskGNN):
        notes += ["recorded: the same epochs again and again, which may cost accuracy", *levels]
    elif isinstance(strategy, InsideWindows):
        notes += [f"batches inside windows: {text}" for text in levels]
        notes.append("they lack all other edges: compare accuracy before seconds")
        notes.append(_window_note(done))
    elif any(each.holds_all for each in done):
        notes.append("the feature buffer holds all rows: once they are there, none is read")
    elif any(each.evictions_before == 0 for each in done):
        notes.append("the feature buffer was not full when the timing began: give more --warm-up")
    if same is False and _is_plain(runs):
        notes.append("its batches are not gnndrive's, and should be: please report this")
    if runs.superbatch is not None:
        notes.append(
            f"superbatch={runs.superbatch}, as many as are timed; more --batches allow longer ones"
        )
    return notes + _warm_up_notes(asked, done)


def _window_note(done: Sequence[Loaded]) -> str:
    windows = sum(each.counters.get("windows", 0) for each in done)
    if not windows:
        return "no window was loaded while batches were timed: the first batch waited for one"
    seconds = sum(each.counters.get("window_load_s", 0) for each in done) / windows
    return f"{windows / len(done):.1f} windows were loaded meanwhile, {seconds:.2g} s each"


def _warm_up_notes(asked: Comparison, done: Sequence[Loaded]) -> list[str]:
    """Where the timed batches are not those of a steady state, or fewer than were asked for."""
    notes = []
    if (least := min(each.warm_up for each in done)) < asked.warm_up:
        notes.append(f"{least} batches warmed up in {asked.seconds:g} s")
    if (least := min(each.batches for each in done)) < asked.batches:
        notes.append(f"{least} batches were timed in {asked.seconds:g} s")
    for each in done:
        samples = each.counters.get("samples")
        if samples is not None and abs(samples - each.batches) > max(AHEAD, each.batches / 4):
            notes.append(
                f"{samples:.0f} batches were sampled while {each.batches} were timed: the other "
                "seconds belong to other batches"
            )
            break
    return notes


# ---- text


def report(asked: Comparison, found: Mapping[str, Any], measured: Measured) -> str:
    """The table of what `section` has found, and what is to be known of it."""
    lines = _head(asked, measured)
    done = [each for each in found["runs"] if each["failed"] is None]
    if done:
        lines += ["", *aligned(_rows(done)), *LEGEND]
    lines += [""] if any(each["note"] or each["failed"] for each in found["runs"]) else []
    for each in found["runs"]:
        said = without_plan(each["failed"]) if each["failed"] else each["note"]
        if said:
            lines.append(f"{each['strategy']}: {said}")
    return "\n".join(lines)


def _head(asked: Comparison, measured: Measured) -> list[str]:
    options = asked.options
    seeds = "all nodes" if asked.split is None else f"split {asked.split}"
    own = format_size(measured.process_bytes)
    if measured.loading_bytes is None:
        memory = "--memory is not given: loaders take what they take by themselves"
    else:
        memory = (
            f"Python, torch and the store take {own}, so loaders get memory="
            f"{format_size(measured.loading_bytes)}; {PyGPlus.name} has the page cache in the rest"
        )
    return [
        f"{asked.store}: batches of {options.batch_size:,}, fanout "
        f"{','.join(map(str, options.hops))}, {seeds}, shuffled with seed {options.seed}",
        f"  limit  : {measured.limit}",
        f"  memory : {memory}",
        f"  runs   : {asked.rounds} in turn, each in a process of its own; the store's files are "
        "dropped from the page cache before",
        f"  timed  : {asked.batches} batches in the middle of an epoch (steady state), behind "
        f"{asked.warm_up} that warm up and are not timed; at most {asked.seconds:g} s each",
    ]


def _rows(done: Sequence[Mapping[str, Any]]) -> list[tuple[str, ...]]:
    first = done[0]
    rows: list[tuple[str, ...]] = [
        (
            "strategy", "s/batch", "(min–max)", f"× {first['strategy']}", "first s", "nodes",
            "edges", "loaded", "requests", "read", "hits", "peak", "same", "predicted",
        ),
    ]  # fmt: skip
    for each in done:
        seconds, rounds, predicted = (
            each[name] for name in ("seconds_per_batch", "rounds", "predicted_s")
        )
        speed = first["seconds_per_batch"] / seconds if seconds else 0.0
        counts = ("nodes_per_batch", "edges_per_batch", "rows_loaded_per_batch",
                  "requests_per_batch")  # fmt: skip
        rows.append(
            (
                each["strategy"], f"{seconds:.3g}", f"({min(rounds):.3g}–{max(rounds):.3g})",
                f"{speed:.2f}", f"{each['first_batch_s']:.1f}",
                *(_known(each[name], si) for name in counts),
                _known(each["bytes_read_per_batch"], format_size),
                _known(each["hit_share"], "{:.0%}".format),
                format_size(each["peak_bytes"]),
                {True: "yes", False: "no", None: UNKNOWN}[each["same_batches"]],
                UNKNOWN if predicted is None else f"{predicted:.3g} by {each['bound_by']}",
            )
        )  # fmt: skip
    if all(each["predicted_s"] is None for each in done):
        return [row[:-1] for row in rows]
    return rows


def _known(value: float | None, say: Callable[[float], str]) -> str:
    return UNKNOWN if value is None else say(value)
