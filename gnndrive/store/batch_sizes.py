"""batches.json in a store's folder: the sizes of batches that loaders drew to plan their memory.

See `cache.py`; `plan/drawn.py` knows what an entry holds.
"""

from __future__ import annotations

import contextlib
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from gnndrive.common.errors import StoreError
from gnndrive.store.cache import load_json, save_json

if TYPE_CHECKING:
    from gnndrive.store.reader import Store

BATCHES_JSON = "batches.json"
ENTRIES_MAX = 64  # the oldest entries are dropped
_VERSION = 1
_JSON_BYTES_MAX = 1 << 20
_of_process: dict[str, Any] = {}  # entries by key, for stores whose folder cannot be written to


def entry_key(store: Store, settings: str) -> str:
    """The key of an entry: a checksum of the store's identity and the loader's settings."""
    return sha256(f"{store.identity}\n{settings}".encode()).hexdigest()[:32]


def load_entry(store: Store, key: str) -> Any:
    """An entry of this process or of batches.json; None: there is none, or the file is damaged."""
    return _of_process[key] if key in _of_process else _read(store).get(key)


def save_entry(store: Store, key: str, entry: Any) -> None:
    """Keep an entry, which JSON can hold, in this process and in batches.json.

    A folder that cannot be written to is left as it is. If two processes write at the same time,
    one entry may be lost and is then drawn again.
    """
    _of_process.pop(key, None)
    _of_process[key] = entry
    while len(_of_process) > ENTRIES_MAX:
        del _of_process[next(iter(_of_process))]
    entries = {name: each for name, each in _read(store).items() if name != key} | {key: entry}
    kept = dict(list(entries.items())[-ENTRIES_MAX:])
    with contextlib.suppress(OSError):
        save_json(store, BATCHES_JSON, {"format": _VERSION, "batches": kept})


def _read(store: Store) -> dict[str, Any]:
    """The entries of batches.json by key; {} if it is missing or damaged."""
    try:
        stored = load_json(store, BATCHES_JSON, _JSON_BYTES_MAX) or {}
        return dict(stored["batches"]) if stored["format"] == _VERSION else {}
    except (OSError, StoreError, ValueError, KeyError, TypeError, RecursionError):
        return {}
