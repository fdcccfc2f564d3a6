"""`moved`: a loader's arguments as a test names them, each where it belongs."""

from dataclasses import replace
from typing import Any

from gnndrive.strategies.base import strategy


def moved(given: dict[str, Any]) -> dict[str, Any]:
    """The arguments with those that are the strategy's own in its object."""
    asked = given.get("strategy", "gnndrive")
    if asked == "auto":
        return given
    found = strategy(asked)
    own = {name: value for name, value in given.items() if name in found.arguments()}
    if not own:
        return given
    rest = {name: value for name, value in given.items() if name not in own}
    return rest | {"strategy": replace(found, **own)}
