"""`Assembly`: makes a loader's schedule, sampler, plan and settings. `EpochAssembly`: its batches.

`StoreLoader` makes an `Assembly` from its checked arguments. `Assembly` asks `plan/` for the plan
and finds the plug-ins that the strategy names; no plug-in's name is written here. The pipeline's
stages call `EpochAssembly` in worker threads: for the rows that a sample needs, and for the
finished batch.
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
from gnndrive.sampling.samplers.base import Bounds, Sampler, SamplerContext
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
    """A loader's checked arguments, and what is made from them.

    Attributes:
        store: the graph.
        strategy: names the plug-ins.
        inputs: the nodes or edges that seeds are drawn from.
        subgraphs: how to sample in PyG's own form, for loader arguments that need more than plain
            neighbour sampling; a sampler class for plain sampling only then returns the subgraph
            sampler from `make`. None: the arguments need no more.
        collate: joins samples with features and attributes.
        num_neighbors, replace: see `NeighborLoader`.
        batch_size, shuffle, drop_last: torch's arguments.
        batch_sampler: the user's, or the one that torch made from the user's sampler; None: the
            strategy's schedule draws the seeds.
        in_order: whether batches are delivered by index.
        worker_init: called in each worker thread with its number; None: nothing is called.
        device: the device plug-in, and the torch.device, or None for the host.
        own: the values of `arguments.OWN_ARGUMENTS`.
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
        """Make the schedule of the epochs that have `seed`."""
        context = ScheduleContext(
            self.inputs, self.batch_size, self.shuffle, self.drop_last, seed, self.batch_sampler,
            self.store,
        )  # fmt: skip
        return choose_schedule(self.strategy.schedule, context)

    def sampler(self, empty: Allocate = np.empty, limits: Bounds | None = None) -> Sampler:
        """Make a sampler for one epoch; `empty` allocates its arrays, as `numpy.empty` does. It may
        give up samples larger than `limits`."""
        subgraphs = None
        if self.subgraphs is not None:
            of_edges = isinstance(self.inputs, InputEdges)
            subgraphs = partial(SubgraphSampler, self.subgraphs, of_edges, self.inputs.type, limits)
        context = SamplerContext(
            self.num_neighbors, self.replace, empty, limits, subgraphs, self.store
        )
        kind: type[Sampler] = find("samplers", self.strategy.sampler)
        return kind.make(context)

    def plan(self) -> Plan:
        """See `NeighborLoader.plan`."""
        return self._planner().plan()

    def settings(self) -> RuntimeSettings:
        """Decide what the loader's runtime is made from.

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
        # If the buffer holds all rows, none ever leaves it, so only a policy that the user named is
        # used. Nothing is read after the first epoch, so only a sweep that the user named is used.
        if_whole = (
            None if own["policy"] == "auto" else own["policy"],
            replace(stages, sweep=sweep or 1),
        )
        first = _with_plan(settings, settings.plan, *if_whole)
        if not planner.warm_up:
            return first

        def after_warm_up(device_bytes: int) -> RuntimeSettings:  # refers to no loader: no cycle
            plan = planner.plan_after_warm_up(device_bytes)
            # Which attributes are fetched stays, because their files are open already.
            plan = replace(plan, fetched=settings.plan.fetched)
            return _with_plan(settings, plan, *if_whole)

        return replace(first, after_warm_up=after_warm_up)

    @property
    def _policy(self) -> Any:
        return self.strategy.policy if self.own["policy"] == "auto" else self.own["policy"]

    @property
    def _block_bytes(self) -> int:
        return block_bytes(max((table.file.row_bytes for table in self.collate.tables), default=1))

    def _planner(self) -> Planner:
        """Make the planner of this loader.

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
        """The most seeds that a batch can have."""
        count = len(self.inputs)
        size = self.batch_size or getattr(self.batch_sampler, "batch_size", None)
        return min(size or count, max(count, 1))


def _size(own: dict[str, Any], name: str) -> int | None:
    """The argument `name` in bytes, or None."""
    return None if own[name] is None else parse_size(own[name], name)


def _with_plan(
    settings: RuntimeSettings, plan: Plan, policy_if_whole: Any, stages_if_whole: Stages
) -> RuntimeSettings:
    """The settings for a plan; `…_if_whole` replace theirs if the buffer holds all rows."""
    if not plan.holds_everything:
        return replace(settings, plan=plan)
    return replace(settings, plan=plan, policy=policy_if_whole, stages=stages_if_whole)


class EpochAssembly:
    """Makes one epoch's inputs and batches; see `pipeline.epoch.BatchAssembly`.

    Args:
        assembly: the loader's assembly.
        runtime: has the attributes, the array pool and the device.
        number: the epoch's number if the user gave `seed`, else 0.
        seed: the user's, or the one drawn for this epoch. A batch's random draws depend on `seed`,
            `number` and its index.
    """

    def __init__(self, assembly: Assembly, runtime: Runtime, number: int, seed: int) -> None:
        self._assembly, self._collate = assembly, assembly.collate
        self._pool, self._attributes = runtime.array_pool, runtime.attributes
        self._device = runtime.device
        self._number, self._seed = number, seed
        self._files = {table.name: table.file for table in self._collate.tables}

    def inputs(self, batches: Iterator[tuple[Window, Seeds]], first: int) -> EpochInputs:
        """Make what the pipeline needs to run the epoch from batch `first` on.

        Args:
            batches: the seeds of the batches from `first` on, each with its window.
            first: the index of the first batch; not 0 in a resumed epoch and after a warm-up.
        """
        sampler = self._assembly.sampler(self._pool.empty)
        return EpochInputs(self._number, self._seed, batches, sampler, self, first)

    def prepare(self) -> None:
        """Read the labels, while the first batch is sampled."""
        self._collate.prepare()

    def rows_of(self, sample: Sample | Subgraph) -> dict[str, Int64Array]:
        """See `Collate.rows_of`."""
        return self._collate.rows_of(sample, self._attributes, self._pool.empty)

    def make(self, item: Extracted, gathered: Callable[[], object]) -> tuple[Any, References]:
        """Gather a batch's rows and join them with its sample; see `BatchAssembly.make`."""
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
