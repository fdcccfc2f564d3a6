"""`gnndrive bench headroom`: what training waits for, measured by making one part after the other
free; `gnndrive/cli/measure/headroom.py` measures, `verdict.py` beside it judges."""

from __future__ import annotations

import json
import time
from functools import partial
from typing import Annotated, Any

import torch
import typer
from rich.console import Console

from gnndrive.cli.commands.loader_options import LoaderOptions, with_loader_options
from gnndrive.cli.commands.options import (
    HIDDEN,
    MODEL,
    Hidden,
    Json,
    ModelName,
    Rounds,
    StorePath,
    Threads,
    TimedBatches,
)
from gnndrive.cli.measure.headroom import LINES, NAMES, Bench, Free, Measured, Step
from gnndrive.cli.measure.verdict import times, verdict
from gnndrive.cli.report import run_envelope, say
from gnndrive.cli.training import ModelSettings, check_loss, train_step
from gnndrive.common.errors import ConfigError
from gnndrive.common.memory import format_size
from gnndrive.store.reader import Store, open_homogeneous

LR = 0.003


@with_loader_options()
def headroom(
    options: LoaderOptions,
    store: StorePath,
    model: ModelName = None,
    step_ms: Annotated[
        float | None,
        typer.Option(min=0, help="Instead of a model: wait so long, as for a step on a GPU."),
    ] = None,
    batches: TimedBatches = 16,
    rounds: Rounds = 3,
    warm_up: Annotated[
        int | None, typer.Option(min=0, help="Batches before these; default: as many as it takes.")
    ] = None,
    hidden: Hidden = None,
    threads: Threads = None,
    json_: Json = False,
) -> None:
    """Say what training waits for: load the same batches with the sampler, the disk, the loader,
    the training step made free."""
    if step_ms is not None and (model is not None or hidden is not None):
        raise ConfigError("--step-ms stands in place of a model: leave out --model and --hidden")
    if warm_up == 0:
        raise ConfigError("--warm-up 0: the first batch waits for everything, so give at least 1")
    if threads is not None:
        torch.set_num_threads(threads)
    opened = open_homogeneous(store, "gnndrive bench headroom")
    step: Step
    if step_ms is None:
        step = model_step(opened, options, model or MODEL, hidden or HIDDEN)
    else:
        step = partial(_sleep, step_ms / 1000)
    seeds = opened.split("train") if "train" in opened.split_names else None
    if seeds is not None and not len(seeds):
        raise ConfigError(f"the train split of {opened.path} has no nodes: give it some")
    found = Bench(
        opened, partial(options.loader, opened, seeds, True), step, batches, rounds, warm_up,
        partial(say, Console(stderr=True)),
    ).measure()  # fmt: skip
    print(json.dumps(as_json(found, opened), indent=2) if json_ else as_text(found, opened))


def model_step(store: Store, options: LoaderOptions, model: str, hidden: int) -> Step:
    """A training step of a model on a store's classes."""
    if "y" not in store.node_names or store.num_classes < 2:
        raise ConfigError(
            f"{store.path} has no classes to train on: say with --step-ms how many milliseconds "
            "your training step takes"
        )
    torch.manual_seed(options.seed)
    settings = ModelSettings(
        store.num_features, store.num_classes, model, len(options.hops), hidden
    )
    made = settings.build().to(options.where()).train()
    optimizer = torch.optim.Adam(made.parameters(), lr=LR)

    def step(batch: Any) -> None:
        loss = train_step(batch, made, optimizer)
        if loss is not None:
            check_loss(loss, batch, "a training step", "give --step-ms instead of a model")

    return step


def _sleep(seconds: float, batch: Any) -> None:
    """A training step on another device, which leaves the processors to the loader."""
    time.sleep(seconds)


# ---- output


def as_json(found: Measured, store: Store) -> dict[str, Any]:
    """The measured lines and the verdict, for `--json`."""
    real, judged = found.seconds("nothing"), found.headroom()
    content: dict[str, Any] = {
        "batches": found.batches,
        "warm_up": found.warm_up,
        "lines": [
            {
                "free": free,
                "seconds_per_batch": found.seconds(free),
                "times": times(real, found.seconds(free)),
                "rounds": [run.seconds for run in found.runs[free]],
            }
            for free in LINES
        ],
        "hit_share": judged.hit_share,
        "calibrated_s": judged.calibrated_s,
        "notes": found.notes,
        "verdict": verdict(judged),
    }
    if found.twice_s is not None:
        content["twice_the_buffer"] = {
            "how": "predicted" if found.predicted else "measured",
            "buffer_bytes": 2 * found.plan.buffer_bytes,
            "seconds_per_batch": found.twice_s,
            "times": times(real, found.twice_s),
            "rounds": [run.seconds for run in found.runs.get("buffer", ())],
        }
    return {**run_envelope("headroom"), "store": str(store.path), "headroom": content}


def as_text(found: Measured, store: Store) -> str:
    """The same as a table, with the verdict below."""
    real, judged = found.seconds("nothing"), found.headroom()
    runs = found.runs["nothing"]
    hits = "" if judged.hit_share is None else f", {judged.hit_share:.0%} of the rows in it"
    lines = [
        f"gnndrive bench headroom: {store.path}, {found.batches} batches behind {found.warm_up}, "
        f"medians of {len(runs)} rounds in turn; feature buffer "
        f"{format_size(found.plan.buffer_bytes)}{hits}",
        f"  {'free':<30} {'s a batch':>10} {'(range)':>19} {'times faster':>13}",
    ]
    for free, done in found.runs.items():
        each = [run.seconds for run in done]
        spread = f"({min(each):.4f} to {max(each):.4f})"
        lines.append(_row(free, found.seconds(free), spread, real))
    if found.predicted and found.twice_s is not None:
        lines.append(_row("buffer", found.twice_s, "(predicted)", real))
    return "\n".join([*lines, *(f"note: {note}" for note in found.notes), verdict(judged)])


def _row(free: Free, seconds: float, spread: str, real: float) -> str:
    return f"  {NAMES[free]:<30} {seconds:10.4f} {spread:>19} {times(real, seconds):13.2f}"
