"""What `gnndrive plan` prints: a host's plan, what a step takes, and layouts for several hosts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from gnndrive.common.memory import format_size
from gnndrive.plan.costs import (
    ADMISSION,
    COMPUTE,
    DISK,
    GATHER,
    HAND_OVER,
    NET,
    SAMPLING,
    Loading,
    counted,
    processors,
)
from gnndrive.plan.plan import Plan
from gnndrive.plan.scale import EXCHANGE, Cluster, Layout
from gnndrive.plan.strategy_costs import StrategyCost, duration

NOT_BUILT = (
    "only full copies work today: shards and exchange are formulas, they are not built; copy the "
    "store to each host"
)


@dataclass(frozen=True, slots=True)
class Run:
    """What is printed beside a plan.

    Attributes:
        loading: what a step costs by.
        cluster: the hosts.
        batches: batches of an epoch, over all ranks; None: not known.
        source: where the batches are known from, such as "8 batches that were drawn".
        notes: what to know of the figures.
        replayed: what a batch costs by a comparison of strategies, which follows; None: it is
            counted by a formula.
    """

    loading: Loading
    cluster: Cluster
    batches: int | None
    source: str
    notes: tuple[str, ...] = ()
    replayed: StrategyCost | None = None


def plan_lines(plan: Plan, hosts: int = 1) -> list[str]:
    """A host's plan, and what its ranks and their host service hold of it."""
    lines = str(plan).splitlines()
    if plan.ranks == 1:
        return ["on each host", *lines] if hosts > 1 else lines
    how = "that share one feature buffer" if plan.shared else "with a feature buffer each"
    where = "on this host" if hosts == 1 else "on each host"
    own = sum(line.nbytes for line in plan.lines if line.copies > 1)
    once = plan.host_bytes - plan.ranks * own
    if plan.shared:
        lines += [f"each rank holds {format_size(own)}, the host once {format_size(once)}"]
    return [f"{where}, {plan.ranks} ranks {how}", *lines]


def step_lines(plan: Plan, layout: Layout, run: Run) -> list[str]:
    """What a step takes by its parts, what bounds it, and an epoch."""
    ranks, loading = run.cluster.hosts * plan.ranks, run.loading
    what = "a batch" if ranks == 1 else f"a step, in which each of {ranks} ranks gets a batch"
    cores = processors(plan.ranks)
    each = "" if plan.ranks == 1 else " a rank"
    why = {
        SAMPLING: f"{loading.stages.threads} threads{each}, {cores} processors as on this machine",
        DISK: _reads(plan, run),
        ADMISSION: "the event loop, which finds slots and plans reads",
        GATHER: "copying rows into batches",
        HAND_OVER: "from a batch's rows to the next one's",
        COMPUTE: "as given",
    }
    missing = {
        SAMPLING: "not known: there is no graph to draw batches from",
        GATHER: "not known on a device",
        COMPUTE: "not known: give the seconds of training on a batch with --compute-s",
    }
    if run.replayed is not None:
        layout = replace(layout, seconds={**layout.seconds, **run.replayed.seconds})
    lines = ["", f"{what}, from {run.source}"]
    for name, said in why.items():
        value = layout.seconds[name]
        lines.append(
            f"  {name:<10}" + (missing[name] if value is None else f"{duration(value):>8}  {said}")
        )
    if run.replayed is not None and run.cluster.compute_s is None:
        return [*lines, *run.notes]
    lines.append(
        f"about {duration(layout.expected_s)}, bound by {layout.bound_by}: "
        f"{duration(layout.step_s)} if all overlaps, {duration(layout.serial_s)} if nothing does"
    )
    steps = _steps(run, plan.ranks)
    if steps is None:
        lines.append("an epoch: not known, give its number of seeds with --seeds")
    else:
        lines.append(f"an epoch of {steps:,} steps: about {duration(steps * layout.expected_s)}")
    return [*lines, *run.notes]


def host_lines(plan: Plan, layouts: Sequence[Layout], run: Run) -> list[str]:
    """The layouts of a store on several hosts, beside each other."""
    steps = _steps(run, plan.ranks)
    rows = [("", "memory", "on disk", "received", "disk", "net", "step", "bound by", "epoch")]
    lines = ["", f"each of {run.cluster.hosts} hosts; what it receives, and seconds, are of a step"]
    refused = []
    for each in layouts:
        if each.refused:
            refused.append(f"{each.name} cannot work: {each.refused}")
            continue
        epoch = "not known" if steps is None else duration(steps * each.expected_s)
        rows.append(
            (
                each.name, format_size(each.memory_bytes), format_size(each.disk_bytes),
                format_size(each.received_bytes), duration(each.known[DISK]),
                duration(each.known[NET]), duration(each.expected_s), each.bound_by, epoch,
            )
        )  # fmt: skip
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        name, *cells = (f"{cell:>{width}}" for cell, width in zip(row, widths, strict=True))
        lines.append("  ".join([f"{name.strip():<{widths[0]}}", *cells]).rstrip())
    return [*lines, *refused, *_whether_it_pays(layouts), NOT_BUILT]


def _whether_it_pays(layouts: Sequence[Layout]) -> list[str]:
    """Exchange pays only if the net takes less than the disk time that it saves."""
    full, exchange = layouts[0], layouts[-1]
    if exchange.name != EXCHANGE or exchange.refused:
        return []
    saved, net = full.known[DISK] - exchange.known[DISK], exchange.known[NET]
    pays = "pays" if net < saved else "does not pay"
    return [
        f"exchange {pays}: it takes {duration(net)} of the net a step and saves "
        f"{duration(max(saved, 0))} of the disk"
    ]


def _reads(plan: Plan, run: Run) -> str:
    topology = plan.topology
    adjacency = ", and adjacency" if topology.has_ring else ""
    if plan.holds_everything:
        return f"no rows after the first epoch{adjacency}, because all of them stay in memory"
    loaded = sum(each.loads for each in counted(plan, run.loading).values())
    rows = sum(run.loading.counts(table)[0] for table in plan.tables)
    if run.replayed is not None and run.replayed.hit_share is not None:
        loaded = rows * (1 - run.replayed.hit_share)
    return f"{loaded:,.0f} of a batch's {rows:,} rows{adjacency}"


def _steps(run: Run, ranks: int) -> int | None:
    return None if run.batches is None else -(-run.batches // (run.cluster.hosts * ranks))
