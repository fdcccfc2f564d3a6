"""Find a plug-in by its kind and name: `find("engines", "uring")` is the class in
gnndrive/disk/engines/uring.py.

A new engine, policy, layout, sampler, schedule, topology, tier or device is one new file in the
folder of its kind, holding one class whose `name` is the file's name (with "-" for "_"). Nothing is
registered anywhere. An argument that accepts a plug-in's name also accepts its class, so that a
plug-in may live outside of the package. Each class has a class method `make(context)`, whose one
argument is the context object of its kind (`base.py` in the folder of the kind), and passes the
conformance test of its kind.
"""

from __future__ import annotations

import functools
import importlib
import os
from pathlib import Path
from typing import Any

from gnndrive.common.errors import ConfigError
from gnndrive.common.names import did_you_mean

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


@functools.cache
def names(kind: str) -> tuple[str, ...]:
    """The names of all plug-ins of a kind, sorted; a folder is listed once in a process."""
    package = importlib.import_module(KINDS[kind])
    # not pkgutil.iter_modules, which finds none where it may not open the folder
    files = (Path(name) for folder in package.__path__ for name in os.listdir(folder))
    found = {file.stem for file in files if file.suffix == ".py"} - {"base"}
    return tuple(sorted(name.replace("_", "-") for name in found if name[0] != "_"))


def name_of(plugin: Any) -> str:
    """The name of a plug-in that is given by its name or as its class."""
    name: str = plugin if isinstance(plugin, str) else plugin.name
    return name


def find(kind: str, plugin: Any) -> Any:
    """Return the class of a plug-in.

    Args:
        kind: a key of `KINDS`.
        plugin: the plug-in's name, or its class, which may come from outside of the package.

    Raises:
        ConfigError: no plug-in of this kind has that name (the message lists the names), or the
            class is not a whole plug-in of this kind (the message says what is missing).
    """
    one = kind[:-3] + "y" if kind.endswith("ies") else kind[:-1]
    if isinstance(plugin, type):
        _check_class(kind, one, plugin)
        return plugin
    known = names(kind)
    if plugin not in known:
        raise ConfigError(
            f"no {one} is called {plugin!r}{did_you_mean(plugin, known)}; there are: "
            f"{', '.join(known)}"
        )
    module = importlib.import_module(f"{KINDS[kind]}.{plugin.replace('-', '_')}")
    for value in vars(module).values():
        if isinstance(value, type) and vars(value).get("name") == plugin:
            return value
    raise ConfigError(f"{module.__file__} holds no class named {plugin!r}")


def _check_class(kind: str, one: str, plugin: type) -> None:
    base: type = getattr(importlib.import_module(f"{KINDS[kind]}.base"), one.capitalize())
    if not issubclass(plugin, base):
        raise ConfigError(
            f"{plugin.__name__} is not a {one}: derive it from {base.__module__}.{base.__name__}"
        )
    if not isinstance(getattr(plugin, "name", None), str):
        raise ConfigError(f"the {one} {plugin.__name__} has no name: give the class a text `name`")
    missing = sorted(getattr(plugin, "__abstractmethods__", ()))
    if missing:
        raise ConfigError(f"the {one} {plugin.__name__} lacks {', '.join(missing)}: define them")
