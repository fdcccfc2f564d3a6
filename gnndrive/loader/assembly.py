"""`Assembly`: makes a loader's schedule, sampler, plan and settings.

`StoreLoader` makes an `Assembly` from its checked arguments. `Assembly` asks `plan/` for the plan
and finds the plug-ins that the strategy names; no plug-in's name is written here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from gnndrive.common.array_pool import Allocate
from gnndrive.common.errors import ConfigError
from gnndrive.common.host_memory import local_ranks
from gnndrive.common.memory import (
    format_size,
    given_size,
    is_share,
    process_memory,
    size_or_none,
)
from gnndrive.common.plugins import find, name_of
from gnndrive.common.records import EngineSettings, Seeds
from gnndrive.disk.layouts.base import Layout, block_bytes
from gnndrive.exchange.items import Exchange
from gnndrive.loader.drawing import Drawing
from gnndrive.loader.exchanging import exchange_of
from gnndrive.loader.ranks import Ranks, resolve_ranks, sampler_ranks
from gnndrive.loader.settings import RuntimeSettings
from gnndrive.loader.sharing import what_service_has
from gnndrive.pipeline.epoch import Stages
from gnndrive.plan.costs import Disk
from gnndrive.plan.drawn import doubled, largest
from gnndrive.plan.plan import Plan, Planner
from gnndrive.plan.request import PlanRequest
from gnndrive.plan.topology_choice import Topologies
from gnndrive.pyg.collate import Collate
from gnndrive.pyg.links_inside import LinksInside
from gnndrive.pyg.padding import Padding, padding_of
from gnndrive.pyg.subgraph_sampler import SubgraphSampler, SubgraphSampling
from gnndrive.sampling.dealing import deal, deal_windows, flat, number_batches, skip, steps_left
from gnndrive.sampling.degrees import degrees_of
from gnndrive.sampling.graph import graph_sizes
from gnndrive.sampling.labor import Sampling, sampling_of
from gnndrive.sampling.samplers.base import Bounds, Sampler, SamplerContext
from gnndrive.sampling.schedules import choose as choose_schedule
from gnndrive.sampling.schedules.base import (
    InputEdges,
    InputNodes,
    Schedule,
    ScheduleContext,
    Window,
)
from gnndrive.store.reader import Store
from gnndrive.store.striped.striped import Stripes, stripes_of
from gnndrive.strategies.base import PLAIN, Scheme, Strategy, batches_of, default


@dataclass(frozen=True)
class Assembly:
    """A loader's checked arguments, and what is made from them. Planning and drawing raise
    ConfigError, or StoreError and ReadError if the graph is damaged or cannot be read.

    Attributes:
        subgraphs: how to sample in PyG's own form, which a sampler class for plain sampling only
            then makes in place of its own; None: the arguments need plain samples.
        batch_sampler: the user's, or the one that torch made from the user's sampler; None: the
            strategy's schedule draws the seeds.
        device: the device plug-in, and the torch.device, or None for the host.
        own: the values of `arguments.OWN_ARGUMENTS`, and those of `tuning=` beside them.
        asked: the same without what the strategy has set (`Strategy.preset`); None: this one.
        places: see `exchanging.places_of`; None: the ranks have not compared their stores yet.
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
    seed: int | None
    own: dict[str, Any]
    scheme: Scheme = PLAIN
    asked: Assembly | None = None
    places: tuple[int, ...] | None = None

    def schedule(self, seed: int) -> Schedule:
        """Make the schedule of the epochs that have `seed`."""
        context = self.scheme.schedule_context(self.schedule_context(seed), self.ranks)
        return choose_schedule(self.strategy.schedule, context)

    def schedule_context(self, seed: int) -> ScheduleContext:
        """What the schedule is made from, whatever the scheme."""
        return ScheduleContext(
            self.inputs, self.batch_size, self.shuffle, self.drop_last, seed, self.batch_sampler,
            self.store,
        )  # fmt: skip

    @property
    def padding(self) -> Padding | None:
        """How batches are padded; None: not at all."""
        return padding_of(self.own["pad"])

    @property
    def ranks(self) -> Ranks:
        """Which rank this process is now; see `resolve_ranks`."""
        return resolve_ranks(self.own["ranks"], self.batch_sampler)

    # ---- what an epoch that goes on depends on

    @property
    def batch_settings(self) -> dict[str, Any]:
        """What batches depend on beside the store; JSON can hold it."""
        batches, sampling, sampler = self.batch_sampler, self.sampling, None
        if batches is not None:
            inner = type(getattr(batches, "sampler", None)).__name__
            size = getattr(batches, "batch_size", None)
            sampler = f"{type(batches).__name__} of {inner}, {size} at once"
        return {
            "batch_size": self.batch_size, "shuffle": self.shuffle, "drop_last": self.drop_last,
            "sampler": sampler, "inputs": self.inputs.identity,
            "strategy": batches_of(self.strategy), "num_neighbors": self.fanout,
            "replace": self.replace, "sampling": sampling.name,
            "batch_dependency": sampling.batch_dependency, "seed": self.seed,
            "drawing": None if self.subgraphs is None else self.subgraphs.identity,
            **self.scheme.settings(),
        }  # fmt: skip

    @property
    def fanout(self) -> Any:
        """`num_neighbors` as JSON can hold it: a list, or a dict of lists by type name."""
        if not isinstance(self.num_neighbors, Mapping):
            return self.num_neighbors
        return {", ".join(type): list(each) for type, each in self.num_neighbors.items()}

    @property
    def dealt_to(self) -> int | None:
        """To how many ranks the user's sampler, or the scheme, deals batches; None: to one."""
        _, world = sampler_ranks(self.batch_sampler) or (0, 1)
        if self.scheme.deals:
            world = self.ranks.per_step
        return world if world > 1 else None

    # ---- an epoch's batches

    def steps(self, done: int = 0, seed: int | None = None, number: int = 0) -> int:
        """Batches that this rank yields in an epoch of which `done` are done, as `EpochState`
        counts them. TypeError if the user's batch sampler has no length."""
        schedule, per_step = self.schedule(seed or 0), self.ranks.per_step
        if schedule.deals:
            return max(schedule.length(number) - done // per_step, 0)
        return steps_left(len(schedule), done, per_step, self.drop_last)

    def batches(
        self, ranks: Ranks, seed: int, number: int, done: int
    ) -> Iterator[tuple[Window, Seeds]]:
        """The seeds of this rank's batches of epoch `number` with `seed`, each with its window, of
        which `done` are done, as `EpochState` counts them."""
        schedule = self.schedule(seed)
        windows = schedule.windows(number)
        if schedule.deals or ranks.per_step == 1:
            drawn_by = partial(ranks.number, deals=schedule.deals)
            return number_batches(windows, done // ranks.per_step, drawn_by)
        if schedule.window_sizes is not None:
            return flat(self.windows_left(ranks, seed, number, done))
        return deal(windows, len(schedule), done, ranks.rank, ranks.world, self.drop_last)

    def windows_left(
        self, ranks: Ranks, seed: int, number: int, done: int, yielded: int = 0
    ) -> Iterator[Window]:
        """The windows in which this rank has batches left, each with the number of these, once it
        has yielded so many more than those that are done, as `EpochState` counts them."""
        schedule = self.schedule(seed)
        windows = schedule.windows(number)
        if schedule.deals or ranks.per_step == 1:
            return skip(windows, done // ranks.per_step + yielded)
        dealing = len(schedule), done, ranks.rank, ranks.world, self.drop_last
        return skip(deal_windows(windows, *dealing), yielded)

    def sampler(self, empty: Allocate = np.empty, limits: Bounds | None = None) -> Sampler:
        """Make a sampler for one epoch, which may give up samples larger than `limits`; `empty`
        allocates its arrays, as `numpy.empty` does."""
        context = SamplerContext(
            self.num_neighbors, self.replace, empty, limits, None, self.store,
            sampling=self.sampling,
        )  # fmt: skip
        context = self.scheme.sampler_context(context)
        if (how := self.subgraphs) is not None:
            of_edges = isinstance(self.inputs, InputEdges)
            made: Callable[[], Sampler] = partial(LinksInside, how, of_edges, context)
            if context.window_nodes is None:
                made = partial(SubgraphSampler, how, of_edges, self.inputs.type, context.limits)
            context = replace(context, subgraphs=made)
        plugin: type[Sampler] = find("samplers", self.strategy.sampler)
        return plugin.make(context)

    @property
    def sampling(self) -> Sampling:
        """How neighbours are drawn; ConfigError if the sampler or other arguments forbid it."""
        sampling, sampler = sampling_of(self.own["sampling"]), self.strategy.sampler
        sampling.check(self.replace)
        if not sampling.shares:
            return sampling
        if self.subgraphs is not None:
            raise ConfigError(
                f"sampling={sampling.name!r} is for seed nodes and plain neighbours of one type: "
                "for edges as seeds, several types, times, weights, disjoint trees, induced or "
                'bidirectional subgraphs or a sampler of your own give sampling="neighbor"'
            )
        if not find("samplers", sampler).shares_numbers:
            raise ConfigError(
                f"the sampler {name_of(sampler)!r} of strategy={self.strategy.name!r} draws for "
                f"each node by itself, not with sampling={sampling.name!r}: give "
                'sampling="neighbor", or another strategy'
            )
        return sampling

    @property
    def drawn_text(self) -> str:
        """A text that identifies how neighbours are drawn; "" for plain neighbour sampling."""
        return self.sampling.identity if self.subgraphs is None else self.subgraphs.identity

    # ---- the plan

    def plan(self) -> Plan:
        """See `NeighborLoader.plan`."""
        return self.scheme.planner(self.request()).plan()

    def settings(self) -> RuntimeSettings:
        """Decide what the loader's runtime is made from."""
        request = self.request()
        planner, own = self.scheme.planner(request), self.own
        plan, planned = planner.plan(), partial(_planned, *self._if_whole)
        settings = RuntimeSettings(
            strategy=self.strategy,
            plan=plan,
            policy=request.policy,
            stages=Stages(planner.stages.samplers, own["extractors"], in_order=self.in_order),
            engine=own["engine"],
            engine_settings=self.engine_settings,
            worker_init=self.worker_init,
            request=request,
            scheme=self.scheme,
        )
        first = planned(settings, planner, plan)
        if not planner.warm_up:
            return first

        def after_warm_up(device_bytes: int) -> RuntimeSettings:  # refers to no loader: no cycle
            after = planner.plan_after_warm_up(device_bytes)
            # Which attributes are fetched stays, because their files are open already.
            return planned(settings, planner, replace(after, fetched=plan.fetched))

        return replace(first, after_warm_up=after_warm_up)

    def settings_for_larger(self, before: RuntimeSettings, size: Bounds | None) -> RuntimeSettings:
        """The settings that follow those `before`, after a batch that was larger than planned.
        Without its `size` the plan counts the most that the fanout allows, and nothing is kept."""
        drawing = self.drawing()
        assert drawing is not None, "the plan before counts batches that were drawn"
        if size is None:
            most = largest(before.request.bounds, doubled(before.request.planned))
            request = replace(before.request, planned=most)
        else:
            request = drawing.keep_larger(before.request, size)
        try:
            planner = self.scheme.planner_again(request, before.plan, before.stages.samplers)
        except ConfigError as error:
            if size is not None:
                raise
            raise ConfigError(
                f"{error}\nThis counts the most that num_neighbors allows, because the next batch "
                "is too large to be sampled within memory=; somewhat less may be enough"
            ) from None
        plan = replace(planner.plan(), fetched=before.plan.fetched)
        settings = replace(before, policy=self._policy, request=request)
        return _planned(*self._if_whole, settings, planner, plan)

    @property
    def _if_whole(self) -> tuple[Any, int | None]:
        """The policy and the sweep that the user named. If the buffer holds all rows, only these
        are used, because none ever leaves it, and nothing is read after the first epoch."""
        return self._tuned("policy"), self._sweep

    @property
    def _sweep(self) -> int | None:
        own: int | None = self._tuned("sweep")
        return own if self.scheme.sweep is None else self.scheme.sweep

    @property
    def _policy(self) -> Any:
        return self._tuned("policy") or self.strategy.policy

    def _tuned(self, name: str) -> Any:
        """The user's value of an argument of `Tuning`; None: it is "auto"."""
        return None if self.own[name] == "auto" else self.own[name]

    def _size(self, name: str) -> int | None:
        return given_size(self.own[name], name)

    @property
    def engine_settings(self) -> EngineSettings:
        """What an engine of this loader is made from."""
        settings = EngineSettings(self.own["io_depth"], self._block_bytes)
        # The ranks of a host read from one disk, and their processors share a cache.
        return replace(settings, inflight_bytes=settings.inflight_bytes // local_ranks())

    @property
    def _block_bytes(self) -> int:
        return block_bytes(max((table.file.row_bytes for table in self.collate.tables), default=1))

    def _stripes(self) -> Stripes | None:
        """The stripes that are read in place of the store's rows; None: none."""
        layout: type[Layout] = find("layouts", self.strategy.layout)
        if not layout.reads_stripes or self.scheme.buffers is not None:
            return None
        return stripes_of(self.store)

    def request(self) -> PlanRequest:
        """What the plan depends on; may draw batches. A budget that is too small is not refused."""
        own, types, subgraphs = self.own, self.store.info.types, self.subgraphs
        counts = {type: nodes.num_nodes for type, nodes in types.nodes.items()}
        asked = self._tuned("topology")
        topologies = self.strategy.topologies if asked is None else (asked,)
        sharing = what_service_has(
            self.store, self.ranks, own["host_service"], self.strategy, self.scheme,
            topologies, own["engine"], self._policy, self.device, self.in_order,
        )  # fmt: skip
        kept_bytes = size_or_none(own["remote_cache"], "remote_cache")
        exchange = exchange_of(
            self.exchange, self.ranks, self.collate.tables, self._alone, self.store, self.places,
            kept_bytes,
        )  # fmt: skip
        ahead = self.scheme.ahead(self)
        if ahead is not None and kept_bytes:
            raise ConfigError(
                f"remote_cache={own['remote_cache']!r} cannot be had, because "
                f"{self._tells_owners}: leave it out"
            )
        # Without a budget nothing is refused, and counting degrees reads the index pointers.
        known = own["memory"] is None or not self.scheme.whole_graph
        degrees = None if known else degrees_of(self.store)
        sampler = self.sampler()
        bounds = sampler.bounds(self.seeds_max, counts, types.edges, degrees)
        stripes = self._stripes()
        disks = 1 if stripes is None else stripes.disks
        request = PlanRequest(
            store=self.collate.store,
            tables=tuple(self.collate.tables),
            converted_bytes=tuple(map(self.collate.converted_bytes, self.collate.tables)),
            bounds=bounds,
            seed_bounds=sampler.bounds(1, counts, types.edges, degrees),
            planned=bounds,
            drawn=None,
            seed_bytes=self.inputs.nbytes + self.schedule(0).order_bytes,
            subgraphs=subgraphs,
            candidate_bytes=(
                self.sampling.scratch_bytes(self.num_neighbors, self.store.num_edges)
                if subgraphs is None
                else subgraphs.candidate_bytes
            ),
            memory=self._size("memory"),
            buffer=self._size("buffer"),
            device_memory=size_or_none(own["device_memory"] or 0, "device_memory") or None,
            topologies=Topologies(
                topologies,
                graph_sizes(self.collate.store),
                asked,
                own["neighbour_cache"],
                None if subgraphs is None else subgraphs.needs_indices,
            ),
            policy=self._policy,
            device=self.device,
            sweep=self._sweep,
            staging_bytes=own["io_depth"] * self._block_bytes * disks,
            stripes=stripes,
            io_depth=own["io_depth"],
            batch_size=self.seeds_max if self.batch_sampler is None else None,
            disk=Disk.of_store(self.store, own["gap"], self._block_bytes, disks),
            ahead=ahead,
            elastic=self.scheme.elastic(self),
            warms_up=self.in_order and self.scheme.warms_up and exchange is None,
            ranks=self.ranks.on_host,
            shared=sharing.buffer and exchange is None,
            exchange=exchange,
            shared_graph=sharing.graph,
            served=sharing.served,
            samplers=self._tuned("samplers"),
            extracting_queue=self._tuned("extracting_queue"),
            training_queue=self._tuned("training_queue"),
            padding=self.padding,
            said=(
                *(
                    f"{name}={own[name]}: of the {format_size(process_memory())} that this process "
                    "may have"
                    for name in ("memory", "buffer")
                    if is_share(own[name])
                ),
                *(() if stripes is None else (stripes.said,)),
            ),
        )
        drawing = self.drawing()
        return request if drawing is None else drawing.drawn_for(request)

    @property
    def exchange(self) -> bool | str:
        """What `exchange=` asks for, or the strategy where nothing is given."""
        wanted: bool | str = self.own["exchange"]
        if wanted != "auto":
            return wanted
        if any(table.parts is not None for table in self.collate.tables):
            return True
        ranks, gpus = self.ranks, find("devices", self.device[0]).pulls
        near = gpus and ranks.group is not None and ranks.on_host == ranks.world
        return self.strategy.exchange and near and not self._alone

    def planner_of_exchange(self, request: PlanRequest, exchange: Exchange) -> Planner:
        """The planner for a request if ranks exchange rows so; ConfigError: they cannot."""
        why_not = self._alone
        if not why_not and request.ahead is not None and exchange.kept_bytes:
            why_not = self._tells_owners
        if why_not:
            raise ConfigError(why_not)
        graph = request.shared or request.shared_graph
        request = replace(
            request, shared=False, shared_graph=graph, exchange=exchange, warms_up=False,
            planned=request.bounds, drawn=None,
        )  # fmt: skip
        drawing = self.drawing()
        return self.scheme.planner(request if drawing is None else drawing.drawn_for(request))

    @property
    def _tells_owners(self) -> str:
        return f"strategy={self.strategy.name!r} tells owners which rows it will need"

    @property
    def _alone(self) -> str:
        """Why ranks cannot exchange rows; "": they can."""
        strategy = self.strategy
        if not self.scheme.exchanges or not {*strategy.tiers} <= {*default().tiers}:
            return f"strategy={strategy.name!r} reads rows in a way of its own"
        if self.padding is not None:
            return f"pad={self.own['pad']!r} needs rows that are gathered here"
        return "" if self.in_order else "in_order=False"

    def drawing(self, for_plan: bool = True) -> Drawing | None:
        """How batches are drawn for the plan; None: the plan counts the most that the fanout
        allows, or the loader knows its batches in another way.

        The plan counts that most if the loader could not plan again in the middle of an epoch: with
        in_order=False the number of batches that were delivered does not say which are left, and a
        GPU's buffer is not made again. A user's sampler, HGT's, and batches of varying numbers of
        seeds are not drawn either. Without `for_plan`, the plan does not count the batches.
        """
        plugin, where = self.device
        own = self.subgraphs is None or self.subgraphs.can_be_drawn
        size, on_host = self.batch_seeds, find("devices", plugin).free_bytes(where) is None
        if not (own and size and self.scheme.whole_graph):
            return None
        if for_plan and not (self.in_order and on_host):
            return None
        collate = self.collate
        return Drawing(
            self.store, self.drawn_settings(size), self.inputs, size,
            None if self.batch_sampler is not None
            else choose_schedule(self.strategy.schedule, self.schedule_context(0)),
            not self.shuffle,
            lambda limits: self.sampler(limits=limits),
            lambda sample: collate.rows_of(sample, collate.attributes),
        )  # fmt: skip

    def drawn_settings(self, size: int) -> str:
        """A text that identifies the batches of `size` seeds that are drawn for the plan."""
        plugins = {"sampler": self.strategy.sampler, "schedule": self.strategy.schedule}
        parts = [
            f"{kind} {each if isinstance(each, str) else f'{each.__module__}.{each.__qualname__}'}"
            for kind, each in plugins.items()
        ]
        order = "in random order" if self.shuffle else "in order"
        parts += [
            f"{size} of {self.inputs.identity}",
            order if self.batch_sampler is None else "in a sampler's order",
            f"num_neighbors {self.fanout}, replace {self.replace}",
        ]
        parts += filter(None, [self.drawn_text, self.scheme.drawn_text()])
        return "; ".join(parts)

    @property
    def batch_seeds(self) -> int | None:
        """The number of seeds of a batch; None: the user's batch sampler does not say it."""
        size: int | None = self.batch_size or getattr(self.batch_sampler, "batch_size", None)
        return size

    @property
    def seeds_max(self) -> int:
        """The most seeds that a batch can have."""
        count = len(self.inputs)
        return min(self.batch_seeds or count, max(count, 1))


def _planned(
    policy: Any, sweep: int | None, settings: RuntimeSettings, planner: Planner, plan: Plan
) -> RuntimeSettings:
    """The settings with a plan; `policy` and `sweep` are those that the user named, or None."""
    counts, whole, group = planner.stages, plan.holds_everything, planner.shape.group
    if sweep is not None:
        sweep = max(sweep // group, 1)
    stages = replace(
        settings.stages, samplers=counts.samplers, extracting_queue=counts.extracting_queue,
        training_queue=counts.training_queue, sweep=sweep or 1 if whole else sweep,
        group=group,
    )  # fmt: skip
    return replace(
        settings, plan=plan, policy=policy if whole else settings.policy, stages=stages,
        # A shared buffer has one plan: a larger batch is extracted if the buffer holds it.
        limits=planner.limits if settings.request.alone else None,
    )  # fmt: skip
