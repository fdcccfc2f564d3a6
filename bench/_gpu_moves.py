"""The two parts of bench/gpu.py that need neither disk nor graph: h2d and gather."""

from __future__ import annotations

import argparse
import itertools
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from _gpu import parse_switches

from gnndrive.buffer.devices._staged import PORTION_BYTES
from gnndrive.buffer.devices.cuda import TorchDriver
from gnndrive.common.errors import ConfigError

ROW_BYTES = (512, 3072)
TIMES = 16  # operations between two events
GATE_CYCLES = 200_000_000  # of the GPU's clock: a tenth of a second, enough to queue all operations


def sizes(rehearse: bool) -> dict[str, int]:
    """Bytes of a portion of staging, of a batch, and of the feature buffer."""
    if rehearse:
        return {"portion": 1 << 16, "batch": 1 << 16, "slots": 1 << 18}
    return {"portion": PORTION_BYTES, "batch": 400 << 20, "slots": 2 << 30}


def gpu_seconds(stream: torch.cuda.Stream, work: Callable[[], Any]) -> float:
    """Seconds that the work which `work` queues on `stream` takes, as a mean of `TIMES` calls."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    with torch.cuda.stream(stream):
        torch.cuda._sleep(GATE_CYCLES)
        start.record(stream)
        for _ in range(TIMES):
            work()
        end.record(stream)
    end.synchronize()
    return start.elapsed_time(end) / 1e3 / TIMES


def side_by_side(
    stream: torch.cuda.Stream, measured: Callable[[], Any], plain: Callable[[], Any], nbytes: int,
    runs: int,
) -> dict[str, Any]:  # fmt: skip
    """Bytes a second of both, run by run, and the ratio of `measured` to `plain`."""
    for work in (measured, plain):  # warm up: the first call allocates, pinned memory too
        gpu_seconds(stream, work)
    times = [(gpu_seconds(stream, measured), gpu_seconds(stream, plain)) for _ in range(runs)]
    return {
        "bytes": nbytes,
        "bytes_per_s": [nbytes / mine for mine, _ in times],
        "plain_bytes_per_s": [nbytes / copy for _, copy in times],
        "ratio": [copy / mine for mine, copy in times],
    }


def measure_h2d(
    driver: TorchDriver, row_bytes: int, runs: int, of: dict[str, int]
) -> dict[str, Any]:
    """Measure a scatter of a portion of staging, rows in order, and one copy of the portion."""
    count = of["portion"] // row_bytes
    slots = min(of["slots"] // row_bytes, 1 << 22)
    into = driver.allocate(slots * row_bytes).view(slots, row_bytes)
    staging = driver.pinned(count * row_bytes).reshape(count, row_bytes)
    draw = np.random.default_rng(0)
    staging[:] = draw.integers(0, 256, staging.shape, np.uint8)
    moves = driver.pinned(2 * count * 4).view(np.int32).reshape(2, count)
    moves[0], moves[1] = np.arange(count), draw.choice(slots, count, replace=False)
    stream, event = driver.scatter(into, staging, moves)
    event.synchronize()
    source = torch.from_numpy(staging)
    target = torch.empty(staging.shape, dtype=torch.uint8, device="cuda")
    return side_by_side(
        stream, lambda: driver.scatter(into, staging, moves),
        lambda: target.copy_(source, non_blocking=True), staging.nbytes, runs,
    )  # fmt: skip


def measure_gather(
    driver: TorchDriver, row_bytes: int, runs: int, of: dict[str, int]
) -> dict[str, Any]:
    count, slots = of["batch"] // row_bytes, of["slots"] // row_bytes
    rows = driver.allocate(slots * row_bytes).view(slots, row_bytes)
    with driver.computing():
        rows.zero_()
    driver.synchronize()  # gathers may have a stream of their own
    alias = np.random.default_rng(0).choice(slots, count, replace=False).astype(np.int32)
    (out, (stream, event)), source = driver.gather(rows, alias), rows[:count]
    event.synchronize()
    return side_by_side(
        stream, lambda: driver.gather(rows, alias), lambda: out.copy_(source), count * row_bytes,
        runs,
    )  # fmt: skip


MEASURE = {"h2d": measure_h2d, "gather": measure_gather}


def measure_moves(own: argparse.Namespace, found: dict[str, Any], save: Callable[[], None]) -> None:
    """Measure in each way, with each set of switches and for each row size.

    Args:
        own: the script's options.
        found: gets the results in `moves`, and in `failed` what could not be measured and why.
        save: called after each result.
    """
    of = sizes(own.rehearse)
    parts = [part for part in own.parts if part in MEASURE]
    for switches, way in itertools.product(own.switch if parts else (), own.ways):
        try:
            driver = TorchDriver(torch.device("cuda"), way, parse_switches(switches))
        except ConfigError as error:
            print(f"{way}: {error}", file=sys.stderr)
            found["unavailable"].append(f"{way}: {error}")
            save()
            continue
        except Exception as error:  # such as that of a GPU after an illegal access
            found["failed"].append(f"set-up, {way}, {switches}: {error}")
            save()
            continue
        for part, row_bytes in itertools.product(parts, ROW_BYTES):
            head = {"part": part, "way": way, "row_bytes": row_bytes, "switches": switches}
            with noted(found, f"{part}, {way}, {row_bytes} B, {switches}"):
                result = MEASURE[part](driver, row_bytes, own.runs, of)
                driver.synchronize()
                found["moves"].append(head | result)
            save()
        with noted(found, f"end, {way}, {switches}"):
            driver.close()
            torch.cuda.empty_cache()  # the next driver has streams, and so blocks, of its own
        save()


@contextmanager
def noted(found: dict[str, Any], what: str) -> Iterator[None]:
    """A context whose error is noted in `failed`; CUDA raises RuntimeError, CuPy its own."""
    try:
        yield
    except Exception as error:
        found["failed"].append(f"{what}: {error}")
