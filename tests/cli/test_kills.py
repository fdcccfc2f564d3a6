"""What is killed before any call that changes the disk, or whose disk is full from then on, leaves
the old or the new: `gnndrive clean` leaves nothing else, and the same call ends with the same
bytes."""

import errno
import os
import random
import re
import shutil
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch_geometric.data import Data

import gnndrive
from gnndrive import ConfigError
from gnndrive.cli.commands import clean
from gnndrive.inference.infer import infer
from gnndrive.inference.outcome import remove_result
from gnndrive.store.packed.format import PACK_JSON
from tests.soak import SOAKING, Seeds
from tests.store.kills import CREATING, SPACE, calls_of, fails_at, killed_at, tree

NODES, EDGES = 300, 2_500
STORE = "graph.gnn"
Work = Callable[[Path], object]


def layer(factor: float, x: Any, edge_index: Any) -> Any:
    return x * factor


def made(folder: Path, number: int = 1) -> None:
    draw = torch.Generator().manual_seed(number)
    data = Data(
        x=torch.randn(NODES, 20, generator=draw),
        edge_index=torch.randint(0, NODES, (2, EDGES), generator=draw),
    )
    gnndrive.from_data(data, folder / STORE, if_exists="replace")


def from_edges(folder: Path) -> None:
    gnndrive.from_edges(folder / "edges.csv", folder / STORE, labels=folder / "labels.csv")


def from_tables(folder: Path) -> None:
    nodes, edges = f"{folder}/labels.csv:column0", folder / "edges.csv"
    gnndrive.from_tables(folder / STORE, nodes=nodes, edges=edges, x="column1")


def written(folder: Path) -> None:
    lines = "".join(f"{node},{(node * 7) % 90}\n" for node in range(100))
    for name in ("edges.csv", "labels.csv"):
        (folder / name).write_text(lines)


def packed(folder: Path, **more: Any) -> None:
    given = {"batch_size": 32, "memory": "100MB", "tuning": gnndrive.Tuning(samplers=1)}
    gnndrive.pack(folder / STORE, [4, 3], **given | more)


def damaged(folder: Path) -> None:
    (path,) = folder.glob(f"{STORE}/packed/*/{PACK_JSON}")
    path.write_text("{}")


def partitioned(folder: Path, parts: int = 10) -> None:
    gnndrive.partition(folder / STORE, parts, "random", memory=128 << 20, overwrite=True)


def inferred(folder: Path, factor: float = 2, **given: Any) -> None:
    layers, store = [partial(layer, factor)] * 2, gnndrive.open(folder / STORE)
    infer(layers, store, batch_size=100, overwrite=True, **given)


def inferred_elsewhere(folder: Path, factor: float = 2, name: str = "h") -> None:
    inferred(folder, factor, out=folder / "out", name=name)


def removed(folder: Path) -> None:
    remove_result(gnndrive.open(folder / STORE), "h")


CASES: dict[str, tuple[list[Work], Work]] = {
    "import": ([], made),
    "import again": ([partial(made, number=2)], made),
    "import of edges": ([written], from_edges),
    "import of tables": ([written], from_tables),
    "pack": ([made], packed),
    "pack again": ([made, packed, damaged], partial(packed, overwrite=True)),
    "partition": ([made], partitioned),
    "partition again": ([made, partial(partitioned, parts=3)], partitioned),
    "infer": ([made], inferred),
    "infer again": ([made, partial(inferred, factor=3)], inferred),
    "infer elsewhere": ([made, partial(inferred_elsewhere, name="other")], inferred_elsewhere),
    "infer elsewhere again": ([made, partial(inferred_elsewhere, factor=3)], inferred_elsewhere),
    "attribute removed": ([made, inferred], removed),
}  # fmt: skip
"""What is there before, and what is killed."""
SOAKED = ("import", "pack", "partition", "infer")
"""Each is killed 21 times in a soak, and 21 times its disk is full."""

each_case = pytest.mark.parametrize(
    "case",
    [pytest.param(each, marks=pytest.mark.soak(times=7) if each in SOAKED else ())
     for each in CASES],
)  # fmt: skip


def copied(folder: Path, to: Path) -> None:
    shutil.rmtree(to, ignore_errors=True)
    shutil.copytree(folder, to)


class Change:
    """A case in a folder. `calls` is how many of `counted` it makes; `restore` what was before."""

    def __init__(self, case: str, parent: Path, counted: Sequence[str]) -> None:
        before, work = CASES[case]
        names = ("kept", "folder", "other")
        self._kept, self._folder, self._other = (parent / name for name in names)
        self._kept.mkdir()
        for each in before:
            each(self._kept)
        self.run = partial(work, self._folder)
        self.restore()
        self.calls = calls_of(self.run, counted)
        self._old, self._new = tree(self._kept), tree(self._folder)

    def restore(self) -> None:
        copied(self._kept, self._folder)

    def check(self) -> bool:
        """Clean a copy, which holds the old or the new then, and end it; returns whether the new
        was there."""
        copied(self._folder, self._other)
        clean.run(self._other)
        found = tree(self._other)
        assert found in (self._old, self._new)
        with suppress(ConfigError):  # it is there already, or gone
            self.run()
        assert tree(self._folder) == self._new
        return found == self._new


@each_case
def test_killed_before_any_call(case: str, tmp_path: Path, seeds: Seeds) -> None:
    change = Change(case, tmp_path, CREATING)
    found = {}
    first = [*range(7, 12), *range(18, 23), 41]  # folders and files are made
    places = first if case == "infer" and not SOAKING else []
    for seed in seeds(3):
        draw = random.Random(seed)
        places.append(draw.randint(1 if seed % 2 else max(change.calls - 30, 1), change.calls))
    for at in places:
        change.restore()
        assert killed_at(change.run, at, CREATING)
        found[at] = change.check()
    ends = [found[at] for at in sorted(found)]
    assert ends == sorted(ends), "first the old, then the new"


@each_case
def test_a_disk_that_is_full_from_any_call_on(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seeds: Seeds
) -> None:
    change = Change(case, tmp_path, SPACE)
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    for seed in seeds(3 if SOAKING else 1):
        change.restore()
        at = random.Random(seed).randint(1, change.calls)
        raised = fails_at(change.run, monkeypatch, at, full, SPACE, lasting=True)
        assert raised is None or re.search("disk is too full|No space left", str(raised))
        assert change.check() or raised is not None
