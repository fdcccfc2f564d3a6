"""A batch at each stage: seeds, then sampled, then extracted, or failed at its turn."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from gnndrive.buffer.lease import Lease
from gnndrive.common.records import Int64Array, Sample, Seeds, Subgraph


@dataclass(frozen=True, slots=True)
class Sampled:
    """What the extracting channel carries; `rows` are those that it needs of each table, int64
    [n]."""

    seeds: Seeds
    sample: Sample | Subgraph
    rows: Mapping[str, Int64Array]


@dataclass(frozen=True, slots=True)
class Extracted:
    """What the training channel carries: every row is valid and held."""

    seeds: Seeds
    sample: Sample | Subgraph
    rows: Mapping[str, Int64Array]
    lease: Lease


@dataclass(frozen=True, slots=True)
class Failed:
    """A batch that could not be made; its error surfaces at its turn (rule 14)."""

    index: int
    error: Exception
