"""Open a loader's timeline in Perfetto's trace processor, and ask it what it has read.

The trace processor is the library that Chromium's tests parse traces with, in Debian's package
chromium-shell (68 MB, so that it is not installed for this): .ci/run calls this script where it is.
It fails if Perfetto reports an error, if a batch lacks a span that others have, or if a batch's
spans add up to another time than it took, by more than 5 %.
"""

from __future__ import annotations

import ctypes
import sys
import tempfile
from pathlib import Path

import torch
from torch_geometric.data import Data

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import gnndrive

LIBRARY = "/usr/lib/chromium/libtest_trace_processor.so"
BATCHES, KINDS, WITHIN = 50, 8, 0.05
CLASS, STD = "4base4test22TestTraceProcessorImpl", "NSt3__1"
TEXT = "12basic_stringIcNS2_11char_traitsIcEENS2_9allocatorIcEEEE"
ERRORS = "select name, value from stats where value > 0 and severity != 'info'"
SPANS = (
    "select a.int_value, count(*), count(distinct s.name), sum(s.dur), "
    "max(s.ts + s.dur) - min(s.ts) from slice s "
    "join args a using (arg_set_id) where a.key = 'args.batch' and s.name != 'step' "
    "group by a.int_value"
)


class TraceProcessor:
    """`base::test::TestTraceProcessorImpl`, called as C++ compiled with libc++ would call it."""

    def __init__(self) -> None:
        loaded = ctypes.CDLL(LIBRARY)
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
        """Read a trace; exit if the trace processor refuses it."""
        held = ctypes.create_string_buffer(trace, len(trace))
        begin = ctypes.addressof(held)
        vector = (ctypes.c_uint64 * 3)(begin, begin + len(trace), begin + len(trace))
        status = (ctypes.c_uint64 * 2)()
        self._parse(status, self._this, vector)
        if status[0] != 1:  # absl::OkStatus() is one word, 1
            sys.exit("Perfetto's trace processor does not read this trace")

    def query(self, sql: str) -> list[list[str]]:
        """The rows of a query, without the names of the columns; exit if it fails."""
        held = ctypes.create_string_buffer(sql.encode())
        room = (len(sql) + 2) & ~1
        text = (ctypes.c_uint64 * 3)(room | 1, len(sql), ctypes.addressof(held))
        result = ctypes.create_string_buffer(256)
        self._query(result, self._this, text)
        at = ctypes.addressof(result)  # an optional vector of rows, then an optional error
        if result.raw[56]:
            sys.exit(f"{sql}: {_text(at + 32)}")
        return [[_text(each) for each in _items(row)] for row in _items(at)][1:]


def _items(vector: int) -> range:
    """The addresses of a vector's items, which are vectors or strings."""
    first, end = (ctypes.c_uint64.from_address(vector + at).value for at in (0, 8))
    return range(first, end, 24)


def _text(string: int) -> str:
    """A string of libc++: a short one lies in its own 24 bytes."""
    raw = ctypes.string_at(string, 24)
    if raw[0] & 1:
        length, begin = (ctypes.c_uint64.from_address(string + at).value for at in (8, 16))
        return ctypes.string_at(begin, length).decode()
    return raw[1 : 1 + (raw[0] >> 1)].decode()


def made(folder: Path) -> bytes:
    """The timeline of an epoch, of a generated graph with a buffer of a part of its rows."""
    torch.manual_seed(0)
    data = Data(x=torch.randn(5_000, 64), edge_index=torch.randint(5_000, (2, 40_000)))
    store, path = gnndrive.open_or_make(folder / "graph.gnn", data), folder / "epoch.json.gz"
    with gnndrive.NeighborLoader(
        store, [5, 5], batch_size=100, shuffle=True, seed=1, buffer="800KB", trace=path
    ) as loader:
        for _ in loader:
            pass
    return path.read_bytes()


def main() -> None:
    """Make a trace, check it, and print a line."""
    processor = TraceProcessor()
    with tempfile.TemporaryDirectory() as folder:
        processor.parse(made(Path(folder)))
    if errors := processor.query(ERRORS):
        sys.exit(f"Perfetto reports {errors}")
    batches = [[int(each) for each in row] for row in processor.query(SPANS)]
    if len(batches) != BATCHES:
        sys.exit(f"there are {len(batches)} batches, not {BATCHES}")
    for batch, spans, distinct, total, took in batches:
        if (spans, distinct) != (KINDS, KINDS) or not took:
            sys.exit(f"batch {batch} has {spans} spans of {distinct} kinds, not {KINDS}")
        if abs(total / took - 1) > WITHIN:
            sys.exit(f"the spans of batch {batch} add up to {total} ns, and it took {took} ns")
    print(f"Perfetto read {BATCHES} batches of {KINDS} spans, which add up to what batches took")


if __name__ == "__main__":
    main()
