"""`gnndrive plan`: what loading takes of memory and time, on one host or several, without training.

With a store, its loader is planned and a few of its batches are drawn. Without one, the numbers of
a graph are enough.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from pathlib import Path
from typing import Annotated, NamedTuple

import typer

from gnndrive.cli.commands.loader_options import (
    SAMPLERS,
    LoaderOptions,
    parse_tuning,
    with_loader_options,
)
from gnndrive.cli.commands.options import Json
from gnndrive.cli.in_options import in_options
from gnndrive.cli.report import Bars, plan_section, run_envelope
from gnndrive.cli.report.text import aligned, json_text
from gnndrive.common.duration import duration
from gnndrive.common.errors import ConfigError
from gnndrive.common.memory import format_size, given_size, least_text, parse_size
from gnndrive.common.progress import reporting
from gnndrive.loader.arguments import checked_tuning
from gnndrive.loader.store_loader import plan_for_ranks
from gnndrive.loader.strategy_choice import UNCALIBRATED, USUAL_DISK
from gnndrive.plan import costs
from gnndrive.plan.plan import Plan, Planner
from gnndrive.plan.scale import Cluster, Exchanging, Layout, layouts
from gnndrive.plan.sketch import Sketch
from gnndrive.plan.strategy_costs import Comparison, StrategyCost
from gnndrive.store.calibration import calibrate_command, load_calibration
from gnndrive.store.reader import open_homogeneous
from gnndrive.strategies.base import strategy as find_strategy

AT_RANDOM = (
    "rows are taken to lie at random; a graph in which many batches need the same rows reads less"
)
MORE = "-v says of each strategy what it does and needs, and when it pays"


@with_loader_options("seed")
def plan(
    context: typer.Context,
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
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Print more of memory, a batch and strategies.")
    ] = False,
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
    shared, details = host_service and ranks > 1, verbose or json
    if store is not None:
        planned = _of_store(store, options, ranks, shared, cluster, given, details)
    else:
        planned = _of_numbers(options, ranks, shared, cluster, given, details)
    text = in_options(planned.text(details), context.command)
    print(_as_json(planned, text, store) if json else text)


class _Planned(NamedTuple):
    """A plan, and all that is printed of it."""

    plan: Plan
    lines: list[str]
    comparison: Comparison | None = None

    def text(self, details: bool) -> str:
        found, more = self.comparison, list[str]()
        if found is not None:
            more = ["", found.details()] if details else ["", str(found), MORE]
        return "\n".join([*self.lines, *more])


def _as_json(planned: _Planned, text: str, store: Path | None) -> str:
    plan = plan_section(planned.plan) | {"text": text}
    where = {} if store is None else {"store": str(store)}
    found = {} if planned.comparison is None else planned.comparison.to_json()
    return json_text({**run_envelope("plan"), **where, "plan": plan, **found})


def _of_store(
    path: Path, options: LoaderOptions, ranks: int, shared: bool, cluster: Cluster,
    given: dict[str, int], details: bool,
) -> _Planned:  # fmt: skip
    """The plan of a loader over a store's train split, or over all nodes without one."""
    if given:
        raise ConfigError(f"{next(iter(given))} is for a store that is not there: leave out STORE")
    store = open_homogeneous(path, "gnndrive plan")
    seeds = store.split("train") if "train" in store.split_names else None
    with options.loader(store, seeds, shuffle=True) as loader, Bars() as bars, reporting(bars):
        planner, loading, _, exchanging = plan_for_ranks(loader, ranks, shared)
        batches = len(loader)
        compares = options.memory is not None and ranks == cluster.hosts == 1
        found = loader.compare() if compares else None
    if loading is None:
        if cluster.hosts > 1 or cluster.compute_s is not None:
            raise ConfigError(
                "--hosts and --compute-s are for batches that are drawn from the whole graph, and "
                f"those of strategy {options.strategy} are not: leave them out"
            )
        plan = planner.plan()
        return _Planned(plan, plan_lines(plan, details), found)
    notes = []
    if load_calibration(store) is None and found is None:  # else the comparison says it
        notes = [UNCALIBRATED.format(calibrate_command(store))]
    drawn = len(loading.drawn.sizes)
    source = f"{drawn} {'batch' if drawn == 1 else 'batches'} drawn from the store"
    own = None if found is None else found.own
    known = None if own is None or own.refused else own
    run = Run(loading, cluster, batches, source, notes, known)
    size = store.info.nbytes
    return _planned(planner, exchanging, run, size, details)._replace(comparison=found)


def _of_numbers(
    options: LoaderOptions, ranks: int, shared: bool, cluster: Cluster, given: dict[str, int],
    details: bool,
) -> _Planned:  # fmt: skip
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
        memory=given_size(options.memory, "--memory"),
        buffer=given_size(options.buffer, "--buffer"),
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
    run = Run(loading, known, sketch.batches, source, [f"{AT_RANDOM}; {USUAL_DISK}"])
    return _planned(planner, sketch.exchanging, run, sketch.store_bytes, details)


def _planned(
    planner: Planner, exchanging: Exchanging, run: Run, store_bytes: int, details: bool
) -> _Planned:  # fmt: skip
    plan = planner.plan()
    found = layouts(planner, exchanging, run.loading, run.cluster, store_bytes)
    lines = plan_lines(plan, details, run.cluster.hosts) + step_lines(plan, found[0], run, details)
    if run.cluster.hosts > 1:
        lines += host_lines(plan, found, run)
    return _Planned(plan, lines)


# ---- counts and rates as people write them: "1.62G" edges, a net of "10Gbit"

_PREFIXES = {prefix: 1000**power for power, prefix in enumerate(("", "K", "M", "G", "T"))}


def parse_count(text: str, name: str) -> int:
    """A whole number from 1 on, such as "1200", "1,200", "111M", "1.62G", of the option `name`."""
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)([KMGT]?)", text.replace(",", "").strip().upper())
    count = Decimal(match[1]) * _PREFIXES[match[2]] if match else Decimal(0)
    if not 1 <= count < 2**63 or count != int(count):
        raise ConfigError(f"{name} {text}: give a whole number, such as 1200, 111M or 1.62G")
    return int(count)


def parse_rate(text: str, name: str) -> float:
    """Bytes a second in "10Gbit", "500Mbit/s", "10Gbps", "1.25GB/s" or a number of bytes, of the
    option `name`; more than 0."""
    wrong = ConfigError(f"{name} {text}: give a rate such as 10Gbit, 500Mbit or 1.25GB/s")
    match = re.fullmatch(r"([0-9]*\.?[0-9]+)\s*([kKMGT]?)(bit(?:/s)?|bps)", text.strip())
    if match:
        rate = Decimal(match[1]) * _PREFIXES[match[2].upper()] / 8
        if not rate:
            raise wrong
        return float(rate)
    if re.search(r"[0-9]\s*[kKMGT]b(/s)?$", text):  # bits or bytes
        raise wrong
    try:
        return float(parse_size(text.removesuffix("/s"), name))
    except ConfigError:
        raise wrong from None


# ---- text: a host's plan, what a step takes, and layouts for several hosts

BUILT = (
    "full copies and exchange are built (gnndrive shard makes the parts of a store); shards "
    "without exchange are a formula"
)


@dataclass(frozen=True, slots=True)
class Run:
    """What is printed beside a plan.

    Attributes:
        batches: batches of an epoch, over all ranks; None: not known.
        source: where the batches are known from, such as "8 batches that were drawn".
        notes: what to know of the figures.
        replayed: what a batch costs by a comparison of strategies, which follows; None: it is
            counted by a formula.
    """

    loading: costs.Loading
    cluster: Cluster
    batches: int | None
    source: str
    notes: Sequence[str]
    replayed: StrategyCost | None = None


def plan_lines(plan: Plan, details: bool, hosts: int = 1) -> list[str]:
    """A host's plan, and what its ranks and their host service hold of it."""
    lines = (plan.details() if details else str(plan)).splitlines()
    if plan.ranks == 1:
        return ["on each host", *lines] if hosts > 1 else lines
    how = "that share one feature buffer" if plan.shared else "with a feature buffer each"
    where = "on this host" if hosts == 1 else "on each host"
    own = sum(line.nbytes for line in plan.lines if line.copies > 1)
    once = plan.host_bytes - plan.ranks * own
    if plan.shared:
        lines += [f"each rank holds {format_size(own)}, the host once {format_size(once)}"]
    return [f"{where}, {plan.ranks} ranks {how}", *lines]


def step_lines(plan: Plan, layout: Layout, run: Run, details: bool) -> list[str]:
    """What a step takes, with `details` by its parts, what bounds it, and an epoch. A comparison
    that follows says the same of a batch and an epoch without training."""
    ranks = run.cluster.hosts * plan.ranks
    what = "a batch" if ranks == 1 else f"a step, in which each of {ranks} ranks gets a batch"
    if run.replayed is not None:
        layout = replace(layout, seconds={**layout.seconds, **run.replayed.seconds})
    source, lines = f"{what}, from {run.source}", [*run.notes]
    if run.replayed is None or run.cluster.compute_s is not None:
        steps, about = _steps(run, plan.ranks), f"about {duration(layout.expected_s)}"
        epoch = "an epoch: not known, give its number of seeds with --seeds"
        if steps is not None:
            took = duration(steps * layout.expected_s)
            epoch = f"an epoch of {steps:,} step{'s' * (steps != 1)}: about {took}{_untrained(run)}"
        bound = f"bound by {layout.bound_by}"
        whole = f"{source}: {about}{_untrained(run)}, {bound}"
        if details:
            whole = (
                f"{about}{_untrained(run)}, {bound}: {duration(layout.step_s)} if all overlaps, "
                f"{duration(layout.serial_s)} if nothing does"
            )
        lines = [whole, epoch, *lines]
    if details:
        lines = [source, *_part_lines(plan, layout, run), *lines]
    return ["", *lines] if lines else []


def _untrained(run: Run) -> str:
    """What to say behind seconds: whether the training step is one of their parts."""
    return " without training" if run.cluster.compute_s is None else ""


def _part_lines(plan: Plan, layout: Layout, run: Run) -> list[str]:
    """How long each part of a step takes, and why."""
    threads = f"{run.loading.stages.threads} threads{'' if plan.ranks == 1 else ' a rank'}"
    why = {
        costs.SAMPLING: f"{threads}, {costs.processors(plan.ranks)} processors as on this machine",
        costs.DISK: _reads(plan, run),
        costs.ADMISSION: "one thread, which finds rows in the buffer and plans reads",
        costs.GATHER: "copying rows into batches",
        costs.HAND_OVER: "handing a batch to your loop, and going on to the next",
        costs.COMPUTE: "as given",
    }
    missing = {
        costs.SAMPLING: "not known: there is no graph to draw batches from",
        costs.GATHER: "not known on a device",
        costs.COMPUTE: "not known: give the seconds of training on a batch with --compute-s",
    }
    if fetched := plan.fetched:
        why[costs.ATTRIBUTES] = f"rows of {', '.join(fetched)}: memory has no room for all"
    lines = []
    for name, said in why.items():
        value = layout.seconds[name]
        lines.append(
            f"  {name:<10}" + (missing[name] if value is None else f"{duration(value):>8}  {said}")
        )
    return lines


def host_lines(plan: Plan, layouts: Sequence[Layout], run: Run) -> list[str]:
    """The layouts of a store on several hosts, beside each other."""
    steps = _steps(run, plan.ranks)
    rows = [("", "memory", "on disk", "received", "disk", "net", "step", "bound by", "epoch")]
    of_step = f"what it receives, and seconds, are of a step{_untrained(run)}"
    lines = ["", f"each of {run.cluster.hosts} hosts; {of_step}"]
    refused = []
    for each in layouts:
        if each.refused:
            refused.append(f"{each.name} cannot work: {each.refused}")
            continue
        epoch = "not known" if steps is None else duration(steps * each.expected_s)
        rows.append(
            (
                each.name, format_size(each.memory_bytes), format_size(each.disk_bytes),
                format_size(each.received_bytes), duration(each.known[costs.DISK]),
                duration(each.known[costs.NET]), duration(each.expected_s), each.bound_by, epoch,
            )
        )  # fmt: skip
    return [*lines, *aligned(rows), *refused, *_whether_it_pays(layouts), BUILT]


def _whether_it_pays(layouts: Sequence[Layout]) -> list[str]:
    """Exchange pays if a step takes less than with full copies."""
    full, exchange = layouts[0], layouts[2]
    if exchange.refused:
        return []
    saved, net = full.known[costs.DISK] - exchange.known[costs.DISK], exchange.known[costs.NET]
    pays = "pays" if exchange.expected_s < full.expected_s else "does not pay"
    lines = [
        f"exchange {pays}: of a step it takes {duration(net)} of the net and saves "
        f"{duration(max(saved, 0))} of the disk"
    ]
    for cached in layouts[3:]:
        pays = "pays" if cached.expected_s < full.expected_s else "does not pay either"
        lines.append(
            f"{cached.name} it {pays}: each rank keeps rows of other ranks, so that it is "
            f"{exchange.expected_s / cached.expected_s:.1f} times as fast; give the loader "
            f'`tuning=gnndrive.Tuning(remote_cache="{least_text(cached.cache_bytes)}")`'
        )
    return lines


def _reads(plan: Plan, run: Run) -> str:
    topology = plan.topology
    adjacency = ", and adjacency" if topology.has_ring else ""
    if plan.holds_everything:
        return f"no rows after the first epoch{adjacency}, because all of them stay in memory"
    loaded = sum(each.loads for each in costs.counted(plan, run.loading).values())
    rows = sum(run.loading.counts(table)[0] for table in plan.tables)
    if run.replayed is not None and run.replayed.hit_share is not None:
        loaded = rows * (1 - run.replayed.hit_share)
    return f"{loaded:,.0f} of a batch's {rows:,} rows{adjacency}"


def _steps(run: Run, ranks: int) -> int | None:
    return None if run.batches is None else -(-run.batches // (run.cluster.hosts * ranks))
