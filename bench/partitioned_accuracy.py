"""What sampling inside windows, or with numbers that nodes share (LABOR), costs in accuracy.

usage: python bench/partitioned_accuracy.py STORE | --planted NODES,COMMUNITIES
           [--runs gnndrive,hierbatching:ldg,hierbatching:random,marius:random] [--train 0.1]
           [--project COLUMNS] [--parts 64] [--megabatch 8] [--static SHARE] [--seeds 2]
           [--epochs 30] [--fanout 10,10] [--batch-size 256] [--hidden 128] [--dropout 0.5]
           [--lr 0.003] [--weight-decay 5e-4] [--dim 128] [--threads 1] [--folder FOLDER]
           [--json FILE]

A GraphSAGE with a layer for each fanout is trained on --train of the nodes, and tested after the
last epoch on all other nodes, with all neighbours. A run is "gnndrive", which samples from the
whole graph; "labor", the same with sampling="labor", or "labor:K" with Labor(dependency=K); or the
name of a strategy and how its partitions are found. In each of --seeds rounds the weights, the
samples and the training nodes are others; all runs of a round have the same.

--project multiplies x with a random matrix, so that a row alone tells less of its label. --planted
trains on a graph of planted communities, which are its classes. The graph is copied to --folder,
partitioned there, and removed at the end. All of it is in memory for the tests, so use a small one.

"inside" is the share of the in-edges that come from the partition of their target, "kept" the share
that a window is expected to keep without static nodes. "updates" is the number of batches of an
epoch: windows have partly filled ones, so there are more of them.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from statistics import mean
from typing import Any

import _script
import torch
from _script import grouped, numbers
from torch_geometric.nn import GraphSAGE

import gnndrive
from gnndrive.common.errors import ConfigError
from gnndrive.store.generate import planted
from gnndrive.store.partitioned.format import PARTITIONS, partitioned_path

FULL, LABOR = "gnndrive", "labor"
RUNS = [FULL, "hierbatching:ldg", "hierbatching:random", "marius:random"]


def copied(options: argparse.Namespace, folder: Path) -> gnndrive.Store:
    if options.planted:
        nodes, communities = options.planted
        graph = planted(nodes, options.dim, communities, fractions={})
        given: dict[str, Any] = {"indptr": graph.indptr, "indices": graph.indices[:]}
        x, y = torch.from_numpy(graph.x[:]), torch.from_numpy(graph.y)
    else:
        store = gnndrive.open(options.store)
        edges = store.edges()
        given = {"indptr": edges.indptr, "indices": edges.indices}
        x, y = store.tensor("x"), store.tensor("y")
    if options.project:
        drawn = torch.Generator().manual_seed(0)
        x = x.float() @ torch.randn(x.shape[1], options.project, generator=drawn)
    return gnndrive.write_store(folder / "copy.gnn", nodes={"x": x, "y": y}, **given)


def trained(
    loader: gnndrive.NeighborLoader, layers: int, options: argparse.Namespace, seed: int,
    forward: Callable[..., torch.Tensor] = GraphSAGE.__call__,
) -> Iterator[tuple[GraphSAGE, float]]:  # fmt: skip
    """Train a model; yield it after each epoch, with the mean loss."""
    torch.manual_seed(seed)
    model = GraphSAGE(
        loader.data.num_features, options.hidden, layers, loader.data.num_classes,
        dropout=options.dropout,
    )  # fmt: skip
    adam = torch.optim.Adam(model.parameters(), lr=options.lr, weight_decay=options.weight_decay)
    for _ in range(options.epochs):
        model.train()
        losses = []
        for batch in loader:
            adam.zero_grad()
            out = forward(model, batch.x, batch.edge_index)[: batch.batch_size]
            loss = torch.nn.functional.cross_entropy(out, batch.y[: batch.batch_size])
            loss.backward()  # type: ignore[no-untyped-call]
            adam.step()
            losses.append(loss.item())
        yield model, mean(losses)


def accuracy(model: GraphSAGE, store: gnndrive.Store, nodes: torch.Tensor) -> float:
    """The share of the nodes whose label the model finds with all neighbours."""
    model.eval()
    with torch.no_grad():
        found = model(store.tensor("x"), store.edge_index).argmax(dim=1)
    return (found == store.tensor("y"))[nodes].float().mean().item()


def arguments(
    run: str, store: gnndrive.Store, options: argparse.Namespace
) -> tuple[dict[str, Any], dict[str, float]]:
    """The loader's arguments for a run, and what is known of its partitions; makes these once."""
    name, _, method = run.partition(":")
    if name == FULL:
        return {}, {}
    if name == LABOR:
        return {"sampling": gnndrive.Labor(int(method or 1))}, {}
    path = partitioned_path(store, method)
    if path.exists():
        info = PARTITIONS.read(path)
    else:
        info = gnndrive.partition(store, options.parts, method, name=method)
    strategy = replace(
        gnndrive.strategies.STRATEGIES[name], partitioned=method, megabatch=options.megabatch,
        static=options.static,
    )  # fmt: skip
    given = {"strategy": strategy}
    kept = info.share_kept(options.megabatch, hot=False)
    return given, {"inside": info.share_inside, "kept": kept}


def measure(options: argparse.Namespace) -> dict[str, Any]:
    folder, results = Path(options.folder), list[dict[str, Any]]()
    folder.mkdir()
    try:
        store = copied(options, folder)
        for seed in range(options.seeds):
            drawn = torch.Generator().manual_seed(seed)
            nodes = torch.randperm(store.num_nodes, generator=drawn)
            count = max(round(options.train * store.num_nodes), 1)
            for run in options.runs:
                given, known = arguments(run, store, options)
                with gnndrive.NeighborLoader(
                    store, options.fanout, nodes[:count].sort().values, shuffle=True,
                    batch_size=options.batch_size, seed=seed, **given,
                ) as loader:  # fmt: skip
                    made = list(trained(loader, len(options.fanout), options, seed))
                    stats, updates = loader.stats(), len(loader)
                model, losses = made[-1][0], [loss for _, loss in made]
                result = {
                    "run": run, "seed": seed, "accuracy": accuracy(model, store, nodes[count:]),
                    "losses": losses, "updates": updates,
                    "nodes_a_batch": int(stats["rows"]) / int(stats["batches"]), **known,
                }  # fmt: skip
                results.append(result)
                _script.say(row([result]))
    finally:
        shutil.rmtree(folder)
    return {"nodes": store.num_nodes, "training": count, "results": results}


def row(results: list[dict[str, Any]], full: float | None = None) -> str:
    first, share = results[0], 100 * mean(each["accuracy"] for each in results)
    seeds = " ".join(f"{100 * each['accuracy']:.1f}" for each in results)
    text = f"{first['run']:<20} {share:5.1f} ({seeds})"
    if full is not None:
        text += f"  {share - full:+5.1f}"
    text += f"  {first['updates']:,} updates, {first['nodes_a_batch']:,.0f} nodes a batch"
    if "inside" in first:
        text += f", inside {first['inside']:.3f}, kept {first['kept']:.3f}"
    return text


def table(found: dict[str, Any]) -> str:
    """Format the figures; the second number of a line is the difference from full sampling."""
    by_run = grouped(found["results"], "run")
    full = 100 * mean(each["accuracy"] for each in by_run[FULL]) if FULL in by_run else None
    lines = [
        f"{found['training']:,} of {found['nodes']:,} nodes train; accuracy of the others in "
        "percent, in brackets of each seed"
    ]
    return "\n".join([*lines, *(row(each, full) for each in by_run.values())])


def add_training(made: argparse.ArgumentParser, seeds: int) -> None:
    """Add the options of training."""
    for name, default in (
        ("seeds", seeds), ("epochs", 30), ("batch-size", 256), ("hidden", 128), ("threads", 1),
    ):  # fmt: skip
        made.add_argument(f"--{name}", type=int, default=default)
    for name, share in (("dropout", 0.5), ("lr", 0.003), ("weight-decay", 5e-4)):
        made.add_argument(f"--{name}", type=float, default=share)
    made.add_argument("--json", metavar="FILE")


def parse(given: list[str]) -> argparse.Namespace:
    parser = _script.parser(__doc__)
    parser.add_argument("store", nargs="?")
    parser.add_argument("--planted", type=numbers, metavar="NODES,COMMUNITIES")
    parser.add_argument("--runs", type=_script.names, default=RUNS)
    parser.add_argument("--fanout", type=numbers, default=[10, 10])
    for name, default in (("parts", 64), ("megabatch", 8), ("dim", 128), ("project", 0)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--train", type=float, default=0.1)
    parser.add_argument("--static", type=float, help="default: the strategy's")
    parser.add_argument("--folder", help="default: STORE.accuracy, or planted.accuracy")
    add_training(parser, seeds=2)
    options = parser.parse_args(given)
    if (options.store is None) == (options.planted is None):
        parser.error("give a store, or --planted NODES,COMMUNITIES")
    options.folder = options.folder or f"{Path(options.store or 'planted')}.accuracy"
    if Path(options.folder).exists():
        raise ConfigError(f"{options.folder} exists: remove it, or give another --folder")
    return options


def main() -> None:
    options = parse(sys.argv[1:])
    torch.set_num_threads(options.threads)
    found = measure(options)
    _script.show(table(found), found, options.json)


if __name__ == "__main__":
    _script.run(main)
