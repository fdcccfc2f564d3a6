"""`moved`: a loader's arguments as a test names them, each where it belongs."""

from dataclasses import replace
from typing import Any

from gnndrive import Labor, Tuning
from gnndrive.loader.arguments import TUNING
from gnndrive.strategies.base import strategy


def moved(given: dict[str, Any]) -> dict[str, Any]:
    """The arguments with those that are the strategy's own in its object, those of `Tuning` in one,
    and the dependency of "labor" in a `Labor`."""
    tuning = {name: value for name, value in given.items() if name in TUNING}
    found = {name: value for name, value in given.items() if name not in TUNING}
    if tuning and isinstance(found.get("tuning"), Tuning | None):
        found["tuning"] = replace(found.get("tuning") or Tuning(), **tuning)
    if found.get("sampling") == "labor" and "batch_dependency" in found:
        found["sampling"] = Labor(found.pop("batch_dependency"))
    asked = found.get("strategy", "gnndrive")
    own = strategy(asked).arguments().keys() & found.keys()
    if own:
        found["strategy"] = replace(strategy(asked), **{name: found.pop(name) for name in own})
    return found
