"""`gnndrive serve`: a service that several training jobs share, and what it is doing.

The service runs in this process until it is ended: the first SIGTERM or Ctrl-C drains it, that is,
it ends when the jobs that use it have ended; the second ends it at once. Exit codes: 0 if it has
drained, 2 if it could not be started, 1 if it failed, and 143 or 130 if it was ended at once by
SIGTERM or Ctrl-C. Under systemd, with Type=notify, it says when it is ready.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, TypeAlias

import typer

from gnndrive.cli.commands.options import Json, OwnMemory
from gnndrive.cli.report.text import aligned
from gnndrive.common.errors import ConfigError, HostServiceError
from gnndrive.common.memory import available_memory, format_size, parse_size
from gnndrive.host.connection import NoAnswerError, ask
from gnndrive.host.names import (
    SCHEME,
    address_of,
    addresses,
    checked_name,
    is_named,
    name_for,
    shown,
)
from gnndrive.host.report import ServiceReport
from gnndrive.host.run import run_service
from gnndrive.host.service import Service
from gnndrive.host.start import Listener
from gnndrive.store.reader import Store
from gnndrive.store.reader import open as open_store

DEFAULT_SHARE = 0.5  # of the available memory


def serve(
    store: Annotated[
        str | None,
        typer.Argument(metavar="STORE", help="A store's folder; with --status a service's name."),
    ] = None,
    memory: OwnMemory = None,
    name: Annotated[
        str | None, typer.Option(help="The service's name; default: that of the store's folder.")
    ] = None,
    status: Annotated[
        bool, typer.Option("--status", help="Print the clients of one service, or of all.")
    ] = False,
    seconds: Annotated[
        float, typer.Option(min=0, help="Time for --status to measure rates; 0: whole runs.")
    ] = 1.0,
    json: Json = False,
) -> None:
    """Serve a store to several training jobs, which share its graph.

    --memory is for the graph and all jobs' buffers; half of what is available by default.
    """
    if status:
        print(show_status(name or store, seconds, json))
        return
    if store is None:
        raise ConfigError("gnndrive serve needs a store: give its folder, or --status")
    if code := run(open_store(store), memory, name):
        raise typer.Exit(code)


def run(store: Store, memory: str | None, name: str | None) -> int:
    """Serve a store until the service is ended; returns the exit code."""
    name = name_for(store.path) if name is None else checked_name(name)
    available = available_memory()
    limit = int(DEFAULT_SHARE * available) if memory is None else parse_size(memory, "--memory")
    if limit > available:
        raise ConfigError(
            f"--memory {format_size(limit, available)}, and {format_size(available, limit)} are "
            "available: give at most that"
        )
    return asyncio.run(_serve(store, _listen(name), name, limit))


def _listen(name: str) -> socket.socket:
    """Take the name; ConfigError: it is in use."""
    address = address_of(name)
    try:
        return Listener(address).sock
    except FileExistsError:
        by = "another process"
        with contextlib.suppress(HostServiceError, ConfigError):
            report = ask(address)
            by = f"process {report.pid}, which serves {report.path}"
    raise ConfigError(
        f"{SCHEME}{name} is in use by {by}: end it first, or give another name with --name"
    )


async def _serve(store: Store, listener: socket.socket, name: str, memory: int) -> int:
    service = Service(store, listener, _say, stays=True, memory=memory, log=_say)

    def ready() -> None:
        limit = format_size(memory)
        print(f"{SCHEME}{name} serves {store.path} (process {os.getpid()}, {limit})", flush=True)
        _notify("READY=1")

    def drains() -> None:
        _say("ending: no more jobs are accepted, and those that are here go on; again: end at once")
        _notify("STOPPING=1")

    return await run_service(service, ready, drains)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _notify(state: str) -> None:
    """Tell systemd a state, if it has started this process; see sd_notify(3)."""
    place = os.environ.get("NOTIFY_SOCKET")
    if not place:
        return
    address = f"\0{place[1:]}" if place.startswith("@") else place
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.sendto(state.encode(), address)


def show_status(name: str | None, seconds: float, as_json: bool) -> str:
    """What services do: their memory, their clients, and the clients' rates.

    Args:
        name: the service's, or the folder of its store, from whose name the service's is made;
            None: all of this user's services, those that ranks have started too.
        seconds: how long rates are measured; 0: since each client came.
    """
    if name is None:
        before = _all_reports()
    else:
        folder = Path(os.path.abspath(name))
        address = address_of(name_for(folder) if folder.exists() else checked_name(name))
        if address not in addresses():
            raise HostServiceError(
                f"{shown(address)} is not running: gnndrive serve --status, without a name, shows "
                "those that are"
            )
        before = {address: ask(address)}
    after = before
    if seconds and before:
        time.sleep(seconds)
        again = _all_reports() if name is None else {address: ask(address) for address in before}
        after = {address: again[address] for address in before if address in again}
    found = [(address, before[address], report) for address, report in after.items()]
    return status_json(found) if as_json else status_text(found)


def _all_reports() -> dict[str, ServiceReport]:
    """The reports of all services of this user that answer, by their addresses."""
    all_addresses = addresses()
    if not all_addresses:
        return {}
    with ThreadPoolExecutor(len(all_addresses)) as threads:  # some may not answer for long
        reports = threads.map(_report_or_none, all_addresses)
        found = zip(all_addresses, reports, strict=True)
        return {address: report for address, report in found if report is not None}


def _report_or_none(address: str) -> ServiceReport | None:
    """A service's report; None: it does not answer, is another user's, or has just ended."""
    try:
        return ask(address)
    except NoAnswerError as error:
        _say(f"gnndrive: {error}")
    except (HostServiceError, ConfigError):
        pass
    return None


# ---- what --status prints

Found: TypeAlias = tuple[str, ServiceReport, ServiceReport]
"""A service's address, and two reports: the second is later, or the same."""

HEAD = ("client", "share", "batches", "a second", "read", "a second")


def rates(before: ServiceReport, after: ServiceReport) -> list[tuple[float, float]]:
    """Batches and bytes a second of each client of `after`: since `before`, or since it came if
    that is later, or if both are the same report."""
    elapsed_s, found = after.time_s - before.time_s, []
    known = {(each.group, each.rank): each for each in before.clients} if elapsed_s else {}
    for client in after.clients:
        first = known.get((client.group, client.rank))
        batches, nbytes, seconds = client.batches, client.nbytes, client.since_s
        if first is not None:
            batches, nbytes = batches - first.batches, nbytes - first.nbytes
            seconds = elapsed_s
        found.append((batches / max(seconds, 1e-9), nbytes / max(seconds, 1e-9)))
    return found


def status_json(found: Sequence[Found]) -> str:
    """The services and their clients."""
    services = []
    for address, before, after in found:
        clients = [
            {**asdict(client), "batches_per_s": batches, "bytes_per_s": nbytes}
            for client, (batches, nbytes) in zip(after.clients, rates(before, after), strict=True)
        ]
        named = {"name": shown(address), "named": is_named(address), "left": after.left}
        services.append({**named, **asdict(after), "clients": clients})
    return json.dumps({"services": services}, indent=2)


def status_text(found: Sequence[Found]) -> str:
    """A paragraph for each service, with a line for each client."""
    if not found:
        return "no service of this user is running here"
    return "\n\n".join(_service_text(*each) for each in found)


def _service_text(address: str, before: ServiceReport, after: ServiceReport) -> str:
    by = "" if is_named(address) else ", which ranks have started,"
    ending = ", ending" if after.draining else ""
    used = format_size(after.used)
    if after.memory is not None:
        used += f" of {format_size(after.memory)}, {format_size(after.left or 0)} left"
    graphs = "".join(
        f"; graph ({topology}) {format_size(nbytes)}" for topology, nbytes in after.graphs.items()
    )
    lines = [
        f"{shown(address)}{by} serves {after.path} (process {after.pid}{ending})",
        f"memory: {used}{graphs}",
    ]
    rows: list[tuple[str, ...]] = [HEAD]
    for client, (batches, nbytes) in zip(after.clients, rates(before, after), strict=True):
        rank = f", rank {client.rank} (of {client.ranks} here)" if client.ranks > 1 else ""
        rows.append((
            f"{client.name}, process {client.pid}{rank}", format_size(client.share),
            f"{client.batches:,}", f"{batches:.1f}", format_size(client.nbytes),
            format_size(nbytes),
        ))  # fmt: skip
    return "\n".join([*lines, *(aligned(rows) if after.clients else ["no clients"])])
