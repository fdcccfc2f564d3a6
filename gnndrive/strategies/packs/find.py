"""`find_recording`: the pack that a loader replays, found by the loader's own arguments.

`DiskGNN` calls it. A pack fits if its recorded batches are those
that the loader would draw: the same inputs, batch size, fanout and sampling. How its rows lie
does not matter.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gnndrive.common.errors import ConfigError
from gnndrive.loader.assembly import Assembly
from gnndrive.sampling.schedules.base import InputEdges
from gnndrive.store.feature_tables import feature_tables
from gnndrive.store.layout.kind import FoundLayout
from gnndrive.store.packed.format import PACKED, PACKS, PackInfo
from gnndrive.store.packed.recording import Recording
from gnndrive.store.packed.settings import PackSettings, differences
from gnndrive.strategies.packs.recording import pack_command, pack_settings

NOT_USED = ("policy", "sweep", "topology", "neighbour_cache")
"""Arguments of a loader that draws its batches, which do nothing when they are replayed."""


def find_recording(assembly: Assembly, packed: Any) -> Recording:
    """Find and open the pack of a loader's batches.

    Args:
        assembly: the loader's.
        packed: the user's argument: the folder of a pack or its name in the store; None: the only
            pack in the store's folder that fits.

    Raises:
        ConfigError: no pack fits, or several do; without `packed`, this includes packs that are
            damaged or of another state of the store, and the message says so of each. Or nothing is
            at `packed`, or an argument has no use.
        StoreError: the pack at `packed` is damaged, or the store has changed since it was packed;
            or files of the pack that fits are damaged.
    """
    for name in NOT_USED:
        if assembly.own[name] not in ("auto", None):
            raise ConfigError(
                f"{name}={assembly.own[name]!r} is for batches that are drawn, and strategy="
                f"{assembly.strategy.name!r} replays recorded ones: leave it out"
            )
    wanted, store = pack_settings(assembly, 0, 1), assembly.store
    if packed is not None:
        path = _path(assembly, packed)
        found = FoundLayout(path, PACKS.read(path, store))
        if _differs(found, wanted):
            raise ConfigError(_none(assembly, wanted, [found]))
    else:
        found = _only(assembly, wanted)
    assert found.info is not None
    delivered = {table.name for table in feature_tables(assembly.collate.store)}
    return Recording(found.path, found.info, store, feature_tables(store), delivered)


def replays(recording: Recording, assembly: Assembly) -> bool:
    """Whether a pack has the batches of a loader, whose arguments may have changed."""
    return not differences(recording.info.settings, pack_settings(assembly, 0, 1))


def _path(assembly: Assembly, packed: Any) -> Path:
    try:
        text = os.fsdecode(packed)
    except TypeError:
        text = "\0"
    if not text or "\0" in text:
        raise ConfigError(f"packed={packed!r}: give the path of a pack's folder")
    places = [Path(assembly.store.path, PACKED, text), Path(os.path.abspath(text))]
    for path in places:
        if os.path.isdir(path):
            return path
    tried = " or ".join(dict.fromkeys(map(str, places)))  # one place if the path is absolute
    raise ConfigError(
        f"packed={packed!r} is not there: no folder is at {tried}; give the name of a pack in the "
        "store or the path of one, or pack the store again (gnndrive pack)"
    )


def _only(assembly: Assembly, wanted: PackSettings) -> FoundLayout[PackInfo]:
    """The only pack of the store that fits."""
    there = PACKS.of(assembly.store)
    fitting = [each for each in there if not _differs(each, wanted)]
    if not fitting:
        raise ConfigError(_none(assembly, wanted, there))
    if len(fitting) > 1:
        names = ", ".join(f"packed={each.path.name!r}" for each in fitting)
        raise ConfigError(
            f"several packs of {assembly.store.path} have these batches: give {names}"
        )
    return fitting[0]


def _differs(pack: FoundLayout[PackInfo], wanted: PackSettings) -> bool:
    return pack.info is None or bool(differences(pack.info.settings, wanted))


def _none(assembly: Assembly, wanted: PackSettings, there: Sequence[FoundLayout[PackInfo]]) -> str:
    """The message for a store without a pack of these batches."""
    store, name = assembly.store.path, assembly.strategy.name
    lines = []
    for pack in there:
        said = pack.problem
        if pack.info is not None:
            said = "; ".join(differences(pack.info.settings, wanted))
        lines.append(f"\n  {pack.path}: {said}")
    fanout, size = wanted.num_neighbors, wanted.batch_size
    if command := pack_command(assembly):
        make = f"`{command}`"
    else:
        seeds = "edge_label_index" if isinstance(assembly.inputs, InputEdges) else "input_nodes"
        make = (
            f"gnndrive.pack(store, {fanout!r}, {seeds}=…, batch_size={size}, memory=…) and the "
            "loader's other arguments"
        )
    return (
        f"strategy={name!r} replays recorded batches, and {store} has no pack of this loader's: "
        f"make one with {make}{''.join(lines)}"
    )
