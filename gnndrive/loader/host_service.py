"""`HostService`: what a loader's ranks of one host share, and how they come together for it.

At its first epoch, `StoreLoader` has all ranks tell each other where they run and what they need.
The first rank of each host starts a service (`host/`), and all ranks of that host connect to it.
Whatever goes wrong on one rank is an error on all of them, because the others would wait for it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any, TypeVar

from gnndrive.common.array_pool import Allocate
from gnndrive.common.errors import ConfigError
from gnndrive.common.plugins import find, name_of, names
from gnndrive.host.buffer_settings import BufferSettings
from gnndrive.host.connection import Connection
from gnndrive.host.hello import Hello
from gnndrive.host.start import host_identity, start_service
from gnndrive.loader.buffers import Buffers
from gnndrive.loader.host_buffers import HostBuffers
from gnndrive.loader.ranks import Ranks, check_same
from gnndrive.loader.settings import RuntimeSettings
from gnndrive.plan.request import batch_entries_max
from gnndrive.store.reader import Store
from gnndrive.strategies import Strategy

Result = TypeVar("Result")
SPARE_PLACES = 4  # batches that are being gathered, or that the service gives back


class HostService:
    """A rank's part of what the ranks of its host share.

    Args:
        connection: to the service; `Runtime` closes it with the buffers.
        hello: what this rank has asked for.
    """

    def __init__(self, connection: Connection, hello: Hello) -> None:
        self._connection, self._hello = connection, hello

    @property
    def has_buffer(self) -> bool:
        """Whether the ranks share a feature buffer."""
        return self._hello.buffer is not None

    async def buffers(self, settings: RuntimeSettings, empty: Allocate) -> Buffers:
        """Attach the shared feature buffer, in the loop thread."""
        assert self._hello.buffer is not None
        buffers = HostBuffers(settings, self._hello.buffer, self._connection, empty)
        await buffers.start()
        return buffers

    def close(self) -> None:
        """Leave at once, because the runtime could not be made."""
        self._connection.close()


def join_host_service(
    ranks: Ranks, store: Store, make_settings: Callable[[], RuntimeSettings]
) -> tuple[RuntimeSettings, HostService | None]:
    """Make a loader's settings, and have its ranks of this host share what they can.

    A collective call: each rank that the loader deals to has to make it.

    Args:
        ranks: which rank this is.
        store: what the loader loads from.
        make_settings: makes the settings; may raise.

    Raises:
        ConfigError: a rank cannot start, or the ranks differ in what they need.
        HostServiceError: the service has ended.
    """
    settings, here, buffer = None, "", None
    error: Exception | None = None
    try:
        settings = make_settings()
        here = host_identity()
        buffer = buffer_settings(settings)
    except Exception as caught:
        error = caught
    told = {"where": here, "needs": None if buffer is None else buffer.to_json() | {"slots": None}}
    everyone = _all_or_none(ranks, told, error)
    assert settings is not None
    check_same([{"what the host service is to share": each["needs"]} for each in everyone])
    if buffer is None:
        return settings, None
    local = tuple(rank for rank, each in enumerate(everyone) if each["where"] == here)
    name = ""
    if len(local) > 1 and ranks.rank == local[0]:
        try:
            name = start_service(store.path)
        except Exception as caught:
            error = caught
    names = _all_or_none(ranks, name, error)
    name = names[local[0]]
    if not name:
        return settings, None
    program = f"{os.path.basename(sys.argv[0]) or 'python'}, process {os.getpid()}"
    hello = Hello(store.identity, name, ranks.rank, local, buffer, False, program)
    return settings, HostService(Connection(name, hello), hello)


def _all_or_none(ranks: Ranks, told: Result, error: Exception | None) -> list[Result]:
    """Tell all ranks something, or that this one has failed.

    Raises:
        Exception: `error`.
        ConfigError: another rank has failed.
    """
    everyone = ranks.exchange((told, None if error is None else str(error)))
    if error is not None:
        raise error
    failed = {rank: why for rank, (_, why) in enumerate(everyone) if why is not None}
    if failed:
        first = min(failed)
        raise ConfigError(f"rank {first} cannot start: {failed[first]}")
    return [told for told, _ in everyone]


def shares_buffer(
    ranks: Ranks, wanted: bool | str, strategy: Strategy, engine: Any, policy: Any,
    device: tuple[Any, Any], in_order: bool,
) -> bool:  # fmt: skip
    """Whether a loader's ranks of this host share a feature buffer.

    Args:
        ranks: which rank this is, of how many.
        wanted: the loader's `host_service=`.
        strategy, engine, policy, device, in_order: see `Assembly`.

    Raises:
        ConfigError: they are to share one (`host_service=True`) and cannot.
    """
    plugins = {"layouts": (strategy.layout,), "tiers": strategy.tiers, "policies": (policy,)}
    plugins["engines"] = () if engine == "auto" else (engine,)
    own = [each for kind, used in plugins.items() for each in used if not _is_known(kind, each)]
    why_not = ""
    if ranks.group is None or ranks.on_host < 2:
        why_not = "there is one rank on this host, or ranks= is not given"
    elif not find("devices", device[0]).shares_slots:
        why_not = f"the feature buffer is on a device, {device[1] or device[0]}"
    elif strategy.replays:
        why_not = f"strategy={strategy.name!r} replays a pack, in which each batch has its place"
    elif not in_order:
        why_not = "batches come in any order (in_order=False)"
    elif own:
        why_not = f"a plug-in is not gnndrive's: {', '.join(map(str, own))}"
    if why_not and wanted is True:
        raise ConfigError(
            f"host_service=True cannot be had, because {why_not}: give host_service='auto'"
        )
    return not why_not and wanted is not False


def _is_known(kind: str, plugin: Any) -> bool:
    name = name_of(plugin)
    return name in names(kind) and find(kind, name) is find(kind, plugin)


def buffer_settings(settings: RuntimeSettings) -> BufferSettings | None:
    """What a loader needs of a shared feature buffer; None: its ranks share none."""
    request, stages = settings.request, settings.stages
    if not request.shared:
        return None
    entries = batch_entries_max(request)
    return BufferSettings(
        tables=tuple(table.name for table in settings.tables),
        slots=tuple(plan.slots for plan in settings.plan.tables),
        batch_rows_max=tuple(plan.batch_rows_max for plan in settings.plan.tables),
        entries_max=tuple(entries[table.name] for table in settings.tables),
        places=stages.extracting_queue + stages.training_queue + SPARE_PLACES,
        device=name_of(settings.device[0]),
        layout=name_of(settings.strategy.layout),
        policy=None if settings.policy is None else name_of(settings.policy),
        tiers=tuple(map(name_of, settings.strategy.tiers)),
        engine=name_of(settings.engine),
        io_depth=settings.engine_settings.depth,
        block_bytes=settings.engine_settings.block_bytes,
        gap_bytes=settings.gap_bytes_max,
        extractors=stages.extractors,
        sweep=stages.sweep,
    )
