"""`gnndrive train`: train a model on a store, with a live line and one open loader at a time.

Training and evaluation alternate, so the loader of one split is closed before that of the next one
starts: `memory` and `buffer` then limit the whole run, and not each split. The price is a feature
buffer that starts cold in each epoch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

import torch
from rich.console import Console

from gnndrive.cli.commands.evaluate import accuracies, can_write_beside, is_cheaper
from gnndrive.cli.report import LiveLine, final_report, say
from gnndrive.cli.report import as_json as report_json
from gnndrive.cli.training import EpochResult, History, ModelSettings, TrainSettings, train
from gnndrive.common.errors import ConfigError
from gnndrive.common.memory import parse_size
from gnndrive.common.plugins import find
from gnndrive.loader.arguments import checked_device
from gnndrive.loader.neighbor_loader import NeighborLoader
from gnndrive.store.reader import Store, open_homogeneous
from gnndrive.strategies import strategy as find_strategy

_SUMMED = (
    "batches", "rows", "edges", "rows_hit", "rows_waited", "rows_loaded", "evictions", "requests",
    "bytes_read", "bytes_wanted", "retries", "samples", "sample_s", "extract_s", "gather_s",
    "wait_s", "elapsed_s", "topology_requests", "topology_bytes_read", "neighbours_wanted",
    "neighbours_cached", "windows", "window_load_s", "window_wait_s",
)  # fmt: skip
EVALUATED = ("val", "valid", "test")
SAMPLERS = 4  # of batches that are drawn


@dataclass(frozen=True, slots=True)
class LoaderOptions:
    """How batches are loaded; `NeighborLoader` explains the arguments.

    `samplers` is None where the strategy decides: 4 to draw from the whole graph, else "auto".
    """

    fanout: tuple[int, ...] = (10, 10)
    batch_size: int = 1024
    seed: int = 0
    buffer: str | int | None = None
    memory: str | int | None = None
    engine: str = "auto"
    samplers: int | None = None
    extractors: int = 4
    topology: str = "auto"
    neighbour_cache: str | int | None = None
    device: str = "cpu"
    device_memory: str | int | None = None
    strategy: str = "gnndrive"
    packed: str | None = None
    partitioned: str | None = None
    megabatch: int | None = None
    passes: int | None = None
    static: float | None = None
    sampling: Literal["neighbor", "labor"] = "neighbor"
    batch_dependency: int = 1

    def drawn(self) -> LoaderOptions:
        """The same for batches of an evaluation, which are drawn from the whole graph."""
        strategy = find_strategy(self.strategy)
        if not (strategy.replays or strategy.partitioned):
            return self
        return replace(
            self, strategy="gnndrive", packed=None, partitioned=None, megabatch=None, passes=None,
            static=None,
        )  # fmt: skip

    def where(self) -> torch.device:
        """Where the batches are.

        Raises:
            ConfigError, NotImplementedError: there is no such device.
        """
        device: torch.device | None = checked_device(self.device, self.device_memory)[1]
        return torch.device("cpu") if device is None else device

    def device_bytes(self) -> int | None:
        """Bytes of the device's own memory that loading may use; None: it uses the host's."""
        plugin, where = checked_device(self.device, self.device_memory)
        if self.device_memory is not None:
            return parse_size(self.device_memory, "device_memory")
        free: int | None = find("devices", plugin).free_bytes(where)
        return free

    def loader(self, store: Store, seeds: Any, shuffle: bool) -> NeighborLoader:
        """Make a loader over `seeds`."""
        strategy = find_strategy(self.strategy)
        decides = strategy.replays or strategy.partitioned
        given = asdict(self)
        given["samplers"] = self.samplers or ("auto" if decides else SAMPLERS)
        fanout = list(given.pop("fanout"))
        return NeighborLoader(store, fanout, seeds, shuffle=shuffle, **given)


@dataclass(eq=False)
class SplitBatches:
    """The batches of a store's splits, for `gnndrive.cli.training.train`; a context manager.

    Attributes:
        store: the store to load from.
        options: how batches are loaded.
        epochs: number of epochs that the live line shows.
        console: where the live line is drawn; None: standard error.
        seeds: node ids by split, in place of the store's own splits.
        last_loss: the loss that the live line shows; `set_loss` changes it.
        stats: sums of the training loaders' counters, in the form of `NeighborLoader.stats`.
    """

    store: Store
    options: LoaderOptions
    epochs: int
    console: Console | None = None
    seeds: dict[str, Any] = field(default_factory=dict)
    last_loss: float | None = None
    stats: dict[str, Any] = field(default_factory=dict)
    _loader: NeighborLoader | None = None
    _split: str = ""
    _shown: Generator[Any, None, None] | None = None

    def __enter__(self) -> SplitBatches:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def __call__(self, split: str, epoch: int) -> Iterator[Any]:
        """Yield the batches of an epoch, numbered from 0, while a live line shows the progress."""
        loader = self._open(split)
        loader.epoch = epoch  # so that a resumed run draws the same batches as an unbroken one
        self._shown = self._show(loader, split, epoch)
        return self._shown

    def check_drawn(self, splits: Sequence[str]) -> None:
        """Plan the batches of evaluations that are drawn where those of training are replayed, so
        that they are not refused after an epoch.

        Raises:
            ConfigError: they need more memory than there is.
        """
        options = self.options.drawn()
        for split in splits if options is not self.options else ():
            try:
                with options.loader(self.store, _seeds(self, split), False) as loader:
                    loader.plan()
            except ConfigError as error:
                raise ConfigError(f"batches of the {split} split are drawn, and {error}") from None

    def set_loss(self, loss: float) -> None:
        """Set the loss that the live line shows."""
        self.last_loss = loss

    def close(self) -> None:
        """End the live line and close the loader; idempotent."""
        shown, self._shown = self._shown, None
        if shown is not None:
            shown.close()
        loader, self._loader = self._loader, None
        if loader is None:
            return
        if self._split == "train":
            self.stats = _sum(self.stats, loader.stats())
        loader.close()

    def _open(self, split: str) -> NeighborLoader:
        if self._loader is None or self._split != split:
            self.close()
            training, seeds = split == "train", _seeds(self, split)
            options = self.options if training else self.options.drawn()
            self._loader = options.loader(self.store, seeds, training)
            self._split = split
        return self._loader

    def _show(self, loader: NeighborLoader, split: str, epoch: int) -> Generator[Any, None, None]:
        training = split == "train"
        if not training:
            self.last_loss = None
        earlier = self.stats if training else {}
        label = f"epoch {epoch + 1}/{self.epochs}{'' if training else ' ' + split}"
        since = _sum(earlier, loader.stats())
        with LiveLine(len(loader), label=label, since=since, console=self.console) as line:
            for number, batch in enumerate(loader, 1):
                yield batch
                line.update(number, _sum(earlier, loader.stats()), loss=self.last_loss)


@dataclass(frozen=True, slots=True)
class TrainRequest:
    """The arguments of `gnndrive train`.

    Attributes:
        store: the store's folder.
        options: how batches are loaded.
        settings: how the model is trained; the splits to evaluate come from the store.
        model, hidden, dropout: see `ModelSettings`.
        checkpoint, resume: as for `gnndrive.cli.training.train`.
    """

    store: Path
    options: LoaderOptions
    settings: TrainSettings
    model: str = "sage"
    hidden: int = 128
    dropout: float = 0.5
    checkpoint: Path | None = None
    resume: Path | None = None


def run(request: TrainRequest, *, threads: int | None = None, as_json: bool = False) -> str:
    """Train, and return the report as text or JSON.

    Raises:
        ConfigError, StoreError, ReadError: as the loader; the message names the remedy.
    """
    if threads is not None:
        torch.set_num_threads(threads)
    store = open_homogeneous(request.store, "gnndrive train")
    settings = replace(request.settings, evaluate=evaluated_splits(store))
    batches = SplitBatches(store, request.options, settings.epochs)
    history = run_training(
        batches,
        request.model,
        request.hidden,
        request.dropout,
        settings,
        checkpoint=request.checkpoint,
        resume=request.resume,
    )
    last = history.epochs[-1]
    if as_json:
        details: dict[str, Any] = {
            "store": str(store.path),
            "model": request.model,
            "seed": settings.seed,
        }
        return report_json(batches.stats, **details, epochs=history_dict(history))
    results = {f"{split} accuracy": f"{share:.4f}" for split, share in last.accuracy.items()}
    return final_report(batches.stats, title="gnndrive train", results=results)


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
    """Train on a store's splits, and print each epoch's result on the console.

    Args:
        batches: the batches of the store's splits; closed at the end.
        model, hidden, dropout: see `ModelSettings`.
        settings, checkpoint, resume: as for `gnndrive.cli.training.train`.

    Raises:
        ConfigError: the store has no labels or no train split, or the settings cannot work.
    """
    store = batches.store
    if "y" not in store.node_names or store.num_classes < 2:
        raise ConfigError(
            f"{store.path} has no classes to learn: import it with labels, or write your own "
            "training loop"
        )
    model_settings = ModelSettings(
        store.num_features, store.num_classes, model, len(batches.options.fanout), hidden, dropout
    )
    where = batches.options.where()
    console = batches.console or Console(stderr=True)

    evaluate_all = _evaluation(batches, settings, console)
    if evaluate_all is None:
        batches.check_drawn(settings.evaluate)
    with batches, _used(where):
        return train(
            batches,
            model_settings,
            settings,
            on_loss=batches.set_loss,
            on_epoch=lambda result: say(console, epoch_line(result)),
            checkpoint=checkpoint,
            resume=resume,
            evaluate_all=evaluate_all,
            device=where,
        )


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
            "it with --device-memory, or give a smaller --batch-size, --fanout or --hidden"
        ) from error


def _evaluation(
    batches: SplitBatches, settings: TrainSettings, console: Console
) -> Callable[[torch.nn.Module], dict[str, float]] | None:
    """Measures the accuracies by inference over all nodes, if that reads less; None: batches do."""
    store, options = batches.store, batches.options
    if options.buffer is not None:  # the user sets the parts by hand
        return None
    count = sum(len(_seeds(batches, split)) for split in settings.evaluate)
    memory = None if options.memory is None else parse_size(options.memory, "memory")
    on_device = options.device_bytes()
    if not is_cheaper(store, count, options.fanout, options.batch_size, memory, on_device):
        return None
    splits = " and ".join(settings.evaluate)
    if not can_write_beside(store):
        say(console, f"{splits}: evaluated with batches; inference over all nodes reads less, but "
            f"needs to write to {store.path.parent}")  # fmt: skip
        return None
    say(console, f"{splits}: evaluated by inference over all nodes, which reads less than batches")

    def measured(model: torch.nn.Module) -> dict[str, float]:
        batches.close()  # so that the loader's memory is free
        seeds = {split: _seeds(batches, split) for split in settings.evaluate}
        return accuracies(model, store, seeds, options.memory)

    return measured


def _seeds(batches: SplitBatches, split: str) -> Any:
    """The node ids of a split."""
    return batches.seeds[split] if split in batches.seeds else batches.store.split(split)


def evaluated_splits(store: Store) -> tuple[str, ...]:
    """The splits of a store on which `gnndrive train` measures the accuracy."""
    return tuple(name for name in EVALUATED if name in store.split_names)


def epoch_line(result: EpochResult) -> str:
    """Describe an epoch's result in one line."""
    parts = [f"epoch {result.epoch}: loss {result.loss:.4f}"]
    parts += [f"{split} accuracy {share:.4f}" for split, share in result.accuracy.items()]
    return ", ".join([*parts, f"{result.seconds:.1f} s"])


def history_dict(history: History) -> list[dict[str, Any]]:
    """The epochs' results for JSON; null replaces a loss that is nan, because JSON has no nan."""
    return [
        {
            "epoch": result.epoch,
            "loss": result.loss if math.isfinite(result.loss) else None,
            "accuracy": result.accuracy,
            "seconds": result.seconds,
        }
        for result in history.epochs
    ]


def _sum(earlier: dict[str, Any], now: dict[str, Any]) -> dict[str, Any]:
    """Merge stats of several loaders: counts are added, other entries are the latest loader's."""
    if not now:
        return dict(earlier)
    return {**now, **{name: earlier.get(name, 0) + now[name] for name in _SUMMED if name in now}}
