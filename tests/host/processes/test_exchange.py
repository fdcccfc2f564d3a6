"""Ranks that exchange rows yield one process's batches, bit for bit, whatever befalls them."""

import random

import pytest

import gnndrive
from gnndrive import ConfigError
from gnndrive.store.row_classes import row_classes
from tests.host.processes import programs
from tests.host.processes.programs import SMALL, alone, dealt
from tests.loader.hetero.graph import make_data
from tests.soak import product

pytestmark = pytest.mark.xdist_group("processes")  # one process forks all ranks

DEVICES = ["simulated-cuda", "cpu"]
EXCHANGE = {"exchange": True, "host_service": "auto"}


@pytest.mark.parametrize("device", DEVICES)
def test_two_ranks_in_many_ways(run, store, whole, device):
    ended = run("much", 2, store=str(store.path), device=device, **EXCHANGE)
    train, valid = alone(store, 4), alone(store, 2, shuffle=False, input_nodes=range(50))
    for rank, found in enumerate(ended.results):
        assert found == {
            "train": [dealt(epoch, 2)[rank] for epoch in train[:2]],
            "valid": [dealt(epoch, 2)[rank] for epoch in valid],
            "broken off": dealt(train[2], 2)[rank][: 1 + rank],
            "begun": dealt(train[3], 2)[rank][:2],
            "resumed": dealt(train[3], 2, done=4)[rank],
            "kept": dealt(whole, 2)[rank][: 1 if rank else None],
        }


def test_several_tables_none_and_seed_edges(run, store, without_x, tmp_path_factory):
    of_types = gnndrive.from_data(make_data(), tmp_path_factory.mktemp("types") / "ranks.gnn")
    typed = {"input_nodes": "paper", "buffer": "120KB"}
    links = {"links": True, "num_neighbors": [3], "neg_sampling": "binary", "batch_size": 200}
    stride = {"exchange": "stride", "sampling": "labor"}
    ahead = typed | {"strategy": "lsm-gnn:superbatch=3"}
    asked = [(of_types, typed), (store, links), (without_x, {}), (store, stride)]
    asked += [(of_types, ahead), (store, links | {"strategy": "ginex"})]
    asked += [(each, rest | {"remote_cache": "20KB"}) for each, rest in asked[:2]]
    given = [{"store": str(each.path), **EXCHANGE, **rest} for each, rest in asked]
    row_classes(of_types, "paper", "degree")  # ranks that make them at once warn of it
    ended = run("several", 3, asked=given)
    whole = [
        epoch
        for each, rest in asked
        for epoch in alone(each, **{k: rest[k] for k in rest.keys() - {"exchange", "remote_cache"}})
    ]
    assert ended.results == [[dealt(epoch, 3)[rank] for epoch in whole] for rank in range(3)]


def test_rows_of_other_ranks_take_what_the_plan_says(run, tmp_path):
    store = gnndrive.from_data(make_data(), tmp_path / "types.gnn")
    given = {"store": str(store.path), "input_nodes": "paper", "memory": "200MB", "buffer": "80KB"}
    for taken, planned in run("keeping", 2, remote_cache="40KB", **given, **EXCHANGE).results:
        assert taken == planned > 0


@pytest.mark.parametrize("world", [2, 3])
def test_ranks_with_a_device_each(run, store, whole, world):
    """Rows leave the slots of their owners' devices, or stay in host memory in between."""
    device = {"device": "simulated-cuda", "store": str(store.path), **EXCHANGE}
    asked = [
        SMALL,
        SMALL | {"memory": "150MB", "buffer": "3KB"},
        SMALL | {"device_memory": 0},
        SMALL | {"buffer": None, "device_memory": "40KB"},
        SMALL | {"buffer": "3KB", "strategy": "lsm-gnn:superbatch=8,victim_buffer=2KB"},
    ]
    for score in ("degree", "pagerank"):
        row_classes(store, None, score)  # ranks that make them at once warn of it
    ended = run("several", world, asked=[device | each for each in asked])
    assert ended.results == [[dealt(whole, world)[rank]] * len(asked) for rank in range(world)]


def test_training_makes_the_same_model_as_without_an_exchange(run, store):
    given = {"store": str(store.path), **SMALL}
    more = [{}, EXCHANGE, EXCHANGE | {"strategy": "ginex"}, EXCHANGE | {"device": "simulated-cuda"}]
    ended = run("trained", 2, asked=[given | each for each in more])
    assert ended.results == [[ended.results[0][0]] * len(more)] * 2


def test_fewer_ranks_go_on_with_an_epoch(run, store, whole):
    given = {"store": str(store.path), **SMALL, **EXCHANGE}
    state, *others = run("broken_off", 3, at=5, **given).results
    assert others == [state] * 2
    asked = [given | {"state": state, "strategy": each} for each in ("gnndrive", "ginex")]
    for world in (2, 1):
        ended = run("several", world, asked=asked)
        assert ended.results == [[rest] * 2 for rest in dealt(whole, world, done=15)]


@pytest.mark.parametrize("hosts", ["aa", "ab", "aab"])
@pytest.mark.parametrize("cupy", [True, False])
def test_gpus_take_what_the_plan_says(run, store, cupy, hosts):
    given = {"store": str(store.path), "cupy": cupy, "device_memory": "100MB", "buffer": None}
    for found in run("taken", len(hosts), hosts=hosts, **given, **EXCHANGE).results:
        assert all(0 < taken <= planned for taken, planned in found), found


@pytest.mark.parametrize(("hosts", "ipc"), [("aab", True), ("aa", False)])
def test_gpus_that_cannot_reach_each_other(run, store, whole, hosts, ipc):
    given = {"store": str(store.path), "hosts": hosts, "ipc": ipc, **SMALL, **EXCHANGE}
    given |= {"what": "once", "device_memory": "100MB", "buffer": None}
    ended, world = run("on_fake_gpu", len(hosts), **given), len(hosts)
    for rank, found in enumerate(ended.results):
        assert found["found"] == dealt(whole, world)[rank]
        (*warned,) = (text.partition(",")[0] for text in found["warned"])
        why = [f"this GPU cannot read the slots of rank {1 - rank}"]
        assert warned == ([] if ipc else why)


@pytest.mark.parametrize(("hosts", "asked"), [("aa", [True, False]), ("ab", [False, False])])
def test_lsm_gnn_exchanges_rows_of_gpus_by_itself(run, store, hosts, asked):
    given = {"store": str(store.path), "what": "exchanging_by_default", "hosts": hosts}
    given |= {"strategies": ["lsm-gnn", "ginex"], "host_service": "auto"}
    for found in run("on_fake_gpu", 2, **given).results:
        assert found["found"] == asked


def test_a_gpu_that_is_lost_is_an_error_at_the_others(run, store, whole):
    given = {"store": str(store.path), "what": "one_ends", "victim": 1, "how": "kill", "at": 5}
    found = run("on_fake_gpu", 2, 1, **given, **EXCHANGE).results[0]["found"]
    assert found["error"].startswith("PeerError: rank 1 has ")
    assert found["batches"] == dealt(whole, 2)[0][: len(found["batches"])]


def test_a_gpu_that_is_stopped_holds_slots_until_it_goes_on(run, store, whole):
    given = {"store": str(store.path), "what": "stopped", "at": 5}
    ended = run("on_fake_gpu", 2, **given, **EXCHANGE)
    assert [found["found"]["batches"] for found in ended.results] == dealt(whole, 2)


@product("how,victim,device", ["kill", "leave a child", "sys.exit"], [0, 1], DEVICES)
def test_a_rank_that_ends_is_an_error_at_the_others(run, store, whole, seeds, how, victim, device):
    at = random.Random(f"{how} {seeds(1)}").randint(1, 15)
    given = {"store": str(store.path), "victim": victim, "how": how, "at": at, **EXCHANGE}
    given["device"] = device
    ended = run("one_ends", 2, victim, 4 if how == "sys.exit" else -9, **given)
    found, rest = ended.results[1 - victim], dealt(whole, 2)[1 - victim]
    assert found["error"].startswith(f"PeerError: rank {victim} has ")
    assert found["batches"] == rest[: len(found["batches"])]
    assert found["again"].startswith(("RuntimeError: ", "PeerError: "))


def test_an_error_as_own_rows_land_reaches_the_user(run, store):
    ended = run("without_memory", 2, store=str(store.path), **EXCHANGE)
    assert ended.results[0] == "MemoryError: no memory for rows"


def test_a_buffer_that_does_not_hold_an_owners_part_of_a_batch(run, store):
    given = {"store": str(store.path), "buffer": "1KB", **SMALL, **EXCHANGE}
    row_classes(store, None, "degree")  # ranks that make them at once warn of it
    found = sorted(run("refused", 3, **given).results)
    assert found[0].startswith("ConfigError: the feature buffer holds 10 rows of 'nodes/x' (320 B)")
    assert 'give it at least buffer="' in found[0]
    assert all(each.startswith(("ConfigError", "PeerError: rank ")) for each in found)


def test_ctrl_c_ends_the_ranks(run, store):
    ended = run("interrupted", 3, store=str(store.path), at=9, **EXCHANGE)
    assert [found["error"] for found in ended.results] == ["KeyboardInterrupt: "] * 3


def test_ctrl_c_ends_a_wait_for_the_others_at_the_end(run, store):
    ended = run("interrupted_at_the_end", 2, store=str(store.path), **EXCHANGE)
    assert ended.results == [[], []]


def test_the_first_that_leaves_an_epoch_waits_until_all_have_got_as_many_batches(run, store, whole):
    ended = run("one_closes_first", 3, store=str(store.path), **EXCHANGE)
    assert ended.results == [rest[:1] for rest in dealt(whole, 3)]


def test_a_rank_that_is_stopped_is_named_and_may_go_on(run, store, whole):
    ended = run("stopped", 2, store=str(store.path), at=5, **EXCHANGE)
    assert [found["batches"] for found in ended.results] == dealt(whole, 2)
    assert any("(rank 1 " in text for text in ended.results[0]["errors"])


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"strategy": "rolling"}, "strategy='rolling' reads rows in a way of its own"),
        ({"in_order": False}, "because in_order=False"),
        ({"exchange": "all"}, "exchange='all': give 'auto', True, False or 'stride'"),
    ],
)
def test_what_cannot_be_exchanged(store, given, why):
    with pytest.raises(ConfigError, match=why):
        programs.loader(store, **EXCHANGE | given).plan()


def test_one_rank_exchanges_nothing(store, whole):
    with programs.loader(store, **SMALL | EXCHANGE) as loader:
        assert [programs.digest(batch) for batch in loader] == whole
