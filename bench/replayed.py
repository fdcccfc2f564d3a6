"""What replayed samples cost in accuracy: epochs of fresh samples beside epochs from a pack.

usage: python bench/replayed.py STORE [--recorded 0,1,4] [--seeds 5] [--epochs 30] [--fanout 10,5]
           [--batch-size 256] [--train N] [--hidden 128] [--dropout 0.5] [--lr 0.003]
           [--weight-decay 5e-4] [--threads 1] [--out FOLDER] [--json FILE]

A two-layer GraphSAGE is trained on the train split, or on --train of its nodes, which are drawn
once. For each number in --recorded and each seed, the weights and the samples are drawn anew: 0
draws fresh samples in each epoch, N packs N epochs and replays them with strategy="diskgnn". The
first batches of a seed's recordings are those that its fresh run draws.

After each epoch the model is evaluated on all nodes with all neighbours. "best" is the test
accuracy after the epoch with the best validation accuracy, "last" the one after the last epoch;
both are means over the seeds, with the standard deviation. "loss" is the mean training loss of the
last epoch.

Only rows of mostly zeros, such as words of a text, are fast: the first layer multiplies the
features as a sparse matrix before it takes means, which is the same up to rounding.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import _script
import torch
from _script import grouped, numbers, say
from partitioned_accuracy import add_training, trained
from torch_geometric.nn import GraphSAGE
from torch_geometric.utils import scatter

import gnndrive


def sparse(x: torch.Tensor) -> torch.Tensor:
    """The same matrix, float32 [rows, columns], as a sparse tensor."""
    where = x.nonzero().T
    found = x[where[0], where[1]].to(torch.float32)
    return torch.sparse_coo_tensor(where, found, x.shape, is_coalesced=True, check_invariants=False)


def forward(model: GraphSAGE, x: torch.Tensor, edge_index: torch.Tensor) -> torch.Tensor:
    """What a two-layer GraphSAGE returns for sparse features, float32 [nodes, classes]."""
    first, second = model.convs
    sources, targets = edge_index
    projected = torch.sparse.mm(x, first.lin_l.weight.T)
    around = scatter(projected[sources], targets, dim_size=len(x), reduce="mean")
    hidden = around + first.lin_l.bias + torch.sparse.mm(x, first.lin_r.weight.T)
    hidden = torch.dropout(hidden.relu(), model.dropout.p, model.training)
    out: torch.Tensor = second(hidden, edge_index)
    return out


def train(
    loader: gnndrive.NeighborLoader, whole: dict[str, Any], seed: int, options: argparse.Namespace
) -> dict[str, Any]:
    found: dict[str, Any] = {"val": [], "test": [], "loss": []}
    for model, loss in trained(
        loader, 2, options, seed, lambda model, x, edges: forward(model, sparse(x), edges)
    ):
        model.eval()
        with torch.no_grad():
            right = forward(model, whole["x"], whole["edge_index"]).argmax(dim=1) == whole["y"]
        found["loss"].append(loss)
        for split in ("val", "test"):
            found[split].append(right[whole[split]].float().mean().item())
    best = max(range(options.epochs), key=lambda epoch: found["val"][epoch])
    return found | {"best": found["test"][best], "last": found["test"][-1]}


def measure(options: argparse.Namespace) -> dict[str, Any]:
    store = gnndrive.open(options.store)
    seeds, drawn = store.split("train"), torch.Generator().manual_seed(0)
    if options.train is not None:
        seeds = seeds[torch.randperm(len(seeds), generator=drawn)[: options.train]]
    whole = {"x": sparse(store.x), "edge_index": store.edge_index, "y": store.tensor("y")}
    whole |= {split: store.split(split) for split in ("val", "test")}
    given: dict[str, Any] = {"batch_size": options.batch_size, "shuffle": True}
    results = []
    for seed in range(options.seeds):
        for recorded in options.recorded:
            replaying, folder = dict[str, Any](), Path(options.out)
            if recorded:
                shutil.rmtree(folder, ignore_errors=True)
                gnndrive.pack(
                    store, options.fanout, seeds, epochs=recorded, seed=seed, out=folder, **given
                )
                replaying = {"strategy": gnndrive.strategies.DiskGNN(packed=folder)}
            with gnndrive.NeighborLoader(
                store, options.fanout, seeds, seed=seed, **given, **replaying
            ) as loader:
                result = train(loader, whole, seed, options)
            if recorded:
                shutil.rmtree(folder)
            results.append({"recorded": recorded, "seed": seed} | result)
            say(row([results[-1]]))
            if options.json:
                _script.write({"results": results}, options.json)
    return {"nodes": len(seeds), "results": results}


def row(results: list[dict[str, Any]]) -> str:
    recorded = results[0]["recorded"]
    text = f"{f'{recorded} recorded' if recorded else 'fresh':<12}"
    for name in ("best", "last"):
        shares = [each[name] for each in results]
        spread = stdev(shares) if len(shares) > 1 else 0.0
        text += f"  {name} {mean(shares):.4f} ± {spread:.4f}"
    return f"{text}  loss {mean(each['loss'][-1] for each in results):.4f}"


def table(found: dict[str, Any]) -> str:
    head = f"{found['nodes']:,} training nodes; test accuracy, mean ± standard deviation"
    return "\n".join([head, *map(row, grouped(found["results"], "recorded").values())])


def parse(given: list[str]) -> argparse.Namespace:
    parser = _script.parser(__doc__)
    parser.add_argument("store")
    parser.add_argument("--recorded", type=numbers, default=[0, 1, 4])
    parser.add_argument("--fanout", type=numbers, default=[10, 5])
    parser.add_argument("--train", type=int, metavar="N", help="default: the whole split")
    parser.add_argument("--out", help="folder for the packs; default: STORE.replayed")
    add_training(parser, seeds=5)
    options = parser.parse_args(given)
    options.out = options.out or f"{Path(options.store)}.replayed"
    return options


def main() -> None:
    options = parse(sys.argv[1:])
    torch.set_num_threads(options.threads)
    found = measure(options)
    _script.show(table(found), found, options.json)


if __name__ == "__main__":
    _script.run(main)
