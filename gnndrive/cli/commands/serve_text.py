"""What `gnndrive serve --status` prints, made from services' reports."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import NamedTuple, TypeAlias

from gnndrive.common.memory import format_size
from gnndrive.host.names import is_named, shown
from gnndrive.host.report import ClientReport, ServiceReport

Found: TypeAlias = tuple[str, ServiceReport, ServiceReport]
"""A service's address, and two reports: the second is later, or the same."""

HEAD = ("client", "share", "batches", "a second", "read", "a second")


class Rates(NamedTuple):
    """What a client does in a second."""

    batches: float
    nbytes: float


def rates(before: ServiceReport, after: ServiceReport) -> list[Rates]:
    """The rates of each client of `after`: since `before`, or since it came if that is later, or if
    both are the same report."""
    elapsed_s, found = after.time_s - before.time_s, []
    known = {(each.group, each.rank): each for each in before.clients} if elapsed_s else {}
    for client in after.clients:
        first = known.get((client.group, client.rank))
        batches, nbytes, seconds = client.batches, client.nbytes, client.since_s
        if first is not None:
            batches, nbytes = batches - first.batches, nbytes - first.nbytes
            seconds = elapsed_s
        found.append(Rates(batches / max(seconds, 1e-9), nbytes / max(seconds, 1e-9)))
    return found


def status_json(found: Sequence[Found]) -> str:
    """A JSON object: the services and their clients."""
    services = []
    for address, before, after in found:
        clients = [
            {**asdict(client), "batches_per_s": rate.batches, "bytes_per_s": rate.nbytes}
            for client, rate in zip(after.clients, rates(before, after), strict=True)
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
    rows = [
        _row(client, rate) for client, rate in zip(after.clients, rates(before, after), strict=True)
    ]
    if not rows:
        return "\n".join([*lines, "no clients"])
    table = [HEAD, *rows]
    widths = [max(len(row[column]) for row in table) for column in range(len(HEAD))]
    for name, *numbers in table:
        cells = [f"{text:>{wide}}" for text, wide in zip(numbers, widths[1:], strict=True)]
        lines.append("  ".join([f"{name:<{widths[0]}}", *cells]))
    return "\n".join(lines)


def _row(client: ClientReport, rate: Rates) -> tuple[str, ...]:
    rank = f", rank {client.rank} (of {client.ranks} here)" if client.ranks > 1 else ""
    return (
        f"{client.name}, process {client.pid}{rank}", format_size(client.share),
        f"{client.batches:,}", f"{rate.batches:.1f}", format_size(client.nbytes),
        format_size(rate.nbytes),
    )  # fmt: skip
