"""`compare`, `plan`, strategy="auto": what a batch costs with each strategy; which is taken."""

import json
import pickle
import re
import shutil
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

import gnndrive
from gnndrive import ConfigError, NeighborLoader, Store
from gnndrive.common.duration import duration
from gnndrive.common.errors import StoreError
from gnndrive.common.records import DiskCost
from gnndrive.loader import drawing, strategy_choice
from gnndrive.plan.slots import ALL_FIT
from gnndrive.plan.strategy_costs import OWN, WITHIN, StrategyCost, cheapest
from gnndrive.sampling.samplers.uniform import Uniform
from gnndrive.store import cache
from gnndrive.store.calibration import disk_identity, save_calibration
from gnndrive.strategies import STRATEGIES, Rolling, base
from gnndrive.strategies.base import UNPREPARED
from gnndrive.strategies.packs.plan import UNPACKED
from gnndrive.strategies.windows import scheme
from tests.loader.batches import assert_all_same, skewed_store
from tests.loader.strategy_choice.conftest import BATCHES, DRAWN, SAME, SHORT

# ---- the comparison


@pytest.fixture(scope="module")
def prepared(wide: Store, tmp_path_factory: pytest.TempPathFactory) -> Store:
    """A copy with a pack and partitions of two methods."""
    path = tmp_path_factory.mktemp("prepared") / "own.gnn"
    shutil.copytree(wide.path, path)
    store = gnndrive.open(path)
    gnndrive.pack(store, [4, 3], memory="100MB", **DRAWN)
    gnndrive.partition(store, parts=30, method="random", name="a")
    gnndrive.partition(store, parts=30, method="ldg", name="b")
    return store


@pytest.fixture
def own(wide: Store, tmp_path: Path) -> Store:
    """A copy of which nothing has been drawn."""
    ignored = shutil.ignore_patterns("traces")
    return gnndrive.open(shutil.copytree(wide.path, tmp_path / "own.gnn", ignore=ignored))


def test_each_strategy_has_a_cost_or_the_reason_why_not(make, short, data):
    loader = make(**short)
    found = loader.compare()
    assert [each.strategy for each in found.costs][:5] == [
        "gnndrive", "ginex", "rolling", "ali+pg", "lsm-gnn",
    ]  # fmt: skip
    assert {each.strategy for each in found.costs} == set(STRATEGIES) - {"pyg+"}
    for each in found.costs:
        if each.strategy == "rolling":  # its buffers need some pages
            assert each.same_batches
        elif each.strategy in SAME:
            assert each.same_batches
            assert not each.refused
            assert 0 < each.seconds[each.bound_by] <= each.batch_s
            assert each.batches == len(loader) == BATCHES
            assert each.epoch_s == pytest.approx(each.batch_s * BATCHES)
            assert 0 < each.hit_share < 1
        elif each.strategy == "diskgnn":
            assert (each.note, each.changes) == (UNPACKED, STRATEGIES["diskgnn"].changes)
            assert each.command == "gnndrive.pack(…) with the arguments of the loader"
        else:
            assert each.refused == UNPREPARED
            how = "" if each.strategy == "hierbatching" else " --method random --name random"
            assert each.command == f"gnndrive partition {loader.data.path}{how}"
    assert found.own is found.costs[0]
    assert found.more[1] < found.own.batch_s
    assert found.curve.points[-1].hit_share == 1.0
    assert found.curve.buffer_bytes == loader.plan().buffer_bytes
    text = found.details()
    assert "\nhierbatching  unprepared  " in text
    path = str(loader.data.path)
    assert max(len(line) for line in text.splitlines() if path not in line) <= 100
    for each in found.costs:
        assert all(words in text for words in (each.changes, each.command, *each.about))
        cheaper = not each.refused and WITHIN * each.batch_s < found.own.batch_s
        assert ("\n".join(each.said) in str(found)) == cheaper
    content = json.loads(json.dumps(found.to_json(), allow_nan=False))
    assert {each["strategy"] for each in content["choice"]} == set(STRATEGIES) - {"pyg+"}
    assert content["miss_ratio"]["table"] == "nodes/x"
    assert all(word in str(loader.plan()) for word in ("predicted", "ali+pg", "more:"))
    for more in ({"memory": "1GB"}, {"memory": None, "buffer": "400KB"}):
        said = str(make(**short | more).plan())
        assert "predicted" not in said, "memory is not short"
        assert (ALL_FIT in said) == (more["memory"] is not None)
    with pytest.raises(ConfigError, match="the data is in memory: give a store"):
        NeighborLoader(data, [3]).compare()


def test_no_partitions_are_asked_for_where_windows_cannot_serve_the_loader(make, short):
    costs = {each.strategy: each for each in make(**short, disjoint=True).compare().costs}
    for name in ("hierbatching", "marius"):
        assert (costs[name].command, "leave disjoint= out" in costs[name].refused) == ("", True)


def test_packs_and_partitions_that_are_there_are_asked(make, prepared, short, monkeypatch):
    """Of several partitionings those that suit the strategy."""
    short |= {"data": prepared, "memory": "8MB"}  # room for a window
    suited, find = dict[str, str](), scheme.find_partitioned

    def noted(store: Store, named: Any, strategy: Any) -> Any:
        suited[strategy.name] = named
        return find(store, named, strategy)

    with monkeypatch.context() as patch:
        patch.setattr(scheme, "find_partitioned", noted)
        costs = {each.strategy: each for each in make(**short).compare().costs}
    assert suited == {"hierbatching": "b", "marius": "a"}
    assert costs["diskgnn"].changes == "1 epoch of samples, replayed"
    for name in ("hierbatching", "marius"):
        assert re.fullmatch(r"edges kept \d+%, seeds by window", costs[name].changes)
    for name in ("diskgnn", "hierbatching", "marius"):
        assert not costs[name].refused
        assert costs[name].batch_s > 0
        assert not costs[name].same_batches
        given = short | {"strategy": name}
        loader = make(**given if name == "diskgnn" else given | {"partitioned": suited[name]})
        own = loader.compare(all=False).own
        assert own.seconds.keys() == costs[name].seconds.keys()
    assert "marius" in str(loader.plan())
    compared = make(**SHORT | {"data": prepared, "buffer": "4MB"}).compare()
    (cost,) = (each for each in compared.costs if each.strategy == "hierbatching")
    assert cost.refused.endswith("is not known before one is drawn: give memory=")


def test_what_computes_follows_the_machines_pace(make, prepared, short, monkeypatch):
    found, parts = [], {"gather", "hand-over"}
    drawn, there = {"data": short["data"]}, {"data": prepared, "memory": "8MB"}
    for pace in (1.0, 10.0):
        monkeypatch.setattr(strategy_choice, "measure_pace", lambda policy, pace=pace: pace)
        costs = [make(**short | data).compare().costs for data in (drawn, there)]
        found.append([{each.strategy: each.seconds for each in both} for both in costs])
    for place, name, more in (
        (0, "gnndrive", {"admission"}), (0, "diskgnn", {"processors"}),
        (1, "diskgnn", {"processors"}), (1, "hierbatching", {"admission", "filter"}),
    ):  # fmt: skip
        usual, slow = (pace[place][name] for pace in found)
        for part in parts | more:
            assert slow[part] == pytest.approx(10 * usual[part])
            assert usual[part] > 0
        assert slow["disk"] == usual["disk"] > 0


def test_the_rows_of_drawn_batches_are_kept_beside_the_store(make, own, short, monkeypatch):
    """What drawing and comparing free is returned. Damage to the graph hinders no plan."""

    def damaged(*given: Any) -> Any:
        raise StoreError("graph/indices is damaged")

    returned: list[str] = []
    for module in (drawing, strategy_choice):
        name = module.__name__.rpartition(".")[2]
        monkeypatch.setattr(module, "return_free_memory", partial(returned.append, name))
    draw, drawn = drawing.draw_traces, list[int]()
    monkeypatch.setattr(drawing, "draw_traces", lambda *given: drawn.append(1) or draw(*given))

    def compared() -> list[Any]:
        returned.clear()
        found = make(**short | {"data": own, "batch_size": 19}).compare()
        return [each.hit_share for each in found.costs]

    hits = compared()
    assert (drawn, returned) == ([1], ["drawing", "strategy_choice"])
    assert compared() == hits
    assert (drawn, returned) == ([1], ["strategy_choice"]), "batches are drawn once"
    (kept,) = (own.path / "traces").glob("*.npy")
    kept.write_bytes(kept.read_bytes()[:-8])
    assert compared() == hits
    assert drawn == [1, 1]
    gnndrive.open(own.path)  # which ignores the folder
    monkeypatch.setattr("gnndrive.plan.strategy_costs.kept_classes", lambda *given: None)
    monkeypatch.setattr("gnndrive.plan.strategy_costs.row_classes", damaged)
    assert not make(**short).compare().own.refused


def test_a_link_in_the_place_of_the_folder_is_left_alone(make, own, short, tmp_path, monkeypatch):
    folder, other = own.path / "traces", tmp_path / "other"
    names = [f"{n:032x}.npy" for n in range(3)]
    for place, found in ((other, names), (folder, [names[0], "mine.npy"])):
        place.mkdir()
        for name in found:
            (place / name).touch()
    monkeypatch.setattr(cache, "TRACES_MAX", 1)
    make(**short | {"data": own}).compare()
    left = {path.name for path in folder.iterdir()}
    assert len(left) == 2
    assert left & {"mine.npy", names[0]} == {"mine.npy"}
    shutil.rmtree(folder)
    folder.symlink_to(other)
    make(**short | {"data": own}).compare()
    assert sorted(path.name for path in other.iterdir()) == names


def test_a_composed_strategy_is_compared(make, short):
    class Mine(Uniform):
        name = "mine"

    mine = replace(STRATEGIES["gnndrive"], name="mine", sampler=Mine)
    own = make(**short, strategy=mine).compare().own
    assert (own.refused, own.same_batches, own.note) == ("", False, OWN)
    assert own.changes == "batches of its own"


def costing(seconds: dict[str, float]) -> Any:
    """Stands for `predict`: a batch costs so much with each strategy; others are refused."""

    def predict(name: str, *args: Any, **more: Any) -> StrategyCost:
        if name not in seconds:
            raise ConfigError(f"{name} cannot run here\nand more")
        return StrategyCost(name, {"disk": seconds[name]}, 10, 0.5)

    return predict


@pytest.mark.parametrize(
    ("costs", "chosen"),
    [
        ({"gnndrive": 1.0, "ginex": 0.94, "ali+pg": 1.1, "lsm-gnn": 1.0}, "ginex"),
        ({"gnndrive": 1.0, "ginex": 0.96, "ali+pg": 0.97, "lsm-gnn": 0.96}, "gnndrive"),
        ({"gnndrive": 1.0, "lsm-gnn": 0.5, "ali+pg": 0.49}, "ali+pg"),
        ({"ginex": 2.0}, "ginex"),
        ({}, "gnndrive"),
    ],
)
def test_auto_takes_the_cheapest_that_changes_no_batch(make, short, costs, chosen, monkeypatch):
    monkeypatch.setattr(base, "predict", costing(costs))
    cheap = StrategyCost("diskgnn", {"disk": 1e-9}, 10, 0.9, same_batches=False)
    monkeypatch.setattr("gnndrive.strategies.diskgnn.unpacked_cost", lambda *args: cheap)
    loader = make(**short, strategy="auto")
    loader._chosen_assembly()
    assert loader._strategy is STRATEGIES[chosen]
    if costs:
        why = f"because a batch costs about {duration(costs[chosen])}, bound by disk"
        assert why in loader._why
    assert not any(name in loader._why for name in SAME - set(costs))


def test_auto_has_the_batches_of_gnndrive(make, short, monkeypatch):
    monkeypatch.setattr(
        "gnndrive.strategies.base.predict", costing({"gnndrive": 1.0, "ginex": 0.1})
    )
    loader = make(**short, strategy="auto")
    assert_all_same(loader, make(**short))
    assert loader._strategy is STRATEGIES["ginex"]
    state = loader.state_dict()
    for name in ("gnndrive", "auto"):
        make(**short, strategy=name).load_state_dict(state)
    copied = pickle.loads(pickle.dumps(make(**short, strategy="auto")))
    assert "strategy: ginex, because" in str(copied.plan())


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"memory": "1GB"}, "because all rows fit into memory"),
        ({"sampler": [0, 1, 2] * 10, "shuffle": False}, "because"),
        ({"disjoint": True}, "because a batch costs"),
    ],
)
def test_auto_says_why(make, short, more, why):
    loader = make(**short | more, strategy="auto")
    assert why in str(loader.plan())
    assert loader._strategy.name in SAME


# ---- rolling


def dear_requests(store: Store, write_byte_s: float | None) -> None:
    """Calibrate a disk on which a request costs as much as 10 MB."""
    disk = disk_identity(store.path)
    save_calibration(store, DiskCost(1e-3, 1e-10, 1, "uring", "", disk, (), write_byte_s))


@pytest.fixture
def large(tmp_path: Path) -> dict[str, Any]:
    """Arguments of a loader that is short of memory, but has enough to copy rows."""
    store = skewed_store(tmp_path / "large.gnn", nodes=30_000, edges=120_000, columns=256, seed=1)
    return SHORT | {"data": store, "input_nodes": torch.arange(9_600), "memory": "22MB"}


def test_auto_takes_rolling_if_writing_was_measured(make, large):
    chosen, costs = list[str](), list[StrategyCost]()
    for write_byte_s in (None, 1.5e-10):
        dear_requests(large["data"], write_byte_s)
        loader = make(**large, strategy="auto")
        found = {each.strategy: each for each in loader.compare().costs}
        loader.plan()
        chosen.append(loader._strategy.name)
        costs.append(found["rolling"])
        assert WITHIN * costs[-1].batch_s < found["gnndrive"].batch_s
    assert (chosen[0] == "rolling", chosen[1]) == (False, "rolling")
    assumed, measured = costs
    assert f"run gnndrive bench disk {large['data'].path} to measure it" in assumed.assumed
    assert assumed.seconds == measured.seconds, "what is assumed is 1.5 times reading"
    assert re.fullmatch(
        r"an epoch writes [\d.]+ MB; a drive rated for 600 TB written takes .* of them",
        measured.noted,
    )


def test_batches_that_come_again_are_cheaper_and_never_chosen(make, large):
    """They are sampled, copied and written once."""
    dear_requests(large["data"], 1.5e-10)
    own = [Rolling(superbatch=32, reuse=reuse) for reuse in (1, 3)]
    once, again = (make(**large, strategy=each).compare() for each in own)
    one, other = once.own, again.own
    for part in ("sampling", "records", "processors"):
        assert one.seconds[part] / 3.01 < other.seconds[part] < one.seconds[part]
    assert (one.same_batches, other.same_batches) == (True, False)
    assert other.changes == "each batch 3 times"
    assert other.batches == 3 * one.batches
    assert other.note == one.note, "an epoch writes as much"
    assert cheapest(again.costs).strategy == "rolling"


def test_rolling_is_not_cheaper_where_it_does_not_pay(make, large, tmp_path):
    """If batches are small, all rows are in memory, or a row is as long as a page."""
    long = skewed_store(tmp_path / "long.gnn", nodes=10_000, edges=40_000, columns=1024, seed=1)
    for more in ({}, {"memory": "200MB"}, {"data": long, "memory": "32MB"}):
        costs = {each.strategy: each for each in make(**large | more).compare().costs}
        assert costs["rolling"].batch_s > costs["gnndrive"].batch_s
    assert costs["rolling"].seconds["records"] < 1e-4, "long rows are not copied"
