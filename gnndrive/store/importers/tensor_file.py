"""Read the files that `torch.save` writes, memory-mapped, without running the pickle in them.

Three importers do: tensors of a GraphBolt dataset, its preprocessed graph, and PyG's graphs.
"""

from __future__ import annotations

import re
import threading
import zipfile
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch

REPEATS = (
    "more elements than are stored, as expand() makes it, and a small file could fill the disk: "
    "save tensor.clone()"
)
_PARTS = {
    torch.sparse_coo: ("_indices", "_values"),
    torch.sparse_csr: ("crow_indices", "col_indices", "values"),
    torch.sparse_csc: ("ccol_indices", "row_indices", "values"),
}


_loading = threading.Lock()  # because the classes that torch allows are those of the process


class BadTensorFile(ValueError):
    """A file cannot be read; the text says why, and holds nothing of the file but the name of a
    class.

    Attributes:
        named: the class or function that only pickle can make; None: that is not the reason.
    """

    def __init__(self, problem: str, named: str | None = None) -> None:
        super().__init__(problem)
        self.named = named


def load(path: Path, mapped: bool = True, classes: Sequence[Any] = ()) -> Any:
    """What a file holds; `mapped`: its tensors are memory-mapped; `classes`: those that it may hold
    beside what torch allows.

    Raises:
        BadTensorFile: it is damaged, or holds more than tensors, plain values and `classes`.
    """
    # torch 2.4 can only add classes for good.
    allow: Any = getattr(torch.serialization, "safe_globals", None)
    allow = allow or torch.serialization.add_safe_globals
    try:
        # torch maps the bytes of a compressed tensor as if they were its numbers.
        if mapped and _is_compressed(path):
            raise BadTensorFile("its tensors are compressed, and torch.save does not compress them")
        with _loading, allow(list(classes)) or nullcontext():
            return torch.load(path, map_location="cpu", weights_only=True, mmap=mapped)
    except BadTensorFile:
        raise
    except Exception as error:  # because a damaged pickle can raise anything
        # No more of torch's text, which says how to run the code and may quote the file.
        if named := re.search(r"GLOBAL ([\w.]{1,200}) ", str(error)):
            raise BadTensorFile(f"it names {named[1]!r}", named[1]) from None
        if isinstance(error, OSError):
            raise BadTensorFile(error.strerror or "it cannot be opened") from None
        old = isinstance(error, zipfile.BadZipFile)
        raise BadTensorFile("it is damaged" + ", or in torch's form before 1.6" * old) from None


def repeats(found: torch.Tensor) -> bool:
    """Whether a tensor, or a part of a sparse one, has more elements than are stored."""
    if found.layout in _PARTS:
        return any(repeats(getattr(found, name)()) for name in _PARTS[found.layout])
    if found.layout != torch.strided:
        return False
    return found.is_meta or found.numel() * found.element_size() > found.untyped_storage().nbytes()


def _is_compressed(path: Path) -> bool:
    with zipfile.ZipFile(path) as archive:
        return any(each.compress_type != zipfile.ZIP_STORED for each in archive.infolist())
