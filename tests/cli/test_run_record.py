"""What a training's JSON keeps of its loaders: intervals in a row, and not too many of them."""

from gnndrive.cli.commands import run_record
from gnndrive.cli.commands.run_record import INTERVALS_MAX, RunRecord


def interval(number: int) -> dict[str, float]:
    return {
        "elapsed_s": number + 1.0, "interval_s": 1.0, "batches": 2.0, "batches_per_s": 2.0,
        "bytes_read": 100.0, "wait_disk_s": 0.25, "extracting_queue": float(number % 2),
        "read_s_p50": 0.1, "read_s_p99": 0.2,
    }  # fmt: skip


def test_intervals_of_loaders_follow_each_other():
    record = RunRecord()
    for earlier in (0.0, 60.0):
        tell = record.arguments(earlier)["on_stats"]
        tell(interval(0))
        tell(interval(1))
    assert [each["elapsed_s"] for each in record.intervals] == [1, 2, 61, 62]
    assert record.intervals[1] == interval(1)
    assert record.sections() == {"intervals": record.intervals}


def test_many_intervals_become_fewer():
    record, count = RunRecord(), 3 * INTERVALS_MAX
    tell = record.arguments(0.0)["on_stats"]
    for number in range(count):
        tell(interval(number))
    kept = record.intervals
    assert INTERVALS_MAX / 2 < len(kept) <= INTERVALS_MAX
    for name in ("interval_s", "batches", "bytes_read", "wait_disk_s"):
        assert sum(each[name] for each in kept) == count * interval(0)[name]
    ends = [each["elapsed_s"] for each in kept]
    assert ends == sorted(ends)
    assert ends[-1] == count
    assert kept[0]["extracting_queue"] == 0.5
    assert "read_s_p50" in kept[-1]
    assert not {"read_s_p50", "read_s_p99", "batches_per_s"} & set(kept[0])


def test_stages_are_those_of_the_last_loader(monkeypatch):
    class Loader:
        def __init__(self, name):
            self.name = name

        def plan(self):
            return self.name

        def stage_stats(self):
            return {"read": {"p50_s": len(self.name)}}

    monkeypatch.setattr(run_record, "plan_section", lambda plan: {"text": plan})
    record = RunRecord()
    for name in ("a", "bc"):
        record.keep(Loader(name))
    assert record.sections() == {"plan": {"text": "bc"}, "stages": {"read": {"p50_s": 2}}}
