"""DiskGNN (SIGMOD 2025): batches are sampled once, their rows packed on disk, and then replayed."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

from gnndrive.common.errors import ConfigError, StoreError
from gnndrive.loader.arguments import named_folder
from gnndrive.loader.assembly import Assembly
from gnndrive.plan import costs
from gnndrive.plan.choice import make_planner
from gnndrive.plan.plan import Planner
from gnndrive.plan.request import PlanRequest
from gnndrive.plan.strategy_costs import Known, StrategyCost
from gnndrive.sampling.samplers.base import SamplerContext
from gnndrive.sampling.schedules.base import InputEdges, ScheduleContext
from gnndrive.store.feature_tables import feature_tables
from gnndrive.store.layout.kind import FoundLayout
from gnndrive.store.packed.format import PACKED, PACKS, PackInfo, PackSettings, differences
from gnndrive.store.packed.recording import Recording
from gnndrive.strategies.base import PLAIN, Scheme, Strategy, refuse_unused
from gnndrive.strategies.packs.plan import PackSlots, packed_planner, unpacked_cost
from gnndrive.strategies.packs.recording import pack_command, pack_settings


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
    epochs as one likes are packed (`epochs=`), because a model fits few packed epochs more closely
    (docs/measurements.md). Shared rows are ordered by the sets of batches that need them; the
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
    does: ClassVar[str] = "replays batches packed on disk"
    preparation: ClassVar[str] = "gnndrive pack"
    disk: ClassVar[str] = "samples, and rows once a segment"
    changes: ClassVar[str] = "recorded epochs of samples, replayed"
    pays: ClassVar[str] = "many epochs of one sampling"

    def open(self, assembly: Assembly) -> _PackScheme:
        """See `Strategy.open`."""
        return _PackScheme(self, _find_recording(assembly, self.packed))

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
                pack_command(assembly) or "gnndrive.pack(…) with the arguments of the loader",
            )  # fmt: skip
        planner = scheme.planner(scheme.of(assembly).request())
        assert isinstance(planner.slots, PackSlots)
        plan = planner.plan()
        seconds, hit_share = planner.slots.batch_seconds(plan, known.pace)
        loading = known.loading(request, planner)
        seconds[costs.ATTRIBUTES] = costs.attributes_seconds(plan, loading)
        epochs = planner.slots.recording.info.epochs
        changes = f"{epochs} {'epoch' if epochs == 1 else 'epochs'} of samples, replayed"
        return StrategyCost(
            self.text, seconds, known.batches, hit_share, same_batches=False, changes=changes
        )


class _PackScheme(Scheme):
    """How a loader replays a pack; see `Scheme`. One that is open is not replaced by another."""

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
        return self._recording.files

    def current(self, assembly: Assembly, begun: bool) -> Scheme:
        drawing = replace(assembly, scheme=PLAIN)
        if not differences(self._recording.info.settings, pack_settings(drawing, 0, 1)):
            return self
        found = _find_recording(drawing, self.strategy.packed)
        if begun:
            raise ConfigError(
                "arguments of this loader have changed so that it would replay another pack, "
                f"{found.path}, and another one is open already: make another loader"
            )
        return _PackScheme(self.strategy, found)

    def settings(self) -> dict[str, Any]:
        return {"packed": self._recording.info.settings.batches}

    def schedule_context(self, context: ScheduleContext, ranks: Any) -> ScheduleContext:
        return replace(context, recording=self._recording)

    def sampler_context(self, context: SamplerContext) -> SamplerContext:
        return replace(context, recording=self._recording)

    def planner(self, request: PlanRequest) -> Planner:
        return packed_planner(request, self._recording)


# ---- which pack a loader replays


def _find_recording(assembly: Assembly, packed: Any) -> Recording:
    """Find and open the pack of a loader's batches: its recorded batches are those that the loader
    would draw. How its rows lie does not matter.

    ConfigError if no pack fits, or several do; without `packed`, this includes packs that are
    damaged or of another state of the store, and the message says so of each. StoreError if those
    that are opened are.
    """
    refuse_unused(
        assembly.own, "is for batches that are drawn, and strategy="
        f"{assembly.strategy.name!r} replays recorded ones",
    )  # fmt: skip
    wanted, store = pack_settings(assembly, 0, 1), assembly.store
    if packed is None:
        there = PACKS.of(store)
    else:
        remedy = "give the name of a pack in the store or its path, or pack again (gnndrive pack)"
        path = named_folder("packed", packed, Path(store.path, PACKED), remedy)
        there = [FoundLayout(path, PACKS.read(path, store))]
    fitting = [
        (each.path, each.info)
        for each in there
        if each.info is not None and not differences(each.info.settings, wanted)
    ]
    if not fitting:
        raise ConfigError(_none(assembly, wanted, there))
    if len(fitting) > 1:
        names = " or ".join(repr(DiskGNN(packed=path.name).text) for path, _ in fitting)
        lines = {path.name: info.lines() for path, info in fitting}
        _, first = fitting[0]
        differ = [
            what for what in first.lines() if len({each[what] for each in lines.values()}) > 1
        ]
        which = "; ".join(
            f"{name}: {', '.join(f'{what} {said[what]}' for what in differ)}"
            for name, said in lines.items()
        )
        raise ConfigError(
            f"several packs of {store.path} have these batches: give strategy={names} ({which})"
        )
    ((path, info),) = fitting
    delivered = {table.name for table in feature_tables(assembly.collate.store)}
    return Recording(path, info, store, feature_tables(store), delivered)


def _none(assembly: Assembly, wanted: PackSettings, there: Sequence[FoundLayout[PackInfo]]) -> str:
    """The message for a store without a pack of these batches."""
    store, name = assembly.store.path, assembly.strategy.name
    whole = f"strategy={name!r} needs a pack, which may have any: use the whole store"
    assembly.store.check_whole(whole)
    lines = []
    for pack in there:
        said = pack.problem
        if pack.info is not None:
            said = "; ".join(differences(pack.info.settings, wanted))
        lines.append(f"\n  {pack.path}: {said}")
    fanout, size = wanted.num_neighbors, wanted.batch_size
    if command := pack_command(assembly):
        make = f"`{command}`"
    else:
        seeds = "edge_label_index" if isinstance(assembly.inputs, InputEdges) else "input_nodes"
        make = (
            f"gnndrive.pack(store, {fanout!r}, {seeds}=…, batch_size={size}, memory=…) and the "
            "loader's other arguments"
        )
    return (
        f"strategy={name!r} replays recorded batches, and {store} has no pack of this loader's: "
        f"make one with {make}{''.join(lines)}"
    )
