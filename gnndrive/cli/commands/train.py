"""`gnndrive train`: train a model on a store; `SplitBatches` (`split_batches.py`) loads it.

Sampling the neighbourhoods of many nodes reads most rows again and again. `gnndrive.infer` reads
each layer's rows in a few passes, whatever the number of nodes. So a split is evaluated by
inference over all nodes where that reads less than sampled batches. The accuracies differ a little,
because inference takes all neighbours and not a sample.

The test split is evaluated once, with the parameters of the last epoch, as PyG's examples of large
graphs do. These are the parameters that a checkpoint holds, so that `gnndrive infer` uses the model
that was tested.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, nullcontext
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import typer
from rich.console import Console
from torch_geometric.data import Data

from gnndrive.cli.commands.loader_options import LoaderOptions, with_loader_options
from gnndrive.cli.commands.options import (
    HIDDEN,
    MODEL,
    Hidden,
    Json,
    ModelName,
    StorePath,
    Threads,
)
from gnndrive.cli.commands.split_batches import RunRecord, SplitBatches
from gnndrive.cli.measure.verdict import verdict_of_run
from gnndrive.cli.report import Bars, final_report, run_envelope, say
from gnndrive.cli.report import as_json as report_json
from gnndrive.cli.training import (
    NO_LABEL,
    TEST,
    EpochResult,
    History,
    ModelSettings,
    TrainSettings,
    evaluate_splits,
    seed_labels,
    train,
)
from gnndrive.common.errors import ConfigError, ReadError, StoreError
from gnndrive.common.memory import available_memory, parse_size
from gnndrive.disk.layouts.base import SWEEP_BLOCK_BYTES
from gnndrive.inference.infer import infer
from gnndrive.loader.tracing import check_trace
from gnndrive.pipeline.timeline import Timeline
from gnndrive.plan.plan import DEFAULT_SHARE
from gnndrive.store.calibration import gap_bytes, load_calibration
from gnndrive.store.reader import Store, open_homogeneous
from gnndrive.store.temporary_folders import TemporaryFolder

EVALUATED = ("val", "valid", "test")
AT_ONCE = 1 << 16  # nodes whose classes are compared at once


@with_loader_options()
def train_command(
    options: LoaderOptions,
    store: StorePath,
    model: ModelName = None,
    epochs: Annotated[int, typer.Option(min=1, help="Epochs, those of --resume included.")] = 3,
    hidden: Hidden = None,
    dropout: Annotated[float, typer.Option(help="Share of hidden units dropped.")] = 0.5,
    lr: Annotated[float, typer.Option(help="Adam's learning rate.")] = 0.003,
    weight_decay: Annotated[float, typer.Option(help="Adam's weight decay.")] = 5e-4,
    eval_every: Annotated[
        int,
        typer.Option(
            metavar="N",
            min=0,
            help="Validate after each N-th epoch and the last one; 0: never. The test split is "
            "evaluated once, at the end, with the parameters of the last epoch.",
        ),
    ] = 1,
    threads: Threads = None,
    trim: Annotated[bool, typer.Option(help="Skip rows that no later layer needs.")] = True,
    checkpoint: Annotated[Path | None, typer.Option(help="File to write after each epoch.")] = None,
    resume: Annotated[
        Path | None,
        typer.Option(
            help="Continue this checkpoint; without --checkpoint it is replaced after each epoch."
        ),
    ] = None,
    trace: Annotated[
        Path | None, typer.Option(help="Timeline of training to write: NAME.json or NAME.json.gz.")
    ] = None,
    json: Json = False,
) -> None:
    """Train a model on a store; evaluate it on the val split after epochs, on test at the end."""
    envelope, named = run_envelope("train"), model or MODEL
    if threads is not None:
        torch.set_num_threads(threads)
    opened = open_homogeneous(store, "gnndrive train")
    evaluated = tuple(name for name in EVALUATED if name in opened.split_names)
    settings = TrainSettings(epochs, lr, weight_decay, options.seed, trim, evaluated, eval_every)
    check_trace({"trace": trace})
    # One timeline for all epochs, because each of them may have a loader of its own.
    with nullcontext() if trace is None else closing(Timeline(trace)) as timeline:
        batches = SplitBatches(opened, options, epochs, trace=timeline, record=RunRecord(json))
        history = run_training(
            batches, named, hidden or HIDDEN, dropout, settings,
            checkpoint=checkpoint, resume=resume,
        )  # fmt: skip
    verdict = verdict_of_run(batches.stats)
    if json:
        names = ("epoch", "loss", "accuracy", "seconds")
        details: dict[str, Any] = {
            **envelope,
            "store": str(opened.path),
            "model": named,
            "seed": settings.seed,
            **batches.record.sections(),
            "verdict": verdict or None,
            "epochs": [{name: getattr(each, name) for name in names} for each in history.epochs],
        }
        print(report_json(batches.stats, **details))
        return
    results = _results(history.epochs)
    if verdict:
        results["verdict"] = verdict
    print(final_report(batches.stats, title="gnndrive train", results=results))


def run_training(
    batches: SplitBatches,
    model: str,
    hidden: int,
    dropout: float,
    settings: TrainSettings,
    *,
    checkpoint: Path | None = None,
    resume: Path | None = None,
) -> History:
    """Train on a store's splits, and print each epoch's result on the console; `batches` are closed
    at the end. Without `checkpoint` the one to resume is replaced after each epoch."""
    store, checkpoint = batches.store, checkpoint or resume
    if "y" not in store.node_names or store.num_classes < 2:
        raise ConfigError(
            f"{store.path} has no classes to learn: import it with labels, or write your own "
            "training loop"
        )
    if "x" not in store.node_names:
        raise ConfigError(
            f"{store.path} has no features x to learn from: import it with some (--features, or "
            "--x for columns of a table), or train embeddings of its nodes, as in "
            "docs/tasks/features.md"
        )
    model_settings = ModelSettings(
        store.num_features, store.num_classes, model, len(batches.options.hops), hidden, dropout
    )
    where = batches.options.where()
    console = batches.console or Console(stderr=True)
    evaluated = settings.splits_after(settings.epochs)
    if settings.eval_every and set(settings.evaluate) <= {TEST}:
        say(console, f"{store.path} has no split val: training is not validated")
    inferred = _inferred(batches, evaluated, console)
    batches.check_drawn([split for split in evaluated if split not in inferred])

    def evaluate_all(
        model: torch.nn.Module, splits: tuple[str, ...], epoch: int
    ) -> dict[str, float]:
        rest = [split for split in splits if split not in inferred]
        found = evaluate_splits(batches, model, rest, epoch, trim=settings.trim)
        seeds = {split: store.split(split) for split in splits if split in inferred}
        if seeds:
            batches.close()  # so that the loader's memory is free
            found |= accuracies(model, store, seeds, batches.options.memory)
        return found

    def on_epoch(result: EpochResult) -> None:
        if batches.stats:  # else only an evaluation that was interrupted was made up for
            batches.seconds.append(result.seconds)
        say(console, _epoch_line(result))

    before = None if checkpoint is None else _inode(checkpoint)
    try:
        with batches, _used(where):
            return train(
                batches,
                model_settings,
                settings,
                on_loss=batches.set_loss,
                on_epoch=on_epoch,
                checkpoint=checkpoint,
                resume=resume,
                evaluate_all=evaluate_all,
                device=where,
                node_text=lambda node: _node_text(store, node),
            )
    except KeyboardInterrupt:
        if checkpoint is not None and _inode(checkpoint) != before:
            say(console, f"{checkpoint} has the last whole epoch: the same command with --resume "
                f"{shlex.quote(str(checkpoint))} goes on from there")  # fmt: skip
        elif checkpoint is not None:
            kept = "was not written" if before is None else "is as it was before"
            say(console, f"{checkpoint} {kept}, because no epoch has ended")
        raise


def _inode(path: Path) -> int | None:
    """The number of a file, another one for each file that replaces it; None: there is none."""
    return path.stat().st_ino if path.exists() else None


def _node_text(store: Store, node: int) -> str:
    """A node's number, and its id in the source of the import if that was kept."""
    if "id" not in store.node_names:
        return f"{node}"
    return f"{node} (id {store.ids(n_id=[node])[0].item()!r})"


@contextmanager
def _used(where: torch.device) -> Iterator[None]:
    """A context in which `where` is the current GPU, if it is one: libraries would use the first
    one's memory. An error for too little of its memory names the remedy."""
    try:
        with torch.cuda.device(where) if where.type == "cuda" else nullcontext():
            yield
    except torch.cuda.OutOfMemoryError as error:
        raise ConfigError(
            f"{where} has too little memory ({str(error).splitlines()[0]}): give loading less of "
            "it with --device-memory (0: its rows are in host memory), or give a smaller "
            "--batch-size, --fanout or --hidden"
        ) from error


def _epoch_line(result: EpochResult) -> str:
    parts = [f"epoch {result.epoch}: loss {result.loss:.4f}"]
    parts += [f"{split} accuracy {share:.4f}" for split, share in result.accuracy.items()]
    return ", ".join([*parts, f"{result.seconds:.1f} s"])


def _results(epochs: list[EpochResult]) -> dict[str, str]:
    """The accuracies after the last epoch, by name, and the best one of a validation."""
    found = {}
    for split, share in epochs[-1].accuracy.items():
        best = max(epochs, key=lambda each: each.accuracy.get(split, 0.0))
        more = ""
        if split == TEST:
            more = ", with the parameters of the last epoch"
        elif best.accuracy[split] > share:
            more = f"; the best, {best.accuracy[split]:.4f}, was after epoch {best.epoch}"
        found[f"{split} accuracy"] = f"{share:.4f}{more}"
    return found


# ---- evaluation


def _inferred(batches: SplitBatches, splits: tuple[str, ...], console: Console) -> tuple[str, ...]:
    """Those of the splits that inference over all nodes evaluates, because it reads less than their
    batches."""
    store, options = batches.store, batches.options
    if options.buffer is not None:  # the user sets the parts by hand
        return ()
    memory = None if options.memory is None else parse_size(options.memory, "memory")
    given = (options.hops, options.batch_size, memory, options.device_bytes())
    found = tuple(each for each in splits if is_cheaper(store, len(store.split(each)), *given))
    if not found:
        return ()
    names = " and ".join(found)
    try:
        TemporaryFolder(store.path, "sort").remove()  # it writes beside the store
    except OSError:
        say(console, f"{names}: evaluated with batches; inference over all nodes reads less, but "
            f"needs to write to {store.path.parent}")  # fmt: skip
        return ()
    say(console, f"{names}: evaluated by inference over all nodes, which reads less than batches")
    return found


def is_cheaper(
    store: Store, nodes: int, fanout: tuple[int, ...], batch_size: int, memory: int | None,
    on_device: int | None = None,
) -> bool:  # fmt: skip
    """Whether inference over all nodes reads less than sampled batches of `nodes` nodes.

    Both are estimated for nodes that are drawn evenly, so a skewed graph needs less in both cases.
    A row counts with the gap that a planned read bridges, because a request costs as much.

    Args:
        memory: bytes for rows; None: a quarter of the available memory.
        on_device: bytes for the rows of batches on a device; None: `memory` holds them.
    """
    count, file = store.num_nodes, store.table("x")
    room = int(DEFAULT_SHARE * available_memory()) if memory is None else memory
    kept, kept_by_batches = (
        min(each / max(count * file.row_bytes, 1), 1.0)
        for each in (room, room if on_device is None else on_device)
    )
    if kept_by_batches >= 1:  # all rows stay in memory, and batches read each once
        return False
    passes = 1.0 if kept >= 1 else (count + store.num_edges) / max(-count * math.log1p(-kept), 1)
    whole = len(fanout) * max(passes, 1) * count * file.row_bytes
    reached, frontier = 1.0, 1.0
    for taken in fanout:
        frontier *= taken if taken >= 0 else store.num_edges / max(count, 1)
        reached += frontier
    batches = math.ceil(nodes / batch_size)
    rows = -count * math.expm1(-min(batch_size, nodes) * reached / count)
    gap = gap_bytes(load_calibration(store), SWEEP_BLOCK_BYTES)
    sampled = min(rows * (file.row_bytes + gap), count * file.row_bytes)
    return whole < batches * (1 - kept_by_batches) * sampled


def accuracies(
    model: torch.nn.Module, store: Store, splits: Mapping[str, Any], memory: str | int | None
) -> dict[str, float]:
    """The share, from 0 to 1, of each split's labelled nodes that a model classifies correctly; a
    split without any is left out.

    The rows that are computed lie in a folder of this call's own, beside the store.

    Args:
        model: one that `gnndrive.infer` takes, with a column for each class.
        splits: node ids by split, int64 [n].
    """
    try:
        with TemporaryFolder(store.path, "sort") as out:
            with Bars() as bars:
                infer(model, store, out=out, memory=memory, progress=bars)
            return _shares(np.load(out / "h.npy", mmap_mode="r"), store, splits)
    except ReadError:
        raise
    except OSError as error:
        raise StoreError(
            f"the model cannot be evaluated beside {store.path} ({error.strerror or error}): make "
            "that folder writable and free some space, or give --buffer to evaluate with batches"
        ) from error


def _shares(rows: Any, store: Store, splits: Mapping[str, Any]) -> dict[str, float]:
    """See `accuracies`; `rows` is [nodes, classes]."""
    y, found = store.tensor("y"), {}
    for split, ids in splits.items():
        right = labelled = 0
        for start in range(0, len(ids), AT_ONCE):
            part = torch.as_tensor(ids[start : start + AT_ONCE])
            labels = seed_labels(Data(y=y[part], batch_size=len(part)))
            known = labels != NO_LABEL
            answer = torch.from_numpy(rows[part[known].numpy()]).argmax(dim=-1)
            right += int((answer == labels[known]).sum())
            labelled += int(known.sum())
        if labelled:
            found[split] = right / labelled
    return found
