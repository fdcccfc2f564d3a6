"""Names of host services: how a user's name becomes an address, and which services there are.

An address is what `wire.abstract_name` takes. That of a service by hand (`gnndrive serve`) has the
user's number in it, so that users do not get in each other's way; whether another user has taken it
all the same, `connection.connected` finds out. The address of a service that ranks have started is
a random text.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from gnndrive.common.errors import ConfigError

SCHEME = "gnndrive://"
STORE_SUFFIX = ".gnn"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_SOCKETS = Path("/proc/net/unix")
_LISTENS = 0x10000  # a flag of a socket that accepts connections
_NAMED = re.compile(r"(\d+)-(.+)")


def checked_name(text: str) -> str:
    """The name of a service by hand, such as "papers100M", without "gnndrive://" before it;
    ConfigError: it is no such name."""
    name = text.removeprefix(SCHEME)
    if not _NAME.fullmatch(name):
        raise ConfigError(
            f"{text!r} is no name of a service: give up to 64 letters, digits, '.', '_' and '-', "
            "such as papers100M or gnndrive://papers100M"
        )
    return name


def name_for(store: Path) -> str:
    """The name of the service of a store, if the user gives none: that of its folder; ConfigError:
    it cannot be a service's."""
    name = store.name.removesuffix(STORE_SUFFIX)
    if not _NAME.fullmatch(name):
        raise ConfigError(f"the folder's name, {store.name!r}, is no service's: give one, --name")
    return name


def address_of(name: str) -> str:
    """The address of this user's service of a name."""
    return f"{os.geteuid()}-{name}"


def shown(address: str) -> str:
    """A service as messages name it."""
    named = _NAMED.fullmatch(address)
    return f"the service {SCHEME}{named[2]}" if named else "the host service"


def is_named(address: str) -> bool:
    """Whether an address is that of a service by hand."""
    return _NAMED.fullmatch(address) is not None


def addresses() -> list[str]:
    """The addresses of all services of this machine (or container), other users' included."""
    prefix = "@gnndrive-"
    found = set()
    for line in _SOCKETS.read_text(encoding="utf-8", errors="replace").splitlines()[1:]:
        fields = line.split(maxsplit=7)
        if len(fields) == 8 and fields[7].startswith(prefix) and int(fields[3], 16) & _LISTENS:
            found.add(fields[7].removeprefix(prefix))
    return sorted(found)
