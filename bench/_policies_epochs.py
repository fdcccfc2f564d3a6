"""Epochs of whole strategies, in turn, for bench/policies.py --epochs.

Every strategy loads the same batches, those that the simulation replays, and its epoch ends with
them, so that a strategy that samples ahead samples no more than these.
"""

from __future__ import annotations

import argparse
import sys
from statistics import median
from typing import Any

import epoch
import torch
from _limits import Cgroup, limited
from _loaders import make_loader, run_loader, seeds_of

import gnndrive
from gnndrive.cli.commands.strategy_runs import parse_choice
from gnndrive.common.errors import ConfigError
from gnndrive.common.memory import format_size, parse_size


def arguments_of(text: str) -> dict[str, Any]:
    """The loader's arguments that a text such as "ginex:phases=apart:samplers=2" names.

    Raises:
        ConfigError: there is no such strategy or argument.
    """
    choice = parse_choice(text, "--epochs")
    if choice.strategy is None:
        raise ConfigError(f"--epochs {text}: give a strategy")
    return {"strategy": choice.strategy, **choice.arguments}


def loader_arguments(text: str, options: argparse.Namespace) -> dict[str, Any]:
    """All arguments of a strategy's loader, for an epoch of the first --batches batches."""
    store = gnndrive.open(options.store)
    seeds = [torch.from_numpy(each.node) for each in seeds_of(store, options)]
    return {"input_nodes": torch.cat(seeds), "shuffle": False} | arguments_of(text)


def check(options: argparse.Namespace) -> None:
    """Make a loader of each strategy, which starts nothing, so that a wrong argument ends this
    script before the first epoch.

    Raises:
        ConfigError: a strategy or an argument does not exist or cannot work.
    """
    for text in options.epochs:
        try:
            make_loader(options, **loader_arguments(text, options))
        except TypeError as error:
            sys.exit(f"--epochs {text}: {error}")


def work(options: argparse.Namespace) -> dict[str, Any]:
    """Run the epoch of the strategy `options.worker` in this process."""
    return run_loader(options, **loader_arguments(options.worker, options))


def measure(options: argparse.Namespace, script: str) -> dict[str, Any]:
    """Run all strategies in turn, each in a process of its own with cold caches.

    Args:
        options: those of bench/policies.py.
        script: bench/policies.py, which calls `work` if it is given --worker.
    """
    check(options)
    with limited(parse_size(options.memory_limit, "--memory-limit")) as (group, memory):
        turns = options.epochs * options.rounds
        results = [measured(text, options, group, script) for text in turns]
    return {"memory": memory, "results": results}


def measured(
    text: str, options: argparse.Namespace, group: Cgroup | None, script: str
) -> dict[str, Any]:
    """Run one strategy, and add the seconds that its reads take at the disk's two constants."""
    result, cost = epoch.spawn_beside_disk(text, options, group, script)
    reads_s = cost.seconds(result["requests"], result["bytes_read"])
    return result | {
        "request_us": cost.request_s * 1e6, "byte_ns": cost.byte_s * 1e9, "reads_s": reads_s,
    }  # fmt: skip


def table(found: dict[str, Any], options: argparse.Namespace) -> str:
    """Format the epochs: one line for each strategy, of medians."""
    rounds = epoch.in_rounds(found["results"], "loader")
    width = max(map(len, ["strategy", *rounds]))
    lines = [
        f"{options.batches} batches a strategy, in turn, rounds: {options.rounds}; "
        f"{found['memory']}",
        f"{'strategy':<{width}} {'hits %':>7} {'requests':>9} {'MB':>8} {'reads s':>8} "
        f"{'peak':>8}  s a batch",
    ]
    for text, results in rounds.items():
        hits = 100 * median(result["hit_rate"] for result in results)
        line = f"{text:<{width}} {hits:7.1f} {a_batch(results, 'requests'):9,.0f}"
        line += f" {a_batch(results, 'bytes_read') / 1e6:8,.1f} {a_batch(results, 'reads_s'):8.3f}"
        line += f" {format_size(max(result['peak_bytes'] for result in results)):>8}"
        lines.append(f"{line}  {epoch.spread([*map(epoch.s_a_batch, results)])}")
    return "\n".join(lines)


def a_batch(results: list[dict[str, Any]], name: str) -> float:
    """The median of a figure of a batch."""
    return float(median(result[name] / result["batches"] for result in results))
