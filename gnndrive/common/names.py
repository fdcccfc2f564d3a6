"""Names that users give and gnndrive does not know: the error says which one may be meant."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Iterable
from dataclasses import fields
from typing import Any, Self

from gnndrive.common.errors import ConfigError


def did_you_mean(given: object, known: Iterable[object]) -> str:
    """What a message says behind an unknown name: " (did you mean batch_size?)", or "" if none of
    the `known` names is like it."""
    names = {str(each).lower(): str(each) for each in known}
    nearest = difflib.get_close_matches(str(given).lower(), names, 1)
    return f" (did you mean {names[nearest[0]]}?)" if nearest else ""


class Arguments:
    """The base of a dataclass that users make with keyword arguments. An unknown one raises
    ConfigError, which names those that there are: the fields that the class's text shows."""

    __slots__ = ()

    def __new__(cls, *values: Any, **given: Any) -> Self:
        """Check the names of the arguments; `__init__` checks the rest."""
        known = inspect.signature(cls.__init__).parameters if given else {}
        if not any(each.kind is each.VAR_KEYWORD for each in known.values()):
            for name in given.keys() - known:
                shown = ", ".join(each.name for each in fields(cls) if each.repr)  # type: ignore[arg-type]
                raise ConfigError(
                    f"{cls.__name__} has no argument {name}{did_you_mean(name, known)}; it has: "
                    f"{shown or 'none'}"
                )
        return super().__new__(cls)
