"""Extension of griffe for `make docs`: "a, b: …" below "Args:" becomes a parameter "a" and one "b".

Our docstrings describe several parameters in one line, also as a range in the signature's order
("memory, …, seed: …"). griffe takes such a line for one parameter, of which it knows no type. With
each name in a line of its own it also warns of names that are not parameters.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import griffe

_SEVERAL = re.compile(r"(\w+(?:, (?:…|\w+))+):(.*)")


class SplitParameters(griffe.Extension):
    """Splits the lines of all docstrings while the sources are read."""

    def on_function(self, *, func: griffe.Function, **kwargs: Any) -> None:
        """Called with each function when its members are known."""
        _split(func, func)

    def on_class(self, *, cls: griffe.Class, **kwargs: Any) -> None:
        """Called with each class when its members are known; its docstring describes `__init__`."""
        init = cls.members.get("__init__")
        if isinstance(init, griffe.Function):
            _split(cls, init)


def _split(documented: griffe.Object, function: griffe.Function) -> None:
    if documented.docstring is not None:
        parameters = function.parameters
        names = [each.name for each in parameters if "variadic" not in str(each.kind)]
        lines = documented.docstring.value.splitlines()
        documented.docstring.value = "\n".join(split_lines(lines, names))


def split_lines(lines: list[str], parameters: list[str]) -> Iterator[str]:
    """Yield a docstring's lines, and those of several parameters once for each.

    Args:
        lines: the docstring, as inspect.cleandoc leaves it.
        parameters: the function's parameters in order.
    """
    inside, at = False, 0
    while at < len(lines):
        line = lines[at]
        if line and not line[0].isspace():
            inside = line == "Args:"
        described = _SEVERAL.fullmatch(line.strip()) if inside else None
        end = at + 1
        if described is None:
            yield line
        else:
            indent = line[: len(line) - len(line.lstrip())]
            while end < len(lines) and lines[end].startswith(f"{indent}  "):
                end += 1
            for name in _names(described[1], parameters):
                yield f"{indent}{name}:{described[2]}"
                yield from lines[at + 1 : end]
        at = end


def _names(text: str, parameters: list[str]) -> list[str]:
    """The names in "a, b" or, as a range of parameters, "a, …, d" or "a, …"."""
    names = text.split(", ")
    while "…" in names:
        at = names.index("…")
        first, last = parameters.index(names[at - 1]), len(parameters)
        if names[at + 1 :]:
            last = parameters.index(names[at + 1])
        names[at : at + 1] = parameters[first + 1 : last]
    return names
