"""`choose_megabatches`: how large the windows of a loader are, by its memory and by drawn batches.

`DerivedLayouts` calls it once, before the runtime is made. Batches inside a window are smaller than
those of the whole graph, so a few are drawn inside one; their sizes are kept in batches.json.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import islice

from gnndrive.common.errors import ConfigError
from gnndrive.common.records import Int64Array, Sample, Subgraph
from gnndrive.loader.assembly import Assembly
from gnndrive.loader.find_partitioned import AUTO
from gnndrive.loader.megabatches import Megabatches, MegabatchSource
from gnndrive.plan.choice import make_planner, refusal
from gnndrive.plan.drawn import DRAWN_BATCHES, DrawnBatches, draw_batches
from gnndrive.plan.partitioned import largest_window, smaller, windowed_request
from gnndrive.plan.plan import Plan
from gnndrive.plan.request import PlanRequest
from gnndrive.plan.windows import PlannedWindows
from gnndrive.sampling.schedules import choose as choose_schedule
from gnndrive.sampling.schedules.base import WindowSizes
from gnndrive.store.batch_sizes import entry_key, load_entry, save_entry
from gnndrive.store.partitioned.format import TABLE
from gnndrive.store.partitioned.partitioned import Partitioned


def choose_megabatches(assembly: Assembly, partitioned: Partitioned) -> Megabatches:
    """Decide how large a loader's windows are.

    Args:
        assembly: the loader's, without windows.
        partitioned: the partitioned store.

    Raises:
        ConfigError: the windows do not fit into the memory, or an argument cannot work.
        StoreError, ReadError: the graph is damaged or cannot be read.
    """
    own, given = assembly.own, assembly.own["megabatch"]
    share = assembly.strategy.static if own["static"] is None else float(own["static"])
    static = min(round(share * partitioned.num_nodes), partitioned.num_static)
    if own["static"] is not None and static < round(share * partitioned.num_nodes):
        most = partitioned.num_static / partitioned.num_nodes
        raise ConfigError(
            f"static={share}: {partitioned.path} has the lists of {most:.3g} of the nodes: give "
            "no more, or partition the store again with a larger static="
        )
    windows = PlannedWindows(partitioned, WindowSizes(), static)
    measured = own["passes"] == AUTO
    if measured and assembly.ranks.per_step > 1:
        raise ConfigError(
            'passes="auto" measures the windows of one process, and all ranks have to yield as '
            "many batches: give a number of passes"
        )
    passes = 1 if measured else own["passes"] or 1
    chosen = Megabatches(windows, passes, own["order"], measured=measured)
    sizes = partial(_sizes, assembly, chosen)
    windows = replace(windows, sizes=sizes(given and min(given, partitioned.num_parts)))

    def request_of(windows: PlannedWindows) -> PlanRequest:
        return replace(assembly, megabatches=replace(chosen, windows=windows)).request()

    def fits(windows: PlannedWindows) -> bool:
        return make_planner(request_of(windows)).plan_that_fits() is not None

    known = request_of(windows).memory is not None
    draw = partial(_with_drawn, request_of, assembly, chosen) if known else _undrawn
    windows = largest_window(windows, sizes, fits, draw) if given is None else draw(windows)
    request = request_of(windows)
    try:
        make_planner(request).plan()
    except ConfigError as error:
        raise _with_least(request, windows, error) from None
    if given is None and assembly.ranks.per_step > 1:
        # Each rank would choose by the memory that it finds and the batches that it draws.
        raise ConfigError(
            "ranks= deals windows to the ranks, so they must be as large on all of them: give "
            f"megabatch={windows.sizes.megabatch}, which fits here, or less"
        )
    return replace(chosen, windows=replace(windows, chosen=True))


def still_fit(assembly: Assembly, megabatches: Megabatches) -> bool:
    """Whether windows whose size `choose_megabatches` found fit into the memory that is free now.
    Between the first `plan()` or `len()` and the first epoch a model may have taken some."""
    if assembly.own["megabatch"] is not None:
        return True  # the user's
    windows = replace(megabatches.windows, chosen=False)
    known = replace(assembly, megabatches=replace(megabatches, windows=windows))
    return make_planner(known.request()).plan_that_fits() is not None


def _with_least(request: PlanRequest, windows: PlannedWindows, error: ConfigError) -> ConfigError:
    """The error for windows that do not fit; with `memory=`, it names the least that works."""
    if request.memory is None:
        return error

    def plan(memory: int) -> Plan | None:
        return make_planner(replace(request, memory=memory)).plan_that_fits()

    return refusal(request.memory, plan, error, smaller(windows))


def _sizes(assembly: Assembly, chosen: Megabatches, most: int | None) -> WindowSizes:
    """The sizes of windows with at most `most` partitions; None: with as few as can be.

    Raises:
        ConfigError: there cannot be such windows.
    """
    context = chosen.context(assembly.schedule_context(0), assembly.ranks)
    schedule = choose_schedule(assembly.strategy.schedule, replace(context, megabatch=most))
    if schedule.window_sizes is None:
        raise ConfigError(
            f"strategy={assembly.strategy.name!r} samples inside windows, and the batches of your "
            "sampler lie anywhere in the graph: leave sampler= and batch_sampler= out"
        )
    return schedule.window_sizes


def _undrawn(windows: PlannedWindows) -> PlannedWindows:
    return windows


def _with_drawn(
    request_of: Callable[[PlannedWindows], PlanRequest], assembly: Assembly, chosen: Megabatches,
    windows: PlannedWindows,
) -> PlannedWindows:  # fmt: skip
    """The windows with what is known of their batches; draws some if nothing is known."""
    windows = replace(windows, drawn=None)
    assembly = replace(assembly, megabatches=replace(chosen, windows=windows))
    bounds = windowed_request(request_of(windows), windows).bounds
    settings = assembly.drawn_settings(assembly.batch_size or 0)
    key = entry_key(assembly.store, settings)
    entry = load_entry(assembly.store, key)
    tables = {TABLE: windows.rows}
    if isinstance(entry, dict) and isinstance(entry.get("kept"), float):
        drawn = DrawnBatches.from_json(entry.get("batches"), bounds, tables)
        if drawn is not None and 0 <= entry["kept"] <= 1:
            return replace(windows, drawn=drawn, drawn_in=windows.sizes.one, kept=entry["kept"])
    left = partial(assembly.schedule(0).windows, 0)
    source = MegabatchSource(windows, assembly.store.edges().index_pointers, left)
    # Of all windows the one with the most edges, because its batches are likely to be the largest.
    window = max(source.windows(), key=source.codes_of, default=None)
    if window is None:
        return windows
    graph = source.graph(window)
    drawn = draw_batches(
        islice(window.batches, DRAWN_BATCHES), assembly.sampler(), [graph], _rows_of, tables, bounds
    )
    if drawn is None:
        return windows
    kept = graph.num_edges / max(source.codes_of(window), 1)
    entry = {"kept": kept, "batches": drawn.to_json(settings)}
    save_entry(assembly.store, key, entry)
    return replace(windows, drawn=drawn, drawn_in=windows.sizes.one, kept=kept)


def _rows_of(sample: Sample | Subgraph) -> dict[str, Int64Array]:
    assert sample.rows is not None
    return dict(sample.rows)
