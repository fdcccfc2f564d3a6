"""`TraceFile`: a file of Chrome trace events that can be read at any moment.

The events are one JSON array. Its viewers need no closing bracket, and a compressed file is a row
of gzip members, so what a killed process has written so far opens. `Timeline` (`timeline.py`)
writes it in a thread of its own.
"""

from __future__ import annotations

import contextlib
import gzip
import os
import sys
import threading
import warnings
from collections.abc import Iterable
from pathlib import Path

from gnndrive.common.errors import ConfigError

_LEVEL = 1  # of compression: a quarter of the time of the default, for a fifth more bytes
_writing: set[str] = set()
_writing_lock = threading.Lock()


class TraceFile:
    """One trace file, which replaces an earlier one. One thread at a time may call its methods.

    Args:
        path: the file; compressed if its name ends with ".gz".

    Attributes:
        failed: whether writing has failed; then nothing more is written.

    Raises:
        ConfigError: it cannot be written, or another loader of this process is writing it.
    """

    def __init__(self, path: Path) -> None:
        self.path, self.failed = path, False
        self._key = os.path.realpath(path)
        with _writing_lock:
            if self._key in _writing:
                raise ConfigError(
                    f"trace={str(path)!r} is being written by another loader: close that one "
                    "first, or give each loader a file of its own"
                )
            _writing.add(self._key)
        try:
            flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
            self._fd = os.open(path, flags, 0o666)
        except (OSError, ValueError) as error:
            self._forget()
            raise ConfigError(
                f"trace={str(path)!r} cannot be written ({error}): give a file in a folder that "
                "is there and that you may write to"
            ) from error
        self._compressed, self._end, self._empty = path.name.endswith(".gz"), 0, True
        self._closed = False

    def write(self, events: Iterable[str]) -> None:
        """Append events, each in JSON. If the disk is full, this warns and gives up."""
        text = ",\n".join(events)
        if text:
            self._append(("[\n" if self._empty else ",\n") + text)

    def close(self) -> None:
        """Close the array and the file; idempotent."""
        if self._closed:
            return
        try:
            self._append("[]\n" if self._empty else "\n]\n")
        finally:
            self._closed = self.failed = True
            with contextlib.suppress(OSError):
                os.close(self._fd)
            self._forget()

    def _append(self, text: str) -> None:
        if self.failed:
            return
        self._empty = False
        content = text.encode()
        if self._compressed:
            content = gzip.compress(content, _LEVEL)
        try:
            left = memoryview(content)
            while left:
                left = left[os.write(self._fd, left) :]
            self._end += len(content)
        except OSError as error:
            self.failed = True
            with contextlib.suppress(OSError):  # what was written before can be read
                os.ftruncate(self._fd, self._end)
            self._warn(
                f"trace={str(self.path)!r}: {error.strerror}: the timeline ends here, and loading "
                "goes on; give trace= a file on a disk with room"
            )

    def _warn(self, text: str) -> None:
        try:
            warnings.warn(text, stacklevel=1)
        except Warning as warning:  # all warnings are errors, but loading goes on
            print(warning, file=sys.stderr)

    def _forget(self) -> None:
        with _writing_lock:
            _writing.discard(self._key)
