"""What a loader of superbatches has beside others: its arguments, and the source of its traces.

`StoreLoader` calls the checks; `EpochAssembly` makes a `LoaderSuperbatches` for each epoch, which
`pipeline/superbatches.py` asks for sizes and traces.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from gnndrive.common.array_pool import Allocate
from gnndrive.common.errors import ConfigError
from gnndrive.common.memory import format_size
from gnndrive.common.plugins import find
from gnndrive.common.records import Codes
from gnndrive.loader.arguments import positive
from gnndrive.loader.settings import RuntimeSettings
from gnndrive.pipeline.superbatch import Superbatch
from gnndrive.plan.superbatches import SUPERBATCH_MAX, PlannedSuperbatches
from gnndrive.sampling.samplers.base import position_dtype
from gnndrive.sampling.trace import Trace
from gnndrive.store.packed.reserving import free_bytes
from gnndrive.store.reader import Store
from gnndrive.strategies import Strategy

ARGUMENTS = ("superbatch", "superbatch_folder", "phases")
"""Arguments that only a loader of superbatches has."""
PHASES = (None, "overlapped", "apart")


def check_superbatch_arguments(
    own: Mapping[str, Any], strategy: Strategy, folder: Path, plain: bool
) -> None:
    """Check the arguments of superbatches, or refuse them for a strategy without.

    Args:
        own: the values of `OWN_ARGUMENTS`.
        strategy: the loader's.
        folder: the store's.
        plain: whether the loader samples plainly, from one edge type.

    Raises:
        ConfigError: one of them cannot work, or has no use.
    """
    name = strategy.name
    if strategy.superbatch is None:
        for argument in ARGUMENTS:
            if own[argument] is not None:
                raise ConfigError(
                    f"{argument}={own[argument]!r} is for a strategy that samples ahead, and "
                    f"strategy={name!r} does not: leave it out, or give strategy='ginex'"
                )
        return
    if not plain:
        raise ConfigError(
            f"strategy={name!r} records plain samples of one edge type, and this loader's need "
            "more (heterogeneous graphs, links, times, weights, disjoint trees, other subgraph "
            "types or a sampler of yours): give strategy='gnndrive'"
        )
    asked = own["superbatch"]
    if asked not in (None, "auto"):
        if isinstance(asked, str | bool):
            raise ConfigError(f"superbatch={asked!r}: give a number of batches, or 'auto'")
        if positive(superbatch=asked) > SUPERBATCH_MAX:
            raise ConfigError(f"superbatch={asked!r}: give at most {SUPERBATCH_MAX:,} batches")
    if own["phases"] not in PHASES:
        raise ConfigError(f"phases={own['phases']!r}: give 'overlapped' or 'apart'")
    _check_folder(own["superbatch_folder"], folder, name)


def _check_folder(given: Any, store: Path, strategy: str) -> None:
    path = superbatch_folder(given, store)
    if not path.is_dir():
        raise ConfigError(f"superbatch_folder={str(path)!r} is no folder: give one that is there")
    if not os.access(path, os.W_OK | os.X_OK):
        which = "the store's folder" if given is None else "superbatch_folder="
        raise ConfigError(
            f"strategy={strategy!r} keeps sampled batches on disk, and {which} {path} cannot be "
            "written to: give a folder on a fast disk with superbatch_folder="
        )


def superbatch_folder(given: Any, store: Path) -> Path:
    """The folder of the traces: the user's, or the store's."""
    if given is not None and not (isinstance(given, str | os.PathLike) and os.fspath(given)):
        raise ConfigError(f"superbatch_folder={given!r}: give the path of a folder")
    return store if given is None else Path(given)


def planned_superbatches(
    store: Store, strategy: Strategy, own: Mapping[str, Any], steps: Callable[[], int], seeds: int
) -> PlannedSuperbatches | None:
    """How a loader samples ahead; None: it does not.

    Args:
        store: the graph.
        strategy, own: see `Assembly`.
        steps: returns the number of batches of an epoch; TypeError: it is not known.
        seeds: the most seeds of a batch.
    """
    if strategy.superbatch is None:
        return None
    asked = strategy.superbatch if own["superbatch"] is None else own["superbatch"]
    folder = superbatch_folder(own["superbatch_folder"], store.path)
    try:
        batches = steps()
    except TypeError:
        batches = SUPERBATCH_MAX
    return PlannedSuperbatches(
        folder, None if asked == "auto" else int(asked), batches, seeds,
        np.dtype(position_dtype(store.num_edges)).itemsize, free_bytes(folder),
        own["phases"] == "apart",
    )  # fmt: skip


class LoaderSuperbatches:
    """Makes the superbatches of one epoch; see `pipeline.epoch.SuperbatchSource`.

    Args:
        settings: the loader's.
        empty: allocates the memory of records.
        graph: loads the adjacency into memory, and frees it again.
        end: see `SuperbatchSource`.

    Attributes:
        apart: see `PlannedSuperbatches`.
        end, recorded: see `SuperbatchSource`.
    """

    def __init__(
        self, settings: RuntimeSettings, empty: Allocate,
        graph: tuple[Callable[[], None], Callable[[], None]], end: int | None,
    ) -> None:  # fmt: skip
        assert settings.superbatches is not None
        request, policy = settings.request, settings.policy
        self._planned, self._size = settings.superbatches, request.planned
        self._slots, self._empty, self.end = settings.plan.slots, empty, end
        self._rows = request.store.num_nodes
        knows = policy is not None and find("policies", policy).looks_ahead
        self._names = [each.name for each in request.tables if knows and not each.of_edges]
        self._most = self._planned.most(self._size)
        self._uses: dict[str, Codes] = {}
        self.apart = self._planned.apart
        self.load_graph, self.free_graph = graph
        self.recorded: Superbatch | None = None

    def discard(self) -> None:
        """Free the superbatch that is kept, because the epoch ends; idempotent."""
        if self.recorded is not None and self.recorded.trace is not None:
            self.recorded.trace.close()

    def keep(self, superbatch: Superbatch) -> None:
        """See `SuperbatchSource.keep`."""
        self.recorded = superbatch

    def size(self, number: int, misses: float | None) -> int:
        """See `SuperbatchSource.size`."""
        return self._planned.size(number, self._slots, misses, self._most)

    def open_trace(self) -> Trace:
        """See `SuperbatchSource.open_trace`."""
        return Trace(self._planned.folder, self._rows, self._empty)

    def next_uses(self) -> Mapping[str, Codes]:
        """See `SuperbatchSource.next_uses`."""
        if self._names and not self._uses:
            last = np.empty(self._rows, np.uint16)
            self._uses = dict.fromkeys(self._names, last)
        return self._uses

    def no_room(self) -> ConfigError:
        """See `SuperbatchSource.no_room`."""
        folder, record = self._planned.folder, self._planned.record_bytes(self._size)
        return ConfigError(
            f"the disk has no room for a single sampled batch in {folder}: it takes up to "
            f"{format_size(record)}, and {format_size(free_bytes(folder))} are free: free some, "
            "give a folder on another disk with superbatch_folder=, or strategy='gnndrive', which "
            "does not sample ahead"
        )
