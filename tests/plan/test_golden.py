"""The texts of `plan()`, its details and `compare()` of all strategies are those in `golden.txt`.

After an intended change of a text, `GOLDEN=write make test` writes the file anew.
"""

import os
import re
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch
from torch_geometric.data import Data

import gnndrive
from gnndrive import ConfigError, Store
from gnndrive.common.memory import parse_size
from gnndrive.loader.sharing import Sharing
from gnndrive.plan.plan import Plan, Served
from gnndrive.plan.slots import second_buffer
from gnndrive.strategies import STRATEGIES
from tests.loader.conftest import Make
from tests.loader.hetero.graph import make_data
from tests.loader.ranks.conftest import AsRank, as_rank

__all__ = ["as_rank"]

GOLDEN = Path(__file__).parent / "golden.txt"
DRAWN: dict[str, Any] = {
    "input_nodes": torch.arange(640), "batch_size": 16, "shuffle": True, "seed": 5,
}  # fmt: skip
GIVEN: dict[str, Any] = {"buffer": None, "io_depth": 4, **DRAWN}
TIGHT, AMPLE = 1.15, "100MB"  # times the least memory that works; room for all rows
GPU = {"device": "simulated-cuda"}
FREE = 1 << 30
LITTLE, MORE = "2.6MB", "8MB"  # of memory, for comparisons; room for windows, too

# What is planned: the name of each case, the strategies it is tried with, and a loader's arguments.
ON_DEVICE = tuple(name for name in STRATEGIES if name != "pyg+")
DRAWING = ("gnndrive", "ginex", "ali+pg", "lsm-gnn")
CASES: list[tuple[str, tuple[str, ...], dict[str, Any]]] = [
    ("host", tuple(STRATEGIES), {}),
    ("GPU", ON_DEVICE, GPU | {"memory": "40MB"}),
    ("GPU, device_memory", ON_DEVICE, GPU | {"device_memory": "3MB", "memory": "40MB"}),
    ("GPU, device_memory=0", ("gnndrive", "diskgnn"), GPU | {"device_memory": 0}),
    ("no budget", ("gnndrive", "ginex", "diskgnn", "marius"), {"memory": None}),
    ("buffer", ("gnndrive", "diskgnn"), {"memory": None, "buffer": "2MB"}),
    ("2 ranks, shared", ("gnndrive", "ali+pg"), {"ranks": 2, "has": Sharing(True, True)}),
    ("2 ranks", (*DRAWING, "diskgnn"), {"ranks": 2}),
    ("2 ranks, windows", ("hierbatching",), {"ranks": 2, "megabatch": 4}),
    ("served", ("gnndrive",), {"has": Sharing(True, True, Served(1 << 26))}),
    ("graph served", ("ginex",), {"has": Sharing(False, True, Served(1 << 26))}),
    ("apart", ("ginex",), {"phases": "apart", "superbatch": 16}),
    ("victim buffer", ("lsm-gnn",), GPU | {"victim_buffer": "1MB", "memory": "40MB",
                                           "device_memory": "3MB"}),
    ("from the disk", ("gnndrive", "ali+pg"), {"topology": "direct"}),
    ("mapped", ("gnndrive",), {"topology": "mmap", "samplers": 1, "sweep": 1}),
]  # fmt: skip

SHORT = {
    "gnndrive: host, tight", "gnndrive: host, ample", "gnndrive: GPU, device_memory",
    "gnndrive: 2 ranks, shared, tight", "gnndrive: served, tight",
}  # fmt: skip
"""Cases of which what `print` says of a plan is tested too, without the details."""


@pytest.fixture(autouse=True)
def _fixed(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a plan asks the machine: its processors, its memory, its disk, and the time."""
    clock = count()
    monkeypatch.setattr("gnndrive.plan.drawn.thread_time", lambda: 1e-3 * next(clock))
    monkeypatch.setattr("gnndrive.loader.strategy_choice.measure_pace", lambda policy: 1.0)
    monkeypatch.setattr("gnndrive.plan.plan.left_memory", lambda ranks: FREE)
    monkeypatch.setattr("gnndrive.plan.plan.available_memory", lambda: FREE)
    monkeypatch.setattr("gnndrive.strategies.superbatches.scheme.free_bytes", lambda folder: FREE)
    monkeypatch.setattr("os.sched_getaffinity", lambda process: {0, 1})
    monkeypatch.setattr("os.cpu_count", lambda: 2)


@pytest.fixture(scope="module")
def golden_store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """A graph whose rows are most of its bytes, partitioned."""
    draw = torch.Generator().manual_seed(1)
    source = (4_000 * torch.rand(16_000, generator=draw) ** 3).long()
    data = Data(
        x=torch.zeros(4_000, 256), y=torch.arange(4_000) % 7, place=torch.zeros(4_000, 2),
        edge_index=torch.stack([source, torch.randint(4_000, (16_000,), generator=draw)]),
    )  # fmt: skip
    store = gnndrive.from_data(data, tmp_path_factory.mktemp("golden") / "wide.gnn")
    gnndrive.partition(store, parts=30, method="random")
    return store


def planned(make: Any, **given: Any) -> str:
    """What a loader's plan prints without a comparison, and its sums that are not printed."""
    plan: Plan = make(**given)._assembly().plan()
    sums = {
        "host": plan.host_bytes, "device": plan.device_bytes, "epoch": plan.epoch_bytes,
        "between epochs": plan.between_epochs_bytes, "share": plan.share_bytes,
        "disk": plan.disk_bytes,
    }  # fmt: skip
    try:
        second = sum(table.slots for table in second_buffer(plan, 0, lambda: FREE))
    except ConfigError as error:
        second = str(error)  # type: ignore[assignment]
    found = ", ".join(f"{name} {nbytes:,}" for name, nbytes in sums.items() if nbytes)
    lines = [plan.details(), found, f"a second iterator: {second}", *map(str, plan.tables)]
    return "\n".join([*lines, f"fetched: {', '.join(plan.fetched) or 'none'}"])


def least_of(make: Any, **given: Any) -> tuple[str, int]:
    """The first line of what is said of a byte of memory, and the least memory that it names."""
    with pytest.raises(ConfigError) as caught:
        make(**given | {"memory": 1})._assembly().plan()
    found = re.search(r'memory="(\S+)"', str(caught.value))
    assert found, str(caught.value)
    return str(caught.value).partition("\n")[0], parse_size(found[1], "memory")


def texts(make: Make, store: Store, as_rank: AsRank, patch: Any) -> Iterator[tuple[str, str]]:
    """The name and the text of each case."""
    for name, strategies, arguments in CASES:
        given = {"data": store, **GIVEN, **arguments}
        ranks, has = given.pop("ranks", 1), given.pop("has", Sharing())
        as_rank(0, ranks, "user" if ranks == 1 else "loader")
        patch.setattr("gnndrive.loader.ranks.local_ranks", lambda ranks=ranks: ranks)
        patch.setattr("gnndrive.loader.assembly.what_service_has", lambda *_, has=has: has)
        for strategy in strategies:
            here, own = f"{strategy}: {name}", given | {"strategy": strategy}
            cases = {here: own}
            if "memory" not in own:
                refused, least = least_of(make, **own)
                yield f"{here}, a byte", refused
                cases = {f"{here}, tight": own | {"memory": int(TIGHT * least)}}
                cases |= {f"{here}, ample": own | {"memory": AMPLE}} if name == "host" else {}
            for case, its in cases.items():
                yield case, planned(make, **its)
                if case in SHORT:
                    yield f"{case}, short", str(make(**its)._assembly().plan())


def compared(make: Make, store: Store, **given: Any) -> str:
    found = make(**{"data": store, **GIVEN, **given}).compare()
    lines = [found.details()]
    for cost in found.costs:
        parts = ", ".join(f"{part} {seconds:.5g}" for part, seconds in cost.seconds.items())
        lines.append(f"{cost.strategy}: {parts}; hits {cost.hit_share or 0:.5g}")
    return "\n".join(lines)


def test_texts(
    make: Make, golden_store: Store, as_rank: AsRank, monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:  # fmt: skip
    """Without a pack: what one would give is predicted; with one."""
    store, found = golden_store, dict[str, str]()
    found["before packing"] = compared(make, store, memory=LITTLE)
    gnndrive.pack(store, [4, 3], buffer="1MB", **DRAWN)
    found["packed"] = compared(make, store, memory=LITTLE)
    found["room for windows"] = compared(make, store, memory=MORE)
    with monkeypatch.context() as patch:
        found |= texts(make, store, as_rank, patch)
    hetero = gnndrive.from_data(make_data(), tmp_path / "hetero.gnn")
    of_types = {"data": hetero, **GIVEN, "input_nodes": ("paper", torch.arange(200))}
    refused, least = least_of(make, **of_types)
    found["types, a byte"] = refused
    found["types, tight"] = planned(make, **of_types | {"memory": int(TIGHT * least)})
    text = "".join(f"=== {name}\n{each}\n" for name, each in found.items())
    text = text.replace(str(store.path), "STORE").replace(str(tmp_path), "TMP")
    if os.environ.get("GOLDEN") == "write":
        GOLDEN.write_text(text, "utf-8")
    assert text == GOLDEN.read_text("utf-8")
