"""`make_planner`: chooses topology, samplers and queues for a loader, by what a batch will cost.

Without a budget the strategy's first topology that suits is taken, with GNNDrive's numbers of
samplers and queued batches. With `memory=`, each sampler and each queued batch takes memory from
the feature buffer. So the plans of some combinations are made, `plan/costs.py` says what a batch
costs with each, and the cheapest is taken; of those that cost about the same, the one with the
adjacency in memory and with more samplers and longer queues. If not even the leanest combination
fits, the error names the least `memory=` that does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain, product
from typing import Any

from gnndrive.buffer.items import buffers_bytes
from gnndrive.common.errors import ConfigError
from gnndrive.common.memory import format_size, least_text, parse_size
from gnndrive.plan.costs import Loading, combined, step_seconds
from gnndrive.plan.drawn import DrawnBatches, joined
from gnndrive.plan.plan import Plan, Planner, StageCounts
from gnndrive.plan.remedies import Remedies, remedies_of, remedy, said
from gnndrive.plan.request import PlanRequest, planner_of
from gnndrive.sampling.topologies.base import BUFFER_BATCHES

SAMPLERS = (4, 2, 1)
QUEUES = ((6, 4), (5, 4), (4, 4), (4, 3), (3, 3), (3, 2), (2, 2), (2, 1), (1, 1))
LONGER_QUEUES = ((8, 8), (8, 6))
"""Numbers of samplers, and bounds of the extracting and the training queue, that are considered:
GNNDrive's first, then longer ones for longer sweeps, then shorter ones that take less memory."""
ABOUT = 1.03  # plans whose batches cost up to this times the cheapest's cost about the same
# A planned size is raised if the least memory grows by no more than the larger of these two.
HARDLY_MORE, HARDLY_MORE_BYTES = 0.1, 32 << 20
SHORT_DEPTH = 32  # io_depth with which a refusal names the least memory, too,
PAYS = 0.8  # if that takes at most so much of it
MEMORY_MAX = 1 << 50
GROUP_ROWS, GROUP_MAX = 1 << 17, 32  # of a group of batches: some ten milliseconds of work
GROUP_COST = 1 / 32  # the most that groups take of memory=, or of the feature buffer
GROUP_BYTES = 32 << 20  # of data in memory; beside buffer=, more only if that is more
GROUPS_HELD = 8  # that the feature buffer holds at least
_BEFORE_PLAN = ". With that it uses"  # the end of a refusal's sentence


def stage_options(request: PlanRequest) -> list[StageCounts]:
    """The numbers of samplers and queued batches to consider: GNNDrive's first, the least last."""
    return all_stages(request.samplers, request.extracting_queue, request.training_queue)


def all_stages(
    samplers: int | None, extracting_queue: int | None = None, training_queue: int | None = None
) -> list[StageCounts]:
    """The same for what the user gave."""
    queues = {
        (extracting_queue or extracting, training_queue or training): None
        for extracting, training in (QUEUES[0], *LONGER_QUEUES, *QUEUES[1:])
    }
    options = {
        StageCounts(count, *both): None
        for both, count in product(queues, SAMPLERS if samplers is None else (samplers,))
        if samplers is not None or count <= both[0] or count == SAMPLERS[-1]
    }
    return list(options)


def default_stages(request: PlanRequest) -> StageCounts:
    """GNNDrive's numbers of samplers and queued batches, or those that the user gave."""
    return stage_options(request)[0]


def make_planner(request: PlanRequest) -> Planner:
    """Choose topology, samplers and queues, and make the planner. ConfigError if an argument cannot
    work; if `memory=` is too small, the message names the least that works."""
    first = with_chosen_topology(request)
    if request.memory is None:
        return first
    return _choose(request) or _checked(first, request, _leanest)


def in_groups(planner: Planner, request: PlanRequest) -> Planner:
    """The planner for groups of up to `GROUP_ROWS` rows, if they leave the feature buffer about as
    it is. Ranks that share a buffer take turns batch by batch, what is known ahead is known by
    batch, and on a GPU groups were not measured."""
    shape = planner.shape
    alone = request.ahead is None and request.exchange is None
    if shape.delivers or shape.shared or not alone:
        return planner
    before = planner.plan_that_fits()
    count = min(GROUP_ROWS // max(shape.nodes, 1), request.sweep or GROUP_MAX)
    while before is not None and count > 1:
        tried = replace(planner, shape=shape.in_groups(count))
        plan = tried.plan_that_fits()
        if plan is not None and _costs_little(count, plan, before):
            return tried
        count //= 2
    return planner


def _costs_little(count: int, plan: Plan, before: Plan) -> bool:
    """Whether groups of so many batches leave the feature buffer about as large, so that several of
    them fit into it, and the memory that a second iterator needs."""
    more = (plan.host_bytes - plan.buffer_bytes) - (before.host_bytes - before.buffer_bytes)
    most = max(plan.buffer_bytes, GROUP_BYTES)
    if more > (most if plan.memory is None else GROUP_COST * plan.memory):
        return False
    return all(
        table.slots >= table.rows
        or (
            table.slots >= (1 - GROUP_COST) * was.slots
            and table.slots >= GROUPS_HELD * count * table.batch_rows_max
        )
        for table, was in zip(plan.tables, before.tables, strict=True)
    )


def holds_everything(request: PlanRequest) -> bool:
    """Whether the feature buffer holds all rows with GNNDrive's numbers of samplers and queues."""
    try:
        return with_chosen_topology(request).plan().holds_everything
    except ConfigError:
        return False


def with_drawn(request: PlanRequest, drawn: DrawnBatches) -> PlanRequest:
    """The request whose plan counts batches as large as those that were drawn.

    It counts larger ones where that takes hardly more memory in all: the most that the fanout
    allows, or the largest that was drawn and the worst neighbourhood of a seed. Small batches vary
    more than large ones, and planning again costs more than what they take.
    """
    expected = drawn.planned(request.bounds)
    worst = joined(expected, request.seed_bounds, request.bounds)
    known = replace(request, drawn=drawn, planned=expected)
    least, buffers = _least_bytes(known), 1 if request.shared else request.ranks
    affordable = least + max(HARDLY_MORE * least, HARDLY_MORE_BYTES * buffers)
    for size in (joined(expected, request.bounds, request.bounds), worst):
        larger = replace(known, planned=size)
        if _least_bytes(larger) <= affordable:
            return larger
    return known


def _least_bytes(request: PlanRequest) -> int:
    """Bytes of this host for the leanest stages and one largest batch, without the adjacency."""
    planner = planner_of(request, stage_options(request)[-1])
    shape = planner.shape
    slots = [min(each.batch_rows_max, each.rows) for each in shape.tables]
    return planner.rest_bytes() + buffers_bytes(shape, slots)


def plan_again(before: Plan, samplers: int, request: PlanRequest) -> Planner:
    """Make a planner for larger batches, whose sizes the request has; the adjacency stays where it
    is, and there are threads for so many samplers. Raises as `make_planner` does."""
    options = [
        replace(planner_of(request, stages), topology=before.topology)
        for stages in stage_options(request)
        if stages.samplers <= samplers
    ]
    return cheapest(_costs(request, options)) or _checked(options[-1], request, _leanest)


def without_plan(refused: str) -> str:
    """The sentence of a refusal, such as that of `refusal`, without the plan below it."""
    return refused.splitlines()[0].removesuffix(_BEFORE_PLAN)


def refusal(
    request: Any, leanest: Callable[[Any], Plan | None], error: ConfigError, remedies: Remedies,
    smaller: Callable[[], str] = str,
) -> ConfigError:  # fmt: skip
    """The error for a request whose `memory` is too little.

    It names the item that takes most; which of the `remedies` makes the plan fit, or else what
    `smaller` says; and the least memory for which `leanest` makes a plan, also with
    less staging. If no memory works it is `error`.
    """

    def with_memory(nbytes: int) -> Plan | None:
        return leanest(replace(request, memory=nbytes))

    def least(request: Any) -> int:
        return least_where(lambda tried: leanest(replace(request, memory=tried)) is not None)

    try:
        named = least_text(needed := least(request))
    except ConfigError:
        return error
    plan = with_memory(parse_size(named, "memory"))
    assert plan is not None
    most = max(plan.lines, key=lambda item: item.host_bytes)
    found = remedy(plan, remedies, lambda change: leanest(change(request)) is not None)
    instead = f"give {found}" if found else smaller()
    ways = [instead] if instead else []
    for given, change in remedies.get("io_depth", ()):
        if given["io_depth"] != SHORT_DEPTH or found == said(given):
            continue
        if (less := least(change(request))) <= PAYS * needed:
            ways.append(f'give memory="{least_text(less)}" with {said(given)}')
    ways.append(f'give at least memory="{named}"')
    return ConfigError(
        f"memory={format_size(request.memory, plan.host_bytes)} is too little for this loader, "
        f"which needs {format_size(plan.host_bytes, request.memory)}; most of it, "
        f'{format_size(most.host_bytes)}, is the item "{most.what}": '
        f"{', or '.join(ways)}{_BEFORE_PLAN}\n{replace(plan, levels=())}"
    )


def fitting(
    request: PlanRequest, make: Callable[[PlanRequest], Planner], smaller: Callable[[], str] = str
) -> Planner:
    """The planner that `make` makes of a request. ConfigError if its plan does not fit into
    `memory=`; the message names the least that works. For `smaller` see `refusal`."""
    return _checked(make(request), request, lambda tried: make(tried).plan_that_fits(), smaller)


def _checked(
    planner: Planner, request: PlanRequest, leanest: Callable[[PlanRequest], Plan | None],
    smaller: Callable[[], str] = str,
) -> Planner:  # fmt: skip
    """The planner, if there is no `memory=` that its plan does not fit into; see `fitting`."""
    if request.memory is None:
        return planner
    try:
        planner.plan()
    except ConfigError as error:
        raise refusal(request, leanest, error, remedies_of(request), smaller) from None
    return planner


def least_where(works: Callable[[int], bool]) -> int:
    """The least `memory=` in bytes that works, but for a small part of it; ConfigError: none."""
    low, high = 0, 1 << 20
    while not works(high):
        low, high = high, 2 * high
        if high > MEMORY_MAX:
            raise ConfigError("no memory= works")
    while high - low > max(low >> 14, 1):
        middle = (low + high) // 2
        if works(middle):
            high = middle
        else:
            low = middle
    return high


def _leanest(request: PlanRequest) -> Plan | None:
    """A plan with the fewest samplers and queued batches; None: the budget is too small."""
    return first_plan(_planners(request, stage_options(request)[-1]))


def first_plan(planners: Iterable[Planner]) -> Plan | None:
    """The first plan that fits; None: none does."""
    return next(filter(None, (each.plan_that_fits() for each in planners)), None)


# ---- the candidates


def _choose(request: PlanRequest) -> Planner | None:
    """The planner whose batches cost least; None: no plan fits the budget."""
    options = (_planners(request, stages) for stages in stage_options(request))
    costs = _costs(request, chain.from_iterable(options))
    best = cheapest(costs)
    if best is None or request.drawn is None or request.topologies.asked:
        return best
    least: dict[str, float] = {}
    for cost, planner in costs:
        least[planner.topology.name] = min(cost, least.get(planner.topology.name, cost))
    own = least.pop(best.topology.name)
    if not least:
        return best
    others = " and ".join(
        f"{seconds / own:.2g} times as much with {name}" for name, seconds in least.items()
    )
    why = f"because a batch costs about {others}"
    chosen = best.topology.name, best.topology.nbytes
    for planner in _planners(request, best.stages, why):
        if (planner.topology.name, planner.topology.nbytes) == chosen:
            return planner
    return best


def _costs(request: PlanRequest, options: Iterable[Planner]) -> list[tuple[float, Planner]]:
    """The planners whose plans fit the budget, each with what a batch costs."""
    plans = ((planner, planner.plan_that_fits()) for planner in options)
    return [(_cost(request, planner, plan), planner) for planner, plan in plans if plan is not None]


def cheapest(costs: Sequence[tuple[float, Planner]]) -> Planner | None:
    """The first planner whose batches cost about the least; None: there is none."""
    least = min((cost for cost, _ in costs), default=0.0)
    about = [planner for cost, planner in costs if cost <= ABOUT * least]
    return next((each for each in about if not each.topology.has_ring), next(iter(about), None))


def _cost(request: PlanRequest, planner: Planner, plan: Plan) -> float:
    """What a step costs. Without drawn batches, nothing is known but how many largest batches the
    buffer holds: plans with one and a half of them are equal, and with less each is worse."""
    if request.drawn is None:
        held = [each.slots / each.batch_rows_max for each in plan.tables
                if each.batch_rows_max and each.slots < each.rows]  # fmt: skip
        return BUFFER_BATCHES / min([*held, BUFFER_BATCHES])
    return combined(step_seconds(plan, loading_of(request, planner, request.drawn)))[0]


def loading_of(
    request: PlanRequest, planner: Planner, drawn: DrawnBatches, pace: float = 1.0
) -> Loading:
    """What a step with a planner's stages costs by."""
    return Loading(
        drawn, request.topologies.sizes, request.disk, planner.stages, request.sweep,
        planner.shape.looks_ahead, pace, planner.attributes,
    )  # fmt: skip


def _planners(
    request: PlanRequest, stages: StageCounts, why: str | None = None
) -> Iterator[Planner]:
    """The planners with each topology to consider, the preferred first; see `candidates`."""
    planner = planner_of(request, stages)
    if request.topologies.asked or request.drawn is None:
        yield replace(planner, topology=request.topologies.choose(planner))
        if request.topologies.asked:
            return
    for choice in request.topologies.candidates(planner, why):
        yield replace(planner, topology=choice)


def with_chosen_topology(request: PlanRequest) -> Planner:
    """The planner with the first topology that suits, and the `default_stages`."""
    planner = planner_of(request, default_stages(request))
    return replace(planner, topology=request.topologies.choose(planner))
