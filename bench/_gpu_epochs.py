"""The part of bench/gpu.py that runs whole epochs: the loaders in rounds, within a time.

The loaders are gnndrive's and two that make batches on the host and copy them; each runs in a
process of its own. All of them draw the same batches with the same sampler and keys, and train the
same small GraphSAGE on them.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import epoch
import torch
from _gpu import Step, switched
from _limits import Cgroup
from _loaders import Meter, make_loader, opened, samples
from _script import say
from torch_geometric.data import Data
from torch_geometric.nn.models import GraphSAGE

import gnndrive
from gnndrive.common.errors import GNNDriveError
from gnndrive.common.records import Sample
from gnndrive.sampling.topologies.base import Topology

SCRIPT = str(Path(__file__).with_name("gpu.py"))
HIDDEN = 64
REPORTED = ("requests", "bytes_read", "bytes_wanted", "topology", "buffer_bytes", "engine")
PILOT_BATCHES = 2
FEW_BATCHES = 6  # rather one round of so many batches than several of fewer
SLOWER = 1.25  # a loader may take so many times as long as the pilot did


# ---- the loaders


def run_gnndrive(options: argparse.Namespace) -> dict[str, Any]:
    """Run gnndrive's loader with device="cuda"."""
    store, meter = gnndrive.open(options.store), Meter("gnndrive")
    device = switched(options.way, options.switches)
    step = step_of(options, store)
    with make_loader(options, device=device, device_memory=options.device_memory) as loader:
        figures = train(islice(loader, options.batches), step, meter)
        stats = loader.stats()
    found = stats["rows_hit"] + stats["rows_waited"]
    hit_rate = found / (found + stats["rows_loaded"])
    return figures | {"hit_rate": hit_rate} | {name: stats[name] for name in REPORTED}


def run_by_hand(
    options: argparse.Namespace, name: str, copy: Callable[[torch.Tensor], torch.Tensor]
) -> dict[str, Any]:
    """Sample and gather in threads, ahead of training; copy each batch to the GPU before its step.

    Args:
        options: the batches and the number of threads.
        name: name of the loader in the result.
        copy: copies pinned features to the GPU.
    """
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
    """Train on all batches. The result has the seconds until the last step has ended, the steps'
    seconds on the GPU, the share of time without a step, and a checksum of the batches; all times
    begin here, after the set-up."""
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
    """Runs the loaders, round after round, until the rounds or the time are used up.

    Args:
        own: the script's options; `seconds` is the time, or None for no limit.
        options: bench/epoch.py's options.
        group: memory group of the loaders.
        found: gets the results in `epochs`, and in `failed` which loader failed and why.
        save: called after each result.
        clock: seconds.
    """

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
        """Run all rounds.

        Raises:
            SystemExit: the loaders did not train on the same batches.
        """
        turns = [
            (name, switches)
            for switches in self._own.switch
            for name in self._own.gpu_loaders
            if name == "gnndrive" or switches == self._own.switch[0]
        ]
        batches, longest = self._batches(len(turns)), 0.0
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
                    self._one(name, switches, number, batches)
            longest = max(longest, self._clock() - began)
        if not same_batches(self._found["epochs"]):
            sys.exit(
                "the loaders did not train on the same batches, so their times cannot be compared"
            )

    def _batches(self, turns: int) -> int:
        """As many batches as fit into the time, by a short run of the first loader."""
        most: int = self._options.batches
        if self._ends is None or most <= PILOT_BATCHES:
            return most
        began = self._clock()
        pilot = self._spawn(self._own.gpu_loaders[0], self._own.switch[0], PILOT_BATCHES)
        if pilot is None:
            return min(most, FEW_BATCHES)
        set_up, left = self._clock() - began - pilot["elapsed_s"], self._ends - self._clock()
        batch_s = pilot["elapsed_s"] / PILOT_BATCHES
        return batches_in(left, turns, set_up, batch_s, self._own.runs, most)

    def _one(self, name: str, switches: str, number: int, batches: int) -> None:
        """Run a loader once, and keep its result."""
        began = self._clock()
        if (result := self._spawn(name, switches, batches)) is not None:
            more = {"run": number, "switches": switches, "wall_s": self._clock() - began}
            more["s_per_batch"] = result["elapsed_s"] / result["batches"]
            self._found["epochs"].append(result | more)
            self._save()

    def _spawn(self, name: str, switches: str, batches: int) -> dict[str, Any] | None:
        """Run a loader in a separate process; None: it failed, which is kept, and runs no more."""
        given = [*self._options.given, "--batches", str(batches), "--switch", switches]
        options = argparse.Namespace(**vars(self._options) | {"given": given, "batches": batches})
        left = None if self._ends is None else max(self._ends - self._clock(), 0.1)
        try:
            return epoch.spawn(name, options, self._group, SCRIPT, left, self._ends is None)
        except subprocess.TimeoutExpired:
            why = f"{name} had not ended when the time was up"
        except (SystemExit, GNNDriveError) as error:  # such as a group that cannot be made
            why = str(error)
        self._failed.add((name, switches))
        self._found["failed"].append(f"epoch, {name}, {switches}: {why}")
        self._save()
        return None


def batches_in(
    seconds: float, turns: int, set_up_s: float, batch_s: float, rounds: int, most: int
) -> int:
    """Batches for each loader so that as many rounds as possible, at most `rounds`, fit.

    Args:
        seconds: the time for all rounds.
        turns: loaders in a round.
        set_up_s: seconds that a loader takes before its first batch.
        batch_s: seconds a batch of a slow loader.
        rounds: rounds that are wanted, at least 1; fewer if each had less than `FEW_BATCHES`
            batches.
        most: batches that are wanted.
    """
    for wanted in range(rounds, 0, -1):
        batches = int((seconds / wanted / turns - set_up_s) / (SLOWER * batch_s))
        if batches >= min(FEW_BATCHES, most):
            break
    return max(PILOT_BATCHES, min(batches, most))


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
