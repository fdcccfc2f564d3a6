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
calculates it with integers alone, from weights that `_quarter_circle` calculates with sums and
products alone, so that all machines and compilers draw the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

from gnndrive.common.errors import ConfigError

NEIGHBOR, LABOR = "neighbor", "labor"
WEIGHT_ONE = 1 << 30  # native/sampling.h: GD_WEIGHT_ONE
_OFFER_BYTES = 24  # native/sampler.h: gd_offer
_WANTED_BYTES = 12 << 17  # native/labor.c: the indices that are wanted at once
_QUARTER = 1.5707963267948966  # pi / 2
_TERMS = 14  # of the series, beyond which none changes a double


@dataclass(frozen=True, slots=True)
class SharedNumbers:
    """What the nodes' numbers of a batch are: the C struct `gd_shared`.

    Attributes:
        key, next_key: 64 bits each.
        weight, next_weight: whole numbers from 0 to `WEIGHT_ONE`.
    """

    key: int
    next_key: int = 0
    weight: int = WEIGHT_ONE
    next_weight: int = 0


@dataclass(frozen=True, slots=True)
class Labor:
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

    Raises:
        ConfigError: it is none of them.
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

    def numbers(self, key: int) -> SharedNumbers | None:
        """The numbers of a batch; None: targets share none.

        Args:
            key: the batch's `BatchKey`; another number is the key of a batch that depends on no
                other.
        """
        if not self.shares:
            return None
        if self.batch_dependency == 1 or not isinstance(key, BatchKey):
            return SharedNumbers(int(key) % (1 << 64))
        group, step = divmod(key.batch, self.batch_dependency)
        now, later = (int(BatchKey(key.epoch, each)) for each in (group, group + 1))
        return SharedNumbers(now, later, *_quarter_circle(step / self.batch_dependency))

    def scratch_bytes(self, num_neighbors: list[int], edges: int) -> int:
        """The most bytes of a sampling thread's scratch that choosing neighbours takes.

        Args:
            num_neighbors: the fanout for each hop.
            edges: of the graph.
        """
        if not self.shares:
            return 0
        return _WANTED_BYTES + 2 * _OFFER_BYTES * min(max(num_neighbors, default=0), edges)


DRAWN_APART = Sampling()


def sampling_of(given: Any) -> Sampling:
    """What `sampling=` means: a name, a `Labor`, or a text such as "labor:dependency=64".

    Raises:
        ConfigError: it is none of these.
    """
    if isinstance(given, Labor):
        return Sampling(LABOR, given.dependency)
    name, _, text = given.partition(":") if isinstance(given, str) else (given, "", "")
    argument, _, number = text.partition("=")
    colon = isinstance(given, str) and ":" in given
    if colon and (name, argument, number.isdecimal()) != (LABOR, "dependency", True):
        raise ConfigError(f"sampling={given!r}: write labor:dependency=NUMBER")
    return sampling_of(Labor(int(number))) if text else Sampling(name)


"""Neighbour sampling: each target draws for itself."""


def _quarter_circle(share: float) -> tuple[int, int]:
    """cos and sin of `share` of a right angle, 0 <= share < 1, in units of 1 / `WEIGHT_ONE`.

    A machine's own cos and sin may differ in the last bit; sums and products do not.
    """
    angle, term, sums = share * _QUARTER, 1.0, [0.0, 0.0]
    for power in range(2 * _TERMS):
        sums[power % 2] += term if power % 4 < 2 else -term
        term *= angle / (power + 1)
    cos, sin = (round(each * WEIGHT_ONE) for each in sums)
    return min(max(cos, 0), WEIGHT_ONE), min(max(sin, 0), WEIGHT_ONE)


_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15


class BatchKey(int):
    """64 bits that identify (seed, epoch, batch), as a number, and what they were made from.

    Attributes:
        epoch: 64 bits that identify (seed, epoch).
        batch: the batch's number in its epoch.
    """

    epoch: int
    batch: int

    def __new__(cls, epoch: int, batch: int) -> Self:
        """Make the key of a batch."""
        self = super().__new__(cls, _mixed(epoch, batch))
        self.epoch, self.batch = epoch, batch
        return self

    def __getnewargs__(self) -> tuple[int, int]:  # type: ignore[override]
        """What copies and pickles are made from."""
        return self.epoch, self.batch


def batch_key(seed: int, epoch: int, batch: int) -> BatchKey:
    """Return the key of a batch, for `Sampler.sample`.

    Each number is added to the state, which SplitMix64's finalizer then mixes. The finalizer is
    bijective, so no two batches of one seed and epoch share a key; a change of one number changes
    about half of the key's bits.
    """
    return BatchKey(_mixed(_mixed(0, seed), epoch), batch)


def _mixed(state: int, part: int) -> int:
    state = (state + part + _GOLDEN) & _MASK
    state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & _MASK
    return state ^ (state >> 31)
