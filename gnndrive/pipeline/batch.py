"""A batch between two stages: `Sampled`, then `Extracted`, then `Gathered`; or `Failed`.

The stages make these records and pass them on in channels (`channel.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from gnndrive.common.records import Int64Array, Sample, Seeds, Subgraph
from gnndrive.pipeline.batch_times import BatchTimes
from gnndrive.pipeline.leases import BatchLease


@dataclass(frozen=True, slots=True)
class Sampled:
    """An item of the extracting queue: a sample whose rows are yet to be extracted.

    Attributes:
        seeds: the batch's index and seeds.
        sample: the sampled subgraph.
        rows: table name → ids of the rows that the batch needs, int64 [n].
        times: when it went from stage to stage; None: it is not recorded.
    """

    seeds: Seeds
    sample: Sample | Subgraph
    rows: Mapping[str, Int64Array]
    times: BatchTimes | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Extracted(Sampled):
    """An item of the training queue: every row is in the feature buffer and valid.

    Attributes:
        lease: holds the rows' slots until the release stage releases it.
    """

    lease: BatchLease


@dataclass(frozen=True, slots=True)
class Gathered:
    """An item of the releasing queue: a batch whose rows are being copied out of their slots.

    Attributes:
        index: the batch's index.
        lease: to be released when they are copied.
    """

    index: int
    lease: BatchLease


@dataclass(frozen=True, slots=True)
class Failed:
    """A batch that could not be made. Both queues pass it on in its place, so that the user gets
    the error after all earlier batches (rule 14).

    Attributes:
        index: the batch's index.
        error: raised in the user's thread.
    """

    index: int
    error: Exception
