"""`Topologies`: where a loader's adjacency may live; asks each how much memory that takes.

The strategy names topologies in the order of preference. Each says (`Topology.plan`) whether it
suits the memory. Nothing is read, and none is named here: a new one is a file in
`sampling/topologies/`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from gnndrive.buffer.items import MAPPING_BYTES, buffers_bytes
from gnndrive.common.errors import ConfigError
from gnndrive.common.memory import size_or_none
from gnndrive.common.plugins import find, names
from gnndrive.common.records import TopologyChoice
from gnndrive.plan.plan import Planner, default_bytes
from gnndrive.plan.slots import split_slots
from gnndrive.sampling.topologies.base import GraphSize, Topology, TopologyQuestion

ROOM_BATCHES = 1.0  # largest batches beside which the adjacency in memory is considered


@dataclass(frozen=True, slots=True)
class Topologies:
    """The topologies that a loader may have. All methods take a planner without a topology.

    Attributes:
        plugins: by name or as classes, in the order of preference.
        asked: whether the user named the topology, which is the only one then.
        neighbour_cache: of a topology on disk, in bytes or as text; None: the topology decides.
        needs_indices: why the indices must be in memory or memory-mapped; None: they need not be.
    """

    plugins: tuple[Any, ...]
    sizes: Sequence[GraphSize]
    asked: bool = False
    neighbour_cache: str | int | None = None
    needs_indices: str | None = None

    def choose(self, planner: Planner) -> TopologyChoice:
        """Choose the first that suits the memory, else the last, and say why. ConfigError if there
        is no such topology, or the one that the user named cannot work."""
        kinds: list[type[Topology]] = [find("topologies", each) for each in self.plugins]
        if self.asked:
            self._check_asked(kinds[0])
        question = self.question(planner)
        usable = [kind for kind in kinds if self.needs_indices is None or kind.has_indices]
        choices = (kind.plan(for_rank(question, kind, planner)) for kind in usable)
        choice = next(filter(None, choices), None)
        if choice is None and usable:  # none suits: ask the last one as if the user had named it
            kind = usable[-1]
            choice = kind.plan(replace(for_rank(question, kind, planner), asked=True))
        if choice is None:
            raise ConfigError(
                f"none of the topologies {', '.join(kind.name for kind in kinds)} can be used: "
                f"{self.needs_indices}; name another with topology=; there are: "
                f"{', '.join(names('topologies'))}"
            )
        return choice

    def candidates(self, planner: Planner, why: str | None = None) -> Iterator[TopologyChoice]:
        """The topologies to consider with a budget, the preferred one first. One that would leave
        the adjacency to the page cache is considered only if there is no other: nothing counts it,
        and within a limit it keeps neither adjacency nor features."""
        question = self.question(planner)
        room, found = question.room, False
        question = replace(question, why=why, room=lambda batches: room(min(batches, ROOM_BATCHES)))
        for name in self.plugins:
            kind: type[Topology] = find("topologies", name)
            if self.needs_indices is not None and not kind.has_indices:
                continue
            own = for_rank(question, kind, planner)
            choice = kind.plan(own)
            if choice is None or (found and not choice.nbytes):
                continue
            found = True
            yield choice
            if choice.cache_bytes and question.cache is None:
                without = kind.plan(replace(own, cache=0))
                if without is not None:
                    yield without

    def question(self, planner: Planner) -> TopologyQuestion:
        """The question that topologies answer, about the memory of all ranks of this host."""
        shape, budget, cache = planner.shape, planner.budget, self.neighbour_cache
        given, why = budget.memory, None
        if given is None:
            given = default_bytes(shape.ranks, budget.served)
        if shape.apart:
            why = "because the feature buffer is not there while batches are sampled"
        return TopologyQuestion(
            self.sizes, shape.samplers, partial(_room, planner), given, budget.memory is not None,
            None if cache is None else size_or_none(cache, "neighbour_cache"),
            MAPPING_BYTES * shape.rows, self.asked, why, shape.apart,
        )  # fmt: skip

    def _check_asked(self, kind: type[Topology]) -> None:
        if self.needs_indices is not None and not kind.has_indices:
            others = [name for name in names("topologies") if find("topologies", name).has_indices]
            raise ConfigError(
                f"topology={kind.name!r} cannot be used, because {self.needs_indices}: give "
                f"topology={' or '.join(map(repr, others))}"
            )
        if self.neighbour_cache is not None and not kind.keeps_lists:
            others = [name for name in names("topologies") if find("topologies", name).keeps_lists]
            raise ConfigError(
                f"neighbour_cache={self.neighbour_cache!r} is for a topology that reads the "
                f"adjacency from disk, such as topology={others[0]!r}; topology={kind.name!r} does "
                "not use it: leave it out"
            )


def for_rank(
    question: TopologyQuestion, kind: type[Topology], planner: Planner
) -> TopologyQuestion:
    """The question to a topology of which each rank of this host has its own. Indices that ranks
    share are in memory once; if a service has the graph, there is as much room as it has."""
    shape, room, spare = planner.shape, question.room, question.spare
    ranks, served = shape.ranks, planner.budget.served
    if served is not None and not shape.graphs and kind.shares_indices:
        in_service = served.graph_room(kind.name, question.given)
        why = question.why or f"because the service has {question.indices} for all loaders"
        return replace(question, room=lambda batches: in_service, why=why)
    if ranks == 1 or (shape.shared and kind.has_indices):
        return question
    return replace(
        question, room=lambda batches: room(batches) // ranks, given=question.given // ranks,
        spare=spare * shape.buffers // ranks,
    )  # fmt: skip


def _room(planner: Planner, batches: float) -> int:
    """See `TopologyQuestion.room`: what feature buffers of so many batches and all else leave."""
    shape, budget = planner.shape, planner.budget
    if budget.memory is None:
        return default_bytes(shape.ranks, budget.served)
    left = budget.memory - planner.rest_bytes()
    if shape.apart:  # the feature buffer is not there while batches are sampled
        return left
    slots = [min(int(batches * table.batch_rows_max), table.rows) for table in shape.tables]
    if budget.buffer is not None:
        row_bytes = [table.row_bytes for table in shape.tables]
        slots = split_slots(budget.buffer // shape.buffers, shape.tables, row_bytes)
    return left - buffers_bytes(shape, slots)
