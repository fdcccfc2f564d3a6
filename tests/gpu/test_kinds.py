"""Every strategy and kind of batch on a GPU: the batches that the CPU gets, row by row."""

from itertools import islice
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from torch_geometric.nn.models import GraphSAGE

import gnndrive
from gnndrive import LinkNeighborLoader, NeighborLoader, Store
from gnndrive.disk.tiers import host_rows
from gnndrive.strategies import STRATEGIES
from tests.given import moved
from tests.gpu.test_loader import DEVICE, same, the_way  # noqa: F401
from tests.loader.diskgnn.conftest import ARGUMENTS as REPLAYED
from tests.loader.diskgnn.packs import SEED, make_pack, reads_no_kept_rows
from tests.loader.hetero.graph import make_data as make_types
from tests.loader.windows.stores import ARGUMENTS as WINDOWED
from tests.loader.windows.stores import MARIUS, make_graph, make_store

pytestmark = pytest.mark.gpu

SMALL: dict[str, Any] = {
    "num_neighbors": [4, 3], "batch_size": 16, "shuffle": True, "seed": 3, "buffer": "30KB",
}  # fmt: skip
PACK: dict[str, Any] = {**REPLAYED, "seed": SEED, "buffer": None, "strategy": "diskgnn"}
LINKS = torch.randint(900, (2, 200), generator=torch.Generator().manual_seed(6))
THIRD: dict[str, Any] = SMALL | {"input_nodes": torch.arange(0, 900, 3)}  # 19 batches
KINDS: dict[str, dict[str, Any]] = {
    "gnndrive": THIRD,
    "ginex": THIRD | {"strategy": "ginex", "superbatch": 6},
    "rolling": THIRD | {"strategy": "rolling", "superbatch": 6},
    "ginex apart": THIRD | {"strategy": "ginex", "superbatch": 7, "phases": "apart"},
    "ali+pg": THIRD | {"strategy": "ali+pg"},
    "lsm-gnn": THIRD | {"strategy": "lsm-gnn", "superbatch": 6, "sweep": 1},
    "diskgnn": PACK | {"device_memory": "1MB"},
    "diskgnn, rows on the host": PACK | {"device_memory": "80KB"},
    "hierbatching": WINDOWED,
    "marius": WINDOWED | MARIUS,
    "labor": THIRD | {"sampling": "labor", "batch_dependency": 5},
    "direct": THIRD | {"topology": "direct"},
    "links": SMALL | {"edge_label_index": LINKS, "neg_sampling_ratio": 1.0},
    "links in windows": WINDOWED | MARIUS | {"edge_label_index": LINKS},
    "types": SMALL | {"buffer": "100KB", "input_nodes": "paper"},
    "a smaller type": THIRD | {"feature_dtype": "float16"},
    "scaled integers": THIRD | {"feature_dtype": "float32"},
}
Stores = dict[str, Store]


ON_HOST = [kind for kind in KINDS if "on the host" not in kind and "apart" not in kind]


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> Stores:
    """ "": a partitioned graph with a pack; stores of their own for some kinds, by the kind."""
    folder, graph = tmp_path_factory.mktemp("kinds"), make_graph()
    plain = make_store(graph, folder)
    make_pack(plain, REPLAYED, epochs=2)
    graph.x, graph.x_scale = (20 * graph.x).to(torch.int8), graph.x.abs().amax(1)
    return {"": plain} | {
        kind: gnndrive.from_data(data, folder / f"{kind}.gnn")
        for kind, data in (("types", make_types()), ("scaled integers", graph))
    }


def loader_of(stores: Stores, kind: str, **more: Any) -> NeighborLoader:
    given = {"io_depth": 16} | KINDS[kind] | more
    make: Any = LinkNeighborLoader if "edge_label_index" in given else NeighborLoader
    made: NeighborLoader = make(stores.get(kind, stores[""]), **moved(given))
    return made


def test_each_strategy_is_there() -> None:
    named = {given.get("strategy", "gnndrive") for given in KINDS.values()}
    assert STRATEGIES.keys() - {"pyg+"} == named  # its batches are made on the host


@pytest.mark.parametrize("kind", KINDS)
def test_batches_are_those_of_the_cpu(stores: Stores, kind: str) -> None:
    """Also in the epoch after one that was left, and when a second loader goes on in its middle."""
    more = {} if "device_memory" not in KINDS[kind] else {"device_memory": None, "memory": "100MB"}
    with loader_of(stores, kind, **more) as here, loader_of(stores, kind, device=DEVICE) as there:
        whole, left, last = (list(here) for _ in range(3))
        same(whole, there)
        same(left[:2], islice(there, 2))
        half = len(last) // 2
        same(last[:half], islice(there, half))
        state = there.state_dict()
    with loader_of(stores, kind, device=DEVICE) as resumed:
        resumed.load_state_dict(state)
        same(last[half:], resumed)


@pytest.mark.parametrize("kind", ON_HOST)
def test_slots_in_host_memory_give_the_same_batches(stores: Stores, kind: str) -> None:
    """The GPU's memory has live batches only."""
    given = {"device": DEVICE, "device_memory": 0}
    more = {"memory": "100MB"} if KINDS[kind].get("buffer") is None else {}
    held = {"device_memory": None} if "device_memory" in KINDS[kind] else {}
    host, gpu = (loader_of(stores, kind, **more, **where) for where in (held, given))
    with host as here, gpu as there:
        same(here, there)
        assert {item.what for item in there.plan().device_lines} == {"live batches"}


HELD = [kind for kind in ON_HOST if not kind.startswith(("diskgnn", "rolling"))]
"""What has a host level: hot rows and copies have places of their own."""


@pytest.mark.parametrize("kind", HELD)
def test_rows_that_left_the_gpu_are_read_once(stores: Stores, kind: str) -> None:
    """With memory for all rows the second epoch reads none that was in a slot in the first one."""
    given: dict[str, Any] = {"device": DEVICE, "memory": "100MB"}
    if "buffer" in KINDS[kind]:
        given["buffer"] = {"types": "40KB", "scaled integers": "5KB"}.get(kind, "20KB")
    with loader_of(stores, kind) as here, loader_of(stores, kind, **given) as there:
        for _ in range(2):
            same(here, there)
        stats, plan = there.stats(), there.plan()
        read = stats["rows_loaded"] - stats["rows_taken_back"]
        assert stats["rows_taken_back"] > 0
        assert read <= sum(table.rows for table in plan.tables)
        assert all(table.held == table.rows for table in plan.tables)


def test_hot_rows_beside_the_gpu_are_read_once(stores: Stores, monkeypatch: Any) -> None:
    """A GPU that reads pinned memory itself takes them where they lie; else a thread copies."""
    spread = Mock(wraps=host_rows.spread_rows)
    monkeypatch.setattr(host_rows, "spread_rows", spread)
    kind, more = "diskgnn, rows on the host", {"device_memory": None, "memory": "100MB"}
    with loader_of(stores, kind, **more) as here, loader_of(stores, kind, device=DEVICE) as there:
        with reads_no_kept_rows(there):
            there.set_epoch(0)
            for _ in range(2):
                same(here, there)
        driver: Any = there._runtime.device.driver  # type: ignore[union-attr]
        assert spread.called is not driver.reads_pinned


def test_inference(stores: Stores, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, found = GraphSAGE(9, 16, num_layers=2, out_channels=7), []
    for where in ("cpu", DEVICE):
        out = tmp_path / where
        gnndrive.infer(model.to(where), stores[""], device=where, memory="300MB", out=out)
        found.append(np.load(out / "h.npy"))
    # Sums over neighbours are made in any order on a GPU, so the last bits may differ.
    np.testing.assert_allclose(found[1], found[0], rtol=1e-4, atol=1e-5)
