"""Standard output and standard error while a command runs: what happens if they cannot be written.

A disk that is full, or a pipe whose reader has ended (`gnndrive info STORE | head -1`), makes any
`print` fail, and again when the interpreter flushes its streams at its end. `guarded` turns the
first failure of standard output into an `OutputError`, and ignores failures of standard error,
because training need not end when its progress is not seen.
"""

from __future__ import annotations

import contextlib
import errno as errno_names
import os
import sys
import warnings
from collections.abc import Callable, Iterator
from typing import Any

from gnndrive.common.errors import GNNDriveError


class OutputError(GNNDriveError):
    """Standard output cannot be written to; `reader_ended`: because it is a pipe whose reader has
    ended, which is no fault."""

    def __init__(self, error: OSError) -> None:
        self.reader_ended = error.errno == errno_names.EPIPE
        super().__init__(
            f"standard output cannot be written to ({error.strerror}): free some space on its "
            "disk, or send the output elsewhere"
        )


@contextlib.contextmanager
def guarded(said: Callable[[str], str]) -> Iterator[None]:
    """Within this context, writing to standard output raises `OutputError` where it would raise
    OSError, writing to standard error raises nothing, and a warning is one line, the text that
    `said` makes of it."""
    out: Any = sys.stdout
    err: Any = sys.stderr
    format_warning = warnings.formatwarning

    def fail(error: OSError) -> None:
        _discard(out)
        raise OutputError(error) from None

    def ignore(error: OSError) -> None:
        _discard(err)

    def one_line(message: Warning | str, *where: Any, **more: Any) -> str:
        """A warning without the place in the code, which says nothing on a command line."""
        return f"gnndrive: warning: {said(str(message))}\n"

    try:
        warnings.formatwarning = one_line
        # a stream that was closed before the start is None
        if out is not None:
            sys.stdout = _Guard(out, fail)
        if err is not None:
            sys.stderr = _Guard(err, ignore)
        yield
    finally:
        sys.stdout, sys.stderr = out, err
        warnings.formatwarning = format_warning


def flush() -> None:
    """Write what standard output has buffered, so that a failure is known before the end."""
    if sys.stdout is not None:
        sys.stdout.flush()


class _Guard:
    """A stream that calls `failed` with an OSError of its `write` or `flush`."""

    def __init__(self, stream: Any, failed: Callable[[OSError], None]) -> None:
        self._stream, self._failed = stream, failed

    def write(self, text: str) -> int:
        try:
            return int(self._stream.write(text))
        except OSError as error:
            self._failed(error)
        return len(text)

    def writelines(self, lines: Any) -> None:
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        try:
            self._stream.flush()
        except OSError as error:
            self._failed(error)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def _discard(stream: Any) -> None:
    """Have the stream's file descriptor write to nothing, so that flushing what is buffered at the
    interpreter's end does not fail again."""
    with contextlib.suppress(OSError, ValueError):  # it has no file descriptor
        nothing = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nothing, stream.fileno())
        os.close(nothing)
