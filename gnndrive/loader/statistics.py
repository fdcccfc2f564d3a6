"""What `NeighborLoader.stats` returns, made of the counters of a runtime's parts."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Mapping, Sequence

from gnndrive.common.errors import ClosedError
from gnndrive.common.loop_thread import LoopThread
from gnndrive.disk.engines.base import Engine
from gnndrive.loader.buffers import Buffers
from gnndrive.pipeline.counters import Counters
from gnndrive.pipeline.epoch import Epoch
from gnndrive.plan.plan import Plan
from gnndrive.sampling.graph import Adjacency


def stage_stats(epochs: Sequence[Epoch]) -> dict[str, int]:
    """How many batches of the running epochs are in each stage now."""
    return {
        "sampling": sum(e.extracting.under_way - len(e.extracting) for e in epochs),
        "extracting": sum(e.training.under_way - len(e.training) for e in epochs),
        "training": sum(len(e.training) for e in epochs),
    }


def loader_stats(
    counters: Counters, buffers: Counter[str], topology: Mapping[str, float | str],
    stages: Mapping[str, int], plan: Plan, elapsed_s: float, facts: Mapping[str, float | str],
) -> dict[str, float | str]:  # fmt: skip
    """See `NeighborLoader.stats`.

    Args:
        counters: the stages' counters.
        buffers: those of the slot tables and of the engine that reads for them.
        topology: those of the adjacency, under the names that they have in the result.
        stages: see `stage_stats`.
        plan: the plan in use.
        elapsed_s: seconds since the start.
        facts: see `Buffers.facts`.
    """
    return {
        "batches": counters.batches,
        "rows": counters.rows,
        "edges": counters.edges,
        "rows_hit": buffers["hits"] + buffers["repeats"],
        "rows_waited": buffers["waits"],
        "rows_loaded": buffers["loads"],
        "evictions": buffers["evictions"],
        "rows_taken_back": buffers["served"],
        "requests": buffers["requests"],
        "bytes_read": buffers["bytes"],
        "bytes_wanted": counters.bytes_wanted,
        "retries": buffers["retries"],
        **topology,
        "samples": counters.samples,
        "sample_s": counters.sample_s,
        "extract_s": counters.extract_s,
        "gather_s": counters.gather_s,
        **counters.times.wait_seconds(),
        "windows": counters.windows,
        "window_load_s": counters.window_load_s,
        "window_wait_s": counters.window_wait_s,
        "elapsed_s": elapsed_s,
        **stages,
        "buffer_slots": plan.slots,
        "buffer_bytes": plan.buffer_bytes,
        **facts,
    }


def component_stats(
    loop_thread: LoopThread, buffers: Buffers, engine: Engine | None, adjacency: Adjacency
) -> tuple[Counter[str], dict[str, float | str]]:
    """The counters of the buffers and their engine, and those of the adjacency.

    Args:
        loop_thread: the runtime's, in which buffers are lent and closed.
        buffers, engine, adjacency: see `Runtime`.
    """

    def read() -> tuple[Counter[str], dict[str, float | str]]:
        counted = buffers.stats()
        if engine is not None:
            counted.update(engine.stats())
        return counted, adjacency.stats()

    async def read_in_loop() -> tuple[Counter[str], dict[str, float | str]]:
        return read()

    if not loop_thread.inside:  # a user's sampler may call this there
        with contextlib.suppress(ClosedError):
            return loop_thread.call(read_in_loop())
    return read()
