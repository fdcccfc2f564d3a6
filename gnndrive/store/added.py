"""Arrays that were added to a store after it was made: attributes of nodes, by `gnndrive.infer`.

A store never changes: `store.json` and the files that it lists stay as they are, and so does the
store's identity. What is added lies in `derived/`: `derived/h.json` lists the arrays of the
attribute h, whose files are below `derived/h/RUN/`. RUN differs from one computation to the next,
so an attribute is replaced by replacing one small file, and an older `Store` object finds its own
files or none. The store is whole without the folder `derived`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from gnndrive.common.errors import StoreError
from gnndrive.common.io.small_files import replace_file
from gnndrive.store.files import read_plain
from gnndrive.store.format import ADDED_FORMAT, JSON_BYTES_MAX, ArrayInfo, StoreInfo
from gnndrive.store.parsing import parse_added

DERIVED = "derived"


def with_added(folder: Path, own: StoreInfo) -> StoreInfo:
    """What a store holds with the arrays that were added to it; `own` is what store.json says.

    Raises:
        StoreError: a record of added arrays is damaged, or two name the same array.
    """
    arrays = dict(own.arrays)
    for name in added_names(folder):
        for array in read_added(folder, own, name).values():
            if array.name in arrays:
                raise StoreError(
                    f"{folder / DERIVED / name}.json lists {array.name}, which the store has "
                    "already: remove one of the two records"
                )
            arrays[array.name] = array
    return own if len(arrays) == len(own.arrays) else replace(own, arrays=arrays)


def read_added(folder: Path, own: StoreInfo, name: str) -> dict[str, ArrayInfo]:
    """The arrays of the added attribute `name`, by their names in the store.

    Raises:
        StoreError: the record cannot be read, is damaged, or belongs to another store.
    """
    file = f"{DERIVED}/{name}.json"
    content = read_plain(folder, file, JSON_BYTES_MAX)
    return parse_added(content, str(folder / file), own, f"{DERIVED}/{name}")


def write_added(
    folder: Path, own: StoreInfo, name: str, run: str, arrays: Iterable[ArrayInfo]
) -> None:
    """Add an attribute whose files exist already below `derived/NAME/RUN/`, or replace it, durably;
    OSError: the record cannot be written."""
    record = {
        "format": ADDED_FORMAT,
        "version": 1,
        "store": own.identity,
        "run": run,
        "arrays": {array.name: replace(array, folder="").as_dict() for array in arrays},
    }
    content = (json.dumps(record, indent=1) + "\n").encode()
    replace_file(folder / DERIVED / f"{name}.json", lambda file: file.write(content), 0o644)


def added_names(folder: Path) -> list[str]:
    """The names of the attributes that were added to the store in a folder."""
    try:
        found = os.listdir(folder / DERIVED)
    except OSError:  # there is none
        return []
    return sorted(
        each.removesuffix(".json")
        for each in found
        if each.endswith(".json") and not each.startswith(".")
    )
