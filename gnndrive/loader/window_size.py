"""`choose_megabatches`: how large the windows of a loader are, by its memory and by drawn batches.

`DerivedLayouts` calls it once, before the runtime is made. Batches inside a window are smaller than
those of the whole graph, so a few are drawn inside one; their sizes are kept in batches.json.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from itertools import islice

from gnndrive.common.records import Int64Array, Sample, Subgraph
from gnndrive.loader.assembly import Assembly
from gnndrive.loader.find_partitioned import STATIC, TABLE
from gnndrive.loader.megabatches import Megabatches, MegabatchSource
from gnndrive.plan.drawn import DRAWN_BATCHES, DrawnBatches, draw_batches
from gnndrive.plan.partitioned import largest_window, windowed_request
from gnndrive.plan.request import PlanRequest
from gnndrive.plan.windows import PlannedWindows
from gnndrive.store.batch_sizes import entry_key, load_entry, save_entry
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
    own = assembly.own
    share = STATIC if own["static"] is None else float(own["static"])
    static = min(round(share * partitioned.num_nodes), partitioned.num_static)
    megabatch = min(own["megabatch"] or 1, partitioned.num_parts)
    windows = PlannedWindows(partitioned, 1, 2, static).with_partitions(megabatch)
    chosen = Megabatches(windows, own["passes"] or 1, own["order"])
    assembly = replace(assembly, megabatches=chosen)
    assembly.schedule(0)  # refuses what cannot be sampled in windows
    request = assembly.request()
    draw = partial(_with_drawn, assembly, request) if request.memory is not None else _undrawn
    if own["megabatch"] is not None:
        return replace(chosen, windows=draw(windows))
    return replace(chosen, windows=largest_window(request, windows, draw))


def _undrawn(windows: PlannedWindows) -> PlannedWindows:
    return windows


def _with_drawn(
    assembly: Assembly, request: PlanRequest, windows: PlannedWindows
) -> PlannedWindows:
    """The windows with what is known of their batches; draws some if nothing is known."""
    assert assembly.megabatches is not None
    assembly = replace(assembly, megabatches=replace(assembly.megabatches, windows=windows))
    bounds = windowed_request(request, replace(windows, drawn=None)).bounds
    settings = assembly.drawn_settings(assembly.batch_size or 0)
    key = entry_key(assembly.store, settings)
    entry = load_entry(assembly.store, key)
    tables = {TABLE: windows.partitioned.num_nodes}
    if isinstance(entry, dict) and isinstance(entry.get("kept"), float):
        drawn = DrawnBatches.from_json(entry.get("batches"), bounds, tables)
        if drawn is not None and 0 <= entry["kept"] <= 1:
            return replace(windows, drawn=drawn, drawn_in=windows.megabatch, kept=entry["kept"])
    window = next(assembly.schedule(0).windows(0), None)
    if window is None:
        return windows
    pointers = assembly.store.edges().index_pointers
    source = MegabatchSource(windows, pointers, lambda: iter((window,)))
    graph = source.graph(window)
    drawn = draw_batches(
        islice(window.batches, DRAWN_BATCHES), assembly.sampler(), [graph], _rows_of, tables, bounds
    )
    if drawn is None:
        return windows
    kept = graph.num_edges / max(source.codes_of(window), 1)
    entry = {"kept": kept, "batches": drawn.to_json(settings)}
    save_entry(assembly.store, key, entry)
    return replace(windows, drawn=drawn, drawn_in=windows.megabatch, kept=kept)


def _rows_of(sample: Sample | Subgraph) -> dict[str, Int64Array]:
    assert isinstance(sample, Sample)
    assert sample.rows is not None
    return dict(sample.rows)
