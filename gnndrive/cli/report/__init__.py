"""The output of a run: its progress while it runs, a text or JSON report at its end.

`live.py` and `text.py` make both from what `loader.stats()` returns; `html/` makes the page of
`gnndrive report`. This folder imports no loader.
"""

from gnndrive.cli.report.live import Bars, LiveLine, say
from gnndrive.cli.report.text import (
    as_json,
    derived,
    final_report,
    peak_memory_bytes,
    plan_section,
    run_envelope,
)

__all__ = [
    "Bars", "LiveLine", "as_json", "derived", "final_report", "peak_memory_bytes", "plan_section",
    "run_envelope", "say",
]  # fmt: skip
