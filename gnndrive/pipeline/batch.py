"""A batch at each stage: seeds, then sampled, then extracted, or failed at its turn."""

from __future__ import annotations

from dataclasses import dataclass

from gnndrive.lease import Lease
from gnndrive.records import Sample, Seeds, Subgraph


@dataclass(frozen=True, slots=True)
class Sampled:
    """What the extracting channel carries."""

    seeds: Seeds
    sample: Sample | Subgraph


@dataclass(frozen=True, slots=True)
class Extracted:
    """What the training channel carries: every row is valid and held."""

    seeds: Seeds
    sample: Sample | Subgraph
    lease: Lease


@dataclass(frozen=True, slots=True)
class Failed:
    """A batch that could not be made; its error surfaces at its turn (rule 14)."""

    index: int
    error: Exception
