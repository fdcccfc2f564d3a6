"""Verifying finds damage of any kind, and names it; checksums that agree with it do not hide it."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from gnndrive.common.errors import StoreError
from gnndrive.store.format import ArrayInfo
from gnndrive.store.partitioned import verify
from gnndrive.store.partitioned.format import ARRAYS, PARTITION_JSON, PARTITIONS
from gnndrive.store.partitioned.partitioned import Partitioned, open_partitioned
from gnndrive.store.partitioned.verify import verify_partition
from gnndrive.store.reader import Store
from tests.store.conftest import edit_json, poke
from tests.store.partitioned.made import make_folder, write_array, write_folder

NODES = 200
PART = np.random.default_rng(7).integers(0, 9, NODES)


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch, small: Callable[..., None]) -> None:
    small()
    monkeypatch.setattr(verify, "_STEP", 13)
    monkeypatch.setattr(verify, "_PART_BYTES", 2 * 4096 + 100)


@pytest.mark.filterwarnings("ignore:.*given partitions are empty")  # as they are meant to be
@pytest.mark.parametrize(
    ("part", "parts", "static"),
    [(PART, 9, 0.04), (PART, 12, 1.0), (np.random.default_rng(3).permutation(NODES), NODES, 0.1)],
)
def test_a_sound_folder(store: Store, part: Any, parts: int, static: float):
    told: dict[str, tuple[int, int]] = {}
    made = write_folder(store, part, parts, static=static)
    found = verify_partition(made.path, store, lambda what, *counts: told.__setitem__(what, counts))
    assert found == made.info
    assert set(told) == {
        "checksums", "ids", "counting out-edges", "lists of neighbours", "lists of static nodes",
        "rows x",
    }  # fmt: skip
    assert all(done == total for done, total in told.values()), told


def test_every_file_is_read(store: Store):
    """A byte that is changed anywhere in an array is found."""
    made = make_folder(store, PART)
    for name in ARRAYS:
        path = made.path / f"{name}.npy"
        content = path.read_bytes()
        for at in (4096, (4096 + len(content)) // 2, len(content) - 1):
            poke(path, at, bytes([content[at] ^ 1]))
            with pytest.raises(StoreError, match=name):
                verify_partition(made.path, store)
            path.write_bytes(content)
    assert verify_partition(made.path, store) == made.info


def forge(made: Partitioned, name: str, change: Callable[[Any], None]) -> None:
    """Change an array, and partition.json with it."""
    array = made.info.arrays[name]
    info = ArrayInfo(name, array.dtype, array.shape, "")
    path = made.path / info.file
    values = np.load(path).copy()
    change(values)
    arrays = {**made.info.arrays, name: write_array(made.path, info, values)}
    (made.path / PARTITION_JSON).write_bytes(PARTITIONS.dump(replace(made.info, arrays=arrays)))


def swap(first: int, second: int) -> Callable[[Any], None]:
    def change(values: Any) -> None:
        values[[first, second]] = values[[second, first]]

    return change


def put(at: int, value: int) -> Callable[[Any], None]:
    return lambda values: values.__setitem__(at, value)


FORGED = [
    ("order", swap(3, 4), "place.npy gives node .* another new id than 3"),
    ("order", put(7, NODES), "order.npy has ids of no nodes"),
    ("order", lambda v: put(7, v[8])(v), "place.npy gives node .* another new id than 7"),
    ("order", swap(NODES, NODES + 1), "order.npy has another node as static node 0"),
    ("place", swap(0, 1), "place.npy gives node 0 another new id|order.npy has it twice"),
    ("place", put(5, 10 * NODES), "place.npy has codes out of range"),
    ("home", swap(0, 1), "place.npy gives node"),
    (
        "bounds",
        lambda v: put(1, v[1] + 1)(v),
        "place.npy|order.npy has node|edge_bounds.npy gives partition 0",
    ),
    ("edge_bounds", lambda v: put(1, v[1] + 1)(v), "edge_bounds.npy gives partition 0"),
    ("static_bounds", lambda v: put(1, v[1] + 1)(v), r"static_bounds.npy gives rank 0 \d+ in-edge"),
    ("static_indices", put(0, 150), "static_indices.npy has another list of node .*rank 0"),
    ("indices", put(700, 5000), "indices.npy has a code out of range"),
    ("x", swap(NODES, NODES + 1), rf"rows {NODES} to {NODES + 7} of .*x.npy are not those of"),
    ("x", swap(60, 61), r"rows \d+ to \d+ of .*x.npy are not those of .*nodes/x.npy"),
]


@pytest.mark.parametrize(("name", "change", "said"), FORGED)
def test_what_is_wrong_is_named_though_the_checksums_agree(store, name, change, said):
    made = make_folder(store, PART)
    forge(made, name, change)
    with pytest.raises(StoreError, match=said) as caught:
        verify_partition(made.path, store)
    assert "partition" in str(caught.value)


def test_a_wrong_list_is_named_by_its_node(store: Store):
    made = make_folder(store, PART, static=0.0)
    pointers = np.asarray(store.indptr)
    whole = (made.path / "indices.npy").read_bytes()
    for node in np.flatnonzero(np.diff(pointers))[[0, 30, -1]].tolist():
        new = int(made.place[node])
        at = int(np.diff(pointers)[made.order[:new]].sum())
        forge(made, "indices", lambda v, at=at: put(at, (v[at] // 2) + 1)(v))
        with pytest.raises(
            StoreError, match=rf"list of node {node} \(new id {new}, partition {PART[node]}\)"
        ):
            verify_partition(made.path, store)
        (made.path / "indices.npy").write_bytes(whole)


def test_nodes_that_do_not_ascend_in_their_partition(store: Store):
    """Two nodes exchanged in all arrays alike."""
    part = PART.copy()
    made = make_folder(store, part)
    one, two = (int(n) for n in made.order[3:5])
    forge(made, "order", swap(3, 4))
    made = open_partitioned(made.path, store)
    codes = made.place[[one, two]]
    forge(made, "place", lambda v: v.__setitem__([one, two], codes[::-1]))
    with pytest.raises(StoreError, match=rf"order.npy has node {one} behind a larger one"):
        verify_partition(made.path, store)


def test_other_static_nodes_than_the_hottest(store: Store):
    made = make_folder(store, PART)
    first, second = made.home[:2].tolist()
    forge(made, "home", swap(0, 1))
    made = open_partitioned(made.path, store)
    nodes = [int(made.order[first]), int(made.order[second])]
    forge(made, "order", swap(NODES, NODES + 1))
    made = open_partitioned(made.path, store)
    forge(made, "place", lambda v: v.__setitem__(nodes, [1, 0]))
    with pytest.raises(StoreError, match=rf"does not have node {nodes[0]}.* as static node 0"):
        verify_partition(made.path, store)


def test_shares_that_are_said_wrong(store: Store):
    made = make_folder(store, PART)
    edit_json(made.path / PARTITION_JSON, lambda top: top.update(share_hot=top["share_hot"] + 0.01))
    with pytest.raises(StoreError, match="says other shares of in-edges"):
        verify_partition(made.path, store)
