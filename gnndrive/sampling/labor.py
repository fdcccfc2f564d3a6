"""`Sampling`: how neighbours are drawn, `sampling=` of a loader; `Labor`: the same with arguments.

With neighbour sampling each target draws its neighbours for itself. With LABOR-0 (Balin and
Catalyurek, "Layer-Neighbor Sampling", NeurIPS 2023) each node has one random number in a batch, and
each target takes those of its neighbours whose numbers are smallest. Each neighbour of a node is
still taken with probability fanout / degree, but targets with common neighbours take the same ones,
so a batch has fewer distinct nodes. As in GraphBolt's sequential Poisson form each target takes
exactly min(fanout, degree) neighbours, so a batch is never larger than with neighbour sampling. A
node has the same number in all hops, because fewer distinct nodes come of that.

In dependent batches (GraphBolt's `batch_dependency`) the numbers move from batch to batch, so that
consecutive batches have more nodes in common, and a feature buffer serves more of them. In batch b
of an epoch the number of a node is cos(t) * n + sin(t) * m with t = (b mod k) / k * pi / 2, where n
is the node's number in group b // k of k batches, and m that in the next group. native/labor.c
calculates it with integers alone, from weights that `samplers/_uniform.py` calculates with sums and
products alone, so that all machines and compilers draw the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from gnndrive.common.errors import ConfigError
from gnndrive.common.names import Arguments

NEIGHBOR, LABOR = "neighbor", "labor"
_OFFER_BYTES = 24  # native/sampler.h: gd_offer
_WANTED_BYTES = 12 << 17  # native/labor.c: the indices that are wanted at once


@dataclass(frozen=True, slots=True)
class Labor(Arguments):
    """LABOR-0 sampling: nodes with common neighbours take the same ones.

    Args:
        dependency: over how many batches the random numbers change, as GraphBolt's
            `batch_dependency`: the more, the more nodes consecutive batches have in common. 1: each
            batch has its own.

    Raises:
        ConfigError: it is no whole number of at least 1.
    """

    dependency: int = 1

    def __post_init__(self) -> None:
        if type(self.dependency) is not int or self.dependency < 1:
            raise ConfigError(
                f"Labor(dependency={self.dependency!r}): give a whole number of at least 1"
            )


@dataclass(frozen=True, slots=True)
class Sampling:
    """How neighbours are drawn.

    Attributes:
        name: "neighbor" or "labor".
        batch_dependency: over how many batches the numbers of "labor" change; 1: each batch has
            its own.
    """

    name: str = NEIGHBOR
    batch_dependency: int = 1

    def __post_init__(self) -> None:
        if self.name not in (NEIGHBOR, LABOR):
            raise ConfigError(
                f"sampling={self.name!r}: give {NEIGHBOR!r}, {LABOR!r} or gnndrive.Labor(…)"
            )

    @property
    def shares(self) -> bool:
        """Whether the targets of a batch share the numbers of the nodes."""
        return self.name == LABOR

    @property
    def identity(self) -> str:
        """A text that identifies how neighbours are drawn; "" for neighbour sampling."""
        if not self.shares:
            return ""
        return f"{LABOR}, batch_dependency {self.batch_dependency}"

    def check(self, replace: bool) -> None:
        """Raise ConfigError if neighbours are to be shared and drawn with replacement."""
        if self.shares and replace:
            raise ConfigError(
                f"sampling={self.name!r} takes each neighbour at most once: leave replace=True "
                f"out, or give sampling={NEIGHBOR!r}"
            )

    def scratch_bytes(self, num_neighbors: list[int], edges: int) -> int:
        """The most bytes of a sampling thread's scratch that choosing neighbours takes, in a graph
        of so many edges."""
        if not self.shares:
            return 0
        return _WANTED_BYTES + 2 * _OFFER_BYTES * min(max(num_neighbors, default=0), edges)


DRAWN_APART = Sampling()
"""Neighbour sampling: each target draws for itself."""


def sampling_of(given: Any) -> Sampling:
    """What `sampling=` means: a name, a `Labor`, or a text such as "labor:dependency=64"."""
    if isinstance(given, Labor):
        return Sampling(LABOR, given.dependency)
    name, _, text = given.partition(":") if isinstance(given, str) else (given, "", "")
    argument, _, number = text.partition("=")
    colon = isinstance(given, str) and ":" in given
    if colon and (name, argument, number.isdecimal()) != (LABOR, "dependency", True):
        raise ConfigError(f"sampling={given!r}: write labor:dependency=NUMBER")
    return sampling_of(Labor(int(number))) if text else Sampling(name)
