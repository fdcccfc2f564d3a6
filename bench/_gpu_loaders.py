"""The loaders that bench/gpu.py compares on a GPU: gnndrive's, and two that make batches on the
host and copy them. Each is one function that runs in a separate process and returns its figures.

All of them draw the same batches with the same sampler and keys, and train the same small GraphSAGE
on them.
"""

from __future__ import annotations

import argparse
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from itertools import islice
from typing import Any

import torch
from _gpu_device import switched
from _gpu_step import Step
from _loaders import SEED, Meter, make_loader, opened
from torch_geometric.data import Data
from torch_geometric.nn.models import GraphSAGE

import gnndrive
from gnndrive.sampling.samplers.base import batch_key
from gnndrive.sampling.samplers.uniform import Uniform
from gnndrive.sampling.schedules.base import InputNodes
from gnndrive.sampling.schedules.shuffled import Shuffled
from gnndrive.sampling.topologies.base import Topology

HIDDEN = 64
REPORTED = ("requests", "bytes_read", "bytes_wanted", "topology", "buffer_bytes", "engine")


class Trainer(Step):
    """Trains a small GraphSAGE, and adds up the batches."""

    def __init__(self, store: gnndrive.Store, layers: int) -> None:
        self._checked: list[torch.Tensor] = []
        super().__init__(lambda columns, out: GraphSAGE(columns, HIDDEN, layers, out), store)
        self._checked.clear()

    def __call__(self, batch: Data) -> None:
        """Queue the step, without waiting for it."""
        self._checked.append(batch.n_id.sum())
        super().__call__(batch)

    def ended(self, started: float) -> dict[str, Any]:
        """Wait for the last step; return the seconds since `started`, the steps' seconds on the
        GPU, the share of time without a step, and a checksum of the batches."""
        torch.cuda.synchronize()
        elapsed, steps = time.perf_counter() - started, self.seconds()
        return {
            "elapsed_s": elapsed, "steps_s": steps, "idle": 1 - steps / elapsed,
            "checksum": sum(int(checked) for checked in self._checked),
        }  # fmt: skip


def run_gnndrive(options: argparse.Namespace) -> dict[str, Any]:
    """Run gnndrive's loader with device="cuda"."""
    store, meter = gnndrive.open(options.store), Meter("gnndrive")
    trainer = Trainer(store, len(options.fanout))
    device = switched(options.way, options.switches)
    loader = make_loader(options, device=device, device_memory=options.device_memory)
    with loader:
        batches = iter(loader)
        meter.ready()
        started = time.perf_counter()
        for batch in islice(batches, options.batches):
            trainer(batch)
            meter.batch(len(batch.n_id))
            del batch
        ended = trainer.ended(started)
        stats = loader.stats()
    found = stats["rows_hit"] + stats["rows_waited"]
    hit_rate = found / (found + stats["rows_loaded"])
    counters = {name: stats[name] for name in REPORTED}
    return figures(meter, ended, hit_rate=hit_rate, **counters)


def figures(meter: Meter, ended: dict[str, Any], **more: Any) -> dict[str, Any]:
    """The result of a loader. All its times begin after the set-up, as `ended` does."""
    first_s = meter.first_s - meter.set_up["set_up_s"]
    return meter.result(first_s=first_s, **more, **ended)


# ---- batches that are made on the host


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
    trainer = Trainer(store, len(options.fanout))
    with opened(store, options) as graph:
        meter.ready()
        started = time.perf_counter()
        for made in prepared(store, options, graph):
            x = copy(made.x)
            del made.x
            batch = made.to("cuda", non_blocking=True)
            batch.x = x
            trainer(batch)
            meter.batch(len(batch.n_id))
            del made, batch, x
        ended = trainer.ended(started)
    return figures(meter, ended)


def prepared(
    store: gnndrive.Store, options: argparse.Namespace, graph: Topology, pin: bool = True
) -> Iterator[Data]:
    """Yield the batches that gnndrive's loader draws.

    `options.threads` threads make as many batches ahead. They gather rows of the memory-mapped
    table into new tensors, pinned if `pin`.
    """
    features, labels = store.tensor("x", random=True), store.tensor("y")
    sampler = Uniform(options.fanout)
    schedule = Shuffled(InputNodes(store.num_nodes), options.batch_size, True, False, SEED)

    def make(seeds: Any) -> Data:
        sample = sampler.sample_nodes(seeds.node, batch_key(SEED, 0, seeds.index), graph)
        node = torch.from_numpy(sample.node)
        edge_index = torch.empty(2, len(sample.row), dtype=torch.int64, pin_memory=pin)
        for into, given in zip(edge_index, (sample.row, sample.col), strict=True):
            into.copy_(torch.from_numpy(given))
        x, y = picked(features, node, pin), picked(labels, node, pin)
        n_id = node.pin_memory() if pin else node
        return Data(x=x, y=y, edge_index=edge_index, n_id=n_id, batch_size=len(seeds.node))

    batches = (
        seeds for window in islice(schedule.windows(0), options.batches) for seeds in window.batches
    )
    with ThreadPoolExecutor(options.threads) as threads:
        waiting: deque[Future[Data]] = deque()
        for seeds in batches:
            waiting.append(threads.submit(make, seeds))
            if len(waiting) > options.threads:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


def picked(table: torch.Tensor, node: torch.Tensor, pin: bool) -> torch.Tensor:
    """`table[node]`, in pinned memory if `pin`."""
    out = torch.empty((len(node), *table.shape[1:]), dtype=table.dtype, pin_memory=pin)
    return torch.index_select(table, 0, node, out=out)


def copy_whole(x: torch.Tensor) -> torch.Tensor:
    """Copy all rows to the GPU at once."""
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
