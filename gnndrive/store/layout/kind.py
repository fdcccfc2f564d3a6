"""`LayoutKind`: what there is to say of one kind of derived layout, and how it is found and read.

When not to use it: for stores (`gnndrive/store/format.py`), and for attributes that inference has
added (`gnndrive/store/added.py`).
"""

from __future__ import annotations

import json
import os
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from gnndrive.common.checked_json import Record
from gnndrive.common.errors import StoreError
from gnndrive.store.files import OpenedFolder, read_plain
from gnndrive.store.format import JSON_BYTES_MAX
from gnndrive.store.layout.arrays import LayoutArray
from gnndrive.store.reader import Store


class LayoutSettings(Protocol):
    """What a layout depends on, beside the store."""

    @property
    def digest(self) -> str:
        """12 hexadecimal digits that identify the settings."""

    def as_dict(self) -> dict[str, Any]:
        """The settings in a form that JSON can hold."""

    def texts(self) -> list[str]:
        """What a user is told of them, in a few words each."""


def digest_of(settings: Mapping[str, Any]) -> str:
    """12 hexadecimal digits of the settings' SHA-256."""
    text = json.dumps(settings, sort_keys=True, ensure_ascii=True, allow_nan=False)
    return sha256(text.encode()).hexdigest()[:12]


class LayoutInfo(Protocol):
    """The content of a layout's json."""

    @property
    def store(self) -> str:
        """The identity of the store (`Store.identity`)."""

    @property
    def settings(self) -> LayoutSettings:
        """What the layout was made with."""

    @property
    def arrays(self) -> Mapping[str, LayoutArray]:
        """Every array by name."""

    @property
    def nbytes(self) -> int:
        """Bytes of the layout's files."""

    def as_dict(self) -> dict[str, Any]:
        """The whole content, in a form that JSON can hold."""

    def shown(self) -> dict[str, Any]:
        """What `gnndrive info --json` shows of it, without the arrays."""

    def sizes(self) -> dict[str, int]:
        """Bytes of the arrays' files, by array or group of arrays."""

    def texts(self) -> list[str]:
        """What `gnndrive info` says of it in one line, in a few words each, but for its size."""

    def lines(self) -> dict[str, str]:
        """What `gnndrive info` says of it alone, by what it is about."""


Info = TypeVar("Info", bound=LayoutInfo)


@dataclass(frozen=True, slots=True)
class FoundLayout(Generic[Info]):
    """A layout of a store, whole or damaged."""

    path: Path
    info: Info | None  # the content of its json; None: it is damaged
    problem: str = ""  # why it is damaged, and what to do


@dataclass(frozen=True)
class LayoutKind(ABC, Generic[Info]):
    """One kind of derived layout.

    Attributes:
        inside: the folder of a store in which its layouts lie.
        json: the file that describes a whole layout.
        format, version: what that file says of its format.
        ending: ends the name of a hidden folder; with "json" and "lock" for ".": the record that
            says what is made there, and the lock.
        arrays: the first parts of the names of its arrays.
        names: the form of a layout's name in the store's folder.
        anywhere: whether a layout may lie in another folder than the store's.
        called: what a layout is called, with its article.
        doing: what a process does that makes one: "packing".
        made_by: the command that makes one.
        mend: what to do about a layout that is damaged.
        in_the_way: what to do about a whole layout that is in the way.
        elsewhere: how it is made on another file system.
    """

    inside: str
    json: str
    format: str
    version: int
    ending: str
    arrays: Sequence[str]
    names: re.Pattern[str]
    anywhere: bool
    called: str
    doing: str
    made_by: str
    mend: str
    in_the_way: str
    elsewhere: str

    @property
    def record(self) -> str:
        """The file in the hidden folder that says of which store and settings it is."""
        return f"{self.ending[1:]}.json"

    @property
    def lock(self) -> str:
        """The file in the hidden folder that a living maker has locked."""
        return f"{self.ending[1:]}.lock"

    @abstractmethod
    def info(self, top: Record, settings: Any, store: str) -> Info:
        """The content of a json that may come from a stranger; StoreError: it contradicts itself.
        `settings` are what `settings` returns, `store` is the store's identity."""

    @abstractmethod
    def settings(self, record: Record) -> LayoutSettings:
        """The settings in a json, or in the record of an unfinished layout, perhaps a stranger's;
        StoreError: they are damaged."""

    def check_store(self, info: Info, root: Path, store: Store) -> None:
        """Check that a layout is of this store, as it is now; StoreError: it is not."""
        if info.store != store.identity:
            raise StoreError(f"{store.path} has changed since {root} was made: {self.mend}")

    def remove_elsewhere(self, path: Path) -> None:  # most have nothing there
        """Remove what the layout in the folder `path`, whole or not, has in other folders.
        StoreError: it cannot be removed."""

    def dump(self, info: Info) -> bytes:
        """The bytes of the json."""
        text = json.dumps(info.as_dict(), indent=1, ensure_ascii=False, allow_nan=False)
        return (text + "\n").encode()

    def parse(self, content: bytes, where: str) -> Info:
        """Parse the json, which may come from a stranger; `where` is its path, for errors.
        StoreError: it is invalid, of another version of the format, or contradicts itself."""
        top = Record.parse(content, where, self.mend)
        if top.text("format") != self.format:
            raise StoreError(f"{where} does not belong to {self.called}: choose another folder")
        if top.whole("version") != self.version:
            raise top.error(
                f"has version {top.whole('version')}, and this gnndrive reads {self.version}"
            )
        store = top.text("store")
        if not re.fullmatch("[0-9a-f]{64}", store):
            raise top.error("has a 'store' that is not 64 hexadecimal digits")
        return self.info(top, self.settings(top.inner("settings")), store)

    def read(self, path: str | os.PathLike[str], store: Store | None = None) -> Info:
        """Read the json of a layout; opens no array.

        Args:
            path: the layout's folder.
            store: the store that it must belong to; None: any.

        Raises:
            StoreError: there is no layout, it is damaged, or the store has changed since.
        """
        root = Path(os.path.abspath(path))
        where = root / self.json
        if not os.path.lexists(where):
            raise StoreError(
                f"{where} is not there: {root} is not {self.called}; make one with {self.made_by}"
            )
        content = read_plain(root, self.json, JSON_BYTES_MAX + 1, self.mend)
        if len(content) > JSON_BYTES_MAX:
            raise StoreError(f"{where} is too large: {self.mend}")
        info = self.parse(content, str(where))
        if store is not None:
            self.check_store(info, root, store)
        return info

    def opened(self, path: Path, info: Info, changed: str) -> OpenedFolder:
        """The folder of a layout whose json said `info` when it was read; a folder that was
        replaced since then is noticed at the first check. `changed` is the error's message."""
        return OpenedFolder(path / self.json, partial(self._says, path, info), changed)

    def _says(self, path: Path, info: Info) -> bool:
        return self.read(path) == info  # it has the checksums of all files

    def of(self, store: Store) -> list[FoundLayout[Info]]:
        """The layouts in a store's folder, by name; unfinished ones are left out."""
        folder = Path(store.path, self.inside)
        try:
            names = sorted(entry.name for entry in os.scandir(folder) if entry.is_dir())
        except OSError:
            return []
        found: list[FoundLayout[Info]] = []
        for name in filter(self.names.fullmatch, names):
            try:
                found.append(FoundLayout(folder / name, self.read(folder / name, store)))
            except StoreError as error:
                found.append(FoundLayout(folder / name, None, str(error)))
        return found
