"""Find a plug-in by its kind and name: `find("engines", "uring")` is the class in
gnndrive/disk/engines/uring.py.

A new engine, policy, layout, sampler, schedule, topology, tier or device is one new file in the
folder of its kind, holding one class whose `name` is the file's name (with "-" for "_"). Nothing is
registered anywhere. Wherever a plug-in's name is taken, its class is taken too, so that a plug-in
may live outside of the package. Each class has a factory, `make(context)`, whose one argument is
the context object of its kind.
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


def name_of(plugin: Any) -> str:
    """The name of a plug-in that is given by name or as its class."""
    name: str = plugin if isinstance(plugin, str) else plugin.name
    return name


def find(kind: str, plugin: Any) -> Any:
    """The class of a plug-in of `kind`.

    Args:
        kind: one of `KINDS`.
        plugin: its name; or the class itself, which may be from anywhere.

    Raises:
        ConfigError: there is none of that name, and the message lists those there are; or it is
            neither a name nor a class that has one.
    """
    known = names(kind)
    if isinstance(plugin, type) and isinstance(getattr(plugin, "name", None), str):
        return plugin
    if plugin not in known:
        one = kind[:-3] + "y" if kind.endswith("ies") else kind[:-1]
        raise ConfigError(f"no {one} is called {plugin!r}; there are: {', '.join(known)}")
    module = importlib.import_module(f"{KINDS[kind]}.{plugin.replace('-', '_')}")
    for value in vars(module).values():
        if isinstance(value, type) and vars(value).get("name") == plugin:
            return value
    raise ConfigError(f"{module.__file__} holds no class named {plugin!r}")
