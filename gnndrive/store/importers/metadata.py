"""What a metadata.yaml of GraphBolt says, checked as it is taken: nothing in it is trusted."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from gnndrive.common.errors import ConfigError, StoreError
from gnndrive.common.records import EdgeType

NAME = "metadata.yaml"


class Entry:
    """An object of the file.

    Args:
        fields: what it holds.
        file: the file.
        what: where it stands in the file, such as "graph.nodes[0]", for errors.

    Raises:
        StoreError: it is no object.
    """

    def __init__(self, fields: Any, file: Path, what: str) -> None:
        self.file, self.what = file, what
        if not isinstance(fields, dict):
            raise self.error("is no list of names and values")
        self._fields = fields

    def __contains__(self, name: object) -> bool:
        return self._fields.get(name) is not None

    def error(self, problem: str) -> StoreError:
        """An error that says where it is."""
        where = self.file if self.what == NAME else f"{self.file}: {self.what}"
        return StoreError(f"{where} {problem}; correct the file")

    def entries(self, name: str) -> list[Entry]:
        """The objects of a list, none if there is no such list.

        Raises:
            StoreError: it is no list of objects.
        """
        found = self._fields.get(name)
        if found is None:
            return []
        if not isinstance(found, list):
            raise self.error(f"has a {name!r} that is no list")
        where = f"{self.what}.{name}" if self.what != NAME else name
        return [Entry(each, self.file, f"{where}[{n}]") for n, each in enumerate(found)]

    def entry(self, name: str) -> Entry:
        """An object in this one.

        Raises:
            StoreError: it is not there, or no object.
        """
        if name not in self:
            raise self.error(f"has no {name!r}")
        return Entry(self._fields[name], self.file, name)

    def text(self, name: str, *allowed: str) -> str:
        """A text.

        Raises:
            StoreError: it is not there, no text, or none of those that are allowed.
        """
        found = self._fields.get(name)
        if not isinstance(found, str) or not found:
            raise self.error(f"has no {name!r} in text")
        if allowed and found not in allowed:
            raise self.error(f"has the {name} {found!r}, which is none of {', '.join(allowed)}")
        return found

    def text_or_none(self, name: str) -> str | None:
        """A text, None if it is left out.

        Raises:
            StoreError: it is no text.
        """
        return self.text(name) if name in self else None

    def count(self, name: str) -> int:
        """A whole number from 0.

        Raises:
            StoreError: it is none.
        """
        found = self._fields.get(name)
        if type(found) is not int or found < 0:
            raise self.error(f"has no {name!r} that is a whole number from 0")
        return found

    def edge_type(self) -> EdgeType:
        """Its type, "source:relation:target".

        Raises:
            StoreError: it is none.
        """
        parts = self.text("type").split(":")
        if len(parts) != 3:
            raise self.error(f"has the type {self.text('type')!r}: say source:relation:target")
        return parts[0], parts[1], parts[2]

    def path(self) -> Path:
        """The file that it names, which is beside the metadata.

        Raises:
            StoreError: it names none, or it is not there.
        """
        given = os.path.normpath(self.text("path"))
        path = self.file.parent / given
        if os.path.isabs(given) or given.startswith(".."):
            raise self.error(f"names {given!r}, which is not beside the metadata: move it there")
        try:
            there = path.is_file()
        except OSError:  # no file system has such a name
            there = False
        if not there:
            raise self.error(f"names {path}, which is not there")
        return path


def read_metadata(source: Path) -> Entry:
    """Read a metadata.yaml, or that of a folder.

    Raises:
        ConfigError: PyYAML is not installed.
        StoreError: there is none, or it is no YAML, naming the line.
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
        problem = getattr(error, "problem", None) or "it is no YAML"
        raise StoreError(f"{file}{line}: {problem}; correct the file") from None
    except Exception as error:  # of the constructors of numbers and dates
        raise StoreError(f"{file}: {error}; correct the file") from None
    return Entry(content, file, NAME)
