"""What `gnndrive info` and `verify` say of derived layouts: those of a store, or one alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from gnndrive.cli.commands.progress import Bars
from gnndrive.common.errors import ConfigError, StoreError
from gnndrive.common.memory import format_size
from gnndrive.store.format import STORE_JSON
from gnndrive.store.layout.folder import UnfinishedLayout, unfinished_layouts
from gnndrive.store.layout.kind import LayoutInfo, LayoutKind
from gnndrive.store.layout.kinds import KINDS
from gnndrive.store.reader import Store
from gnndrive.store.reader import open as open_store


def kind_of(path: Path) -> LayoutKind[Any] | None:
    """The kind of the layout in a folder; None: it is a store's, or of no layout."""
    if (path / STORE_JSON).is_file():
        return None
    return next((kind for kind in KINDS if (path / kind.json).is_file()), None)


def show_layout(kind: LayoutKind[Any], path: Path, as_json: bool) -> None:
    """Print what a layout holds.

    Raises:
        StoreError: it is damaged.
    """
    info: LayoutInfo = kind.read(path)
    if as_json:
        print(layout_json(path, info))
        return
    head = info.lines()
    width = max(map(len, head))
    lines = [str(path), *(f"  {name:<{width}} : {text}" for name, text in head.items())]
    lines += [f"  {name:<{width}}   {format_size(size):>8}" for name, size in info.sizes().items()]
    print("\n".join(lines))


def layout_json(path: Path, info: LayoutInfo, **more: Any) -> str:
    """What there is to know of a layout, as JSON."""
    content = {"path": str(path), **info.shown(), "arrays": info.sizes(), **more}
    return json.dumps(content, indent=2)


def summary(info: LayoutInfo) -> str:
    """Describe a layout in one line."""
    return ", ".join([*info.texts(), format_size(info.nbytes)])


def layout_lines(store: Store) -> list[str]:
    """Describe the layouts of a store, damaged and unfinished ones included; a line for each."""
    lines = []
    for kind in KINDS:
        for each in kind.of(store):
            text = f"damaged: {each.problem}" if each.info is None else summary(each.info)
            lines.append(f"{kind.inside}/{each.path.name}  {text}")
        for left in _unfinished(store, kind):
            settings = left.settings()
            parts = [] if settings is None else settings.texts()
            text = ", ".join([*parts, f"{format_size(left.nbytes)} so far"])
            lines.append(f"{kind.inside}/{left.path.name}  {_state(left)}: {text}")
    return lines


def _state(layout: UnfinishedLayout) -> str:
    kind = layout.kind
    if layout.in_use:
        return f"a process is {kind.doing} now"
    if layout.is_whole:
        return "whole (gnndrive clean puts it into its place)"
    if layout.settings() is None:
        return f"the rest of {kind.called} that was removed (gnndrive clean removes it)"
    return f"unfinished ({kind.made_by} goes on with it, gnndrive clean removes it)"


def layout_dicts(store: Store, kind: LayoutKind[Any]) -> list[dict[str, Any]]:
    """The layouts of one kind for JSON; "state" is "whole", "damaged", "unfinished" or what a
    process does that makes it, such as "packing"."""
    found: list[dict[str, Any]] = []
    for each in kind.of(store):
        if each.info is None:
            more = {"state": "damaged", "problem": each.problem}
        else:
            more = {"state": "whole", **each.info.shown()}
        found.append({"path": str(each.path), **more})
    for left in _unfinished(store, kind):
        settings = left.settings()
        found.append(
            {
                "path": str(left.path),
                "state": kind.doing if left.in_use else "unfinished",
                "bytes": left.nbytes,
                "settings": None if settings is None else settings.as_dict(),
            }
        )
    return found


def _unfinished(store: Store, kind: LayoutKind[Any]) -> list[UnfinishedLayout]:
    try:
        return unfinished_layouts(Path(store.path, kind.inside), kind)
    except OSError:
        return []


def verify_layouts(store: Store) -> None:
    """Read and check all layouts of a store, show progress, and print a line for each.

    Raises:
        StoreError: one is damaged.
    """
    for kind in KINDS:
        for each in kind.of(store):
            if each.info is None:
                raise StoreError(each.problem)
            verify_layout(kind, each.path, store)


def verify_layout(kind: LayoutKind[Any], path: Path, store: Store) -> None:
    """Read and check a layout.

    Raises:
        StoreError: it is damaged, or belongs to another store.
    """
    with Bars() as bars:
        info = KINDS[kind](
            path, store, lambda what, done, total: bars(f"{path.name} {what}", done, total)
        )
    print(f"{path}: sound, {format_size(info.nbytes)} read")


def store_of(path: Path, of: Path | None) -> Store:
    """The store of a layout: `of`, or the one in which the layout lies.

    Raises:
        ConfigError: the layout lies in no store, and `of` is None.
        StoreError: the store cannot be opened.
    """
    if of is None:
        of = path.resolve().parent.parent
        if not (of / STORE_JSON).is_file():
            raise ConfigError(
                f"the rows of {path} are compared with its store's, and it lies in none: name the "
                "store with --of"
            )
    return open_store(of)
