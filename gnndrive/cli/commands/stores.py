"""`gnndrive verify`, `shard`, `split-links` and `remove`: commands on a store that do not train."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from gnndrive.cli.commands.info import kind_of, part_of
from gnndrive.cli.commands.options import IfExists, OwnMemory, Seed, StoreOrPack, StorePath
from gnndrive.cli.report import Bars
from gnndrive.common.errors import ConfigError, StoreError
from gnndrive.common.memory import format_size
from gnndrive.common.progress import Progress
from gnndrive.inference.outcome import remove_result
from gnndrive.store.format import STORE_JSON
from gnndrive.store.layout.kind import LayoutInfo, LayoutKind
from gnndrive.store.layout.kinds import KINDS
from gnndrive.store.link_split import LabelledEdges
from gnndrive.store.link_split import split_links as split_edges
from gnndrive.store.packed.format import PACKS
from gnndrive.store.packed.verify import verify_pack
from gnndrive.store.partitioned.format import PARTITIONS
from gnndrive.store.partitioned.verify import verify_partition
from gnndrive.store.reader import Store
from gnndrive.store.reader import open as open_store
from gnndrive.store.shards import write_shards
from gnndrive.store.striped.format import STRIPES
from gnndrive.store.striped.verify import verify_stripes

Verify = Callable[[Path, Store, Progress], LayoutInfo]
"""Takes a layout's folder, the store that it belongs to, and what is told the progress. Reads all
of the layout; StoreError: it is damaged or of another store, ReadError: the disk failed."""

VERIFY: Mapping[LayoutKind[Any], Verify] = {
    PACKS: verify_pack, PARTITIONS: verify_partition, STRIPES: verify_stripes,
}  # fmt: skip


def split_links(
    store: StorePath,
    out: Annotated[Path | None, typer.Argument(help="Default: STORE's name with -links.")] = None,
    num_val: Annotated[float, typer.Option(help="Share for validation; above 1: edges.")] = 0.1,
    num_test: Annotated[float, typer.Option(help="Share for tests; above 1: edges.")] = 0.2,
    undirected: Annotated[bool, typer.Option(help="Each edge has its reverse.")] = False,
    disjoint: Annotated[
        float, typer.Option(help="Share of training edges to supervise with alone.")
    ] = 0.0,
    negatives: Annotated[float, typer.Option(help="Pairs without an edge, per edge.")] = 1.0,
    edge_type: Annotated[
        list[str] | None, typer.Option(help="Edge type to split; repeat for each.")
    ] = None,
    rev_edge_type: Annotated[
        list[str] | None, typer.Option(help="Type of its reverses; in the same order.")
    ] = None,
    time: Annotated[
        str | None,
        typer.Option(help="Attribute of edges with times: the latest are for tests, not random."),
    ] = None,
    seed: Seed = 0,
    memory: OwnMemory = "1GB",
    if_exists: IfExists = "error",
) -> None:
    """Split edges into training, validation and test edges, as PyG's RandomLinkSplit."""
    with Bars() as bars:
        parts = split_edges(
            open_store(store), out, num_val=_share(num_val), num_test=_share(num_test),
            is_undirected=undirected, disjoint_train_ratio=disjoint, neg_sampling_ratio=negatives,
            edge_types=edge_type, rev_edge_types=rev_edge_type, seed=seed, time=time,
            memory=memory or "1GB", if_exists=if_exists, progress=bars,
        )  # fmt: skip
    print(parts.train.path)
    for name, part in parts._asdict().items():
        print(f"  {name:<5} : {part.num_edges:,} edges pass messages; labels:", end=" ")
        views = [view for view in part.all_edges() if isinstance(view, LabelledEdges)]
        print(f"{sum(len(view.edge_label) for view in views):,}")


def _share(given: float) -> int | float:
    return int(given) if given > 1 else given


def shard(
    store: StorePath,
    out: Annotated[Path, typer.Argument(help="Folder of part-0.gnn, part-1.gnn, …")],
    hosts: Annotated[int, typer.Option(min=2, help="Hosts that will train together.")],
    host: Annotated[int | None, typer.Option(min=0, help="Write only this part, from 0.")] = None,
) -> None:
    """Divide a store's features among hosts, a part for each; goes on if interrupted."""
    with Bars() as bars:
        parts = write_shards(open_store(store), out, hosts, host, bars)
    for part in parts:
        print(f"{part.path}: {format_size(part.info.nbytes)}; part {part_of(part)}")


def remove(
    store: StorePath, name: Annotated[str, typer.Argument(help="The attribute, such as h.")]
) -> None:
    """Remove an attribute that `gnndrive infer` added to a store."""
    remove_result(open_store(store), name)
    print(f"removed {name} of {store}")


def verify(
    store: StoreOrPack,
    of: Annotated[
        Path | None, typer.Option(help="The store of a pack or partitions outside of it.")
    ] = None,
) -> None:
    """Read a store with its packs and partitions, or one of these, and check everything; exit code
    1 if damaged."""
    if (kind := kind_of(store)) is not None:
        _verify_layout(kind, store, _store_of(store, of))
        return
    opened = open_store(store)
    with Bars() as bars:
        opened.verify(bars)
    print(f"{opened.path}: sound, {format_size(opened.info.nbytes)} read")
    problems = []
    for layouts in KINDS:
        for each in layouts.of(opened):
            try:
                _verify_layout(layouts, each.path, opened)
            except StoreError as error:
                problems.append(str(error))
    if problems:
        raise StoreError("\n".join(problems))


def _verify_layout(kind: LayoutKind[Any], path: Path, store: Store) -> None:
    with Bars() as bars:
        info = VERIFY[kind](
            path, store, lambda what, done, total: bars(f"{path.name} {what}", done, total)
        )
    print(f"{path}: sound, {format_size(info.nbytes)} read")


def _store_of(path: Path, of: Path | None) -> Store:
    if of is None:
        of = path.resolve().parent.parent
        if not (of / STORE_JSON).is_file():
            raise ConfigError(
                f"the rows of {path} are compared with its store's, and it lies in none: name the "
                "store with --of"
            )
    return open_store(of)
