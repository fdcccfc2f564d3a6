"""`Strategy`: a published design; `Scheme`: how one loader loads by it.

A strategy is a frozen dataclass: the parts that the design is made of, and its own arguments. The
parts are plug-ins (`gnndrive.common.plugins`). For a strategy of your own, replace parts of another
one (`replace(GNNDrive(), name="own", policy=MyPolicy)`), or derive a class. If batches come about
in a way of their own, its `open` returns a `Scheme` of its own, which the loader asks for
everything that depends on that: what the plan counts, the feed of an epoch.

The loader, the plan and the pipeline import no more of this folder than this file.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar

from gnndrive.buffer.devices.base import Device
from gnndrive.common.array_pool import Allocate
from gnndrive.common.errors import ConfigError
from gnndrive.common.names import Arguments, did_you_mean
from gnndrive.common.plugins import find
from gnndrive.disk.tiers.base import Tier, TierContext
from gnndrive.pipeline.epoch import Counters, Feed
from gnndrive.pipeline.sample import SampledFeed
from gnndrive.plan.choice import in_groups, make_planner, plan_again
from gnndrive.plan.host_level import HostLevel
from gnndrive.plan.plan import Elastic, Plan, Planner, StageCounts
from gnndrive.plan.request import Ahead, PlanRequest
from gnndrive.plan.strategy_costs import OWN, Known, StrategyCost, predict
from gnndrive.sampling.samplers.base import SamplerContext
from gnndrive.sampling.schedules.base import ScheduleContext, Window
from gnndrive.store.files import Source
from gnndrive.store.reader import Store

_OLD_NAMES = {"superbatch_folder": "folder"}
_OF_DRAWING = ("policy", "sweep", "topology", "neighbour_cache")
PARTS = ("name", "published", "schedule", "sampler", "topologies", "layout", "policy", "tiers")
"""The fields of a strategy that are no arguments of its own."""
NONE = "none"  # a strategy's `preparation` or `disk`
UNPREPARED = "the store is not prepared for it"


@dataclass(frozen=True, slots=True)
class FeedContext:
    """What the feed of an epoch, or of a part of it, is made from.

    Attributes:
        left: yields the windows that have batches left, each with the number of these.
        request, plan: what the plan was made from, and the plan.
        policy: which rows leave the feature buffer; None: none ever does.
        empty: allocates arrays, as `numpy.empty` does.
        load_graph, free_graph: have the adjacency in memory, and free it again.
        end: how many batches the iterator yields in all; None: it is not known.
        done: how many batches of the epoch came before those that the iterator yields.
    """

    left: Callable[[], Iterator[Window]]
    request: PlanRequest
    plan: Plan
    policy: Any
    empty: Allocate
    load_graph: Callable[[], None]
    free_graph: Callable[[], None]
    end: int | None
    done: int


class Scheme:
    """What a strategy is for one loader: what `Strategy.open` has opened and chosen, and what is
    particular about the loader's batches. This one: they are sampled from the whole graph as they
    are needed.

    Where a method takes `assembly`, that is the loader's arguments and what is made from them,
    `gnndrive.loader.assembly.Assembly`.

    Attributes:
        source: the folder that has the tables' rows; None: the store has them.
        whole_graph: whether batches are sampled from the store's graph; if not, the source brings
            adjacency or samples of its own.
        tables: the names of the tables that go through the feature buffer; None: all.
        sweep: the most batches that are read together; None: the loader's argument says it.
        buffers: makes what lends rows to epochs (`gnndrive.loader.buffer_pool.Buffers`) from the
            runtime's settings and a function that allocates arrays; then nothing is read by the
            loader's engine. None: feature buffers do, as feeds that sample ahead need them.
        warms_up: whether a small buffer can serve the first batches on a GPU.
        numbered: whether batches depend on the epoch's number even without a seed.
        deals: whether ranks have batches of their own, not each n-th one.
        not_shared: why no host service can serve such a loader; "": it can.
        own_buffer: whether each rank has a feature buffer of its own, so that a host service can
            have the graph alone.
        exchanges: whether ranks can exchange the rows of its tables.
        single: why a batch around any seeds cannot be made; "": it can.
    """

    source: Source | None = None
    whole_graph = True
    tables: Collection[str] | None = None
    sweep: int | None = None
    buffers: Callable[[Any, Allocate], Any] | None = None
    warms_up = True
    numbered = False
    deals = False
    not_shared = ""
    own_buffer = False
    exchanges = False
    single = ""

    def current(self, assembly: Any, begun: bool) -> Scheme:
        """The scheme for the arguments as they are now.

        Args:
            assembly: the loader's, which has this scheme.
            begun: whether the loader has begun an epoch, so that what it reads is open.

        Raises:
            ConfigError: an argument cannot work.
            StoreError, ReadError: the graph is damaged or cannot be read.
        """
        return self

    def after_epoch(self, counters: Counters) -> Scheme:
        """What follows from an epoch that has ended, of which all batches were counted."""
        return self

    # ---- what batches depend on

    def settings(self) -> dict[str, Any]:
        """What batches depend on beside the loader's own arguments; JSON can hold it."""
        return {}

    def state(self) -> dict[str, Any]:
        """What the state of an epoch keeps beside that, for `resumed`."""
        return {}

    def resumed(self, assembly: Any, state: Mapping[str, Any], begun: bool) -> Scheme:
        """The scheme that goes on with an epoch.

        Args:
            assembly: the loader's, with this scheme.
            state: what the user gave, which is not checked yet.
            begun: see `current`.

        Raises:
            ConfigError: it cannot go on with it.
        """
        return self

    def drawn_text(self) -> str:
        """A text that identifies what the batches that are drawn for a plan depend on."""
        return ""

    # ---- what is made of it

    def of(self, assembly: Any) -> Any:
        """The assembly with this scheme, and its tables in the feature buffer."""
        return replace(assembly, scheme=self, collate=assembly.collate.buffering(self.tables))

    def schedule_context(self, context: ScheduleContext, ranks: Any) -> ScheduleContext:
        """What the schedule is made from, for one of several ranks (`loader.ranks.Ranks`)."""
        return context

    def sampler_context(self, context: SamplerContext) -> SamplerContext:
        """What a sampler is made from."""
        return context

    def tier_context(self, context: TierContext) -> TierContext:
        """What the tiers of a table are made from."""
        return context

    def ahead(self, assembly: Any) -> Ahead | None:
        """How batches are sampled ahead; None: they are not."""
        return None

    def elastic(self, assembly: Any) -> Elastic | None:
        """What keeps rows in host memory below the feature buffer; None: nothing does. Here a host
        level does below a device if `memory=` is given, and the chain has a tier for it."""
        device: type[Device] = find("devices", assembly.device[0])
        tier: type[Tier] = find("tiers", assembly.strategy.tiers[0])
        if assembly.own["memory"] is None or not tier.takes_offers:
            return None
        if device.free_bytes(assembly.device[1]) is None:
            return None
        return HostLevel.below(device)

    def planner(self, request: PlanRequest) -> Planner:
        """Makes the loader's plan; raises what `make_planner` does."""
        return in_groups(make_planner(request), request)

    def planner_again(self, request: PlanRequest, before: Plan, samplers: int) -> Planner:
        """Makes the plan again for larger batches; see `plan_again`."""
        return in_groups(plan_again(before, samplers, request), request)

    def feed(self, context: FeedContext) -> Feed:
        """Samples the batches of an epoch, or of a part of it."""
        return SampledFeed()


class _Plain(Scheme):
    exchanges = True


PLAIN = _Plain()


@dataclass(frozen=True, kw_only=True)
class Strategy(Arguments):
    """The parts of a published design, each a plug-in's name or its class, and its own arguments.
    Where a method takes `assembly`, that is the loader's arguments; see `Scheme`.

    Attributes:
        name: the name that `strategy=` takes.
        published: where the design was published.
        schedule: chooses the seeds of each batch.
        sampler: samples around seeds. A class for plain sampling only returns, from `make`, the
            subgraph sampler for loader arguments that need more.
        topologies: where the adjacency may live; the loader takes the first that suits the memory,
            unless the user names one.
        layout: how the rows of features lie on disk; adjacency and other attributes lie as the
            store has them.
        policy: which rows leave the feature buffer first, unless the user names another; none is
            used where the buffer holds all rows, unless the user named one.
        tiers: where rows are fetched from, below the feature buffer; the highest first. "victim"
            is the host level: rows that leave a device stay in what `memory=` leaves.
    """

    name: str = field(default="", repr=False)
    published: str = field(default="", repr=False)
    schedule: Any = field(default="shuffled", repr=False)
    sampler: Any = field(default="uniform", repr=False)
    topologies: tuple[Any, ...] = field(default=("resident", "direct", "mmap"), repr=False)
    layout: Any = field(default="table", repr=False)
    policy: Any = field(default="belady", repr=False)
    tiers: tuple[Any, ...] = field(default=("victim", "disk"), repr=False)

    whole_graph: ClassVar[bool] = True
    """Whether batches are sampled from the whole graph, so that any seeds can be loaded."""
    baseline: ClassVar[bool] = False
    """Whether it is only measured beside others: not predicted, and never taken by "auto"."""
    exchange: ClassVar[bool] = False
    """Whether GPUs of one host exchange rows where `exchange=` is not given."""
    does: ClassVar[str] = ""
    """What it does, in about five words. These words are in the table of strategies in README and
    docs/tasks/strategies.md, and in the comparison that a plan prints."""
    preparation: ClassVar[str] = NONE
    """The command that must have been run on the store."""
    disk: ClassVar[str] = NONE
    """What it keeps on disk beside the store."""
    changes: ClassVar[str] = "none: gnndrive's batches"
    """What it changes in the samples; `cost` says it with the figure where that is known."""
    pays: ClassVar[str] = ""
    """When it pays."""

    def preset(self, assembly: Any) -> Any:
        """The assembly with what the strategy decides where the user gave nothing."""
        return assembly

    def open(self, assembly: Any) -> Scheme:
        """Check the loader's arguments, and open what the strategy reads beside the store.

        Raises:
            ConfigError: an argument cannot work, or what it reads is not there.
            StoreError: what it reads is damaged.
        """
        return PLAIN

    def lacks(self, store: Store) -> str | None:
        """The command that must be run before the strategy can run on a store; None: there is
        none, as far as the store alone shows."""
        return None

    def suited(self, store: Store) -> Strategy:
        """The strategy with what suits it best of what a store has; what the user named stays."""
        return self

    def folders(self) -> list[Path]:
        """The folders outside of the store that its arguments name."""
        return []

    def cost(self, assembly: Any, known: Known, request: PlanRequest) -> StrategyCost:
        """What a batch costs. Here the loads of the policy are simulated, because batches are
        sampled from the whole graph.

        Args:
            assembly: of a loader with this strategy, without a scheme.
            known: what all predictions for a loader share.
            request: of the default strategy's loader with the same arguments, for a strategy that
                compares itself with it; not used here.

        Raises:
            ConfigError: it cannot run with these arguments.
        """
        scheme = self.open(assembly)
        own = scheme.of(assembly).request()
        cost = predict(self.text, own, scheme.planner(own), known)
        if batches_of(self) == default().name:
            return cost
        return replace(cost, same_batches=False, changes="batches of its own", note=OWN)

    def arguments(self) -> dict[str, Any]:
        """The strategy's own arguments, by their names."""
        own = (each.name for each in fields(self) if each.name not in PARTS)
        return {name: getattr(self, name) for name in own}

    @property
    def own_batches(self) -> str:
        """A text that identifies its batches, if its arguments give other ones than its schedule
        and sampler; else empty."""
        return ""

    @property
    def about(self) -> tuple[str, ...]:
        """Lines that say what it does, what it needs if it needs anything, and when it pays."""
        needs = {"preparation": self.preparation, "disk": self.disk}
        lines = (
            "; ".join(filter(None, (self.does, self.published))),
            "; ".join(f"{name}: {each}" for name, each in needs.items() if each != NONE),
            self.pays and f"pays: {self.pays}",
        )
        return tuple(filter(None, lines))

    @property
    def text(self) -> str:
        """The text that `strategy` makes it of, if it is one of the list: its name, with those
        arguments that are not the default ones. Of another one, its name."""
        if self.name not in strategies():
            return self.name
        default = {each.name: each.default for each in fields(self)}
        given = [f"{n}={value}" for n, value in self.arguments().items() if value != default[n]]
        return ":".join([self.name, ",".join(given)]) if given else self.name


def strategies() -> dict[str, Strategy]:
    """Every strategy with its default arguments, by its name; the first is the default."""
    found: dict[str, Strategy] = import_module("gnndrive.strategies").STRATEGIES
    return found


def default() -> Strategy:
    """The strategy of a loader that names none."""
    return next(iter(strategies().values()))


def strategy(named: Any) -> Strategy:
    """Find a strategy by its name, or check one that was composed.

    Args:
        named: a strategy; or a text: its name, "auto", or a name with arguments such as
            "ginex:superbatch=256,phases=apart".

    Raises:
        ConfigError: no strategy has that name (the message lists all names) or such an argument, or
            a part of the strategy is no plug-in.
    """
    if isinstance(named, Strategy):
        _check_parts(named)
        return named
    known = strategies()
    name, colon, text = named.partition(":") if isinstance(named, str) else (named, "", "")
    if name == "auto":
        if colon:
            raise ConfigError(
                f"strategy={named!r}: 'auto' has no arguments; give a strategy's name"
            )
        return auto()
    if isinstance(name, type) and issubclass(name, Strategy):
        raise ConfigError(f"strategy={name.__name__} is a class: give {name.__name__}()")
    if not isinstance(name, str) or name not in known:
        there = ["auto", *sorted(known)]
        raise ConfigError(
            f"no strategy is called {name!r}{did_you_mean(name, there)}; there are: "
            f"{', '.join(there)}"
        )
    found = known[name]
    if not colon:
        return found
    own = found.arguments()
    given = values_in(
        parts_of(text), found, own,
        lambda part: f"strategy={named!r}: {part!r} is no argument of it"
        f"{did_you_mean(part.partition('=')[0], own)}: {name} has "
        f"{', '.join(own) or 'none'}; write NAME:ARGUMENT=VALUE,ARGUMENT=VALUE",
    )  # fmt: skip
    return replace(found, **given)


def refuse_strategy_arguments(given: Mapping[str, Any], named: Any) -> None:
    """Refuse an argument that belongs to a strategy beside `strategy=named`, with what to give."""
    for name, value in given.items():
        own = _OLD_NAMES.get(name, name)
        owners = [each for each in strategies().values() if own in each.arguments()]
        asked = named.name if isinstance(named, Strategy) else str(named).partition(":")[0]
        owners = [each for each in owners if each.name == asked] or owners
        if owners:
            forms = " or ".join(f"{type(each).__name__}({own}={value!r})" for each in owners)
            raise ConfigError(
                f"{name}={value!r} belongs to a strategy: give strategy={forms}, of "
                f'gnndrive.strategies, or as text strategy="{owners[0].name}:{own}={value}"'
            )


def refuse_unused(own: Mapping[str, Any], why: str) -> None:
    """Refuse arguments for batches that are drawn from the whole graph; `why` they have no use."""
    for name in _OF_DRAWING:
        if own[name] not in ("auto", None):
            raise ConfigError(f"{name}={own[name]!r} {why}: leave it out")


def stages_for(request: PlanRequest, own: StageCounts) -> StageCounts:
    """The numbers of samplers and queued batches that the user gave, or else the strategy's own."""
    return StageCounts(
        request.samplers or own.samplers,
        request.extracting_queue or own.extracting_queue,
        request.training_queue or own.training_queue,
    )


def auto() -> Strategy:
    """Stands for the strategy of a loader until one is chosen (`loader/strategy_choice.py`). It has
    the parts of the default strategy, whose batches all choices have."""
    return replace(default(), name="auto", published="the cheapest with the same batches")


def batches_of(strategy: Strategy) -> str:
    """The name of the first strategy with the same schedule and sampler, so the same batches."""
    if strategy.own_batches:
        return strategy.own_batches
    for each in strategies().values():
        if (each.schedule, each.sampler) == (strategy.schedule, strategy.sampler):
            return each.name
    return strategy.name


def parts_of(text: str) -> list[str]:
    """The parts of a text such as "superbatch=256,phases=apart" or "superbatch=256:phases=apart";
    what is no NAME= behind a comma or colon belongs to the value before it."""
    return re.split(r"[,:](?=\w+=)", text)


def values_in(
    parts: Iterable[str], owner: Any, names: Collection[str], wrong: Callable[[str], str]
) -> dict[str, Any]:
    """The fields of a dataclass, or of one of its objects, that parts NAME=VALUE of a text give.
    ConfigError(wrong(part)) for one that gives none of `names`; or see `value_of`."""
    found = dict[str, Any]()
    for part in parts:
        name, equals, value = part.partition("=")
        if not equals or name not in names:
            raise ConfigError(wrong(part))
        found[name] = value_of(owner, name, value)
    return found


def value_of(owner: Any, name: str, text: str) -> Any:
    """The value of a dataclass's field that stands in a text, by the field's type: a number only
    where one may stand, so that names of digits stay names. ConfigError if it is to be True or
    False, and is another text."""
    (declared,) = (str(each.type) for each in fields(owner) if each.name == name)
    types = {each.strip() for each in declared.split("|")}
    if "bool" in types:
        if text in ("True", "False"):
            return text == "True"
        if "str" not in types:
            raise ConfigError(f"{name}={text}: write True or False")
    if "None" in types and text == "None":
        return None
    for kind in (int, float):
        if kind.__name__ in types or (kind is int and "float" in types):
            with contextlib.suppress(ValueError):
                return kind(text)
    return text


def _check_parts(composed: Strategy) -> None:
    """Raise ConfigError unless every part of a strategy is a plug-in of its kind."""
    for each in fields(composed):
        value = getattr(composed, each.name)
        if each.type == "bool" and not isinstance(value, bool):
            raise ConfigError(f"{each.name}={value!r}: give True or False")
    for part in ("topologies", "tiers"):
        given = getattr(composed, part)
        if not isinstance(given, tuple) or not given:
            raise ConfigError(
                f"the strategy {composed.name!r} has {part}={given!r}: give a tuple of at least one"
            )
    parts = {
        "schedules": (composed.schedule,),
        "samplers": (composed.sampler,),
        "topologies": composed.topologies,
        "layouts": (composed.layout,),
        "policies": (composed.policy,),
        "tiers": composed.tiers,
    }
    for kind, plugins in parts.items():
        for plugin in plugins:
            find(kind, plugin)
