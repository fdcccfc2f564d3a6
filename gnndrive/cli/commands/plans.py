"""`gnndrive plan`: what loading takes of memory and time, on one host or several, without training.

With a store, its loader is planned and a few of its batches are drawn. Without one, the numbers of
a graph are enough.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, NamedTuple

import typer

from gnndrive.cli.commands.loader_options import (
    SAMPLERS,
    LoaderOptions,
    parse_tuning,
    with_loader_options,
)
from gnndrive.cli.commands.numbers import parse_count, parse_rate
from gnndrive.cli.commands.options import (
    Json,
)
from gnndrive.cli.commands.plan_text import Run, host_lines, plan_lines, step_lines
from gnndrive.cli.commands.progress import Bars
from gnndrive.cli.report import plan_section, run_envelope
from gnndrive.cli.report.text import json_text
from gnndrive.common.errors import ConfigError
from gnndrive.common.memory import parse_size
from gnndrive.loader.arguments import checked_tuning
from gnndrive.loader.drawing import reporting
from gnndrive.loader.store_loader import plan_for_ranks
from gnndrive.plan.plan import Plan, Planner
from gnndrive.plan.scale import Cluster, layouts
from gnndrive.plan.sketch import Sketch
from gnndrive.plan.strategy_costs import Comparison
from gnndrive.store.calibration import load_calibration
from gnndrive.store.reader import open_homogeneous
from gnndrive.strategies.base import strategy as find_strategy

AT_RANDOM = (
    "rows are taken to lie at random; a graph in which many batches need the same rows reads less"
)
DEFAULT_DISK = "the disk is taken for a usual SSD"


@with_loader_options("seed")
def plan(
    options: LoaderOptions,
    store: Annotated[
        Path | None, typer.Argument(metavar="[STORE]", help="A store's folder; or give --nodes.")
    ] = None,
    ranks: Annotated[int, typer.Option(min=1, help="Ranks on a host; they divide --memory.")] = 1,
    host_service: Annotated[
        bool, typer.Option(help="Whether the ranks of a host share one feature buffer.")
    ] = True,
    hosts: Annotated[int, typer.Option(min=1, help="Hosts, each with as many ranks.")] = 1,
    net: Annotated[
        str | None, typer.Option(help="What a host receives from others, such as 10Gbit.")
    ] = None,
    compute_s: Annotated[
        float | None, typer.Option(min=0, help="Seconds of training on a batch.")
    ] = None,
    nodes: Annotated[str | None, typer.Option(help="Without STORE: nodes, such as 111M.")] = None,
    edges: Annotated[str | None, typer.Option(help="Without STORE: edges, such as 1.62G.")] = None,
    row_bytes: Annotated[
        str | None, typer.Option(help="Without STORE: bytes of a node's features, such as 512.")
    ] = None,
    batch_nodes: Annotated[
        str | None, typer.Option(help="Without STORE: nodes in a batch; default: the fanout's.")
    ] = None,
    seeds: Annotated[
        str | None, typer.Option(help="Without STORE: seeds of an epoch, such as 1.2M.")
    ] = None,
    json: Json = False,
) -> None:
    """Print what loading takes of memory and time, and why; may draw a few batches."""
    if net is not None and hosts == 1:
        raise ConfigError("--net is what hosts send each other: give --hosts, too")
    if net is None and hosts > 1:
        raise ConfigError(f"--hosts {hosts}: say what they send each other with --net, as 10Gbit")
    cluster = Cluster(hosts, None if net is None else parse_rate(net, "--net"), compute_s)
    numbers = {
        "--nodes": nodes, "--edges": edges, "--row-bytes": row_bytes,
        "--batch-nodes": batch_nodes, "--seeds": seeds,
    }  # fmt: skip
    given = {name: parse_count(text, name) for name, text in numbers.items() if text is not None}
    shared = host_service and ranks > 1
    if store is not None:
        planned = _of_store(store, options, ranks, shared, cluster, given)
    else:
        planned = _of_numbers(options, ranks, shared, cluster, given)
    print(_as_json(planned, store) if json else planned.text)


class _Planned(NamedTuple):
    """A plan, and all that is printed of it."""

    plan: Plan
    lines: list[str]
    comparison: Comparison | None = None

    @property
    def text(self) -> str:
        more = [] if self.comparison is None else ["", *str(self.comparison).splitlines()]
        return "\n".join([*self.lines, *more])


def _as_json(planned: _Planned, store: Path | None) -> str:
    """What is printed as a RUN.json."""
    plan = plan_section(planned.plan) | {"text": planned.text}
    where = {} if store is None else {"store": str(store)}
    found = {} if planned.comparison is None else planned.comparison.to_json()
    return json_text({**run_envelope("plan"), **where, "plan": plan, **found})


def _of_store(
    path: Path, options: LoaderOptions, ranks: int, shared: bool, cluster: Cluster,
    given: dict[str, int],
) -> _Planned:  # fmt: skip
    """The plan of a loader over a store's train split, or over all nodes without one."""
    if given:
        raise ConfigError(f"{next(iter(given))} is for a store that is not there: leave out STORE")
    store = open_homogeneous(path, "gnndrive plan")
    seeds = store.split("train") if "train" in store.split_names else None
    with options.loader(store, seeds, shuffle=True) as loader, Bars() as bars, reporting(bars):
        planner, loading, _ = plan_for_ranks(loader, ranks, shared)
        batches = len(loader)
        found = None
        if options.memory is not None and ranks == cluster.hosts == 1:
            found = loader.compare()
    if loading is None:
        if cluster.hosts > 1 or cluster.compute_s is not None:
            raise ConfigError(
                "--hosts and --compute-s are for batches that are drawn from the whole graph, and "
                f"those of strategy {options.strategy} are not: leave them out"
            )
        plan = planner.plan()
        return _Planned(plan, plan_lines(plan), found)
    notes: tuple[str, ...] = ()
    if load_calibration(store) is None:
        notes = (f"{DEFAULT_DISK}: run gnndrive bench disk {path} to measure it",)
    drawn = len(loading.drawn.sizes)
    source = f"{drawn} {'batch' if drawn == 1 else 'batches'} drawn from the store"
    own = None if found is None else found.own
    known = None if own is None or own.refused else own
    run = Run(loading, cluster, batches, source, notes, known)
    return _planned(planner, run, store.info.nbytes)._replace(comparison=found)


def _of_numbers(
    options: LoaderOptions, ranks: int, shared: bool, cluster: Cluster, given: dict[str, int]
) -> _Planned:
    """The plan of a loader over a graph that is not there."""
    for name in ("--nodes", "--edges", "--row-bytes"):
        if name not in given:
            what = "a STORE, or --nodes, --edges and --row-bytes of one that is not there"
            raise ConfigError(f"give {what}" if not given else f"{name} is missing: give {what}")
    default, tuned = LoaderOptions(), checked_tuning(options.tuned, None)
    for name in set(parse_tuning(options.tuning)) - {"samplers", "topology"}:
        raise ConfigError(f"--tuning {name}=… needs a STORE: leave it out")
    for name in ("strategy", "device", "device_memory", "sampling"):
        if getattr(options, name) != getattr(default, name):
            raise ConfigError(f"--{name.replace('_', '-')} needs a STORE: leave it out")
    parts, asked = find_strategy(options.strategy), tuned.topology != "auto"
    sketch = Sketch(
        nodes=given["--nodes"],
        edges=given["--edges"],
        row_bytes=given["--row-bytes"],
        fanout=options.hops,
        batch_size=options.batch_size,
        batch_nodes=given.get("--batch-nodes"),
        seeds=given.get("--seeds"),
        memory=_bytes(options.memory, "--memory"),
        buffer=_bytes(options.buffer, "--buffer"),
        samplers=SAMPLERS if tuned.samplers == "auto" else int(tuned.samplers),
        topologies=(tuned.topology,) if asked else parts.topologies,
        topology_asked=asked,
        policy=parts.policy,
        ranks=ranks,
        shared=shared,
    )
    planner = sketch.planner()
    loading, count = sketch.loading(planner), sketch.bounds().nodes[None]
    source = f"batches of {count:,} nodes"
    if sketch.batch_nodes is None:
        source += ", the most that the fanout allows; give fewer with --batch-nodes"
    known = replace(cluster, sampled=False)
    run = Run(loading, known, sketch.batches, source, (f"{AT_RANDOM}; {DEFAULT_DISK}",))
    return _planned(planner, run, sketch.store_bytes)


def _planned(planner: Planner, run: Run, store_bytes: int) -> _Planned:
    plan, found = planner.plan(), layouts(planner, run.loading, run.cluster, store_bytes)
    lines = plan_lines(plan, run.cluster.hosts) + step_lines(plan, found[0], run)
    if run.cluster.hosts > 1:
        lines += host_lines(plan, found, run)
    return _Planned(plan, lines)


def _bytes(size: str | int | None, name: str) -> int | None:
    return None if size is None else parse_size(size, name)
