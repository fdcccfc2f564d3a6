"""Does LRU through the standby structure cost what a linked list costs?

    PYTHONPATH=. python bench/standby.py [--rows N] [--slots N] [--batch N] [--rounds N]

There are three kinds of standby keys: LRU (no key is given), look-ahead (64 distinct keys) and
random (a different key for each slot: the worst case for the heap). First the structure alone is
compared with a bare linked list, both in C: random slots are taken out and put back at the end.
Then a full feature buffer admits, commits and releases batches. Keys come from a window there, so
that even random ones have at most 256 values. Either each row of the batch evicts one ("misses"),
or each is found on standby and returns there ("hits"; measured first, so that the misses meet a
list whose slots have lost their order).

The output is the median of the rounds, in ns a row.
"""

from __future__ import annotations

import statistics
import subprocess
import tempfile
from ctypes import CDLL, c_int32, c_int64, c_void_p
from pathlib import Path
from time import perf_counter_ns
from typing import Any

import _script
import numpy as np
import numpy.typing as npt

from gnndrive.common.ffi import check, ffi, lib, pointer

Int64Array = npt.NDArray[np.int64]

LOOPS = """
#include "gnndrive.h"
typedef struct node { int32_t next, previous; } node;
void list_loop(node *a, int32_t end, const int32_t *slots, int64_t n) {
    for (int64_t i = 0; i < n; i++) {
        int32_t s = slots[i], p = a[s].previous, q = a[s].next;
        a[p].next = q;
        a[q].previous = p;
    }
    for (int64_t i = 0; i < n; i++) {
        int32_t s = slots[i], p = a[end].previous;
        a[p].next = s;
        a[s] = (node){end, p};
        a[end].previous = s;
    }
}
void standby_loop(gd_standby *t, const int64_t *keys, const int32_t *slots, int64_t n) {
    for (int64_t i = 0; i < n; i++)
        if (gd_standby_holds(t, slots[i])) gd_standby_remove(t, slots[i]);
    for (int64_t i = 0; i < n; i++) gd_standby_push(t, slots[i], keys[i]);
}
"""
NATIVE = Path(__file__).resolve().parent.parent / "native"


def loops() -> CDLL:
    with tempfile.TemporaryDirectory() as folder:
        source, library = Path(folder) / "loops.c", Path(folder) / "loops.so"
        source.write_text(LOOPS)
        command = ["cc", "-O3", "-shared", "-fPIC", "-UNDEBUG", f"-I{NATIVE}"]
        subprocess.run([*command, "-o", library, source, NATIVE / "standby.c"], check=True)
        found = CDLL(str(library))
    found.list_loop.argtypes = [c_void_p, c_int32, c_void_p, c_int64]
    found.standby_loop.argtypes = [c_void_p, c_void_p, c_void_p, c_int64]
    found.gd_standby_free.argtypes = [c_void_p]
    found.gd_standby_new.restype, found.gd_standby_new.argtypes = c_void_p, [c_int64]
    return found


def draw_keys(random: np.random.Generator, kind: str, tick: int, n: int) -> Int64Array:
    """Draw the standby keys of a batch: `tick` for all rows, or 64 values, or any value."""
    if kind == "LRU":
        return np.full(n, tick, dtype=np.int64)
    return random.integers(-64 if kind == "look-ahead" else -(2**40), 0, n)


def alone(c: CDLL, kind: str, slots: int, batch: int, rounds: int) -> float:
    """Measure ns a row to take random slots out and put them back; `kind` is one of keys, or
    "linked list"."""
    random, times = np.random.default_rng(2), []
    links = (np.arange(slots + 1)[:, None] + [1, -1]) % (slots + 1)
    nodes, standby = links.astype(np.int32), c.gd_standby_new(slots)
    if kind != "linked list":
        full, keys = np.arange(slots, dtype=np.int32), draw_keys(random, kind, 0, slots)
        c.standby_loop(standby, keys.ctypes.data, full.ctypes.data, slots)
    for tick in range(1, rounds + 1):
        chosen = random.permutation(slots)[:batch].astype(np.int32)
        keys = draw_keys(random, kind, tick, batch)
        start = perf_counter_ns()
        if kind == "linked list":
            c.list_loop(nodes.ctypes.data, slots, chosen.ctypes.data, batch)
        else:
            c.standby_loop(standby, keys.ctypes.data, chosen.ctypes.data, batch)
        times.append((perf_counter_ns() - start) / batch)
    c.gd_standby_free(standby)
    return statistics.median(times)


class Run:
    """A full feature buffer and the output arrays of an admission."""

    def __init__(self, rows: int, slots: int, batch: int, kind: str) -> None:
        self.random, self.rows, self.batch, self.kind = np.random.default_rng(1), rows, batch, kind
        self.c = ffi.gc(lib.gd_buffer_new(rows, slots), lib.gd_buffer_free)
        self.slots = np.empty((2, max(batch, slots)), dtype=np.int32)
        self.load_slots = np.empty(max(batch, slots), dtype=np.int32)
        self.row_of = np.zeros(slots, dtype=np.int64)
        self.window: Any = ffi.NULL
        self.ranking: Any = ffi.NULL
        if kind != "LRU":
            self.window = self.make_window()
            self.keys = draw_keys(self.random, self.kind, 0, lib.GD_WINDOW_SETS)
            self.mask = np.zeros(lib.GD_WINDOW_SETS, np.uint8)
            of_keys = pointer(self.keys), pointer(self.mask), ffi.NULL, self.window
            self.ranking = ffi.new("gd_ranking *", of_keys)
        self.load_rows = np.empty(max(batch, slots), dtype=np.int64)
        for part in np.array_split(self.random.permutation(rows)[:slots], slots // batch + 1):
            self.serve(np.ascontiguousarray(part))

    def make_window(self) -> Any:
        """Announce eight batches of half the rows each, so that a row has one of 256 keys."""
        window: Any = ffi.gc(lib.gd_window_new(self.rows), lib.gd_window_free)
        for index in range(lib.GD_WINDOW_BATCHES):
            ids = self.random.permutation(self.rows)[: self.rows // 2]
            check(lib.gd_window_add(window, index, pointer(ids), len(ids)), "add")
        return window

    def serve(self, ids: Int64Array) -> float:
        """Admit, commit and release one batch; return ns a row."""
        n, a = len(ids), ffi.new("gd_admission *")
        alias, pending = pointer(self.slots[0]), pointer(self.slots[1])
        rows, slots, wanted = pointer(self.load_rows), pointer(self.load_slots), pointer(ids)
        start = perf_counter_ns()
        code = lib.gd_buffer_admit(
            self.c, self.ranking, wanted, ffi.NULL, n, alias, pending, rows, slots, ffi.NULL, a
        )
        check(code, "admit")
        check(lib.gd_buffer_commit(self.c, slots, a.loads), "commit")
        check(lib.gd_buffer_release(self.c, alias, n), "release")
        end = perf_counter_ns()
        self.row_of[self.load_slots[: a.loads]] = self.load_rows[: a.loads]
        return (end - start) / n

    def draw(self, present: bool) -> Int64Array:
        """Draw a batch of rows in random order, all in the buffer or all outside it."""
        found = np.zeros(self.rows, dtype=np.bool_)
        found[self.row_of] = True
        return self.random.permutation(np.flatnonzero(found == present))[: self.batch]


def main(arguments: list[str] | None = None) -> None:
    parser = _script.parser(__doc__)
    for name, value in {"rows": 2_000_000, "slots": 1_000_000, "batch": 400_000}.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--rounds", type=int, default=8)
    o = parser.parse_args(arguments)
    c = loops()
    print(f"{o.batch:,} of {o.rows:,} rows a batch, {o.slots:,} slots; ns a row")
    print(f"{'':12}{'standby alone':>15}{'buffer, hits':>14}{'buffer, misses':>16}")
    for kind in ("linked list", "LRU", "look-ahead", "random"):
        line = f"{kind:12}{alone(c, kind, o.slots, o.batch, o.rounds):15.1f}"
        if kind != "linked list":
            run = Run(o.rows, o.slots, o.batch, kind)
            for present, width in ((True, 14), (False, 16)):
                times = [run.serve(run.draw(present)) for _ in range(o.rounds)]
                line += f"{statistics.median(times):{width}.1f}"
        print(line, flush=True)


if __name__ == "__main__":
    _script.run(main)
