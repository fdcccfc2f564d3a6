"""`find_partitioned`: the partitioned folder that a loader samples in; checks what goes with it.

`InsideWindows` (`scheme.py`) calls it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gnndrive.common.errors import ConfigError
from gnndrive.loader.arguments import positive
from gnndrive.store.partitioned.format import NAME, PARTITIONED, PARTITIONS, TABLE
from gnndrive.store.partitioned.partitioned import Partitioned, open_partitioned
from gnndrive.store.reader import Store

NOT_USED = ("policy", "sweep", "topology", "neighbour_cache")
"""Arguments of a loader that samples from the whole graph, which do nothing inside windows."""
RANDOM = "random"  # a partitioning's method
AUTO = "auto"  # passes=: as many as loading a window takes


def check_arguments(own: Mapping[str, Any], strategy: Any) -> None:
    """Check the arguments of a loader of windows.

    Args:
        own: gnndrive's arguments of the loader, by their names.
        strategy: an `InsideWindows`.

    Raises:
        ConfigError: one of them cannot work, or has no use.
    """
    for name in NOT_USED:
        if own[name] not in ("auto", None):
            raise ConfigError(
                f"{name}={own[name]!r} is for batches that are sampled from the whole graph, and "
                f"strategy={strategy.name!r} samples inside windows: leave it out"
            )
    if strategy.megabatch is not None:
        positive(megabatch=strategy.megabatch)
    if strategy.passes != AUTO:
        positive(passes=strategy.passes)
    share = strategy.static
    given = isinstance(share, int | float) and not isinstance(share, bool)
    if share is not None and not (given and 0 <= share <= 1):
        raise ConfigError(f"static={share!r}: give a share of the nodes, from 0 to 1")


def find_partitioned(store: Store, named: Any, strategy: str) -> Partitioned:
    """Open the partitioned folder of a loader.

    Args:
        store: the store.
        named: the loader's `partitioned=`: a name in the store, a folder, or None: the only one in
            the store.
        strategy: the name of the strategy, for messages.

    Raises:
        ConfigError: there is none, or several and none is named; or the store is heterogeneous.
        StoreError: it is damaged, or the store has changed.
    """
    if store.is_hetero:
        raise ConfigError(
            f"strategy={strategy!r} samples inside partitions, and {store.path} is heterogeneous: "
            "give strategy='gnndrive'"
        )
    path = _only(store, strategy) if named is None else _path(store, named)
    return open_partitioned(path, store)


def suited_partitions(store: Store, mixed: bool) -> str | None:
    """The name of the store's partitions that suit best, of several: those at random if windows are
    to mix nodes (`mixed`), others if not; None: there are no whole ones."""
    infos = {each.path.name: each.info for each in PARTITIONS.of(store) if each.info is not None}

    def unsuited(name: str) -> bool:
        return (infos[name].settings.method == RANDOM) != mixed

    return min(sorted(infos), key=unsuited, default=None)


def check_tables(tables: list[str], strategy: str) -> None:
    """Check that a loader has the table that partitions have. It may have others, whose rows are
    read from the store as those of other attributes are.

    Args:
        tables: the names of the loader's feature tables.
        strategy: the name of the strategy, for the message.

    Raises:
        ConfigError: it does not have it.
    """
    if TABLE not in tables:
        raise ConfigError(
            f"strategy={strategy!r} loads the rows of x in the order of their partitions, and "
            "this loader delivers no x of the store: use another strategy without x, and for "
            "features that you have set yourself"
        )


def _path(store: Store, named: Any) -> Path:
    try:
        text = os.fsdecode(named)
    except TypeError:
        raise ConfigError(f"partitioned={named!r}: give a name, or the path of a folder") from None
    there = Path(store.path, PARTITIONED, text)
    if NAME.fullmatch(text) and there.is_dir():
        return there
    if os.path.isdir(text):
        return Path(os.path.abspath(text))
    names = ", ".join(each.path.name for each in PARTITIONS.of(store)) or "none"
    name = f" --name {text}" if NAME.fullmatch(text) else ""
    raise ConfigError(
        f"partitioned={text!r} is not there: {store.path} has {names}; make it with "
        f"`gnndrive partition {store.path}{name}`"
    )


def _only(store: Store, strategy: str) -> Path:
    there = PARTITIONS.of(store)
    if not there:
        raise ConfigError(
            f"strategy={strategy!r} samples inside partitions, and {store.path} has none: make "
            f"them with gnndrive.partition(store), or `gnndrive partition {store.path}`"
        )
    whole = [each for each in there if each.info is not None] or there
    if len(whole) > 1:
        names = ", ".join(f"partitioned={each.path.name!r}" for each in whole)
        raise ConfigError(f"{store.path} was partitioned several times: give {names}")
    return whole[0].path
