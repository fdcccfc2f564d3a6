"""The page of `gnndrive report`: the numbers of runs of each kind, without markup from them."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from gnndrive.cli.report.html import page, read_run
from gnndrive.cli.report.html.style import DARK, LIGHT, stylesheet
from gnndrive.common.errors import ConfigError
from tests.cli.report.html.conftest import Shown
from tests.cli.report.html.samples import RUNS, envelope, headroom_run, strategies_run, train_run

SHOWN = {
    "train": [
        "Training on", "/data/P10M.gnn", "2026-03-04 05:06 UTC", "16 processors",
        "You wait for the disk; twice the buffer gives 1.4 times the speed", "900 ms", "67.2 %",
        "extracting queue", "releasing queue", "standby", "193 MB/s", "12.6 k requests/s",
        "44.9 % hits", "you waited 74 s", "sampling p50 132 ms,", "gather p50 31 ms,",
        "read p50 610 ms, p99 1.89 s",
        "Batches in each queue", "What your loop waited for", "100 s",
        "Planned: 1.96 GB of host memory of the 3 GB given.", "feature buffer", "820 MB",
        "none: the feature buffer's slots are in host memory themselves", "live batches (device)",
        "now: 820 MB, 84 %", "Twice the buffer (1.64 GB): 97.5 % hits instead of 84.5 %; a batch "
        "takes 27 % less time.", "Hits may fall where one batch more fits into a sweep",
        "gnndrive (this run)", "loading a batch",
        "writes 1.3 GB of samples to disk", "the thick border is where",
        "gnndrive train /data/P10M.gnn --memory 3GB --epochs 2 --json",
    ],
    "plan": ["A plan on", "staging", "for reads in flight", "As the command prints it"],
    "strategies": [
        "Of those with the same batches, gnndrive takes the least time a batch: 990 ms, 1.05 times "
        "as fast as ginex; their rounds overlap, so that another run may say otherwise.",
        "marius takes 210 ms, but for other batches.",
        "990 ms (891 ms – 1.23 s); predicted 1.07 s", "GNNDrive (ICPP 2024)",
        "Did not run: there is no pack of these batches: run gnndrive pack first",
        "gnndrive train /data/P10M.gnn --strategy ginex", "Each had 3 GB of memory.",
    ],
    "headroom": [
        "You wait for the disk: without it, a batch takes 0.41 s, 2.4 times as fast.",
        "as it is", "disk free", "410 ms, 2.41 times as fast",
    ],
}  # fmt: skip
SECTIONS = {
    "train": ["pipeline", "timeline", "memory", "curve", "choice"],
    "plan": ["memory"],
    "strategies": ["strategies"],
    "headroom": ["headroom"],
}


def sections(content: str) -> list[str | None]:
    return [attributes["id"] for tag, attributes in Shown(content).tags if tag == "section"]


def text_of(content: str) -> str:
    return Shown(content).text.replace("\xa0", " ")


@pytest.mark.parametrize("kind", RUNS)
def test_a_run_is_shown(page_of, kind):
    content = page_of(RUNS[kind]())
    shown = text_of(content)
    assert [text for text in SHOWN[kind] if text not in shown] == []
    assert sections(content) == SECTIONS[kind]
    assert page_of(RUNS[kind]()) == content
    assert "default-src 'none'" in content  # it needs nothing from elsewhere
    tags = Shown(content).tags
    assert not {tag for tag, _ in tags} & {"script", "link", "img", "iframe", "object", "use"}
    assert not [name for _, attributes in tags for name in attributes if name.startswith("on")]
    assert not re.search(r"https?:|@import|url\((?!#)|src=", content)


def test_several_runs_are_one_page_in_the_order_of_the_sections(page_of):
    content = page_of(strategies_run(), train_run(), headroom_run(), train_run())
    assert sections(content) == [
        "pipeline", "timeline", "memory", "curve", "strategies", "headroom", "choice",
    ]  # fmt: skip
    heads = [text for text in Shown(content).texts if text.startswith("Run ")]
    assert heads[0] == "Run 1, run1.json: Comparison of strategies on"
    assert heads[4:6] == ["Run 2, run2.json", "Run 4, run4.json"]
    names = [attributes["id"] for _, attributes in Shown(content).tags if "id" in attributes]
    assert len(names) == len(set(names))
    assert set(re.findall(r'(?:url\(|href=")#([\w-]+)', content)) <= set(names)


def test_what_is_not_in_a_run_is_left_out(page_of):
    run = train_run()
    for name in ("stages", "intervals", "plan", "miss_ratio", "choice", "verdict", "epochs",
                 "machine", "store", "wait_disk_s", "wait_sampling_s", "wait_gather_s",
                 "wait_slots_s"):  # fmt: skip
        del run[name]
    content = page_of(run)
    assert sections(content) == ["pipeline"]
    assert "134 ms a batch" in text_of(content)  # sample_s by samples, without percentiles
    assert not re.search("p50 13|you waited|<nav", content)
    run = {**envelope("train", "train x"), "batches": 0, "elapsed_s": 0, "rows": 0, "rows_hit": 0,
           "intervals": [{"interval_s": 0, "batches": 1}]}  # fmt: skip
    assert sections(page_of(run)) == ["pipeline"]


@pytest.mark.parametrize(
    ("change", "says", "shown"),
    [
        ({"bytes_read": 34e9}, "\n9.1 % of the bytes", True),
        ({"bytes_read": 3.0e9}, "\n100.0 % of the bytes", True),  # no share of more than was read
        ({"elapsed_s": 909.0, "wait_disk_s": 73.9}, "the thick border is where", True),
        ({"elapsed_s": 911.0, "wait_disk_s": 73.9}, "the thick border is where", False),
        ({"batches": 196}, "The percentiles are of the last 196 batches.", False),
        ({"batches": 392}, "The percentiles are of the last 196 batches.", True),
        ({"batches": 392, "epochs": []}, "The percentiles are of the last 196 batches.", False),
        ({"verdict": "you wait for it."}, "\nYou wait for it.", True),
    ],
)
def test_what_depends_on_one_number(page_of, change, says, shown):
    assert (says in text_of(page_of(train_run() | change))) == shown


def test_shares_are_of_the_rows_of_all_tables(page_of):
    """`rows` counts nodes alone: here each batch has the rows of three times as many edges."""
    two_tables = {
        "rows": 10_000_000, "rows_hit": 28_000_000, "rows_waited": 2_000_000,
        "rows_loaded": 10_000_000, "bytes_wanted": 4_000_000_000, "bytes_read": 4_000_000_000,
    }  # fmt: skip
    shown = text_of(page_of(train_run() | two_tables))
    assert "70.0 % hits" in shown
    assert "of the rows were in the buffer\n70.0 %\n" in shown
    assert "25.0 % of the bytes are rows" in shown


def test_numbers_are_in_a_table_behind_each_picture_and_many_intervals_drawn_together(page_of):
    one = {"batches": 4.0, "interval_s": 2.0, "training_queue": 1.0, "wait_disk_s": 0.5}
    two = one | {"batches": 8.0, "training_queue": 3.0}
    content = page_of(train_run() | {"intervals": [one, two] * 120})
    for name in SECTIONS["train"][:-1]:
        inside = content.split(f'<section id="{name}">')[1].split("</section>")[0]
        assert "<details><summary>The numbers</summary>" in inside
    assert "240 intervals are drawn as 120." in content
    table = content.split('<section id="timeline">')[1].split("<tbody>")[1].split("</tbody>")[0]
    assert table.count("<tr>") == 120
    row = Shown(table.split("</tr>")[0].replace("<tr>", "")).texts
    assert (row[:2], row[5], row[7]) == (["0.0–4.0", "3"], "2.00", "1 s (25.0 %)")


def evil(value: Any) -> Any:
    """The same with markup, a quote and a control character in all texts but the few that are
    keys of the format."""
    if isinstance(value, dict):
        kept = ("free", "where")
        return {name: each if name in kept else evil(each) for name, each in value.items()}
    if isinstance(value, list):
        return [evil(each) for each in value]
    made = f"{value}\"'><script>alert(1)</script>&lt;\x00\ud800"
    return made if isinstance(value, str) and value else value


@pytest.mark.parametrize("kind", RUNS)
def test_no_text_of_a_run_becomes_markup(page_of, kind):
    plain, content = page_of(RUNS[kind]()), page_of(evil(RUNS[kind]()))
    assert content.encode()  # no half of a character
    assert not re.search("<script|\x00", content)
    names = [[tag for tag, _ in Shown(each).tags] for each in (plain, content)]
    assert names[0] == names[1]
    assert "<script>alert(1)</script>" in Shown(content).text


def test_a_run_that_only_evaluated_has_its_epochs(tmp_path):
    """One that made up for an interrupted evaluation trained on no batch."""
    run = {"gnndrive": "1", "kind": "train", "verdict": None, "epochs": [
        {"epoch": 3, "loss": 0.5, "seconds": 1.0, "accuracy": {"val": 0.75}}
    ]}  # fmt: skip
    path = tmp_path / "run.json"
    path.write_text(json.dumps(run))
    assert "75.0" in Shown(page([path], [read_run(path)])).text


# ---- files that are no runs, and values that are not what they have to be

DEEP = b'{"gnndrive": "1", "plan": ' + b"[" * 100_000


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "is empty"),
        (DEEP, "is no JSON"),
        (b"[1, 2]", "not of a run of gnndrive"),
        (b'{"gnndrive": 1, "batches": 2}', "not of a run of gnndrive"),
        (b'{"gnndrive": "0.1.0", "kind": "train", "plan": null}', "has nothing to show"),
        (None, "has more than 64 MB"),
    ],
)
def test_what_is_no_run_is_refused(tmp_path, content, said):
    path = Path("/dev/zero") if content is None else tmp_path / "a.json"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigError, match=f"{path}.* {said}"):
        read_run(path)


@pytest.mark.parametrize(
    ("run", "place", "value", "said"),
    [
        (train_run, "elapsed_s", "long", r"elapsed_s is 'long', and has to be a number"),
        (train_run, "elapsed_s", True, r"elapsed_s is True"),
        (train_run, "rows", float("nan"), r"rows is nan, and has to be a number from 0"),
        (train_run, "rows", -1, r"rows is -1"),
        (train_run, "rows", 10**400, r"rows is 1000.*\.\.\..*0, and has to be a number from 0"),
        (train_run, "stages.read", 3, r"stages\.read is 3, and has to be an object"),
        (train_run, "stages.read.p50_s", "x", r"stages\.read\.p50_s is 'x'"),
        (train_run, "intervals", {}, r"intervals is \{\}, and has to be a list"),
        (train_run, "intervals.3", 7, r"intervals\[3\] is not an object"),
        (train_run, "intervals.3.interval_s", None, r"intervals\[3\]\.interval_s is missing"),
        (train_run, "plan.items.1.bytes", None, r"plan\.items\[1\]\.bytes is missing"),
        (train_run, "plan.items.1.why", 5, r"plan\.items\[1\]\.why is 5.* a text"),
        (train_run, "miss_ratio.points.0.hit_share", "?", r"points\[0\]\.hit_share is"),
        (train_run, "choice.0.seconds_per_batch", "?", r"choice\[0\]\.seconds_per_batch is"),
        (strategies_run, "strategies.runs.0.seconds_per_batch", None, r"is missing"),
        (strategies_run, "strategies.runs.0.rounds.1", "?", r"rounds\.1 is '\?'"),
        (headroom_run, "headroom.lines.0.seconds_per_batch", None, r"is missing"),
    ],
)
def test_a_value_that_cannot_be_is_named(tmp_path, run, place, value, said):
    content = inside = run()
    *above, last = (int(name) if name.isdigit() else name for name in place.split("."))
    for name in above:
        inside = inside[name]
    inside[last] = value
    path = tmp_path / "a.json"
    path.write_text(json.dumps(content))
    with pytest.raises(ConfigError, match=f"^{path}: .*{said}.* as the command wrote it$"):
        page([path], [read_run(path)])


def test_what_is_drawn_lies_in_its_frame_and_colours_are_of_both_schemes(page_of):
    content = page_of(*(run() for run in RUNS.values()))
    places = re.findall(
        r"(?:left|width|top|bottom|height):([-\d.]+)%", content.split("</style>")[1]
    )
    assert len(places) > 100
    assert all(0 <= float(place) <= 100 for place in places)
    lines = re.findall(r'points="(.*?)"', content)
    corners = [tuple(map(float, at.split(","))) for line in lines for at in line.split()]
    assert len(lines) == 7
    assert all(0 <= x <= 1000 and 0 <= y <= 100 for x, y in corners)
    assert set(re.findall(r"var\(--(\w+)\)", stylesheet())) == set(LIGHT) == set(DARK)


def test_bars_have_the_lengths_of_their_values(page_of):
    content = page_of(headroom_run())
    widths = [
        float(width)
        for width in re.findall(r'class="(?:c\d|noise)" style="[^"]*width:([\d.]+)', content)
    ]
    longest = 1.1 * 0.99  # the end of the slowest round's line
    expected = [100 * took / longest for took in (0.99, 0.97, 0.41, 0.24, 0.86)]
    assert widths == pytest.approx(expected, abs=0.01)


def kinds(content: str) -> dict[str, str]:
    """The kind of each bar, by its name."""
    return dict(re.findall(r'<tr><th scope="row">([^<]+)</th>.*?<i class="(\w+)"', content))


def test_bars_within_the_noise_of_the_fastest_are_grey_and_say_so(page_of):
    run = strategies_run()
    gnndrive, ginex, marius, pyg, _ = run["strategies"]["runs"]
    said = " Grey bars are within the noise: their rounds overlap those of gnndrive, the fastest."
    expected = {"gnndrive": "c1", "ginex": "noise", "marius": "c1", "pyg+": "c1"}
    content = page_of(run)
    assert (kinds(content), said in text_of(content)) == (expected, True)
    assert text_of(content).count("; within the noise") == 1
    ginex["rounds"] = [1.25 * 0.99, 1.3, 1.4]  # all slower than the fastest one's slowest round
    content = page_of(run)
    assert (set(kinds(content).values()), "within the noise" in text_of(content)) == ({"c1"}, False)
    for each in (gnndrive, ginex, marius, pyg):
        each["rounds"] = each["rounds"][1:2]
    assert "One round does not show how large the noise is" in text_of(page_of(run))


def test_what_frees_no_time_but_noise_is_grey(page_of):
    run = headroom_run()
    content = page_of(run)
    expected = ["c1", "noise", "c3", "c3", "noise"]
    assert list(kinds(content).values()) == expected
    shown = text_of(content)
    assert "their rounds overlap those of the run as it is." in shown
    assert "970 ms, 1.02 times as fast; within the noise" in shown
    for line in run["headroom"]["lines"]:
        line["rounds"] = []
    assert "noise" not in kinds(page_of(run)).values()
