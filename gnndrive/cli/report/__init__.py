"""The output of a run: a live line while it runs, a text or JSON report at its end.

Both are made from the flat mapping that `loader.stats()` returns. `run_file.py` makes what all
commands' JSON has, and alone reads the clock: the date. This folder imports no loader.
"""

from gnndrive.cli.report.live import LiveLine, say
from gnndrive.cli.report.run_file import plan_section, run_envelope
from gnndrive.cli.report.text import as_json, derived, final_report, peak_memory_bytes

__all__ = [
    "LiveLine", "as_json", "derived", "final_report", "peak_memory_bytes", "plan_section",
    "run_envelope", "say",
]  # fmt: skip
