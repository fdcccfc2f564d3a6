"""The cost of the way to the GPU: rows into the feature buffer, rows out of it, and whole epochs.

usage: python bench/gpu.py STORE [--runs 3] [--batches 20] [--device-memory 4GB] [--json FILE]
       python bench/gpu.py --generate 20 --folder DIR [--host-budget 6GiB] [the same options]
       python bench/gpu.py --parts h2d,gather      (neither store nor disk)
       python bench/gpu.py … --switch blocks=128 --switch loads=4      (see MoveOptions)

Three parts:
h2d     rows from pinned staging into random slots of the feature buffer, in each of the ways,
        compared with a plain cudaMemcpyAsync of the same bytes from the same memory
gather  rows of random slots into a new tensor, including the copy of the slot numbers to the GPU,
        compared with a copy of the same bytes within the GPU's memory
epoch   seconds a batch with a training step on each, a GraphSAGE of 64 hidden units, compared with
        pinned      PyG's way: threads sample and gather from the memory-mapped table into pinned
                    memory, ahead of training; a batch is copied to the GPU in one piece
        row-copies  the same, with one cudaMemcpyAsync a row

h2d and gather are the GPU's time between two events; all work is queued before the first starts.
Bytes are those of the rows, counted once. Loaders run in separate processes, in turn, with cold
caches, on the same batches, which a checksum proves; time counts from the end of the set-up to the
end of the last step. `idle` is the share of that time in which no step ran on the GPU: 1 less the
steps' seconds, each between two events, over the epoch's seconds. A gather of gnndrive that runs
during a step counts as part of the step.

Figures are the median of the runs and their range; a ratio is of two figures of one run.

`--generate N` first makes a graph of N million nodes in DIR (593 bytes of disk a node), unless it
exists. `--host-budget` limits each loader's memory, page cache and CUDA's own libraries included,
with cgroup v1 as root. Otherwise the output says that there was no limit, and the page cache helps
the two loaders that map the store. bench/epoch.py's options are accepted too (`--batch-size`,
`--fanout`, `--topology`, …). Without a GPU the script says so and exits with 2.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import _script
import epoch
import numpy as np
import scale
import torch
from _gpu_loaders import RUNS
from _limits import Cgroup, limited

from gnndrive.buffer.devices._kernels import WAYS
from gnndrive.buffer.devices._options import MoveOptions
from gnndrive.buffer.devices._staged import PORTION_BYTES
from gnndrive.buffer.devices.cuda import TorchDriver
from gnndrive.cli.report.text import peak_memory_bytes
from gnndrive.common.errors import ConfigError
from gnndrive.common.memory import parse_size

PARTS = ("h2d", "gather", "epoch")
ROW_BYTES = (512, 3072)
GATHERED_BYTES, SLOTS_BYTES = 400 << 20, 2 << 30  # of a batch; of the feature buffer
TIMES = 16  # operations between two events
GATE_CYCLES = 200_000_000  # of the GPU's clock: a tenth of a second, enough to queue all operations


# ---- the GPU's time


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


def measure_h2d(driver: TorchDriver, row_bytes: int, runs: int) -> dict[str, Any]:
    """Measure a scatter of a portion of staging, rows in order, and one copy of the portion."""
    count = PORTION_BYTES // row_bytes
    slots = min(SLOTS_BYTES // row_bytes, 1 << 22)
    into = driver.allocate(slots * row_bytes).view(slots, row_bytes)
    staging = driver.pinned(count * row_bytes).reshape(count, row_bytes)
    draw = np.random.default_rng(0)
    staging[:] = draw.integers(0, 256, staging.shape, np.uint8)
    moves = driver.pinned(2 * count * 4).view(np.int32).reshape(2, count)
    moves[0], moves[1] = np.arange(count), draw.choice(slots, count, replace=False)
    stream, event = driver.scatter(into, staging, moves)
    event.synchronize()
    source, target = torch.from_numpy(staging), torch.empty(staging.shape, dtype=torch.uint8,
                                                            device="cuda")  # fmt: skip
    return side_by_side(
        stream,
        lambda: driver.scatter(into, staging, moves),
        lambda: target.copy_(source, non_blocking=True),
        staging.nbytes,
        runs,
    )


def measure_gather(driver: TorchDriver, row_bytes: int, runs: int) -> dict[str, Any]:
    """Measure a gather of a batch, and a copy within the GPU's memory."""
    count, slots = GATHERED_BYTES // row_bytes, SLOTS_BYTES // row_bytes
    rows = driver.allocate(slots * row_bytes).view(slots, row_bytes)
    with driver.computing():
        rows.zero_()
    alias = np.random.default_rng(0).choice(slots, count, replace=False).astype(np.int32)
    (out, (stream, event)), source = driver.gather(rows, alias), rows[:count]
    event.synchronize()
    return side_by_side(
        stream,
        lambda: driver.gather(rows, alias),
        lambda: out.copy_(source),
        count * row_bytes,
        runs,
    )


MEASURE = {"h2d": measure_h2d, "gather": measure_gather}


def measure_moves(own: argparse.Namespace) -> list[dict[str, Any]]:
    """Measure the parts that need no disk, in each way and for each row size."""
    results = []
    for way in WAYS:
        try:
            driver = TorchDriver(torch.device("cuda"), way, own.switches)
        except ConfigError as error:
            print(f"{way}: {error}", file=sys.stderr)
            continue
        for part in own.parts:
            for row_bytes in ROW_BYTES if part in MEASURE else ():
                result = MEASURE[part](driver, row_bytes, own.runs)
                what = {"part": part, "way": way, "switches": str(own.switches)}
                results.append(what | {"row_bytes": row_bytes} | result)
                driver.synchronize()
        driver.close()
    return results


# ---- epochs


def measure_epochs(
    own: argparse.Namespace, options: argparse.Namespace, group: Cgroup | None
) -> list[dict[str, Any]]:
    """Run the loaders in turn, round after round.

    Raises:
        SystemExit: the loaders did not train on the same batches.
    """
    results = []
    for number in range(own.runs):
        for name in own.gpu_loaders:
            result = epoch.spawn(name, options, group, __file__)
            per_batch = result["elapsed_s"] / result["batches"]
            results.append(result | {"run": number, "s_per_batch": per_batch})
    if len({(result["batches"], result["checksum"]) for result in results}) > 1:
        sys.exit("the loaders did not train on the same batches, so their times cannot be compared")
    return results


def speedups_of_gnndrive(results: list[dict[str, Any]], name: str) -> list[float]:
    """How many times as fast as loader `name` gnndrive was, round by round."""
    seconds = {(result["loader"], result["run"]): result["s_per_batch"] for result in results}
    return [
        seconds[name, number] / seconds["gnndrive", number]
        for loader, number in seconds
        if loader == name and ("gnndrive", number) in seconds
    ]


# ---- the output


def spread(values: list[float], digits: int = 2) -> str:
    """The median and the range."""
    low, middle, high = min(values), statistics.median(values), max(values)
    return f"{middle:.{digits}f} ({low:.{digits}f}–{high:.{digits}f})"


def table(found: dict[str, Any], options: argparse.Namespace | None) -> str:
    """Format the results."""
    lines = [f"{found['machine']}, switches: {found.get('switches', 'defaults')}"]
    if found["moves"]:
        heads = f"{'rows':>6} {'GB/s':>24} {'plain copy GB/s':>24} {'ratio':>18}"
        lines.append(f"{'part':<7} {'way':<11} {heads}")
    for move in found["moves"]:
        moved, plain = (
            [x / 1e9 for x in move[key]] for key in ("bytes_per_s", "plain_bytes_per_s")
        )
        lines.append(
            f"{move['part']:<7} {move['way']:<11} {move['row_bytes']:>4} B {spread(moved, 1):>24} "
            f"{spread(plain, 1):>24} {spread(move['ratio'], 3):>18}"
        )
    if options is None or not found["epochs"]:
        return "\n".join(lines)
    fanout, engine = ",".join(map(str, options.fanout)), ""
    lines.append(f"batches of {options.batch_size}, fanout {fanout}; {found['memory']}")
    lines.append(f"{'loader':<11} {'s/batch':>22} {'GPU idle':>22} {'ours beside it':>22}")
    for name in dict.fromkeys(result["loader"] for result in found["epochs"]):
        runs = [result for result in found["epochs"] if result["loader"] == name]
        engine = runs[0].get("engine", engine)
        line = f"{name:<11} {spread([run['s_per_batch'] for run in runs], 3):>22}"
        line += f" {spread([run['idle'] for run in runs]):>22}"
        if name != "gnndrive" and (ratios := speedups_of_gnndrive(found["epochs"], name)):
            line += f" {spread(ratios):>22}"
        lines.append(line)
    return "\n".join([*lines, f"engine: {engine}"] if engine else lines)


def machine() -> str:
    """Name the GPU and the versions of the libraries."""
    try:
        import cupy

        version = f"CuPy {cupy.__version__}"
    except ImportError:
        version = "no CuPy"
    return f"{torch.cuda.get_device_name()}, torch {torch.__version__}, {version}"


# ---- the script


def parse(given: list[str]) -> tuple[argparse.Namespace, argparse.Namespace | None]:
    """Parse this script's options and bench/epoch.py's; the latter are None if no loader runs."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False, usage="%(prog)s [STORE] [options, also bench/epoch.py's]",
    )  # fmt: skip
    parser.add_argument("--parts", type=lambda text: text.split(","), default=list(PARTS))
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--generate", type=float, metavar="N", help="million nodes")
    parser.add_argument("--folder", type=Path, default=Path("."), help="folder of that graph")
    parser.add_argument("--loaders", dest="gpu_loaders", type=lambda text: text.split(","),
                        default=list(RUNS))  # fmt: skip
    parser.add_argument("--device-memory", help="default: what training leaves")
    parser.add_argument("--buffer", help="default: what --device-memory leaves")
    parser.add_argument("--host-budget", metavar="SIZE", help="memory limit of each loader")
    parser.add_argument("--threads", type=int, default=4, help="of the two loaders that map")
    parser.add_argument("--way", choices=WAYS, help="of the epochs; default: the loader's choice")
    parser.add_argument("--switch", dest="switches", action="append", default=[],
                        metavar="NAME=VALUE", help="of the CUDA device; repeat it")  # fmt: skip
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("--worker", choices=sorted(RUNS), help=argparse.SUPPRESS)
    own, left = parser.parse_known_args(given)
    for what, asked, known in (
        ("part", own.parts, PARTS), ("loader", own.gpu_loaders, tuple(RUNS)),
    ):  # fmt: skip
        if unknown := set(asked) - set(known):
            parser.error(f"unknown {what} {', '.join(unknown)}: choose from {', '.join(known)}")
    if own.runs < 1 or own.threads < 1:
        parser.error("--runs and --threads must be at least 1")
    try:
        own.switches = MoveOptions.parse(own.switches)
    except ConfigError as error:
        parser.error(str(error))
    if "epoch" not in own.parts:
        return own, None
    if own.generate is not None:
        left = [str(scale.store_path(own.folder, int(own.generate * 1e6))), *left]
    options = epoch.parse(left)
    options.given, options.buffer = given, own.buffer
    options.device_memory, options.threads = own.device_memory, own.threads
    options.way, options.switches = own.way, own.switches
    return own, options


def main() -> None:
    own, options = parse(sys.argv[1:])
    if not torch.cuda.is_available():
        print(f"bench/gpu.py needs a CUDA GPU: torch {torch.__version__} sees none",
              file=sys.stderr)  # fmt: skip
        sys.exit(2)
    if own.worker and options is not None:
        json.dump(RUNS[own.worker](options) | {"peak_bytes": peak_memory_bytes()}, sys.stdout)
        return
    found: dict[str, Any] = {"machine": machine(), "switches": str(own.switches)}
    found |= {"moves": measure_moves(own), "epochs": []}
    if options is not None:
        if own.generate is not None:
            scale.make_missing(own.folder, [int(own.generate * 1e6)])
        none = None, "no memory limit was requested, the store's pages dropped"
        budget = own.host_budget
        with limited(parse_size(budget, "--host-budget")) if budget else nullcontext(none) as (
            group, found["memory"],
        ):  # fmt: skip
            found["epochs"] = measure_epochs(own, options, group)
    _script.show(table(found, options), found, own.json)


if __name__ == "__main__":
    _script.run(main)
