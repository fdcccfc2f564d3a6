"""The SHA-256 of a file, read past the page cache."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable

from gnndrive.common.io.direct_file import (
    PAGE_BYTES,
    STRETCH_BYTES,
    Bytes,
    DirectReader,
    page_buffer,
)


def hash_file(
    path: str | os.PathLike[str], nbytes: int, each: Callable[[int, Bytes], None] | None = None
) -> str:
    """Return the SHA-256 of the first `nbytes` of a file as "sha256:" and 64 hexadecimal digits.

    Args:
        path: the file.
        nbytes: its bytes.
        each: called as each(offset, content) with its stretches, in order; the first is one page,
            the header of an array.

    Raises:
        ReadError: the disk failed.
        StoreError: the file is missing or too short.
        ConfigError: too many files are open.
    """
    digest, buffer = hashlib.sha256(), page_buffer(STRETCH_BYTES)
    with DirectReader(path) as reader:
        at, step = 0, PAGE_BYTES
        while at < nbytes:
            content = reader.read(at, min(step, nbytes - at), buffer)
            digest.update(content.data)
            if each is not None:
                each(at, content)
            at, step = at + step, STRETCH_BYTES
    return f"sha256:{digest.hexdigest()}"
