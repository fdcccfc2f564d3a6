"""Open a loader's timeline in Perfetto's trace processor, and ask it what it has read.

usage: trace_in_perfetto.py [--library FILE] [TRACE.json.gz]

The trace processor is the library that Chromium's tests parse traces with, libtest_trace_processor
in Debian's package chromium-shell (68 MB, so that it is not installed for this): .ci/run calls this
script where it is. Without a trace the script makes one. It fails if Perfetto reports an error, if
a batch lacks a span that others have, or if a batch's spans add up to another time than it took, by
more than 5 %.
"""

from __future__ import annotations

import argparse
import ctypes
import sys
import tempfile
from pathlib import Path

import torch
from torch_geometric.data import Data

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import gnndrive  # noqa: E402

LIBRARY = "/usr/lib/chromium/libtest_trace_processor.so"
WITHIN = 0.05
MADE = 50, 8  # batches, and kinds of spans, of the trace that the script makes
CLASS, STD = "4base4test22TestTraceProcessorImpl", "NSt3__1"
TEXT = "12basic_stringIcNS2_11char_traitsIcEENS2_9allocatorIcEEEE"
ERRORS = "select name, value from stats where value > 0 and severity != 'info'"
SPANS = (
    "select a.int_value, count(*), count(distinct s.name), sum(s.dur), "
    "max(s.ts + s.dur) - min(s.ts) from slice s "
    "join args a using (arg_set_id) where a.key = 'args.batch' and s.name != 'step' "
    "group by a.int_value"
)
KINDS = "select count(distinct name) from slice where name != 'step'"
COUNTERS = "select count(*) from counter"


class TraceProcessor:
    """`base::test::TestTraceProcessorImpl`, called as C++ compiled with libc++ would call it.

    Args:
        library: the path of the library.
    """

    def __init__(self, library: str) -> None:
        loaded = ctypes.CDLL(library)
        make = loaded[f"_ZN{CLASS}C1Ev"]
        self._parse = loaded[f"_ZN{CLASS}10ParseTraceERK{STD}6vectorIcNS2_9allocatorIcEEEE"]
        self._query = loaded[f"_ZNK{CLASS}12ExecuteQueryERK{STD}{TEXT}"]
        self._this = ctypes.create_string_buffer(256)
        for each in (make, self._parse, self._query):
            each.restype = None
        make.argtypes = [ctypes.c_void_p]
        self._parse.argtypes = self._query.argtypes = [ctypes.c_void_p] * 3
        make(self._this)

    def parse(self, trace: bytes) -> None:
        """Read a trace, compressed or not.

        Raises:
            SystemExit: the trace processor refuses it.
        """
        held = ctypes.create_string_buffer(trace, len(trace))
        begin = ctypes.addressof(held)
        vector = (ctypes.c_uint64 * 3)(begin, begin + len(trace), begin + len(trace))
        status = (ctypes.c_uint64 * 2)()
        self._parse(status, self._this, vector)
        if status[0] != 1:  # absl::OkStatus() is one word, 1
            sys.exit("Perfetto's trace processor does not read this trace")

    def query(self, sql: str) -> list[list[str]]:
        """The rows of a query, without the names of the columns.

        Raises:
            SystemExit: the query fails.
        """
        held = ctypes.create_string_buffer(sql.encode())
        room = (len(sql) + 2) & ~1
        text = (ctypes.c_uint64 * 3)(room | 1, len(sql), ctypes.addressof(held))
        result = ctypes.create_string_buffer(256)
        self._query(result, self._this, text)
        at = ctypes.addressof(result)  # an optional vector of rows, then an optional error
        if result.raw[56]:
            sys.exit(f"{sql}: {_text(at + 32)}")
        rows = [[_text(each) for each in _items(row)] for row in _items(at)]
        return rows[1:]


def _word(address: int) -> int:
    return ctypes.c_uint64.from_address(address).value


def _items(vector: int) -> range:
    """The addresses of a vector's items, which are vectors or strings."""
    return range(_word(vector), _word(vector + 8), 24)


def _text(string: int) -> str:
    """A string of libc++: a short one lies in its own 24 bytes."""
    raw = ctypes.string_at(string, 24)
    if raw[0] & 1:
        return ctypes.string_at(_word(string + 16), _word(string + 8)).decode()
    return raw[1 : 1 + (raw[0] >> 1)].decode()


def made(folder: Path) -> Path:
    """The timeline of an epoch, of a generated graph with a buffer of a part of its rows."""
    torch.manual_seed(0)
    data = Data(x=torch.randn(5_000, 64), edge_index=torch.randint(5_000, (2, 40_000)))
    store, path = gnndrive.open_or_make(folder / "graph.gnn", data), folder / "epoch.json.gz"
    with gnndrive.NeighborLoader(
        store, [5, 5], batch_size=100, shuffle=True, seed=1, buffer="800KB", trace=path
    ) as loader:
        for _ in loader:
            pass
    return path


def check(processor: TraceProcessor, expected: tuple[int, int] | None) -> str:
    """What the trace processor has found; exits if something is wrong. `expected`: how many batches
    there must be, and how many kinds of spans."""
    if errors := processor.query(ERRORS):
        sys.exit(f"Perfetto reports {errors}")
    batches = [[int(each) for each in row] for row in processor.query(SPANS)]
    kinds = int(processor.query(KINDS)[0][0])
    if not batches or expected not in (None, (len(batches), kinds)):
        sys.exit(f"{len(batches)} batches have {kinds} kinds of spans")
    worst = 0.0
    for batch, spans, distinct, total, took in batches:
        if (spans, distinct) != (kinds, kinds) or not took:
            sys.exit(f"batch {batch} has {spans} spans of {kinds}")
        worst = max(worst, abs(total / took - 1))
    if worst > WITHIN:
        sys.exit(f"a batch's spans add up to {worst:.1%} more or less than it took")
    counted = processor.query(COUNTERS)[0][0]
    return (
        f"Perfetto read {len(batches)} batches of {kinds} spans and {counted} counter values; the "
        f"spans of a batch add up to what it took within {worst:.2%}"
    )


def main() -> None:
    """Check a trace, and print a line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("trace", type=Path, nargs="?")
    parser.add_argument("--library", default=LIBRARY)
    options = parser.parse_args()
    processor = TraceProcessor(options.library)
    with tempfile.TemporaryDirectory() as folder:
        processor.parse((options.trace or made(Path(folder))).read_bytes())
    print(check(processor, MADE if options.trace is None else None))


if __name__ == "__main__":
    main()
