"""What the page of `gnndrive report` shows of runs of each kind, and that it needs nothing else."""

import re
from typing import Any

import pytest

from tests.cli.report.html.conftest import Shown, pictures
from tests.cli.report.html.samples import RUNS, envelope, headroom_run, strategies_run, train_run

SHOWN = {
    "train": [
        "Training on", "/data/P10M.gnn", "2026-03-04 05:06 UTC", "16 processors",
        "You wait for the disk; twice the buffer gives 1.4 times", "900 ms", "67.2 %",
        "extracting queue", "releasing queue", "standby", "193 MB/s", "12.6 k requests/s",
        "44.9 % hits", "you waited 74 s", "sampling p50 132 ms,", "gather p50 31 ms,",
        "read p50 610 ms, p99 1.89 s",
        "Batches in each queue", "What your loop waited for", "100 s",
        "Planned: 1.96 GB of host memory of the 3 GB given.", "feature buffer", "820 MB",
        "none: the feature buffer's slots are in host memory themselves", "live batches (device)",
        "now: 820 MB, 84 %", "Twice the buffer (1.64 GB): 97.5 % hits instead of 84.5 %; a batch "
        "takes 27 % less time.", "gnndrive (this run)", "loading a batch",
        "writes 1.3 GB of samples to disk",
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


@pytest.mark.parametrize("kind", RUNS)
def test_a_run_is_shown(page_of, kind):
    content = page_of(RUNS[kind]())
    shown = Shown(content).text.replace("\xa0", " ")
    assert [text for text in SHOWN[kind] if text not in shown] == []
    assert sections(content) == SECTIONS[kind]
    assert content.count("Made by <code>gnndrive") == len(SECTIONS[kind])
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
    shown = Shown(content).texts
    heads = [text for text in shown if text.startswith("Run ")]
    assert heads[:2] == [
        "Run 1, run1.json: Comparison of strategies on", "Run 2, run2.json: Training on",
    ]  # fmt: skip
    assert heads[4:6] == ["Run 2, run2.json", "Run 4, run4.json"]
    names = [attributes["id"] for _, attributes in Shown(content).tags if "id" in attributes]
    assert len(names) == len(set(names))
    used = set(re.findall(r'(?:url\(|href=")#([\w-]+)', content))
    assert used <= set(names)


def test_what_is_not_in_a_run_is_left_out(page_of):
    run = train_run()
    for name in ("stages", "intervals", "plan", "miss_ratio", "choice", "verdict", "epochs",
                 "machine", "store", "wait_disk_s", "wait_sampling_s", "wait_gather_s",
                 "wait_slots_s"):  # fmt: skip
        del run[name]
    content = page_of(run)
    shown = Shown(content).text
    assert sections(content) == ["pipeline"]
    assert "134 ms a batch" in shown  # sample_s by samples, where there are no percentiles
    assert "p50 13" not in shown
    assert "you waited" not in shown
    assert "<nav" not in content


@pytest.mark.parametrize(("read", "says"), [(34e9, "9.1 %"), (3.5e9, "88.8 %"), (3.0e9, "100.0 %")])
def test_rows_that_were_in_the_buffer_are_no_share_of_the_bytes_read(page_of, read, says):
    shown = Shown(page_of(train_run() | {"bytes_read": read})).text.replace("\xa0", " ")
    assert re.search(rf"^{re.escape(says)} of the bytes", shown, re.M)


@pytest.mark.parametrize(("elapsed_s", "most"), [(176.4, True), (909.0, True), (911.0, False)])
def test_no_border_is_thick_where_the_verdict_is_the_training_step(page_of, elapsed_s, most):
    content = page_of(train_run() | {"elapsed_s": elapsed_s, "wait_disk_s": 73.9})
    assert ('class="box stage most"' in content) == most
    assert ("the thick border is where" in Shown(content).text) == most


@pytest.mark.parametrize(("batches", "last"), [(196, False), (392, True)])
def test_percentiles_of_the_last_epoch_say_so(page_of, batches, last):
    run = train_run() | {"batches": batches}
    said = "The percentiles are of the last epoch."
    assert (said in Shown(page_of(run)).text) == last
    assert said not in Shown(page_of(run | {"epochs": run["epochs"][:1]})).text


def test_the_reason_of_a_strategy_that_cannot_run_is_short(page_of):
    run = train_run()
    note = "needs a pack in P10M.gnn: it has none. Make one. Or take another."
    for choice in run["choice"]:
        choice["note"] = note
    texts = Shown(page_of(run)).texts
    assert texts.count(note) == 2
    assert texts.count("needs a pack in P10M.gnn: it has none.") == 1
    assert "What each strategy would take" in texts
    assert not [text for text in texts if text.startswith("The choice of")]


def test_a_verdict_begins_with_a_capital_letter(page_of):
    assert "You wait for it." in Shown(page_of(train_run() | {"verdict": "you wait for it."})).texts


def test_a_run_of_no_batches_divides_by_no_zero(page_of):
    run = {**envelope("train", "train x"), "batches": 0, "elapsed_s": 0, "rows": 0, "rows_hit": 0,
           "intervals": [{"interval_s": 0, "batches": 1}]}  # fmt: skip
    assert sections(page_of(run)) == ["pipeline"]


def test_numbers_are_in_a_table_behind_each_picture(page_of):
    content = page_of(train_run())
    for name in SECTIONS["train"][:-1]:
        inside = content.split(f'<section id="{name}">')[1].split("</section>")[0]
        assert "<details><summary>The numbers</summary>" in inside
        assert inside.count("<svg") == 2
    table = content.split('<section id="timeline">')[1].split("<tbody>")[1].split("</tbody>")[0]
    assert table.count("<tr>") == 17


def test_many_intervals_are_drawn_together(page_of):
    one = {"batches": 4.0, "interval_s": 2.0, "training_queue": 1.0, "wait_disk_s": 0.5}
    two = one | {"batches": 8.0, "training_queue": 3.0}
    run = train_run() | {"intervals": [one, two] * 120}
    content = page_of(run)
    assert "240 intervals are drawn as 120." in content
    row = Shown(content.split('<section id="timeline">')[1].split("<tbody>")[1].split("</tr>")[0]
                .replace("<tr>", "")).texts  # fmt: skip
    assert row[:2] == ["0.0–4.0", "3"]
    assert row[5] == "2.00"
    assert row[7] == "1 s (25.0 %)"


def test_pictures_can_be_read_aloud(page_of):
    found = pictures(page_of(*(run() for run in RUNS.values())))
    assert len(found) == 2 * 7  # each in two widths
    for picture in found:
        assert picture.get("role") == "img"
        title, about = (picture.find(tag) for tag in ("title", "desc"))
        assert title is not None
        assert about is not None
        assert f"{title.get('id')} {about.get('id')}" == picture.get("aria-labelledby")
        assert title.text
        assert about.text


def evil(value: Any) -> Any:
    """The same with markup, a quote and a control character in all texts but the few that are
    keys of the format."""
    if isinstance(value, dict):
        kept = ("free", "where")
        return {name: each if name in kept else evil(each) for name, each in value.items()}
    if isinstance(value, list):
        return [evil(each) for each in value]
    return (
        f"{value}\"'><script>alert(1)</script>&lt;\x00\ud800" if isinstance(value, str) else value
    )


@pytest.mark.parametrize("kind", RUNS)
def test_no_text_of_a_run_becomes_markup(page_of, kind):
    plain, content = page_of(RUNS[kind]()), page_of(evil(RUNS[kind]()))
    assert "<script" not in content
    assert "\x00" not in content
    assert content.encode()  # no half of a character
    pictures(content)
    names = [[tag for tag, _ in Shown(each).tags if tag not in ("text", "rect")]
             for each in (plain, content)]  # fmt: skip
    assert names[0] == names[1]
    assert "<script>alert(1)</script>" in Shown(content).text
