"""Extension of griffe for `make docs`: "a, b: …" below "Args:" becomes a parameter "a" and one "b".

So does a range in the signature's order ("memory, …, seed: …"). griffe takes such a line for one
parameter; with each name in its own line it also warns of names that are not parameters.
"""

from __future__ import annotations

import re
from typing import Any

import griffe

_SECTION = re.compile(r"^Args:\n(?:(?:[ \t].*)?(?:\n|\Z))+", re.MULTILINE)
_SEVERAL = re.compile(r"^( +)(\w+(?:, (?:…|\w+))+)(:.*(?:\n\1 .*)*)", re.MULTILINE)


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
    if documented.docstring is None:
        return
    known = [each.name for each in function.parameters if "variadic" not in str(each.kind)]

    def apart(line: re.Match[str]) -> str:
        indent, several, text = line.groups()
        names = several.split(", ")
        while "…" in names:  # a range of the signature's parameters
            at = names.index("…")
            last = known.index(names[at + 1]) if names[at + 1 :] else len(known)
            names[at : at + 1] = known[known.index(names[at - 1]) + 1 : last]
        return "\n".join(f"{indent}{name}{text}" for name in names)

    documented.docstring.value = _SECTION.sub(
        lambda section: _SEVERAL.sub(apart, section[0]), documented.docstring.value
    )
