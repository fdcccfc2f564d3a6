"""`Hello` and `Welcome`: what a rank and the host service tell each other first.

Both travel as JSON. File descriptors come with the welcome: the memories of the graph, then the
slots of each table, then the rank's arena.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from gnndrive.common.errors import ConfigError
from gnndrive.host.buffer_settings import BufferSettings
from gnndrive.host.messages import PROTOCOL, ProtocolError

RANKS_MAX = 1024
SHARE_MAX = 1 << 50
NAME_MAX = 100


@dataclass(frozen=True, slots=True)
class Hello:
    """What a rank tells first.

    Attributes:
        store: the identity of its store.
        group: the name of its group; the ranks of one loader have one name.
        ranks: the ranks of the group on this host, in order.
        buffer: the feature buffer that its loader needs; None: it has one of its own, as on a GPU.
        topology: the topology whose adjacency it shares, with index pointers and labels; "": it
            shares none of them.
        share: bytes of the service's memory that the group's feature buffer takes, with everything
            that belongs to it; the first rank's number counts.
        name: what a status shows, such as a program.
    """

    store: str
    group: str
    rank: int
    ranks: tuple[int, ...]
    buffer: BufferSettings | None
    topology: str
    share: int = 0
    name: str = ""

    def to_json(self) -> dict[str, Any]:
        """As a JSON object."""
        return {
            "protocol": PROTOCOL, "store": self.store, "group": self.group, "rank": self.rank,
            "ranks": list(self.ranks), "topology": self.topology,
            "share": self.share, "name": self.name,
            "buffer": None if self.buffer is None else self.buffer.to_json(),
        }  # fmt: skip

    @classmethod
    def from_json(cls, text: Mapping[str, Any]) -> Self:
        """What `to_json` returned.

        Raises:
            ProtocolError: it is none.
            ConfigError: it is of another version of gnndrive.
        """
        if text.get("protocol") != PROTOCOL:
            raise ConfigError(
                f"the host service speaks protocol {PROTOCOL} and this process "
                f"{text.get('protocol')!r}: run both with one version of gnndrive"
            )
        match text:
            case {
                "store": str(store), "group": str(group), "rank": int(rank), "ranks": list(ranks),
                "topology": str(topology), "share": int(share), "name": str(name), "buffer": buffer,
            }:  # fmt: skip
                pass
            case _:
                raise ProtocolError("a hello lacks something")
        valid = all(type(each) is int and each >= 0 for each in ranks)
        if not (valid and rank in ranks and ranks == sorted(set(ranks)) and len(ranks) < RANKS_MAX):
            raise ProtocolError(f"rank {rank} is none of the ranks {ranks!r:.200}")
        if not 0 <= share <= SHARE_MAX:
            raise ProtocolError(f"{share} is no number of bytes")
        settings = None if buffer is None else BufferSettings.from_json(buffer)
        # The service prints it.
        name = "".join(letter if letter.isprintable() else "?" for letter in name[:NAME_MAX])
        return cls(store, group, rank, tuple(ranks), settings, topology, share, name)


def check_same_needs(hello: Hello, first: Hello) -> None:
    """Check that a rank needs what the first rank of its group needs. Each rank may have found
    other memory free: of the slots, the first rank's numbers count, and topologies may differ.

    Raises:
        ConfigError: something differs.
    """
    mine, others = hello.to_json(), first.to_json()
    for each in (mine, others):
        buffer = each["buffer"]
        each.update({f"buffer's {name}": value for name, value in (buffer or {}).items()})
        each.update({"buffer": buffer is not None, "buffer's slots": None})
        each.update(dict.fromkeys(("rank", "name", "topology", "share")))
    differing = [
        f"{name} is {mine.get(name)!r:.200} and {others.get(name)!r:.200}"
        for name in mine | others
        if mine.get(name) != others.get(name)
    ]
    if differing:
        raise ConfigError(
            f"rank {hello.rank} and rank {first.rank} have loaders that differ: "
            f"{'; '.join(differing)}: give all ranks the same arguments"
        )


@dataclass(frozen=True, slots=True)
class Welcome:
    """What the service answers.

    Attributes:
        slots: number of slots of each table.
        graph: describes the arrays of the graph, see `pyg.shared_store`; None: they were not asked
            for.
        memories: how many descriptors are for the graph.
    """

    slots: tuple[int, ...]
    graph: Any
    memories: int

    def to_json(self) -> dict[str, Any]:
        """As a JSON object."""
        return {"slots": list(self.slots), "graph": self.graph, "memories": self.memories}

    @classmethod
    def from_json(cls, text: Mapping[str, Any]) -> Self:
        """What `to_json` returned.

        Raises:
            ProtocolError: it is none.
        """
        match text:
            case {"slots": list(slots), "graph": graph, "memories": int(memories)}:
                if all(type(each) is int and each >= 0 for each in slots):
                    return cls(tuple(slots), graph, memories)
        raise ProtocolError("a welcome lacks something")
