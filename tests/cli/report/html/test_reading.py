"""Files that are no runs, and values that are not what they have to be."""

import json
from pathlib import Path

import pytest

from gnndrive.cli.report.html import page, read_run
from gnndrive.common.errors import ConfigError
from tests.cli.report.html.samples import headroom_run, strategies_run, train_run

DEEP = b'{"gnndrive": "1", "plan": ' + b"[" * 100_000


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "is empty"),
        (b"epoch 1: loss 0.3", "is no JSON"),
        (DEEP, "is no JSON"),
        (b"[1, 2]", "not of a run of gnndrive"),
        (b'{"jobs": []}', "not of a run of gnndrive"),
        (b'{"gnndrive": 1, "batches": 2}', "not of a run of gnndrive"),
        (b'{"gnndrive": "0.1.0", "kind": "train", "plan": null}', "has nothing to show"),
    ],
)
def test_what_is_no_run_is_refused(tmp_path, content, said):
    path = tmp_path / "a.json"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=said) as refused:
        read_run(path)
    assert str(path) in str(refused.value)
    assert "give the output of gnndrive train, plan, bench" in str(refused.value)


def test_files_that_cannot_be_read_are_named(tmp_path):
    for path, said in (
        (tmp_path / "none.json", r"none\.json cannot be read \(No such file"),
        (tmp_path, "Is a directory"),
        (Path("/dev/zero"), "has more than 64 MiB"),
    ):
        with pytest.raises(ConfigError, match=said):
            read_run(path)


@pytest.mark.parametrize(
    ("run", "place", "value", "said"),
    [
        (train_run, ("elapsed_s",), "long", r"elapsed_s is 'long', and has to be a number"),
        (train_run, ("elapsed_s",), True, r"elapsed_s is True"),
        (train_run, ("rows",), float("nan"), r"rows is nan, and has to be a number from 0"),
        (train_run, ("rows",), -1, r"rows is -1"),
        (train_run, ("rows",), 10**400, r"rows is 1000.*…, and has to be a number from 0"),
        (train_run, ("stages",), [], r"stages is \[\], and has to be an object"),
        (train_run, ("stages", "read"), 3, r"stages\.read is 3, and has to be an object"),
        (train_run, ("stages", "read", "p50_s"), "x", r"stages\.read\.p50_s is 'x'"),
        (train_run, ("intervals",), {}, r"intervals is \{\}, and has to be a list"),
        (train_run, ("intervals", 3), 7, r"intervals is .*, and has to be a list of objects"),
        (train_run, ("intervals", 3, "interval_s"), None, r"intervals\[3\]\.interval_s is missing"),
        (train_run, ("plan", "items", 1, "bytes"), None, r"plan\.items\[1\]\.bytes is missing"),
        (train_run, ("plan", "items", 1, "why"), 5, r"plan\.items\[1\]\.why is 5.* a text"),
        (train_run, ("miss_ratio", "points", 0, "hit_share"), "?", r"points\[0\]\.hit_share is"),
        (train_run, ("choice", 0, "seconds_per_batch"), "?", r"choice\[0\]\.seconds_per_batch is"),
        (train_run, ("command",), ["a"], r"command is \['a'\], and has to be a text"),
        (strategies_run, ("strategies", "runs", 0, "seconds_per_batch"), None, r"is missing"),
        (strategies_run, ("strategies", "runs", 0, "rounds", 1), "?", r"rounds\.1 is '\?'"),
        (headroom_run, ("headroom", "lines", 0, "seconds_per_batch"), None, r"is missing"),
    ],
)  # fmt: skip
def test_a_value_that_cannot_be_is_named(tmp_path, run, place, value, said):
    content = run()
    inside = content
    for name in place[:-1]:
        inside = inside[name]
    inside[place[-1]] = value
    path = tmp_path / "a.json"
    path.write_text(json.dumps(content))
    with pytest.raises(ConfigError, match=said) as refused:
        page([path], [read_run(path)])
    assert str(refused.value).startswith(f"{path}: ")
    assert str(refused.value).endswith("as the command wrote it")
