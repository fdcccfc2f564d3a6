"""Figures of `bench strategies`: its JSON section, and the table and notes made of that."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from gnndrive.cli.commands.loading import Loaded
from gnndrive.cli.commands.strategy_runs import Comparison, Measured, StrategyRuns, command_of
from gnndrive.cli.report.text import aligned, si
from gnndrive.common.memory import format_size
from gnndrive.plan.strategy_costs import StrategyCost
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


def section(
    asked: Comparison, measured: Measured, predictions: Mapping[str, StrategyCost]
) -> dict[str, Any]:
    """The section "strategies" of a run's JSON; `predictions` say what a batch costs, by the texts
    of the choices, and may lack some."""
    reference = _reference(measured.runs)
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


def _run_dict(
    asked: Comparison, measured: Measured, runs: StrategyRuns, reference: StrategyRuns | None,
    prediction: StrategyCost | None,
) -> dict[str, Any]:  # fmt: skip
    done = runs.rounds if runs.failed is None else ()
    seconds = [each.seconds / each.batches for each in done]
    same = None if reference is None or not done else _same(done, reference.rounds)
    return {
        "strategy": runs.choice.text, "paper": runs.choice.strategy.published,
        "command": command_of(asked, [runs.choice]),
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


def _median(done: Sequence[Loaded], figure: Any) -> float | None:
    found = [value for value in map(figure, done) if value is not None]
    return median(found) if found else None


def _admitted(loaded: Loaded) -> float:
    """For how many batches rows were looked up while batches were timed; a loader admits several at
    once, so these are not always as many as it delivers."""
    rows = sum(loaded.counters.get(name, 0) for name in ("rows_loaded", "rows_found"))
    return rows * loaded.batches / loaded.nodes if rows and loaded.nodes else loaded.batches


def _a_batch(loaded: Loaded, name: str) -> float | None:
    value = loaded.counters.get(name)
    return None if value is None else value / _admitted(loaded)


def _loaded(loaded: Loaded) -> float | None:
    """Rows of a batch that had to be read; None: they are not counted."""
    return None if _hit_share(loaded) is None else _a_batch(loaded, "rows_loaded")


def _hit_share(loaded: Loaded) -> float | None:
    """The share of rows that needed no read of their own; None: it is not counted."""
    found, read = (loaded.counters.get(name) for name in ("rows_found", "rows_loaded"))
    if found is None or read is None or not found + read:
        return None
    return found / (found + read)


def _reference(runs: Sequence[StrategyRuns]) -> StrategyRuns | None:
    """The runs whose batches are gnndrive's: its own if there are any."""

    def is_plain(each: StrategyRuns) -> bool:
        return batches_of(each.choice.strategy) == PLAIN

    whole = [each for each in runs if each.rounds and is_plain(each)]
    return min(whole, key=lambda each: each.choice.name != PLAIN, default=None)


def _same(done: Sequence[Loaded], reference: Sequence[Loaded]) -> bool:
    """Whether all rounds have the reference's batches, as far as both go."""
    for each in done:
        for other in reference:
            common = min(len(each.checksums), len(other.checksums))
            if each.checksums[common - 1] != other.checksums[common - 1]:
                return False
    return True


# ---- what else is to be known


def _notes(
    asked: Comparison, measured: Measured, runs: StrategyRuns, same: bool | None
) -> list[str]:
    if not runs.rounds:
        return []
    strategy, done, notes = runs.choice.strategy, runs.rounds, list[str]()
    levels = [text.removeprefix("disk: ") for each in done[:1] for text in each.levels]
    if isinstance(strategy, PyGPlus):
        if not measured.enforced:
            notes.append("no limit: the page cache may hold the whole store")
        notes += [f"gathered {each.facts['gathering']}" for each in done]
    elif isinstance(strategy, DiskGNN):
        notes += ["recorded: the same epochs again and again, which may cost accuracy", *levels]
    elif isinstance(strategy, InsideWindows):
        notes += [f"batches inside windows: {text}" for text in levels]
        notes.append("they lack all other edges: compare accuracy before seconds")
        notes += _window_notes(done)
    else:
        notes += _buffer_notes(done)
    if same is False and batches_of(strategy) == PLAIN:
        notes.append("its batches are not gnndrive's, and should be: please report this")
    if runs.superbatch is not None:
        notes.append(
            f"superbatch={runs.superbatch}, as many as are timed; more --batches allow longer ones"
        )
    return notes + _warm_up_notes(asked, done)


def _window_notes(done: Sequence[Loaded]) -> list[str]:
    windows = sum(each.counters.get("windows", 0) for each in done)
    if not windows:
        return ["no window was loaded while batches were timed: the first batch waited for one"]
    seconds = sum(each.counters.get("window_load_s", 0) for each in done) / windows
    return [f"{windows / len(done):.1f} windows were loaded meanwhile, {seconds:.2g} s each"]


def _buffer_notes(done: Sequence[Loaded]) -> list[str]:
    if any(each.holds_all for each in done):
        return ["the feature buffer holds all rows: once they are there, none is read"]
    if any(each.evictions_before == 0 for each in done):
        return ["the feature buffer was not full when the timing began: give more --warm-up"]
    return []


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
        said = each["failed"].splitlines()[0] if each["failed"] else each["note"]
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
            "edges", "loaded", "requests", "read", "hits", "peak", "same",
        ),
    ]  # fmt: skip
    predicted = any(each["predicted_s"] is not None for each in done)
    for each in done:
        seconds, rounds = each["seconds_per_batch"], each["rounds"]
        speed = first["seconds_per_batch"] / seconds if seconds else 0.0
        rows.append(
            (
                each["strategy"], f"{seconds:.3g}", f"({min(rounds):.3g}–{max(rounds):.3g})",
                f"{speed:.2f}", f"{each['first_batch_s']:.1f}",
                *(
                    UNKNOWN if each[f"{name}_per_batch"] is None else si(each[f"{name}_per_batch"])
                    for name in ("nodes", "edges", "rows_loaded", "requests")
                ),
                UNKNOWN if each["bytes_read_per_batch"] is None
                else format_size(each["bytes_read_per_batch"]),
                UNKNOWN if each["hit_share"] is None else f"{each['hit_share']:.0%}",
                format_size(each["peak_bytes"]),
                {True: "yes", False: "no", None: UNKNOWN}[each["same_batches"]],
            )
        )  # fmt: skip
    if predicted:
        rows = [(*rows[0], "predicted"), *map(_with_prediction, rows[1:], done)]
    return rows


def _with_prediction(row: tuple[str, ...], each: Mapping[str, Any]) -> tuple[str, ...]:
    said = UNKNOWN
    if each["predicted_s"] is not None:
        said = f"{each['predicted_s']:.3g} by {each['bound_by']}"
    return (*row, said)
