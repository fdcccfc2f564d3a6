"""`compare` and `plan`: what a batch is predicted to cost with each strategy."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch_geometric.data import Data

import gnndrive
from gnndrive import ConfigError, NeighborLoader, Store
from gnndrive.common.errors import StoreError
from gnndrive.loader import drawing, strategy_choice
from gnndrive.plan import strategy_costs
from gnndrive.sampling.samplers.uniform import Uniform
from gnndrive.store import access_traces
from gnndrive.strategies import STRATEGIES
from tests.loader.conftest import Make
from tests.loader.strategy_choice.conftest import SAME, SHORT

# ---- the comparison


def test_each_strategy_has_a_cost_or_the_reason_why_not(make: Make, short: dict[str, Any]):
    loader = make(**short)
    found = loader.compare()
    assert found is not None
    assert [each.strategy for each in found.costs][:4] == ["gnndrive", "ginex", "ali+pg", "lsm-gnn"]
    assert {each.strategy for each in found.costs} == set(STRATEGIES)
    for each in found.costs:
        if each.strategy in SAME:
            assert each.same_batches
            assert not each.refused
            assert 0 < each.seconds[each.bound_by] <= each.batch_s
            assert each.batches == len(loader)
            assert each.epoch_s == pytest.approx(each.batch_s * len(loader))
            assert each.hit_share is not None
            assert 0 < each.hit_share < 1
        elif each.strategy == "diskgnn":
            assert "if packed, with gnndrive pack" in each.note
        else:
            assert "gnndrive partition" in each.refused
            assert "\n" not in each.refused
            assert "With the least" not in each.refused
    assert found.own is found.costs[0]
    assert found.more is not None
    assert found.more[1] < found.own.batch_s
    assert found.curve is not None
    assert found.curve.points[-1].hit_share == 1.0
    assert found.curve.buffer_bytes == loader.plan().buffer_bytes
    assert found.notes == (strategy_choice.UNCALIBRATED,)


def test_its_json_has_the_choice_and_the_curve(make: Make, short: dict[str, Any]):
    found = make(**short).compare()
    assert found is not None
    content = json.loads(json.dumps(found.to_json(), allow_nan=False))
    assert content["choice"][0]["strategy"] == "gnndrive"
    assert content["choice"][0]["seconds_per_batch"] == found.costs[0].batch_s
    assert {each["strategy"] for each in content["choice"]} == set(STRATEGIES)
    assert content["miss_ratio"]["table"] == "nodes/x"
    assert {"bytes", "hit_share", "seconds_per_batch"} == set(content["miss_ratio"]["points"][0])


def test_packs_and_partitions_that_are_there_are_asked(
    make: Make, wide: Store, short: dict[str, Any], tmp_path: Path
):
    shutil.copytree(wide.path, tmp_path / "own.gnn")
    store = gnndrive.open(tmp_path / "own.gnn")
    given = {"batch_size": 16, "shuffle": True, "seed": 5}
    gnndrive.pack(store, [4, 3], memory="100MB", **given)
    gnndrive.partition(store, parts=30, method="random")
    short |= {"data": store, "memory": "8MB"}  # room for a window
    found = make(**short).compare()
    assert found is not None
    costs = {each.strategy: each for each in found.costs}
    assert not costs["diskgnn"].refused
    assert "recorded" in costs["diskgnn"].note
    assert "if packed" not in costs["diskgnn"].note
    assert "% of the edges to a window's nodes are inside" in costs["hierbatching"].note
    for name in ("diskgnn", "hierbatching", "marius"):
        assert costs[name].batch_s > 0
        assert not costs[name].same_batches
        loader = make(**short | {"strategy": name})
        own = loader.compare(all=False)
        assert own is not None
        assert own.own is not None
        assert own.own.seconds.keys() == costs[name].seconds.keys()
        assert name in str(loader.plan())


@pytest.mark.parametrize(
    ("name", "made", "parts"),
    [
        ("gnndrive", False, {"admission", "gather", "hand-over"}),
        ("diskgnn", False, {"gather", "hand-over", "processors"}),
        ("diskgnn", True, {"gather", "hand-over", "processors"}),
        ("hierbatching", True, {"admission", "filter", "gather", "hand-over"}),
    ],
    ids=["drawn", "not packed", "packed", "partitioned"],
)
def test_what_computes_follows_the_machines_pace(
    make: Make, wide: Store, short: dict[str, Any], tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch, name: str, made: bool, parts: set[str],
):  # fmt: skip
    shutil.copytree(wide.path, tmp_path / "own.gnn")
    store = gnndrive.open(tmp_path / "own.gnn")
    if name == "diskgnn" and made:
        gnndrive.pack(store, [4, 3], memory="100MB", batch_size=16, shuffle=True, seed=5)
    if name == "hierbatching":
        gnndrive.partition(store, parts=30, method="random")
        short |= {"memory": "8MB"}  # room for a window
    found = list[Mapping[str, float]]()
    for pace in (1.0, 10.0):
        monkeypatch.setattr(strategy_choice, "measure_pace", lambda policy, pace=pace: pace)
        compared = make(**short | {"data": store}).compare()
        assert compared is not None
        (cost,) = (each for each in compared.costs if each.strategy == name)
        assert not cost.refused
        assert ("if packed" in cost.note) == (name == "diskgnn" and not made)
        found.append(cost.seconds)
    usual, slow = found
    for part in parts:
        assert slow[part] == pytest.approx(10 * usual[part])
        assert usual[part] > 0
    for part in {"disk"} | ({"sampling"} if name == "gnndrive" else set()):
        assert slow[part] == usual[part] > 0


def test_a_buffer_of_all_rows_ranks_none_of_them(
    make: Make, short: dict[str, Any], monkeypatch: pytest.MonkeyPatch
):
    """The curve's points have slots of their own, not those of the plan."""
    asked = list[tuple[float, float]]()

    def admit_seconds(rows: float, missing: float, ranked: float = 0.0) -> float:
        asked.append((missing, ranked))
        return 1.0 + ranked

    monkeypatch.setattr(strategy_costs, "admit_seconds", admit_seconds)
    found = make(**short).compare()
    assert found is not None
    assert found.curve is not None
    assert found.curve.points[-1].hit_share == 1.0
    assert (0.0, 0.0) in asked
    assert found.curve.seconds[-1] < 2.0
    assert min(found.curve.seconds[:-1]) > 2.0


def test_each_strategy_has_the_partitions_that_suit_it(
    make: Make, wide: Store, short: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    shutil.copytree(wide.path, tmp_path / "own.gnn")
    store = gnndrive.open(tmp_path / "own.gnn")
    gnndrive.partition(store, parts=30, method="random", name="a")
    gnndrive.partition(store, parts=30, method="ldg", name="b")
    found = dict[str, str]()
    find = strategy_choice.find_partitioned

    def noted(store: Store, named: Any, strategy: str) -> Any:
        found[strategy] = named
        return find(store, named, strategy)

    monkeypatch.setattr(strategy_choice, "find_partitioned", noted)
    compared = make(**short | {"data": store, "memory": "8MB"}).compare()
    assert compared is not None
    assert not any(each.refused for each in compared.costs)
    assert found == {"hierbatching": "b", "marius": "a"}


def test_windows_whose_batches_are_not_drawn_are_refused(make: Make, wide: Store, tmp_path: Path):
    shutil.copytree(wide.path, tmp_path / "own.gnn")
    store = gnndrive.open(tmp_path / "own.gnn")
    gnndrive.partition(store, parts=30, method="random")
    compared = make(**SHORT | {"data": store, "buffer": "4MB"}).compare()
    assert compared is not None
    (cost,) = (each for each in compared.costs if each.strategy == "hierbatching")
    assert cost.refused.endswith("is not known before one is drawn: give memory=")


def test_the_rows_of_drawn_batches_are_kept_beside_the_store(
    make: Make, wide: Store, short: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    shutil.copytree(wide.path, tmp_path / "own.gnn")
    shutil.rmtree(tmp_path / "own.gnn" / "traces", ignore_errors=True)
    store = gnndrive.open(tmp_path / "own.gnn")
    first = make(**short | {"data": store}).compare()
    (kept,) = (tmp_path / "own.gnn" / "traces").glob("*.npy")
    drawn = list[int]()
    draw = gnndrive.loader.drawing.draw_traces  # type: ignore[attr-defined]

    def noted(*args: Any) -> Any:
        drawn.append(1)
        return draw(*args)

    monkeypatch.setattr("gnndrive.loader.drawing.draw_traces", noted)
    again = make(**short | {"data": store}).compare()
    assert not drawn
    assert first is not None
    assert again is not None
    hits = [each.hit_share for each in first.costs]
    assert [each.hit_share for each in again.costs] == hits
    kept.write_bytes(kept.read_bytes()[:-8])
    damaged = make(**short | {"data": store}).compare()
    assert drawn == [1]
    assert damaged is not None
    assert [each.hit_share for each in damaged.costs] == hits
    gnndrive.open(store.path)  # which ignores the folder


def test_what_drawing_and_comparing_free_is_returned(
    make: Make, short: dict[str, Any], monkeypatch: pytest.MonkeyPatch
):
    returned: list[str] = []
    for module in (drawing, strategy_choice):
        name = module.__name__.rpartition(".")[2]
        monkeypatch.setattr(module, "return_free_memory", partial(returned.append, name))
    for expected in (["drawing", "strategy_choice"], ["strategy_choice"]):
        make(**short | {"batch_size": 19}).compare()
        assert returned == expected, "batches are drawn once"
        returned.clear()


def test_a_link_in_the_place_of_the_folder_is_left_alone(
    make: Make, wide: Store, short: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    shutil.copytree(wide.path, tmp_path / "own.gnn")
    folder, other = tmp_path / "own.gnn" / "traces", tmp_path / "other"
    shutil.rmtree(folder, ignore_errors=True)
    other.mkdir()
    names = [f"{n:032x}.npy" for n in range(3)]
    for name in names:
        (other / name).touch()
    folder.symlink_to(other)
    monkeypatch.setattr(access_traces, "FILES_MAX", 1)
    store = gnndrive.open(tmp_path / "own.gnn")
    assert make(**short | {"data": store}).compare() is not None
    assert sorted(path.name for path in other.iterdir()) == names
    folder.unlink()
    folder.mkdir()
    (folder / names[0]).touch()
    (folder / "mine.npy").touch()
    make(**short | {"data": store}).compare()
    left = {path.name for path in folder.iterdir()}
    assert "mine.npy" in left
    assert names[0] not in left
    assert len(left) == 2


def test_a_part_of_the_graph_that_is_damaged_hinders_no_plan(
    make: Make, short: dict[str, Any], monkeypatch: pytest.MonkeyPatch
):
    def damaged(*args: Any) -> Any:
        raise StoreError("graph/indices is damaged")

    monkeypatch.setattr(strategy_choice, "kept_classes", lambda *args: None)
    monkeypatch.setattr(strategy_choice, "row_classes", damaged)
    found = make(**short).compare()
    assert found is not None
    assert found.own is not None
    assert not found.own.refused
    assert found.curve is not None


def test_partitions_have_one_table(make: Make, tmp_path: Path):
    draw = torch.Generator().manual_seed(1)
    edges = torch.randint(3_000, (2, 9_000), generator=draw)
    x, features = torch.randn(3_000, 64, generator=draw), torch.randn(9_000, 64, generator=draw)
    data = Data(x=x, edge_index=edges, edge_attr=features)
    store = gnndrive.from_data(data, tmp_path / "two.gnn")
    gnndrive.partition(store, parts=8, method="random")
    found = make(data=store, memory="3MB", **SHORT).compare()
    assert found is not None
    (cost,) = (each for each in found.costs if each.strategy == "hierbatching")
    assert "this loader has" in cost.refused


def test_a_composed_strategy_is_compared(make: Make, short: dict[str, Any]):
    class Mine(Uniform):
        name = "mine"

    mine = replace(STRATEGIES["gnndrive"], name="mine", sampler=Mine)
    found = make(**short, strategy=mine).compare()
    assert found is not None
    assert found.own is not None
    assert not found.own.refused
    assert not found.own.same_batches
    assert found.own.note == strategy_choice.OWN


def test_data_in_memory_has_nothing_to_compare(data: Data):
    with pytest.raises(ConfigError, match="the data is in memory: give a store"):
        NeighborLoader(data, [3]).compare()


# ---- the plan


def test_the_plan_prints_the_comparison_only_where_memory_is_short(
    make: Make, short: dict[str, Any]
):
    lines = str(make(**short).plan())
    assert "predicted" in lines
    assert "ali+pg" in lines
    assert "more:" in lines
    assert "predicted" not in str(make(**short | {"memory": "1GB"}).plan())
    assert "predicted" not in str(make(**short | {"memory": None, "buffer": "400KB"}).plan())
