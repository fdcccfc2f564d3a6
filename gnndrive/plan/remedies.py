"""What makes a loader need less memory: the remedies that the error for too little `memory=` names.

Each is tried before it is named: the plan is made with it, and has to fit. An item says which
argument makes it smaller (`Item.argument`), so what takes most is made smaller first.
"""

from __future__ import annotations

from collections import ChainMap, Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial, reduce
from itertools import chain
from typing import Any, TypeAlias

from gnndrive.common.items import BATCH_SIZE
from gnndrive.common.memory import exact_text
from gnndrive.common.plugins import names
from gnndrive.common.records import NodeKey
from gnndrive.plan.drawn import of_seeds
from gnndrive.plan.plan import Plan
from gnndrive.plan.request import PlanRequest
from gnndrive.sampling.samplers.base import Bounds

Change: TypeAlias = Callable[[Any], Any]
"""Makes of a request the one of a loader with another argument."""
Remedies: TypeAlias = Mapping[str, Sequence[tuple[Mapping[str, Any], Change]]]
"""By `Item.argument`: arguments of a loader (None: left out) and their change, the least first."""

STAGES = ("samplers", "extracting_queue", "training_queue")
OF_TUNING = ("io_depth", "remote_cache", "topology")
"""Arguments that are given as those of `Tuning`."""
NEAR = 4  # tries of one argument that come before changes of all


def remedy(plan: Plan, remedies: Remedies, works: Callable[[Change], bool]) -> str:
    """What to give so that the plan of a loader fits; "": nothing of the remedies helps.

    It is one argument if one of its first `NEAR` tries is enough, as little changed as is enough;
    of several such, that of the items which take most. Else it is all, or one changed further.

    Args:
        plan: the one with the least memory that works.
        works: whether the plan fits after a change.
    """
    nbytes: Counter[str] = Counter()
    for item in plan.lines:
        nbytes[item.argument] += item.host_bytes
    found = [remedies[name] for name, _ in nbytes.most_common() if remedies.get(name)]
    near = [tries[at] for at in range(NEAR) for tries in found if at < len(tries)]
    far = [tries[NEAR:] for tries in found]
    for given, change in chain(near, _together(found), *far):
        if works(change):
            return said(given)
    return ""


def _together(
    found: Sequence[Sequence[tuple[Mapping[str, Any], Change]]],
) -> Iterator[tuple[Mapping[str, Any], Change]]:
    """Changes of all arguments at once, each further than the one before."""
    for at in range(max(map(len, found), default=0)):
        parts = [tries[min(at, len(tries) - 1)] for tries in found]
        changes = [change for _, change in parts]
        yield ChainMap(*(dict(given) for given, _ in parts)), partial(_all, changes)


def _all(changes: Iterable[Change], request: Any) -> Any:
    return reduce(lambda changed, change: change(changed), changes, request)


def said(given: Mapping[str, Any]) -> str:
    """Arguments as the user gives them."""
    tuning = ", ".join(f"{name}={given[name]!r}" for name in OF_TUNING if name in given)
    parts = [f"tuning=Tuning({tuning})"] if tuning else []
    for name, value in given.items():
        if name not in OF_TUNING:
            parts.append(f"no {name}=" if value is None else f"{name}={value!r}")
    return " and ".join(parts)


def halves(count: int) -> Iterator[int]:
    """The powers of two below a number, the largest first."""
    while count > 1:
        count = 1 << (count - 1).bit_length() - 1
        yield count


def remedies_of(request: PlanRequest) -> Remedies:
    """The arguments of a loader that make it need less memory."""
    sizes = halves(request.batch_size or 1)
    return {
        "io_depth": [
            ({"io_depth": count}, partial(_with_depth, count=count))
            for count in halves(request.io_depth)
        ],
        BATCH_SIZE: [
            *_stages(request),
            *(({"batch_size": count}, partial(_with_batch, count=count)) for count in sizes),
            *_one_neighbor(request),
        ],
        "topology": [
            ({"topology": name}, partial(_with_topology, name=name))
            for name in names("topologies")
            if request.topologies.asked and request.topologies.plugins != (name,)
        ],
        "buffer": list(_without_buffer(request)),
        "remote_cache": list(_with_less_cache(request)),
    }


def _with_depth(request: PlanRequest, count: int) -> PlanRequest:
    nbytes = request.staging_bytes // request.io_depth * count
    return replace(request, staging_bytes=nbytes, io_depth=count)


def _with_batch(request: PlanRequest, count: int) -> PlanRequest:
    """With fewer seeds: the most that they can sample is known, without drawing batches again."""
    bounds, planned = (
        of_seeds(request.seed_bounds, count, most) for most in (request.bounds, request.planned)
    )
    return replace(request, bounds=bounds, planned=planned)


def _with_topology(request: PlanRequest, name: str) -> PlanRequest:
    topologies = replace(request.topologies, plugins=(name,))
    return replace(request, topologies=topologies)


def _without_buffer(request: PlanRequest) -> Iterator[tuple[Mapping[str, Any], Change]]:
    if request.buffer is not None:
        yield {"buffer": None}, partial(replace, buffer=None)


def _with_less_cache(request: PlanRequest) -> Iterator[tuple[Mapping[str, Any], Change]]:
    exchange = request.exchange
    if exchange is not None and exchange.kept_bytes:
        for nbytes in (exchange.kept_bytes // 2, exchange.kept_bytes // 4, 0):
            less = replace(exchange, kept_bytes=nbytes)
            yield {"remote_cache": exact_text(nbytes)}, partial(replace, exchange=less)


def _stages(request: PlanRequest) -> Iterator[tuple[Mapping[str, Any], Change]]:
    """To leave out the numbers of samplers and queued batches that the user has given."""
    given = dict.fromkeys(name for name in STAGES if getattr(request, name) is not None)
    if given:
        yield given, partial(replace, **given)


def _one_neighbor(request: PlanRequest) -> Iterator[tuple[Mapping[str, Any], Change]]:
    """One hop of one neighbour, for plain samples: each seed has two nodes and an edge."""
    count = request.batch_size
    if count is not None and request.subgraphs is None:
        nodes: dict[NodeKey, int] = {None: 2 * count}
        one = of_seeds(Bounds(nodes, {None: count}, nodes, 2 * count), 1, request.planned)
        yield {"num_neighbors": [1]}, partial(replace, planned=one)
