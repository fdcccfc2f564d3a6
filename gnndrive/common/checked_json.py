"""`Record`: an object of JSON or YAML that may come from a stranger.

Its fields are checked as they are taken. An error says where a field is (the file, and the keys
that lead to it), what is there, what has to be there, and what to do.
"""

from __future__ import annotations

import json
import reprlib
import unicodedata
from typing import Any, Self

from gnndrive.common.errors import StoreError

COUNT_MAX = 1 << 48
_KINDS = {
    bool: "true or false", int: "a whole number", float: "a number with a decimal point",
    str: "a text", list: "a list", dict: "an object",
}  # fmt: skip


def is_plain_text(text: str) -> bool:
    """Whether a text may be printed: no control characters (terminals obey them), no surrogates."""
    return not any(unicodedata.category(letter) in ("Cc", "Cs") for letter in text)


def _no_constant(name: str) -> None:
    """Refuse NaN and Infinity, for which json calls this."""
    raise ValueError(f"{name} is not a number in JSON")


class Record:
    """See the module.

    Args:
        fields: the object; anything else is refused.
        where: its file, for errors.
        mend: what to do about an error.
        place: the keys that lead to it in the file; "": it is the whole file.
        raises: the type of its errors, which all methods raise.
    """

    def __init__(
        self,
        fields: Any,
        where: str,
        mend: str,
        place: str = "",
        raises: type[Exception] = StoreError,
    ) -> None:
        self.where, self.mend, self.place, self.raises = where, mend, place, raises
        if not isinstance(fields, dict):
            raise self.error("is not an object")
        self.fields = fields

    @classmethod
    def parse(cls, content: bytes, where: str, mend: str) -> Self:
        """The object that a file of JSON holds."""
        try:
            document = json.loads(content.decode(), parse_constant=_no_constant)
        except (ValueError, RecursionError) as error:
            raise StoreError(f"{where} is not valid JSON ({error}): {mend}") from None
        return cls(document, where, mend)

    def error(self, problem: str) -> Exception:
        """The error for a problem of this object; `problem` follows its name."""
        name = f"{self.where}: {self.place}" if self.place else self.where
        return self.raises(f"{name} {problem}; {self.mend}")

    def wrong(self, name: str, needed: str) -> Exception:
        """The error for a field that is missing, or is not what is needed."""
        there = reprlib.repr(self.fields[name]) if self.has(name) else "missing"
        return self.raises(
            f"{self.where}: {self._at(name)} is {there}, and has to be {needed}; {self.mend}"
        )

    def has(self, name: str) -> bool:
        """Whether there is a field that is not null."""
        return self.fields.get(name) is not None

    def value(self, name: str, kind: type) -> Any:
        """A field of exactly this type."""
        value = self.fields.get(name)
        if type(value) is not kind:  # not isinstance, because True is an int
            raise self.wrong(name, _KINDS[kind])
        return value

    def whole(self, name: str, least: int = 0, most: int = COUNT_MAX - 1) -> int:
        """A whole number in this range."""
        value = self.fields.get(name)
        if type(value) is not int or not least <= value <= most:
            raise self.wrong(name, f"a whole number from {least} to {most}")
        return value

    def text(self, name: str) -> str:
        """A text that may be printed."""
        value = self.fields.get(name)
        if not isinstance(value, str) or not is_plain_text(value):
            raise self.wrong(name, "a text without control characters")
        return value

    def texts(self, name: str) -> tuple[str, ...] | None:
        """Texts that may be printed; None: the field is null."""
        if name in self.fields and self.fields[name] is None:
            return None
        values = self.value(name, list)
        if not all(isinstance(value, str) and is_plain_text(value) for value in values):
            raise self.wrong(name, "a list of texts without control characters")
        return tuple(values)

    def inner(self, name: str) -> Self:
        """The object in a field."""
        return self.inside(name, self.value(name, dict))

    def each(self, name: str, kind: type = list) -> dict[Any, Self]:
        """The objects in a list, by their places, or in an object, by their names."""
        found = self.value(name, kind)
        return {
            key: self.inside(f"{name}[{key!r}]", value)
            for key, value in (found.items() if kind is dict else enumerate(found))
        }

    def inside(self, name: str, fields: Any) -> Self:
        """An object that lies in this one at `name`."""
        return type(self)(fields, self.where, self.mend, self._at(name), self.raises)

    def _at(self, name: str) -> str:
        return f"{self.place}.{name}" if self.place else name
