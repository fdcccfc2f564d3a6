"""What a run shows: a live line while it goes, a text or JSON report at its end.

Everything is made from the flat mapping that `loader.stats()` returns; nothing here reads a clock
or knows a loader.
"""

from gnndrive.cli.report.live import LiveLine, say
from gnndrive.cli.report.text import as_json, derived, final_report, peak_memory_bytes

__all__ = ["LiveLine", "as_json", "derived", "final_report", "peak_memory_bytes", "say"]
