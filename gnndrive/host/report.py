"""`ServiceReport`: what a service answers when it is asked: its store, memory and clients.

`connection.ask` gets it, for `gnndrive.connect` and for `gnndrive serve --status`. It travels as
JSON, in pages of clients, because a message is short.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Self

from gnndrive.common.errors import ConfigError
from gnndrive.host.messages import PROTOCOL, ProtocolError

PAGE_CLIENTS = 16  # of one message
_KINDS: Mapping[str, tuple[type, ...]] = {
    "int": (int,), "int | None": (int, type(None)), "str": (str,), "bool": (bool,),
    "float": (float, int), "Mapping[str, int]": (dict,), "tuple[ClientReport, ...]": (list,),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class ClientReport:
    """A client: a loader of a process.

    Attributes:
        pid: the process; 0: it is in another container.
        name: what it calls itself, such as its program.
        group: a number that the ranks of one loader have in common.
        rank, ranks: which of how many ranks of this host it is.
        share: bytes of the group's feature buffer, with everything that belongs to it.
        batches: how many it has loaded.
        nbytes: bytes that were read for the group.
    """

    pid: int
    name: str
    group: int
    rank: int
    ranks: int
    share: int
    batches: int
    nbytes: int
    since_s: float


@dataclass(frozen=True, slots=True)
class ServiceReport:
    """A service.

    Attributes:
        path, identity: the store's folder and `Store.identity`.
        draining: whether it accepts no more clients.
        memory: bytes that it may use for clients; None: as many as they ask for.
        used: bytes that it has promised them.
        graphs: bytes of the graphs that it has in memory, by topology.
        time_s: seconds since it began, for rates.
        clients: those of this page, or all `total`; in the order in which they came.
    """

    path: str
    identity: str
    pid: int
    draining: bool
    memory: int | None
    used: int
    graphs: Mapping[str, int]
    time_s: float
    total: int
    clients: tuple[ClientReport, ...]

    @property
    def left(self) -> int | None:
        """Bytes that are left for further clients; None: there is no limit."""
        return None if self.memory is None else max(self.memory - self.used, 0)

    def to_json(self) -> dict[str, Any]:
        """As a JSON object."""
        return {"protocol": PROTOCOL, **asdict(self)}

    @classmethod
    def from_json(cls, text: Mapping[str, Any]) -> Self:
        """What `to_json` returned; ConfigError: it is of another version of gnndrive."""
        if text.get("protocol") != PROTOCOL:
            raise ConfigError(
                f"the service speaks protocol {text.get('protocol')!r} and this process {PROTOCOL}:"
                " run both with one version of gnndrive"
            )
        values = _values(cls, text)
        if not all(type(nbytes) is int for nbytes in values["graphs"].values()):
            raise ProtocolError("the sizes of graphs are no numbers")
        clients = [ClientReport(**_values(ClientReport, each)) for each in values["clients"]]
        return cls(**{**values, "clients": tuple(clients)})


def _values(kind: type[Any], text: Any) -> dict[str, Any]:
    """The attributes of a report's part; ProtocolError: one is missing, or of another type."""
    if not isinstance(text, Mapping):
        raise ProtocolError("a part of a report is no JSON object")
    found = {}
    for field in fields(kind):
        value = text.get(field.name)
        if type(value) not in _KINDS[str(field.type)]:
            raise ProtocolError(f"a report has {field.name}={value!r:.100}")
        found[field.name] = value
    return found
