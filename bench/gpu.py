"""The cost of the way to the GPU: rows into the feature buffer, rows out of it, and whole epochs.

usage: python bench/gpu.py STORE [--runs 3] [--batches 20] [--device-memory 4GB] [--json FILE]
       python bench/gpu.py --generate 20 --folder DIR [--host-budget 4GiB] [the same options]
       python bench/gpu.py --parts h2d,gather      (neither store nor disk)
       python bench/gpu.py --parts h2d --switch defaults --switch "blocks=128 gather_stream"

Three parts:
h2d     rows from pinned staging into random slots of the feature buffer, in each of the ways,
        compared with a plain cudaMemcpyAsync of the same bytes from the same memory
gather  rows of random slots into a new tensor, compared with a copy of the same bytes within the
        GPU's memory; the copy of the slot numbers counts if it is on the stream that gathers
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

Figures are the median of the runs and their range; a ratio is of two figures of one run. Each
--switch is one set of the device's switches (gnndrive/buffer/devices/_options.py); they are
measured in turn.

`--generate N` first makes a graph of N million nodes in DIR (593 bytes of disk a node), unless it
exists. `--host-budget` limits each loader's memory, page cache and CUDA's own libraries included,
with a cgroup as root, after a trial of whether a limit is enforced. Otherwise the output says that
there was no limit, and the page cache helps the two loaders that map the store. bench/epoch.py's
options are accepted too (`--batch-size`, `--fanout`, `--topology`, …). With --seconds there are as
many rounds of epochs as fit into the time, at least one, and only the store's files are dropped
from the caches. `--json` is written after each result, so that a run that
is stopped leaves what it had. Without a GPU the script says so and exits with 2; if something could
not be measured, it says what and exits with 1. --rehearse runs on a fake GPU.
"""

from __future__ import annotations

import argparse
import itertools
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import _script
import epoch
import numpy as np
import scale
import torch
from _gpu import Step, needed, parse_switches, switched
from _limits import Cgroup, tried_limit
from _script import grouped, names, say, spread
from epoch import Meter, make_loader, opened, samples
from torch_geometric.data import Data
from torch_geometric.nn.models import GraphSAGE

import gnndrive
from gnndrive.buffer.devices._kernels import WAYS
from gnndrive.buffer.devices._staged import PORTION_BYTES
from gnndrive.buffer.devices.cuda import TorchDriver
from gnndrive.cli.report.text import peak_memory_bytes
from gnndrive.common.errors import ConfigError, GNNDriveError
from gnndrive.common.memory import parse_size
from gnndrive.common.records import Sample
from gnndrive.sampling.topologies.base import Topology

PARTS = ("h2d", "gather", "epoch")


# ---- h2d and gather

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
    """Measure in each way, with each set of switches and for each row size. `found` gets the
    results in `moves`, and in `failed` what could not be measured and why."""
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


HIDDEN = 64
REPORTED = ("requests", "bytes_read", "bytes_wanted", "topology", "buffer_bytes", "engine")


# ---- the loaders


def run_gnndrive(options: argparse.Namespace) -> dict[str, Any]:
    """Run gnndrive's loader with device="cuda"."""
    store, meter = gnndrive.open(options.store), Meter("gnndrive")
    device = switched(options.way, options.switches)
    step = step_of(options, store)
    with make_loader(options, device=device, device_memory=options.device_memory) as loader:
        figures = train(islice(loader, options.batches), step, meter)
        return figures | epoch.reported(loader.stats(), REPORTED)


def run_by_hand(
    options: argparse.Namespace, name: str, copy: Callable[[torch.Tensor], torch.Tensor]
) -> dict[str, Any]:
    """Sample and gather in threads, ahead of training; before its step `copy` copies the pinned
    features of a batch to the GPU."""
    store, meter = gnndrive.open(options.store), Meter(name)
    step = step_of(options, store)

    def copied(graph: Topology) -> Iterator[Data]:
        for made in prepared(store, options, graph):
            x = copy(made.x)
            del made.x
            batch = made.to("cuda", non_blocking=True)
            batch.x = x
            del made, x
            yield batch
            del batch

    with opened(store, options) as graph:
        return train(copied(graph), step, meter)


def step_of(options: argparse.Namespace, store: gnndrive.Store) -> Step:
    layers = len(options.fanout)
    return Step(lambda columns, classes: GraphSAGE(columns, HIDDEN, layers, classes), store)


def train(batches: Iterator[Data], step: Step, meter: Meter) -> dict[str, Any]:
    """Train on all batches; all times of the result begin here, after the set-up."""
    meter.ready()
    started, checked = time.perf_counter(), []
    for batch in batches:
        checked.append(batch.n_id.sum())
        step(batch)
        meter.batch(len(batch.n_id))
        del batch
    torch.cuda.synchronize()
    elapsed, steps = time.perf_counter() - started, step.seconds()
    return meter.result(
        first_s=meter.first_s - meter.set_up_s, elapsed_s=elapsed, steps_s=steps,
        idle=1 - steps / elapsed, checksum=sum(map(int, checked)),
    )  # fmt: skip


def prepared(
    store: gnndrive.Store, options: argparse.Namespace, graph: Topology, pin: bool = True
) -> Iterator[Data]:
    """Yield the batches that gnndrive's loader draws; `options.threads` threads make as many ahead.
    They gather rows of the memory-mapped table into new tensors, pinned if `pin`."""
    features, labels = store.tensor("x", random=True), store.tensor("y")

    def picked(table: torch.Tensor, node: torch.Tensor) -> torch.Tensor:
        out = torch.empty((len(node), *table.shape[1:]), dtype=table.dtype, pin_memory=pin)
        return torch.index_select(table, 0, node, out=out)

    def make(sample: Sample) -> Data:
        node = torch.from_numpy(sample.node)
        edge_index = torch.empty(2, len(sample.row), dtype=torch.int64, pin_memory=pin)
        for into, given in zip(edge_index, (sample.row, sample.col), strict=True):
            into.copy_(torch.from_numpy(given))
        return Data(
            x=picked(features, node), y=picked(labels, node), edge_index=edge_index,
            n_id=node.pin_memory() if pin else node, batch_size=sample.num_sampled_nodes[0],
        )  # fmt: skip

    return samples(store, options, graph, Meter("sampling"), options.threads, make)


def copy_whole(x: torch.Tensor) -> torch.Tensor:
    return x.to("cuda", non_blocking=True)


def copy_rows(x: torch.Tensor) -> torch.Tensor:
    """Copy each row with a separate cudaMemcpyAsync.

    The calls go through CuPy, where they cost least in Python, or through torch without CuPy.
    """
    on_gpu = torch.empty_like(x, device="cuda", pin_memory=False)
    try:
        import cupy
    except ImportError:
        for source, target in zip(x, on_gpu, strict=True):
            target.copy_(source, non_blocking=True)
        return on_gpu
    stream = torch.cuda.current_stream().cuda_stream
    runtime = cupy.cuda.runtime
    copy, kind = runtime.memcpyAsync, runtime.memcpyHostToDevice
    step = x.stride(0) * x.element_size()
    source, target = x.data_ptr(), on_gpu.data_ptr()
    for offset in range(0, (len(x) - 1) * step, step):
        copy(target + offset, source + offset, step, kind, stream)
    on_gpu[-1].copy_(x[-1], non_blocking=True)  # by torch, so that it keeps x until the copies end
    return on_gpu


RUNS = {
    "pinned": partial(run_by_hand, name="pinned", copy=copy_whole),
    "gnndrive": run_gnndrive,
    "row-copies": partial(run_by_hand, name="row-copies", copy=copy_rows),
}
"""By name; those first whose comparison matters most, because time may end within a round."""


# ---- rounds


class Epochs:
    """Runs the loaders, round after round, until the rounds or `own.seconds` are used up. `found`
    gets the results in `epochs`, and in `failed` which loader failed and why."""

    def __init__(
        self, own: argparse.Namespace, options: argparse.Namespace, group: Cgroup | None,
        found: dict[str, Any], save: Callable[[], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        self._own, self._options, self._group = own, options, group
        self._found, self._save, self._clock = found, save, clock
        self._ends = None if own.seconds is None else clock() + own.seconds
        self._failed: set[tuple[str, str]] = set()

    def run(self) -> None:
        """Run all rounds; ends the script if the loaders did not train on the same batches."""
        turns = [
            (name, switches)
            for switches in self._own.switch
            for name in self._own.gpu_loaders
            if name == "gnndrive" or switches == self._own.switch[0]
        ]
        longest = 0.0
        for number in range(self._own.runs):
            began = self._clock()
            if number and self._ends is not None and self._ends - began < longest:
                say(f"no time for round {number}, {longest:.0f} s")
                break
            if number and self._ends is not None and killed(self._found):
                say(f"no round {number}: a loader needs more memory")
                break
            for name, switches in turns:
                if (name, switches) not in self._failed:
                    self._one(name, switches, number)
            longest = max(longest, self._clock() - began)
        if not same_batches(self._found["epochs"]):
            sys.exit(
                "the loaders did not train on the same batches, so their times cannot be compared"
            )

    def _one(self, name: str, switches: str, number: int) -> None:
        """Run a loader once, and keep its result."""
        began = self._clock()
        if (result := self._spawn(name, switches)) is not None:
            more = {"run": number, "switches": switches, "wall_s": self._clock() - began}
            more["s_per_batch"] = result["elapsed_s"] / result["batches"]
            self._found["epochs"].append(result | more)
            self._save()

    def _spawn(self, name: str, switches: str) -> dict[str, Any] | None:
        """Run a loader in a separate process; None: it failed, which is kept, and runs no more."""
        given = [*self._options.given, "--switch", switches]
        options = argparse.Namespace(**vars(self._options) | {"given": given})
        left = None if self._ends is None else max(self._ends - self._clock(), 0.1)
        try:
            return epoch.spawn(name, options, self._group, __file__, left, self._ends is None)
        except subprocess.TimeoutExpired:
            why = f"{name} had not ended when the time was up"
        except (SystemExit, GNNDriveError) as error:  # such as a group that cannot be made
            why = str(error)
        self._failed.add((name, switches))
        self._found["failed"].append(f"epoch, {name}, {switches}: {why}")
        self._save()
        return None


def killed(found: dict[str, Any]) -> bool:
    """Whether a loader was killed, as one is that exceeds its memory limit."""
    return any("(killed" in line for line in found.get("failed", []))


def same_batches(results: list[dict[str, Any]]) -> bool:
    return len({(result["batches"], result["checksum"]) for result in results}) <= 1


def speedups_of_gnndrive(results: list[dict[str, Any]], name: str) -> list[float]:
    """How many times as fast as loader `name` gnndrive was, round by round.

    If gnndrive ran with several sets of switches, the first one counts.
    """
    seconds: dict[tuple[str, int], float] = {}
    for result in results:
        seconds.setdefault((result["loader"], result["run"]), result["s_per_batch"])
    return [
        seconds[name, number] / seconds["gnndrive", number]
        for loader, number in seconds
        if loader == name and ("gnndrive", number) in seconds
    ]


# ---- the output


def table(found: dict[str, Any], options: argparse.Namespace | None) -> str:
    lines, to = [found["machine"]], "–"
    if found["moves"]:
        heads = f"{'rows':>6} {'GB/s':>24} {'plain copy GB/s':>24} {'ratio':>18}  switches"
        lines.append(f"{'part':<7} {'way':<11} {heads}")
    for move in found["moves"]:
        moved, plain = (
            spread([x / 1e9 for x in move[key]], 1, to)
            for key in ("bytes_per_s", "plain_bytes_per_s")
        )
        lines.append(
            f"{move['part']:<7} {move['way']:<11} {move['row_bytes']:>4} B {moved:>24} "
            f"{plain:>24} {spread(move['ratio'], 3, to):>18}  {move['switches']}"
        )
    lines += [f"not measured: {what}" for what in found["unavailable"] + found["failed"]]
    if options is None or not found["epochs"]:
        return "\n".join(lines)
    fanout, engine = ",".join(map(str, options.fanout)), ""
    lines.append(f"batches of {options.batch_size}, fanout {fanout}; {found['memory']}")
    lines.append(f"{'loader':<11} {'s/batch':>22} {'GPU idle':>22} {'ours beside it':>22}")
    for (name, switches), runs in grouped(found["epochs"], "loader", "switches").items():
        engine = runs[0].get("engine", engine)
        line = f"{name:<11} {spread([run['s_per_batch'] for run in runs], 3, to):>22}"
        line += f" {spread([run['idle'] for run in runs], 2, to):>22}"
        if name != "gnndrive" and (ratios := speedups_of_gnndrive(found["epochs"], name)):
            line += f" {spread(ratios, 2, to):>22}"
        lines.append(line if switches == "defaults" else f"{line}  {switches}")
    return "\n".join([*lines, f"engine: {engine}"] if engine else lines)


def machine(rehearse: bool) -> str:
    if rehearse:
        return f"a rehearsal on a fake GPU, torch {torch.__version__}"
    try:
        import cupy

        version = f"CuPy {cupy.__version__}"
    except ImportError:
        version = "no CuPy"
    return f"{torch.cuda.get_device_name()}, torch {torch.__version__}, {version}"


# ---- the script


def parse(given: list[str]) -> tuple[argparse.Namespace, argparse.Namespace | None]:
    """Parse this script's options and bench/epoch.py's; the latter are None if no loader runs."""
    parser = _script.parser(__doc__)
    parser.add_argument("--parts", type=names, default=list(PARTS))
    parser.add_argument("--ways", type=names, default=list(WAYS), help="of the moves")
    parser.add_argument("--way", choices=WAYS, help="of the epochs; default: the loader's choice")
    parser.add_argument("--switch", action="append", metavar='"NAME=VALUE …"')
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--seconds", type=float, help="time for all epochs; default: no limit")
    parser.add_argument("--generate", type=float, metavar="N", help="million nodes")
    parser.add_argument("--folder", type=Path, default=Path("."), help="folder of that graph")
    parser.add_argument("--loaders", dest="gpu_loaders", type=names, default=list(RUNS))
    parser.add_argument("--device-memory", help="default: what training leaves")
    parser.add_argument("--buffer", help="default: what --device-memory leaves")
    parser.add_argument("--host-budget", metavar="SIZE", help="memory limit of each loader")
    parser.add_argument("--threads", type=int, default=4, help="of the two loaders that map")
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("--rehearse", action="store_true", help="on a fake GPU, in small")
    parser.add_argument("--worker", choices=sorted(RUNS), help=argparse.SUPPRESS)
    own, left = parser.parse_known_args(given)
    own.switch = list(dict.fromkeys(own.switch or ["defaults"]))
    _script.check_names(parser, "part", own.parts, PARTS)
    _script.check_names(parser, "loader", own.gpu_loaders, RUNS)
    _script.check_names(parser, "way", own.ways, WAYS)
    try:
        for switches in own.switch:
            parse_switches(switches)
    except ConfigError as error:
        parser.error(str(error))
    if own.runs < 1 or own.threads < 1:
        parser.error("--runs and --threads must be at least 1")
    if "epoch" not in own.parts:
        return own, None
    if own.generate is not None:
        left = [str(scale.store_path(own.folder, round(own.generate * 1e6))), *left]
    options = epoch.parse(left)
    options.given, options.buffer = given, own.buffer
    options.device_memory, options.threads = own.device_memory, own.threads
    options.way, options.switches = own.way, parse_switches(own.switch[-1])
    return own, options


def measure(
    own: argparse.Namespace, options: argparse.Namespace | None, found: dict[str, Any]
) -> None:
    """Measure all parts; the file of --json is written after each result."""

    def save() -> None:
        if own.json:
            _script.write(found, own.json)

    measure_moves(own, found, save)
    if options is None:
        return
    if own.generate is not None:
        scale.make_missing(own.folder, [round(own.generate * 1e6)])
    found["features_bytes"] = gnndrive.open(options.store).info.arrays["nodes/x"].nbytes
    none = None, "no memory limit was requested, the store's pages dropped"
    budget = own.host_budget
    everything = own.seconds is None  # libraries are read again too, which takes seconds
    with (
        tried_limit(parse_size(budget, "--host-budget"), everything)
        if budget
        else nullcontext(none)
    ) as (group, found["memory"]):
        found["limited"] = group is not None
        Epochs(own, options, group, found, save).run()


def run(own: argparse.Namespace, options: argparse.Namespace | None) -> None:
    if own.worker and options is not None:
        json.dump(RUNS[own.worker](options) | {"peak_bytes": peak_memory_bytes()}, sys.stdout)
        return
    found: dict[str, Any] = {"machine": machine(own.rehearse), "memory": ""}
    found |= {"moves": [], "epochs": [], "unavailable": [], "failed": []}
    found |= {"rehearsal": own.rehearse, "host_budget": own.host_budget or ""}
    measure(own, options, found)
    _script.show(table(found, options), found, own.json)
    if found["failed"]:
        sys.exit(1)


def main() -> None:
    own, options = parse(sys.argv[1:])
    with needed(own.rehearse):
        run(own, options)


if __name__ == "__main__":
    _script.run(main)
