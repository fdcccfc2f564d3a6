"""Small batches: a store's loader beside PyG's class over the same graph in memory, in turn.

usage: python bench/light.py [FOLDER] [--units nodes:64:5,5] [--sources pyg,data,hits,first]
           [--consumers idle] [--rounds 5] [--batches 400] [--nodes 200000] [--json FILE]
           [--device cuda]

FOLDER holds the generated stores, which are made if they are missing; without it they are
temporary. A unit is KIND:SEEDS:FANOUT; of the kinds, "nodes" is one node type with 128 floats a
node, "types" has three node types, and "links" has seed edges with binary negatives on the graph of
"nodes". The sources:

    pyg    PyG's loader class with gnndrive's sampler over Data in memory
    data   gnndrive's loader over the same Data
    hits   a store with a feature buffer that holds all rows, after two epochs
    first  the first epoch of a new loader over that store; the files are in the page cache

The consumers: "idle" takes batch after batch, "sleep" sleeps 3 ms after each, as a training loop
that waits for a GPU, and "burn" computes 3 ms in Python; beside it a list of ready batches is
measured, too. Each line has the median of the rounds: milliseconds a batch from the first batch to
the last; their ratio to "pyg"; the user's thread's microseconds of CPU a batch within `next`; and
of all threads the CPU milliseconds and voluntary context switches a batch.

With --device batches end on a GPU: a store's loader delivers them there, and those of the others
are moved with `batch.to`. The last one has arrived when the time ends. --rehearse: on a fake one.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from statistics import median
from time import perf_counter, sleep, thread_time
from typing import Any

import _script
import torch
from _gpu import fake_or_real
from torch_geometric.data import Data, HeteroData
from torch_geometric.loader import LinkLoader, NodeLoader

import gnndrive

UNITS = "nodes:16:5,5 nodes:64:5,5 nodes:256:5,5 nodes:1024:10,10 types:64:5,5 links:128:5,5"
SOURCES = ("pyg", "data", "hits", "first")
CONSUMERS = ("idle", "sleep", "burn")
LINE = (
    "{unit:16}{source:7}{consumer:9}{ms:8.2f}{ratio:7.2f}{own_us:8.0f}{cpu_ms:8.2f}{switches:9.1f}"
)
STEP_S = 0.003
DEGREE, WIDTH, SEED = 15, 128, 7


# ---- the graphs


def edges(generator: torch.Generator, sources: int, targets: int) -> torch.Tensor:
    """Edges whose sources are skewed, so that some nodes are neighbours of many."""
    count = DEGREE * targets
    source = (torch.rand(count, generator=generator) ** 2 * sources).long()
    return torch.stack([source, torch.randint(targets, (count,), generator=generator)])


def graph(kind: str, nodes: int) -> Any:
    generator = torch.Generator().manual_seed(SEED)
    if kind != "types":
        x = torch.randn(nodes, WIDTH, generator=generator)
        y = torch.randint(10, (nodes,), generator=generator)
        return Data(x=x, y=y, edge_index=edges(generator, nodes, nodes))
    made, counts = HeteroData(), {"paper": nodes // 2, "author": nodes // 3, "venue": nodes // 6}
    for name, count in counts.items():
        made[name].x = torch.randn(count, WIDTH, generator=generator)
    made["paper"].y = torch.randint(10, (counts["paper"],), generator=generator)
    for source, name, target in (
        ("paper", "cites", "paper"), ("author", "writes", "paper"), ("paper", "rev", "author"),
        ("venue", "has", "paper"),
    ):  # fmt: skip
        made[source, name, target].edge_index = edges(generator, counts[source], counts[target])
    return made


class Graphs:
    """The graphs in memory and their stores, by kind; each is made once."""

    def __init__(self, folder: Path, nodes: int) -> None:
        self._folder, self._nodes = folder, nodes
        self._made: dict[str, tuple[Any, Any]] = {}

    def of(self, kind: str) -> tuple[Any, Any]:
        """(data in memory, store)"""
        kind = "types" if kind == "types" else "nodes"
        if kind not in self._made:
            path = self._folder / f"light_{kind}_{self._nodes}.gnn"
            data = graph(kind, self._nodes)
            if not path.exists():
                gnndrive.from_data(data, path)
            for file in path.rglob("*.npy"):  # into the page cache
                file.read_bytes()
            self._made[kind] = data, gnndrive.open(path)
        return self._made[kind]


# ---- the loaders


class Moved:
    """A loader whose batches are moved to a device."""

    def __init__(self, loader: Any, device: str) -> None:
        self._loader, self._device = loader, device

    def __iter__(self) -> Iterator[Any]:
        return (batch.to(self._device) for batch in self._loader)


def loader_of(unit: str, source: str, graphs: Graphs, batches: int, device: str) -> Any:
    kind, size, fanout = unit.split(":")
    seeds, neighbors = int(size), [int(number) for number in fanout.split(",")]
    data, store = graphs.of(kind)
    generator = torch.Generator().manual_seed(SEED)
    given: dict[str, Any] = {"batch_size": seeds, "shuffle": True}
    sampler: Any = gnndrive.LinkNeighborLoader if kind == "links" else gnndrive.NeighborLoader
    if kind == "links":
        picked = torch.randint(data.num_edges, (batches * seeds,), generator=generator)
        given |= {"edge_label_index": data.edge_index[:, picked], "neg_sampling": "binary"}
    else:
        nodes = data["paper"].num_nodes if kind == "types" else data.num_nodes
        ids = torch.randint(nodes, (batches * seeds,), generator=generator)
        given["input_nodes"] = ("paper", ids) if kind == "types" else ids
    if source in ("hits", "first"):
        features = sum(each.numel() * each.element_size() for each in _features(data))
        given |= {"buffer": int(1.1 * features), "seed": SEED, "device": device}
        return sampler(store, neighbors, **given)
    made = sampler(data, neighbors, **given)
    if source == "pyg" and kind == "links":
        made = LinkLoader(data, link_sampler=made.link_sampler, **given)
    elif source == "pyg":
        made = NodeLoader(data, node_sampler=made.node_sampler, **given)
    return made if device == "cpu" else Moved(made, device)


def _features(data: Any) -> list[torch.Tensor]:
    return [store.x for store in data.node_stores]


# ---- measuring


class Burn:
    """Computes in Python, always the same, which takes 3 ms of an undisturbed core."""

    def __init__(self) -> None:
        self._turns = 10_000
        begun = perf_counter()
        for _ in range(20):
            self()
        self._turns = int(self._turns * STEP_S * 20 / (perf_counter() - begun))

    def __call__(self) -> None:
        """Compute."""
        for number in range(self._turns):
            number * number


def threads() -> tuple[float, int]:
    """CPU seconds and voluntary context switches of all threads so far."""
    cpu_ns = switches = 0
    for task in Path("/proc/self/task").iterdir():
        with suppress(FileNotFoundError, ProcessLookupError):  # it has ended meanwhile
            cpu_ns += int((task / "schedstat").read_text().split()[0])
            status = (task / "status").read_text()
            switches += int(status.split("\nvoluntary_ctxt_switches:")[1].split()[0])
    return cpu_ns / 1e9, switches


def take(batches: Iterator[Any], consume: Callable[[], None]) -> dict[str, float]:
    next(batches)
    own_s, count, (cpu_s, switches) = 0.0, 0, threads()
    begun = perf_counter()
    while True:
        asked = thread_time()
        if (batch := next(batches, None)) is None:
            break
        own_s += thread_time() - asked
        consume()
        count += 1
        del batch
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()
    passed_s = perf_counter() - begun
    after_cpu_s, after_switches = threads()
    return {
        "ms": 1e3 * passed_s / count, "own_us": 1e6 * own_s / count,
        "cpu_ms": 1e3 * (after_cpu_s - cpu_s) / count,
        "switches": (after_switches - switches) / count,
    }  # fmt: skip


class Measured:
    """The rounds of one unit, by source and consumer."""

    def __init__(self, unit: str, options: argparse.Namespace, graphs: Graphs) -> None:
        self.unit, self._options = unit, options
        self._load = lambda source: loader_of(unit, source, graphs, options.batches, options.device)
        self._kept = {source: self._load(source) for source in options.sources if source != "first"}
        if "hits" in self._kept:
            for _ in range(2):
                take(iter(self._kept["hits"]), lambda: None)
        self.rounds: dict[tuple[str, str], list[dict[str, float]]] = {}

    def round(self, consumers: dict[str, Callable[[], None]]) -> None:
        """Measure each source with each consumer once."""
        for consumer, consume in consumers.items():
            if consumer == "burn":
                self._note("list", consumer, iter([0] * self._options.batches), consume)
            for source in self._options.sources:
                loader = self._kept.get(source) or self._load(source)
                self._note(source, consumer, iter(loader), consume)
                if source == "first":
                    loader.close()

    def close(self) -> None:
        """Close the store's loader, while its GPU is there."""
        if "hits" in self._kept:
            self._kept["hits"].close()

    def _note(
        self, source: str, consumer: str, batches: Iterator[Any], consume: Callable[[], None]
    ) -> None:
        self.rounds.setdefault((source, consumer), []).append(take(batches, consume))

    def lines(self) -> Iterator[dict[str, Any]]:
        """The medians, and the ratio to PyG's class by the same consumer."""
        for (source, consumer), rounds in self.rounds.items():
            line = {name: median(each[name] for each in rounds) for name in rounds[0]}
            if beside := self.rounds.get(("pyg", consumer)):
                line["ratio"] = median(
                    ours["ms"] / pyg["ms"] for ours, pyg in zip(rounds, beside, strict=True)
                )
            yield {"unit": self.unit, "source": source, "consumer": consumer, **line}


def main() -> None:
    made = _script.parser(__doc__)
    made.add_argument("folder", nargs="?", type=Path)
    made.add_argument("--units", type=str.split, default=UNITS.split())
    made.add_argument("--sources", type=_script.names, default=list(SOURCES))
    made.add_argument("--consumers", type=_script.names, default=["idle"])
    made.add_argument("--rounds", type=int, default=5)
    made.add_argument("--batches", type=int, default=400)
    made.add_argument("--nodes", type=int, default=200_000)
    made.add_argument("--device", default="cpu")
    made.add_argument("--rehearse", action="store_true", help="on a fake GPU")
    made.add_argument("--json", metavar="FILE")
    options = made.parse_args()
    _script.check_names(made, "source", options.sources, SOURCES)
    _script.check_names(made, "consumer", options.consumers, CONSUMERS)
    do: dict[str, Callable[[], None]] = {
        "idle": lambda: None, "sleep": lambda: sleep(STEP_S), "burn": Burn(),
    }  # fmt: skip
    found: list[dict[str, Any]] = []
    print(f"{'unit':16}{'source':7}{'consumer':9}{'ms':>8}{'ratio':>7}{'own us':>8}{'CPU ms':>8}"
          f"{'switches':>9}")  # fmt: skip
    with ExitStack() as stack:
        stack.enter_context(fake_or_real(options.rehearse))
        folder = options.folder or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        graphs = Graphs(folder, options.nodes)
        for unit in options.units:
            measured = Measured(unit, options, graphs)
            for _ in range(options.rounds):
                measured.round({name: do[name] for name in options.consumers})
            measured.close()
            for line in measured.lines():
                found.append(line)
                print(LINE.format_map({"ratio": 0.0, **line}))
            if options.json:
                _script.write({"rounds": options.rounds, "lines": found}, options.json)


if __name__ == "__main__":
    _script.run(main)
