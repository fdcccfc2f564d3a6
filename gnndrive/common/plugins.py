"""Find a plug-in by its kind and name: `find("engines", "uring")` is the class in
gnndrive/disk/engines/uring.py.

A new engine, policy, layout, sampler, schedule, topology, tier or device is one new file in the
folder of its kind, holding one class whose `name` is the file's name (with "-" for "_"). Nothing is
registered anywhere.
"""

from __future__ import annotations

import importlib
import pkgutil
from typing import Any

from gnndrive.common.errors import ConfigError

KINDS = {
    "schedules": "gnndrive.sampling.schedules",
    "samplers": "gnndrive.sampling.samplers",
    "topologies": "gnndrive.sampling.topologies",
    "policies": "gnndrive.buffer.policies",
    "devices": "gnndrive.buffer.devices",
    "layouts": "gnndrive.disk.layouts",
    "engines": "gnndrive.disk.engines",
    "tiers": "gnndrive.disk.tiers",
}
"""The folder of each kind."""


def names(kind: str) -> list[str]:
    """The names of all plug-ins of a kind, sorted."""
    package = importlib.import_module(KINDS[kind])
    files = (module.name for module in pkgutil.iter_modules(package.__path__))
    return sorted(name.replace("_", "-") for name in files if name != "base" and name[0] != "_")


def find(kind: str, name: str) -> Any:
    """The class of plug-in `name` of `kind`.

    Raises:
        ConfigError: there is none of that name; the message lists those there are.
    """
    known = names(kind)
    if name not in known:
        one = kind[:-3] + "y" if kind.endswith("ies") else kind[:-1]
        raise ConfigError(f"no {one} is called {name!r}; there are: {', '.join(known)}")
    module = importlib.import_module(f"{KINDS[kind]}.{name.replace('-', '_')}")
    for value in vars(module).values():
        if isinstance(value, type) and vars(value).get("name") == name:
            return value
    raise ConfigError(f"{module.__file__} holds no class named {name!r}")
