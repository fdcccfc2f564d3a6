"""Train a GraphSAGE, GCN or GAT on batches from any source.

`gnndrive train` runs this module. It imports no loader and no store: `train` takes a function that
gives an epoch's batches, so that the same batches from disk and from memory train to the same bits.
Do not use it for your own model or loop: a batch of gnndrive is a batch of PyG.
"""

from __future__ import annotations

import math
import os
import pickle
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from torch_geometric.nn.models import GAT, GCN, GraphSAGE

from gnndrive.common.errors import ConfigError
from gnndrive.common.interrupts import deferred_interrupts
from gnndrive.common.io.small_files import replace_file

MODELS = {"sage": GraphSAGE, "gcn": GCN, "gat": GAT}
TEST = "test"  # the split that is evaluated once, at the end
NO_LABEL = -1
VERSION = 1  # of checkpoints

Batches = Callable[[str, int], Iterable[Any]]
"""batches(split, epoch): the PyG batches of a split in an epoch; epochs are numbered from 0."""


@dataclass(frozen=True, slots=True)
class ModelSettings:
    """The architecture of the model.

    Attributes:
        in_features, classes: of batch.x and batch.y.
        name: one of `MODELS`.
        layers: one for each sampled hop.
        hidden: units of each hidden layer.
        dropout: share of hidden units that is dropped in training.
    """

    in_features: int
    classes: int
    name: str = "sage"
    layers: int = 2
    hidden: int = 128
    dropout: float = 0.5

    def build(self) -> torch.nn.Module:
        """Make the model, with weights drawn from torch's random numbers."""
        if self.name not in MODELS:
            raise ConfigError(f"model={self.name!r}: give one of {', '.join(MODELS)}")
        if self.classes < 2 or self.in_features < 1:
            raise ConfigError(
                f"{self.in_features} features and {self.classes} classes: training needs features "
                "x and labels y of at least 2 classes; import the store with both"
            )
        if self.layers < 1 or self.hidden < 1 or not 0 <= self.dropout < 1:
            raise ConfigError(
                f"layers={self.layers}, hidden={self.hidden}, dropout={self.dropout}: give at "
                "least 1, at least 1, and a share from 0 to below 1"
            )
        model: torch.nn.Module = MODELS[self.name](
            self.in_features, self.hidden, self.layers, self.classes, dropout=self.dropout
        )
        return model


@dataclass(frozen=True, slots=True)
class TrainSettings:
    """How the model is trained.

    Attributes:
        epochs: in all, including those of a resumed checkpoint.
        lr, weight_decay: Adam's.
        seed: of the weights and of dropout.
        trim: compute in each layer only the rows that later layers need (PyG's `trim_to_layer`).
        evaluate: splits whose accuracy is measured.
        eval_every: the epochs from one validation to the next one; 0: none.
    """

    epochs: int = 3
    lr: float = 0.003
    weight_decay: float = 5e-4
    seed: int = 0
    trim: bool = True
    evaluate: tuple[str, ...] = ("val", TEST)
    eval_every: int = 1

    def __post_init__(self) -> None:
        if self.epochs < 1:
            raise ConfigError(f"epochs={self.epochs}: give at least 1")
        if self.eval_every < 0:
            raise ConfigError(f"eval_every={self.eval_every}: give 0 or a number of epochs")
        if not 0 <= self.seed < 2**64:
            raise ConfigError(f"seed={self.seed}: give a number from 0 to 2**64 - 1")
        if not self.lr > 0 or not self.weight_decay >= 0:
            raise ConfigError(
                f"lr={self.lr}, weight_decay={self.weight_decay}: give a positive rate and a decay "
                "of at least 0"
            )

    def splits_after(self, epoch: int) -> tuple[str, ...]:
        """The splits that are evaluated after an epoch, numbered from 1: "test" after the last one,
        the others after it and after each `eval_every`-th one."""
        last = epoch == self.epochs
        validated = self.eval_every > 0 and (last or epoch % self.eval_every == 0)
        return tuple(split for split in self.evaluate if (last if split == TEST else validated))


@dataclass(frozen=True, slots=True)
class EpochResult:
    """The result of one epoch.

    Attributes:
        epoch: its number, from 1.
        losses: of the batches that had a labelled seed, in order.
        accuracy: the share of labelled seeds that the model classifies correctly, by split that was
            evaluated.
        seconds: wall time, evaluation included.
        evaluated: whether the evaluation that follows the epoch has ended, if one does.
    """

    epoch: int
    losses: tuple[float, ...]
    accuracy: dict[str, float]
    seconds: float
    evaluated: bool = True

    @property
    def loss(self) -> float:
        """The mean of the losses."""
        return math.fsum(self.losses) / len(self.losses)


@dataclass(slots=True)
class History:
    """The trained model and its epochs, including those of a resumed checkpoint."""

    model: torch.nn.Module
    epochs: list[EpochResult] = field(default_factory=list)


def train(
    batches: Batches,
    model_settings: ModelSettings,
    settings: TrainSettings | None = None,
    *,
    on_loss: Callable[[float], None] | None = None,
    on_epoch: Callable[[EpochResult], None] | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
    resume: str | os.PathLike[str] | None = None,
    evaluate_all: Callable[[torch.nn.Module, tuple[str, ...], int], dict[str, float]] | None = None,
    device: torch.device | None = None,
    node_text: Callable[[int], str] = str,
) -> History:
    """Train a model on batches.

    The same settings, batches and number of torch threads give the same losses, bit for bit, even
    if a checkpoint is resumed in between. On a GPU torch's sums over edges may round differently in
    each run.

    Args:
        batches: gives the "train" batches of each epoch and those of `settings.evaluate`. A batch
            has x [nodes, in_features], edge_index, y (nan or a negative number: no label) and
            batch_size; the first batch_size nodes are its seeds. A split may be empty.
        checkpoint: a file that is replaced, whole or not at all, after each epoch and after its
            evaluation.
        resume: a checkpoint to continue from, with the last epoch's evaluation if it was
            interrupted.
        evaluate_all: measures the accuracy by split, given the model, splits and the epoch from 0;
            None: `evaluate_splits` does, with batches.
        device: where the batches are, and the model; None: the CPU. The first weights are the same
            on each device, and a checkpoint of one may be resumed on another.
        node_text: how an error names a node, given its entry in batch.n_id.

    Raises:
        ConfigError: the settings cannot work, labels are no classes, the loss of a batch is not
            finite, or a checkpoint cannot be read or written or is of another model.
    """
    settings = settings or TrainSettings()
    torch.manual_seed(settings.seed)
    where = torch.device("cpu") if device is None else device
    history = History(model_settings.build().to(where))
    model = history.model
    optimizer = torch.optim.Adam(
        model.parameters(), lr=settings.lr, weight_decay=settings.weight_decay
    )
    if resume is not None:
        _load(Path(resume), history, optimizer, model_settings, settings, where)
    if checkpoint is not None:
        _check_target(Path(checkpoint))

    def save() -> None:
        if checkpoint is not None:
            _save(Path(checkpoint), history, optimizer, model_settings, settings, where)

    trained = len(history.epochs)
    for epoch in range(trained - _unevaluated(history.epochs), settings.epochs):
        splits = settings.splits_after(epoch + 1)
        if epoch >= trained:
            started = perf_counter()
            given = batches("train", epoch)
            losses = _train_epoch(given, epoch, model, optimizer, settings.trim, on_loss, node_text)
            if not losses:
                raise ConfigError(
                    "no seed of the train split has a label: give labels y or another split"
                )
            seconds = perf_counter() - started
            history.epochs.append(EpochResult(epoch + 1, losses, {}, seconds, evaluated=False))
            if splits:
                save()  # the evaluation may take long, and be interrupted
        started = perf_counter()
        if evaluate_all is None:
            accuracy = evaluate_splits(batches, model, splits, epoch, trim=settings.trim)
        else:
            accuracy = evaluate_all(model.eval(), splits, epoch)
        result = history.epochs[-1]
        result = replace(
            result, accuracy=accuracy, seconds=result.seconds + perf_counter() - started,
            evaluated=True,
        )  # fmt: skip
        history.epochs[-1] = result
        save()
        if on_epoch is not None:
            on_epoch(result)
    return history


def _unevaluated(epochs: Sequence[EpochResult]) -> bool:
    """Whether the last epoch's evaluation is missing, because it was interrupted."""
    return bool(epochs) and not epochs[-1].evaluated


def evaluate_splits(
    batches: Batches, model: torch.nn.Module, splits: Iterable[str], epoch: int, *, trim: bool
) -> dict[str, float]:
    """Measure the accuracy by split, with the batches of an epoch; see `evaluate`. Splits that have
    no label are left out."""
    shares = {split: evaluate(batches(split, epoch), model, trim=trim) for split in splits}
    return {split: share for split, share in shares.items() if share is not None}


def evaluate(batches: Iterable[Any], model: torch.nn.Module, *, trim: bool = True) -> float | None:
    """Measure the share of the batches' labelled seeds that the model classifies correctly, from 0
    to 1; None: no seed has a label."""
    model.eval()
    right = labelled = 0
    with torch.no_grad():
        for batch in batches:
            y = seed_labels(batch)
            known = y != NO_LABEL
            answer = _forward(model, batch, trim).argmax(dim=-1)
            right += int((answer[known] == y[known]).sum())
            labelled += int(known.sum())
    return right / labelled if labelled else None


def seed_labels(batch: Any) -> torch.Tensor:
    """The classes of a batch's seeds, int64 [batch_size]; -1: no label."""
    y = getattr(batch, "y", None)
    if y is None:
        raise ConfigError("the batches have no labels y: import the store with labels")
    y = y[: batch.batch_size]
    if y.dim() == 2 and y.shape[1] == 1:
        y = y.view(-1)
    if y.dim() != 1:
        raise ConfigError(
            f"y has {y.shape[1]} columns: this command trains on one class per node; write your "
            "own training loop for several"
        )
    if y.is_floating_point():
        y = torch.where(torch.isnan(y), NO_LABEL, y)
    return y.to(torch.int64).clamp(min=NO_LABEL)


def _train_epoch(
    batches: Iterable[Any],
    epoch: int,
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    trim: bool,
    on_loss: Callable[[float], None] | None,
    node_text: Callable[[int], str],
) -> tuple[float, ...]:
    model.train()
    losses = []
    for number, batch in enumerate(batches, 1):
        loss = train_step(batch, model, optimizer, trim)
        if loss is None:
            continue
        check_loss(loss, batch, f"batch {number} of epoch {epoch + 1}", node_text=node_text)
        losses.append(loss)
        if on_loss is not None:
            on_loss(loss)
    return tuple(losses)


def check_loss(
    loss: float,
    batch: Any,
    which: str,
    remedy: str = "give a lower rate (--lr)",
    *,
    node_text: Callable[[int], str] = str,
) -> None:
    """Raise ConfigError if the loss of a batch is not finite: why, and what to do about it.

    Args:
        which: the batch, for the message.
        remedy: what to do if the parameters have diverged.
        node_text: how the message names a node, given its entry in batch.n_id.
    """
    if not math.isfinite(loss):
        raise ConfigError(f"the loss of {which} is {loss}: {_cause(batch, remedy, node_text)}")


def _cause(batch: Any, remedy: str, node_text: Callable[[int], str]) -> str:
    wrong = ~_features(batch).isfinite().flatten(1)
    rows = wrong.any(dim=1).nonzero().view(-1)
    if not len(rows):
        return (
            f"its x is finite, so the parameters have diverged: {remedy}; if rows of an earlier "
            "batch held nan, gnndrive verify counts them"
        )
    first, column = rows[0], int(wrong[rows[0]].nonzero()[0])
    node = node_text(int(batch.n_id[first] if "n_id" in batch else first))
    return (
        f"{len(rows):,} of its {len(batch.x):,} rows of x hold nan or infinity in float32, first "
        f"that of node {node} in column {column}; replace them (torch.nan_to_num(x)) and import "
        "the store again"
    )


def train_step(
    batch: Any, model: torch.nn.Module, optimizer: torch.optim.Optimizer, trim: bool = True
) -> float | None:
    """Train a model on one batch, and wait for it. Returns the loss; None if no seed has a label:
    then nothing was computed."""
    y = seed_labels(batch)
    if not bool((y != NO_LABEL).any()):
        return None
    optimizer.zero_grad()
    out = _forward(model, batch, trim)
    loss = torch.nn.functional.cross_entropy(out, y, ignore_index=NO_LABEL)
    loss.backward()  # type: ignore[no-untyped-call]
    optimizer.step()
    return float(loss.item())


def _features(batch: Any) -> torch.Tensor:
    x: torch.Tensor = batch.x.to(torch.float32)
    return x


def _forward(model: torch.nn.Module, batch: Any, trim: bool) -> torch.Tensor:
    """The model's output for the seeds, float32 [batch_size, classes]."""
    hops = {}
    if trim:
        hops["num_sampled_nodes_per_hop"] = batch.num_sampled_nodes
        hops["num_sampled_edges_per_hop"] = batch.num_sampled_edges
    out: torch.Tensor = model(_features(batch), batch.edge_index, **hops)
    return out[: batch.batch_size]


# ---- checkpoints: written whole or not at all; no code in them runs


def _check_target(path: Path) -> None:
    """Refuse a path where no checkpoint can be written, before an epoch is spent on it."""
    folder = path.absolute().parent
    if not folder.is_dir():
        raise ConfigError(
            f"the checkpoint {path} cannot be written, because the folder {folder} is not there: "
            f"make it first (mkdir -p {folder}), or give another file"
        )
    # What is there is replaced, which must not happen to a device or a folder.
    other = path.exists() and not path.is_file()
    if other or not os.access(folder, os.W_OK | os.X_OK):
        why = "it is no plain file" if other else f"the folder {folder} is not writable"
        raise ConfigError(
            f"the checkpoint {path} cannot be written, because {why}: give --checkpoint a file in "
            "a writable folder"
        )


def _save(
    path: Path,
    history: History,
    optimizer: torch.optim.Optimizer,
    model_settings: ModelSettings,
    settings: TrainSettings,
    where: torch.device,
) -> None:
    content = {
        "version": VERSION,
        "model_settings": asdict(model_settings),
        "seed": settings.seed,
        "epochs": [asdict(result) for result in history.epochs],
        "model": history.model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "random": torch.get_rng_state(),
    }
    if where.type == "cuda":
        content["random_of_gpu"] = torch.cuda.get_rng_state(where)
    try:
        with deferred_interrupts():  # torch makes an interrupt of its writer a RuntimeError
            replace_file(path, lambda file: torch.save(content, file))
    except OSError as error:
        raise ConfigError(
            f"the checkpoint {path} cannot be written ({error.strerror}): give a file in a "
            "writable folder, on a disk with free space"
        ) from error


def _load(
    path: Path,
    history: History,
    optimizer: torch.optim.Optimizer,
    model_settings: ModelSettings,
    settings: TrainSettings,
    where: torch.device,
) -> None:
    content = read_tensors(path, "checkpoint of gnndrive: give a file that --checkpoint wrote")
    keys = {"version", "model_settings", "epochs", "model", "optimizer", "random"}
    if not isinstance(content, dict) or keys - content.keys() or content["version"] != VERSION:
        raise ConfigError(
            f"{path} is no checkpoint of this version of gnndrive: give a file that --checkpoint "
            "wrote"
        )
    wanted, found = asdict(model_settings), content["model_settings"]
    differing = [
        f"{name} is {found.get(name)!r} there and {value!r} here"
        for name, value in wanted.items()
        if name != "dropout" and found.get(name) != value
    ]
    if differing:
        raise ConfigError(
            f"{path} is a checkpoint of another model: {'; '.join(differing)}; a resumed training "
            "may change all but --model, --hidden, the number of hops in --fanout, and the store's "
            "columns of x and classes: give those of that model, or train a new one"
        )
    epochs = [
        EpochResult(
            e["epoch"],
            tuple(e["losses"]),
            dict(e["accuracy"]),
            e["seconds"],
            e.get("evaluated", True),
        )
        for e in content["epochs"]
    ]
    if len(epochs) >= settings.epochs + _unevaluated(epochs):
        raise ConfigError(
            f"{path} was trained for {len(epochs)} epochs already: give epochs={len(epochs) + 1} "
            "or more, because epochs counts all of them"
        )
    # It was the last epoch there, and is not here.
    for split in epochs[-1].accuracy.keys() - settings.splits_after(len(epochs)):
        del epochs[-1].accuracy[split]
    history.epochs = epochs
    history.model.load_state_dict(content["model"])
    optimizer.load_state_dict(content["optimizer"])
    for group in optimizer.param_groups:
        group["lr"], group["weight_decay"] = settings.lr, settings.weight_decay
    torch.set_rng_state(content["random"])
    if where.type == "cuda" and "random_of_gpu" in content:  # else the GPU keeps its own
        torch.cuda.set_rng_state(content["random_of_gpu"], where)


def read_tensors(path: Path, wanted: str) -> Any:
    """Read a file of `torch.save`; no code in it is executed. Its tensors come to the CPU. `wanted`
    is what it should be and what to give instead, for the error "PATH is no WANTED"."""
    try:
        return torch.load(path, weights_only=True, map_location="cpu")
    except OSError as error:
        raise ConfigError(
            f"the checkpoint {path} cannot be read ({error.strerror}): give an existing file"
        ) from error
    except (RuntimeError, ValueError, EOFError, KeyError, pickle.UnpicklingError) as error:
        raise ConfigError(f"{path} is no {wanted}") from error
