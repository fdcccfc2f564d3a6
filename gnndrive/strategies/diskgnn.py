"""DiskGNN (SIGMOD 2025): batches are sampled once, their rows packed on disk, and then replayed."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

from gnndrive.common.errors import ConfigError, StoreError
from gnndrive.loader.assembly import Assembly
from gnndrive.plan.choice import make_planner
from gnndrive.plan.planner import Planner
from gnndrive.plan.request import PlanRequest
from gnndrive.plan.strategy_costs import Known, StrategyCost
from gnndrive.sampling.samplers.base import SamplerContext
from gnndrive.sampling.schedules.base import ScheduleContext
from gnndrive.store.packed.recording import Recording
from gnndrive.strategies.base import PLAIN, Scheme, Strategy
from gnndrive.strategies.packs.find import find_recording, replays
from gnndrive.strategies.packs.plan import fitting_planner, packed_cost, unpacked_cost
from gnndrive.strategies.packs.recording import pack_command


@dataclass(frozen=True, kw_only=True)
class DiskGNN(Strategy):
    """DiskGNN, "Bridging I/O Efficiency and Model Accuracy for Out-of-Core GNN Training".

    Sampling is separated from training: all batches are drawn before (`gnndrive.pack`), so that the
    rows of each can lie together on disk (section 3). Rows that most batches need stay in memory,
    on the GPU first (section 4); rows that several consecutive batches need lie once in a segment,
    in an order that lets each batch read its part in few pieces; the rest of a batch's rows is its
    chunk, read as a whole (section 5.1). The feature table is read once for all (section 5.2). The
    feature buffer has the hot rows and places for the other rows of two batches.

    Where this differs: the paper packs its samples for one epoch and uses them in all. Here as many
    epochs as one likes are packed (`epochs=`), because few packed epochs cost accuracy
    (docs/tasks/strategies.md). Shared rows are ordered by the sets of batches that need them; the
    paper's order by MinHash is `order="minhash"`.

    Args:
        packed: the pack: its folder, or its name in the store. None: the one in the store's folder
            that has these batches.
    """

    name: str = "diskgnn"
    published: str = "DiskGNN (SIGMOD 2025)"
    schedule: Any = "recorded"
    sampler: Any = "recorded"
    topologies: tuple[Any, ...] = ("mmap",)  # not used: samples are recorded
    layout: Any = "packed"
    policy: Any = "lru"  # not used: rows have places, or never leave
    tiers: tuple[Any, ...] = ("host-rows", "disk")
    packed: Any = None

    whole_graph: ClassVar[bool] = False

    def open(self, assembly: Assembly) -> PackScheme:
        """See `Strategy.open`."""
        return PackScheme(self, find_recording(assembly, self.packed))

    def folders(self) -> list[Path]:
        """See `Strategy.folders`."""
        return [Path(self.packed)] if isinstance(self.packed, str) else []

    def cost(self, assembly: Assembly, known: Known, request: PlanRequest) -> StrategyCost:
        """See `Strategy.cost`: of replaying the pack, or what it would be if there were one."""
        try:
            scheme = self.open(assembly)
        except (ConfigError, StoreError):
            if self.packed is not None:
                raise
            planner = make_planner(request)
            return unpacked_cost(
                self.text, request, planner, known.loading(request, planner), known.traces,
                known.batches,
                pack_command(assembly) or "gnndrive.pack and the arguments of the loader",
            )  # fmt: skip
        collate = assembly.collate.buffering(scheme.tables)
        planner = scheme.planner(replace(assembly, collate=collate, scheme=scheme).request())
        return packed_cost(self.text, planner, known.pace, known.batches)


class PackScheme(Scheme):
    """How a loader replays a pack.

    Args:
        strategy: says which.
        recording: the pack.
    """

    whole_graph = False
    numbered = True  # epoch e replays the recorded epoch e modulo their number

    def __init__(self, strategy: DiskGNN, recording: Recording) -> None:
        self.strategy, self.source = strategy, recording
        self._recording = recording
        self.not_shared = (
            f"strategy={strategy.name!r} replays a pack, in which each batch has its place"
        )

    @property
    def tables(self) -> Collection[str]:  # type: ignore[override]
        """See `Scheme`."""
        return self._recording.files

    def current(self, assembly: Assembly, begun: bool) -> Scheme:
        """See `Scheme.current`.

        Raises:
            ConfigError: the arguments have changed so that another pack would be replayed, and one
                is open.
        """
        drawing = replace(assembly, scheme=PLAIN)
        if replays(self._recording, drawing):
            return self
        found = find_recording(drawing, self.strategy.packed)
        if begun:
            raise ConfigError(
                "arguments of this loader have changed so that it would replay another pack, "
                f"{found.path}, and another one is open already: make another loader"
            )
        return PackScheme(self.strategy, found)

    def settings(self) -> dict[str, Any]:
        """See `Scheme.settings`."""
        return {"packed": self._recording.info.settings.batches}

    def schedule_context(self, context: ScheduleContext, ranks: Any) -> ScheduleContext:
        """See `Scheme.schedule_context`."""
        return replace(context, recording=self._recording)

    def sampler_context(self, context: SamplerContext) -> SamplerContext:
        """See `Scheme.sampler_context`."""
        return replace(context, recording=self._recording)

    def planner(self, request: PlanRequest) -> Planner:
        """See `Scheme.planner`."""
        return fitting_planner(request, self._recording)
