"""The output of a run: a live line while it runs, a text or JSON report at its end.

Both are made from the flat mapping that `loader.stats()` returns; this folder reads no clock and
imports no loader.
"""

from gnndrive.cli.report.live import LiveLine, say
from gnndrive.cli.report.text import as_json, derived, final_report, peak_memory_bytes

__all__ = ["LiveLine", "as_json", "derived", "final_report", "peak_memory_bytes", "say"]
