"""How a loader over a store is put together: what the user asked for becomes a schedule, a sampler,
a plan and settings; and `EpochAssembly` serves one epoch's stages.

`Assembly` reads what the strategy names and names no plug-in itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from gnndrive.common.array_pool import Allocate
from gnndrive.common.memory import parse_size
from gnndrive.common.plugins import find
from gnndrive.common.records import EngineSettings, Int64Array, Sample, Seeds, Subgraph
from gnndrive.disk.layouts.base import block_bytes
from gnndrive.loader.runtime import Runtime
from gnndrive.loader.settings import RuntimeSettings
from gnndrive.pipeline.batch import Extracted
from gnndrive.pipeline.epoch import EpochInputs, Stages
from gnndrive.pipeline.output_queue import References
from gnndrive.plan.plan import Plan
from gnndrive.plan.request import Planner, PlanRequest, make_planner
from gnndrive.pyg.collate import Collate
from gnndrive.pyg.subgraph_sampler import SubgraphSampler, SubgraphSampling
from gnndrive.sampling.samplers.base import Sampler, SamplerContext
from gnndrive.sampling.schedules import choose as choose_schedule
from gnndrive.sampling.schedules.base import (
    InputEdges,
    InputNodes,
    Schedule,
    ScheduleContext,
    Window,
)
from gnndrive.store.calibration import checked_gap
from gnndrive.store.format import torch_dtype
from gnndrive.store.reader import Store
from gnndrive.strategies import Strategy


@dataclass(frozen=True)
class Assembly:
    """A loader's arguments, checked; everything that its epochs are made from.

    Attributes:
        store: the graph.
        strategy: which plug-ins.
        inputs: the nodes or edges that seeds are drawn from.
        subgraphs: how samples are drawn in PyG's own form; None: plain neighbour sampling.
        collate: makes batches.
        num_neighbors, replace: see `NeighborLoader`.
        batch_size, shuffle, drop_last: torch's arguments.
        batch_sampler: the user's, or the one that torch made of the user's sampler; None: the
            strategy's schedule draws the seeds.
        in_order: whether batches are handed over by index.
        worker_init: called in each worker thread with its number, or None.
        device: a device plug-in, and which of its kind, or None.
        own: the arguments of `arguments.OWN_ARGUMENTS`, checked.
    """

    store: Store
    strategy: Strategy
    inputs: InputNodes | InputEdges
    subgraphs: SubgraphSampling | None
    collate: Collate
    num_neighbors: Any
    replace: bool
    batch_size: int | None
    shuffle: bool
    drop_last: bool
    batch_sampler: Iterable[list[int]] | None
    in_order: bool
    worker_init: Callable[[int], object] | None
    device: tuple[Any, Any]
    own: dict[str, Any]

    def schedule(self, seed: int) -> Schedule:
        """The order of the epochs that have `seed`."""
        context = ScheduleContext(
            self.inputs, self.batch_size, self.shuffle, self.drop_last, seed, self.batch_sampler,
            self.store,
        )  # fmt: skip
        return choose_schedule(self.strategy.schedule, context)

    def sampler(self, empty: Allocate = np.empty) -> Sampler:
        """A sampler for one epoch; its arrays get their memory from `empty`."""
        subgraphs = None
        if self.subgraphs is not None:
            of_edges = isinstance(self.inputs, InputEdges)
            subgraphs = partial(SubgraphSampler, self.subgraphs, of_edges, self.inputs.type)
        context = SamplerContext(self.num_neighbors, self.replace, empty, subgraphs, self.store)
        kind: type[Sampler] = find("samplers", self.strategy.sampler)
        return kind.make(context)

    def plan(self) -> Plan:
        """See `NeighborLoader.plan`."""
        return self._planner().plan()

    def settings(self) -> RuntimeSettings:
        """Everything that the loader's runtime is made of.

        Raises:
            ConfigError: an argument cannot work.
        """
        planner, own = self._planner(), self.own
        sweep = None if own["sweep"] == "auto" else int(own["sweep"])
        stages = Stages(
            own["samplers"], own["extractors"], own["extracting_queue"], own["training_queue"],
            self.in_order, sweep,
        )  # fmt: skip
        settings = RuntimeSettings(
            strategy=self.strategy,
            tables=tuple(self.collate.tables),
            plan=planner.plan(),
            policy=self._policy,
            stages=stages,
            engine=own["engine"],
            engine_settings=EngineSettings(own["io_depth"], self._block_bytes),
            device=self.device,
            gap_bytes_max=checked_gap(own["gap"], self.store, self._block_bytes),
            worker_init=self.worker_init,
        )
        policy_if_whole = None if own["policy"] == "auto" else own["policy"]

        def fitted(plan: Plan) -> RuntimeSettings:  # refers to no loader, which may be dropped
            plan = replace(plan, fetched=settings.plan.fetched)  # what is open already
            if not plan.holds_everything:
                return replace(settings, plan=plan)
            # Slots are never given up, and after the first epoch nothing is read, so nothing is
            # gained by waiting for a sweep.
            once = replace(stages, sweep=sweep or 1)
            return replace(settings, plan=plan, policy=policy_if_whole, stages=once)

        begun = fitted(settings.plan)
        if not planner.warm_up:
            return begun
        return replace(begun, after_warm_up=lambda nbytes: fitted(planner.plan_after_warm_up(nbytes)))

    @property
    def _policy(self) -> Any:
        return self.strategy.policy if self.own["policy"] == "auto" else self.own["policy"]

    @property
    def _block_bytes(self) -> int:
        return block_bytes(max((table.file.row_bytes for table in self.collate.tables), default=1))

    def _planner(self) -> Planner:
        """Asks for the plan of this loader.

        Raises:
            ConfigError: an argument cannot work.
        """
        own, types, subgraphs = self.own, self.store.info.types, self.subgraphs
        counts = {type: nodes.num_nodes for type, nodes in types.nodes.items()}
        asked = own["topology"] != "auto"
        return make_planner(
            PlanRequest(
                store=self.store,
                tables=tuple(self.collate.tables),
                converted_bytes=tuple(map(self.collate.converted_bytes, self.collate.tables)),
                bounds=self.sampler().bounds(self._seeds_max, counts, types.edges),
                seed_bytes=self.inputs.nbytes + self.schedule(0).order_bytes,
                subgraphs=subgraphs is not None,
                needs_indices=None if subgraphs is None else subgraphs.needs_indices,
                graph_bytes=0 if subgraphs is None else subgraphs.graph_bytes,
                candidate_bytes=0 if subgraphs is None else subgraphs.candidate_bytes,
                memory=_size(own, "memory"),
                buffer=_size(own, "buffer"),
                device_memory=_size(own, "device_memory"),
                neighbour_cache=own["neighbour_cache"],
                topologies=(own["topology"],) if asked else self.strategy.topologies,
                topology_asked=asked,
                policy=self._policy,
                device=self.device,
                in_order=self.in_order,
                samplers=own["samplers"],
                extracting_queue=own["extracting_queue"],
                training_queue=own["training_queue"],
                staging_bytes=own["io_depth"] * self._block_bytes,
            )
        )

    @property
    def _seeds_max(self) -> int:
        """The most seeds of a batch."""
        count = len(self.inputs)
        size = self.batch_size or getattr(self.batch_sampler, "batch_size", None)
        return min(size or count, max(count, 1))


def _size(own: dict[str, Any], name: str) -> int | None:
    return None if own[name] is None else parse_size(own[name], name)


class EpochAssembly:
    """What the stages of one epoch ask of its loader; see `pipeline.epoch.BatchAssembly`.

    Args:
        assembly: the loader's.
        runtime: where attributes, memory and the device are.
        number, seed: with a batch's index, what its random draws depend on.
    """

    def __init__(self, assembly: Assembly, runtime: Runtime, number: int, seed: int) -> None:
        self._assembly, self._collate = assembly, assembly.collate
        self._pool, self._attributes = runtime.array_pool, runtime.attributes
        self._device = runtime.device
        self._number, self._seed = number, seed
        self._files = {table.name: table.file for table in self._collate.tables}

    def inputs(self, batches: Iterator[tuple[Window, Seeds]], first: int) -> EpochInputs:
        """What the pipeline needs to run the epoch from batch `first` on, whose seeds come first in
        `batches`."""
        sampler = self._assembly.sampler(self._pool.empty)
        return EpochInputs(self._number, self._seed, batches, sampler, self, first)

    def prepare(self) -> None:
        """Read the labels."""
        self._collate.prepare()

    def rows_of(self, sample: Sample | Subgraph) -> dict[str, Int64Array]:
        """See `Collate.rows_of`."""
        return self._collate.rows_of(sample, self._attributes, self._pool.empty)

    def make(self, item: Extracted, gathered: Callable[[], object]) -> tuple[Any, References]:
        """Gather a batch's rows and join them with its sample."""
        rows = {
            name: item.lease.gather(name, torch_dtype(file.dtype), file.row_shape)
            for name, file in self._files.items()
        }
        gathered()
        memory = self._pool.references(each.data_ptr() for each in rows.values())
        batch = self._collate(
            item.seeds, item.sample, item.rows, rows, self._attributes, self._pool.empty,
            self._device,
        )  # fmt: skip
        return batch, memory
