"""Ranks that have a part of a store each yield the batches of the whole, bit for bit."""

import pytest

import gnndrive
from gnndrive.store.row_classes import row_classes
from gnndrive.store.shards import write_shards
from tests.host.processes.programs import alone, dealt
from tests.loader.hetero.graph import make_data

pytestmark = pytest.mark.xdist_group("processes")  # one process forks all ranks


def parts(store, folder, hosts):
    """The paths of a store's parts; ranks that make row classes at once would warn of it."""
    return [str(each.path) for each in write_shards(store, folder, hosts)]


def test_hosts_with_one_rank_or_two(run, store, whole, tmp_path_factory):
    folder = tmp_path_factory.mktemp("shards")
    of_types = gnndrive.from_data(make_data(), folder / "types.gnn")
    typed = {"input_nodes": "paper", "buffer": "120KB"}
    row_classes(of_types, "paper", "degree")
    row_classes(store, None, "degree")
    for hosts, opened in ((3, [2, 0, 1]), (2, [1, 0, 0, 1])):
        asked = []
        for each, arguments in ((store, {}), (of_types, typed)):
            there = parts(each, folder / f"{each.path.stem}-{hosts}", hosts)
            service = {"host_service": hosts == 3}  # with it, the ranks share the graph
            asked.append({"store": [there[part] for part in opened], **service, **arguments})
        ended = run("several", len(opened), asked=asked)
        epochs = alone(store)[0], alone(of_types, **typed)[0]
        for rank, found in enumerate(ended.results):
            assert found == [dealt(epoch, len(opened))[rank] for epoch in epochs]


def test_the_owner_of_lost_rows_is_named(run, store, whole, tmp_path):
    there = parts(store, tmp_path / "out", 3)
    given = {"store": [there[part] for part in (1, 2, 0)], "victim": 1, "how": "kill", "at": 5}
    ended = run("one_ends", 3, 1, **given)
    for rank in (0, 2):
        found, rest = ended.results[rank], dealt(whole, 3)[rank]
        assert found["error"].startswith("PeerError: rank 1 has died")
        assert found["batches"] == rest[: len(found["batches"])]


def test_parts_that_do_not_belong_together(run, store, tmp_path):
    halves, thirds = (parts(store, tmp_path / str(hosts), hosts) for hosts in (2, 3))
    asked = [
        ("store", halves[0], halves[0]), ("store", halves[0], str(store.path)),
        ("store", halves[0], thirds[1]), ("exchange", True, "stride"), ("exchange", False, "auto"),
        ("in_order", True, False), ("attrs", None, ["y"]),
    ]  # fmt: skip
    ended = run("differing", 2, store=halves, asked=asked, hosts=["first", "second"])
    reasons = [
        "not as many have opened each: part 0 by 2, part 1 by 0. Open on each host the part",
        "the number of parts of it is 2 on rank 0 and None on rank 1",
        "the number of parts of it is 2 on rank 0 and 3 on rank 1",
        "part of a store that was divided in stretches: leave it out",
        "of the 130 rows of nodes/x: leave it out",
        "rows of nodes/x, which ranks cannot send to each other, because in_order=False: change",
        "the rows that are exchanged is ['nodes/x'] on rank 0 and [] on rank 1",
    ]
    for rank, errors in enumerate(ended.results):
        for reason, text in zip(reasons, errors, strict=True):
            assert text.startswith("ConfigError: ")
            assert reason in text, rank
