"""`SamplesAhead`: a strategy that samples superbatches, with its arguments; its scheme.

Of each epoch it makes a `LoaderSuperbatches`, which the feed (`feed.py`) asks for sizes and traces.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from gnndrive.common.errors import ConfigError
from gnndrive.common.io.write_errors import free_bytes
from gnndrive.common.memory import format_size
from gnndrive.common.plugins import find
from gnndrive.common.records import Codes
from gnndrive.loader.arguments import positive
from gnndrive.loader.assembly import Assembly
from gnndrive.pipeline.epoch import Feed
from gnndrive.sampling.samplers.base import position_dtype
from gnndrive.sampling.trace import Trace
from gnndrive.strategies.base import FeedContext, Scheme, Strategy
from gnndrive.strategies.superbatches.feed import AheadFeed, InspectFeed, Superbatch
from gnndrive.strategies.superbatches.plan import SUPERBATCH_MAX, PlannedSuperbatches

PHASES = ("overlapped", "apart")


@dataclass(frozen=True, kw_only=True)
class SamplesAhead(Strategy):
    """A strategy that samples ahead.

    Args:
        superbatch: how many batches are sampled before the first of them is extracted. "auto": as
            many as pay for their disk; the first ones are few, so that the first batch comes soon.
            A sampler or batch sampler of yours is drawn ahead by up to two superbatches.
        folder: where sampled batches wait, in files without a name, on a fast disk;
            `plan().disk_bytes` says how much they take. None: the store's folder.
        phases: "overlapped" (a superbatch is sampled while the one before is extracted) or "apart":
            it is sampled first, with the adjacency in the feature buffer's place, and then
            extracted with the adjacency's memory for the buffer. The first batch comes when a whole
            superbatch is sampled, and one iterator can run at a time.
    """

    superbatch: int | str = "auto"
    folder: Any = None
    phases: str = "overlapped"

    def open(self, assembly: Assembly) -> Scheme:
        """See `Strategy.open`."""
        self._check(assembly)
        return AheadScheme(self)

    def _check(self, assembly: Assembly) -> None:
        """Raise ConfigError if an argument cannot work."""
        if assembly.subgraphs is not None:
            raise ConfigError(
                f"strategy={self.name!r} records plain samples of one edge type, and this loader's "
                "need more (heterogeneous graphs, links, times, weights, disjoint trees, other "
                "subgraph types or a sampler of yours): give strategy='gnndrive'"
            )
        asked = self.superbatch
        if asked != "auto":
            if isinstance(asked, str | bool):
                raise ConfigError(f"superbatch={asked!r}: give a number of batches, or 'auto'")
            if positive(superbatch=asked) > SUPERBATCH_MAX:
                raise ConfigError(f"superbatch={asked!r}: give at most {SUPERBATCH_MAX:,} batches")
        if self.phases not in PHASES:
            raise ConfigError(f"phases={self.phases!r}: give 'overlapped' or 'apart'")
        path, given = self.folder_in(assembly.store.path), self.folder
        if not path.is_dir():
            raise ConfigError(f"folder={str(path)!r} is no folder: give one that is there")
        if not os.access(path, os.W_OK | os.X_OK):
            which = "the store's folder" if given is None else "folder="
            raise ConfigError(
                f"strategy={self.name!r} keeps sampled batches on disk, and {which} {path} cannot "
                "be written to: give a folder on a fast disk with folder="
            )

    def folder_in(self, store: Path) -> Path:
        """The folder of the traces: the user's, or the store's.

        Raises:
            ConfigError: the user's is no path.
        """
        given = self.folder
        if given is not None and not (isinstance(given, str | os.PathLike) and os.fspath(given)):
            raise ConfigError(f"folder={given!r}: give the path of a folder")
        return store if given is None else Path(given)


class AheadScheme(Scheme):
    """How a loader samples ahead.

    Args:
        strategy: says how.
    """

    def __init__(self, strategy: SamplesAhead) -> None:
        self.strategy = strategy
        self.not_shared = f"with strategy={strategy.name!r} each rank samples ahead for itself"

    def ahead(self, assembly: Assembly) -> PlannedSuperbatches:
        """See `Scheme.ahead`."""
        asked, store = self.strategy.superbatch, assembly.store
        folder = self.strategy.folder_in(store.path)
        try:
            batches = assembly.steps()
        except TypeError:
            batches = SUPERBATCH_MAX
        return PlannedSuperbatches(
            folder, None if asked == "auto" else int(asked), batches, assembly.seeds_max,
            np.dtype(position_dtype(store.num_edges)).itemsize, free_bytes(folder),
            self.strategy.phases == "apart",
        )  # fmt: skip

    def feed(self, context: FeedContext) -> Feed:
        """See `Scheme.feed`."""
        source = LoaderSuperbatches(context)
        return InspectFeed(source) if self.strategy.phases == "apart" else AheadFeed(source)


class LoaderSuperbatches:
    """Makes the superbatches of one epoch; see `feed.SuperbatchSource`.

    Args:
        context: the epoch's.

    Attributes:
        end, recorded: see `SuperbatchSource`.
    """

    def __init__(self, context: FeedContext) -> None:
        request, policy = context.request, context.policy
        assert isinstance(request.ahead, PlannedSuperbatches)
        self._planned, self._size = request.ahead, request.planned
        self._slots, self._empty, self.end = context.plan.slots, context.empty, context.end
        self._rows = request.store.num_nodes
        knows = policy is not None and find("policies", policy).looks_ahead
        self._names = [each.name for each in request.tables if knows and not each.of_edges]
        self._most = self._planned.most(self._size)
        self._uses: dict[str, Codes] = {}
        self.load_graph, self.free_graph = context.load_graph, context.free_graph
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
            "give a folder on another disk with folder=, or strategy='gnndrive', which does not "
            "sample ahead"
        )
