"""Topologies that each break the contract in one place: the conformance test finds it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest

from gnndrive.common.records import TopologyChoice
from gnndrive.sampling.topologies._csc import make_csc
from gnndrive.sampling.topologies.base import TopologyContext, TopologyQuestion
from tests.sampling.topologies import test_conformance as conformance
from tests.second import Widened
from tests.second.topology import WIDTH

from .conftest import Graph, Opened


class Turned(Widened):
    """Has each list the other way round, so that positions name other edges."""

    def __init__(self, context: TopologyContext) -> None:
        super().__init__(context)
        self._indices[:] = self._indices[::-1].copy()


class Mending(Widened):
    """Takes neighbours that are none for others."""

    def __init__(self, context: TopologyContext) -> None:
        super().__init__(context)
        self._indices %= max(self.num_nodes, 1)


class Smoothing(Widened):
    """Takes index pointers that cannot be for others."""

    def __init__(self, context: TopologyContext) -> None:
        super().__init__(context)
        np.maximum.accumulate(np.clip(self._indptr, 0, self.num_edges), out=self._indptr)


class Trusting(Widened):
    """Does not look where index pointers begin and end."""

    def __init__(self, context: TopologyContext) -> None:
        self.path = context.file.path
        self.num_nodes, self.num_edges = max(len(context.indptr) - 1, 0), context.file.row_count
        self._indptr = np.zeros(self.num_nodes + 1, np.int64)
        self._indices = np.zeros(self.num_edges, np.int64)
        self.nbytes = self._indices.nbytes
        self._csc = make_csc(self._indptr, self.num_edges, self._indices, WIDTH)


class Modest(Widened):
    """Plans less memory than it takes."""

    @classmethod
    def plan(cls, question: TopologyQuestion) -> TopologyChoice | None:
        choice = super().plan(question)
        return None if choice is None else replace(choice, nbytes=choice.nbytes // 2)


POWER_LAW = {"degrees": conformance.GRAPHS["a power law"], "dtype": np.int32}


@pytest.mark.parametrize(
    ("topology", "check"),
    [
        (Turned, partial(conformance.test_samples_equal_those_from_memory, **POWER_LAW)),
        (Mending, partial(conformance.test_a_neighbour_out_of_range, dtype=np.int32, bad=-1)),
        (Smoothing, partial(conformance.test_damaged_index_pointers, bad=-1)),
    ],
)
def test_a_broken_topology_is_found(
    topology: type[Widened], check: Callable[..., None], opened: Callable[..., Opened], on_disk: Any
) -> None:
    def way(graph: Graph) -> Opened:
        return opened(graph, topology)

    with pytest.raises((AssertionError, pytest.fail.Exception)):
        check(way, on_disk)


def test_one_that_trusts_the_ends_is_found(opened: Callable[..., Opened], on_disk: Any) -> None:
    with pytest.raises(pytest.fail.Exception, match="DID NOT RAISE"):
        conformance.test_index_pointers_with_wrong_ends_are_refused(
            opened, on_disk, Trusting, [0, 3]
        )


def test_one_that_plans_too_little_is_found(opened: Callable[..., Opened], on_disk: Any) -> None:
    with pytest.raises(AssertionError, match="<="):
        conformance.test_a_topology_holds_as_much_memory_as_planned(opened, on_disk, Modest, 0)
