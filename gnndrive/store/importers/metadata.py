"""Read a metadata.yaml of GraphBolt, which may come from a stranger; each value is checked when it
is used.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from gnndrive.common.errors import ConfigError, StoreError
from gnndrive.common.records import EdgeType

NAME = "metadata.yaml"


class Entry:
    """An object in the file, with named values.

    Args:
        fields: the object's values by name.
        file: the metadata file.
        what: the object's place in the file, such as "graph.nodes[0]", for errors.

    Raises:
        StoreError: `fields` is not a mapping.
    """

    def __init__(self, fields: Any, file: Path, what: str) -> None:
        self.file, self.what = file, what
        if not isinstance(fields, dict):
            raise self.error("is not a list of names and values")
        self._fields = fields

    def __contains__(self, name: object) -> bool:
        return self._fields.get(name) is not None

    def error(self, problem: str) -> StoreError:
        """An error that names the file and this object's place in it."""
        where = self.file if self.what == NAME else f"{self.file}: {self.what}"
        return StoreError(f"{where} {problem}; correct the file")

    def entries(self, name: str) -> list[Entry]:
        """The objects in the list `name`; [] if it is missing.

        Raises:
            StoreError: the value is not a list of objects.
        """
        found = self._fields.get(name)
        if found is None:
            return []
        if not isinstance(found, list):
            raise self.error(f"has a {name!r} that is not a list")
        where = f"{self.what}.{name}" if self.what != NAME else name
        return [Entry(each, self.file, f"{where}[{n}]") for n, each in enumerate(found)]

    def entry(self, name: str) -> Entry:
        """The object `name` in this one.

        Raises:
            StoreError: the value is missing or not an object.
        """
        if name not in self:
            raise self.error(f"has no {name!r}")
        return Entry(self._fields[name], self.file, name)

    def text(self, name: str, *allowed: str) -> str:
        """The text `name`.

        Args:
            name: the value's name.
            *allowed: the texts that are allowed; none: every text is.

        Raises:
            StoreError: the value is missing, not a text or not allowed.
        """
        found = self._fields.get(name)
        if not isinstance(found, str) or not found:
            raise self.error(f"has no {name!r} that is a text")
        if allowed and found not in allowed:
            raise self.error(f"has the {name} {found!r}, which is not one of {', '.join(allowed)}")
        return found

    def text_or_none(self, name: str) -> str | None:
        """The text `name`; None if it is missing.

        Raises:
            StoreError: the value is not a text.
        """
        return self.text(name) if name in self else None

    def count(self, name: str) -> int:
        """The whole number `name`, which is at least 0.

        Raises:
            StoreError: the value is missing or not such a number.
        """
        found = self._fields.get(name)
        if type(found) is not int or found < 0:
            raise self.error(f"has no {name!r} that is a whole number from 0")
        return found

    def edge_type(self) -> EdgeType:
        """The edge type in "type", written "source:relation:target".

        Raises:
            StoreError: the value is missing or not such a text.
        """
        parts = self.text("type").split(":")
        if len(parts) != 3:
            raise self.error(f"has the type {self.text('type')!r}: say source:relation:target")
        return parts[0], parts[1], parts[2]

    def path(self) -> Path:
        """The file that "path" names, in the folder of the metadata or below.

        Raises:
            StoreError: the value is missing or outside that folder, or the file is missing.
        """
        given = os.path.normpath(self.text("path"))
        path = self.file.parent / given
        if os.path.isabs(given) or given.startswith(".."):
            raise self.error(
                f"names {given!r}, which is not in the folder of the metadata: move it there"
            )
        try:
            there = path.is_file()
        except OSError:  # the name is too long for a file
            there = False
        if not there:
            raise self.error(f"names {path}, which is not there")
        return path


def read_metadata(source: Path) -> Entry:
    """Read a metadata.yaml.

    Args:
        source: the file, or the folder that holds it.

    Raises:
        ConfigError: PyYAML is not installed.
        StoreError: the file is missing, or is not valid YAML; the message names the line.
    """
    try:
        import yaml
    except ImportError:
        raise ConfigError("metadata.yaml needs PyYAML: pip install 'gnndrive[import]'") from None
    file = source / NAME if source.is_dir() else source
    try:
        content = yaml.safe_load(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise StoreError(
            f"{file} is missing: give a {NAME} of GraphBolt, or the folder that holds it"
        ) from None
    except (OSError, UnicodeDecodeError, RecursionError) as error:
        raise StoreError(f"{file} cannot be read ({error}): give a {NAME} in UTF-8") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = "" if mark is None else f", line {mark.line + 1}"
        problem = getattr(error, "problem", None) or "it is not valid YAML"
        raise StoreError(f"{file}{line}: {problem}; correct the file") from None
    except Exception as error:  # PyYAML passes on what its constructors of numbers and dates raise
        raise StoreError(f"{file}: {error}; correct the file") from None
    return Entry(content, file, NAME)
