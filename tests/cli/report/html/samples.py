"""Runs of every kind, as the commands write them, with figures of the usual sizes."""

import math
from typing import Any

STAGES = {
    "sampler_wait": 0.004, "sample": 0.132, "extracting_queue": 0.051, "admission": 0.0173,
    "read": 0.61, "training_queue": 0.0021, "gather": 0.031, "output_queue": 0.0004, "step": 0.24,
}  # fmt: skip
ITEMS = [
    ("feature buffer", 820_000_000, "1,601,562 rows, because the other items leave that much"),
    ("slot tables", 60_900_000, "reverse map, ref counts, standby list"),
    ("index pointers", 80_000_008, "the graph's, in memory"),
    ("topology", 720_000_000, "resident: the indices in 24 bits each, because all of them fit"),
    ("staging", 67_108_864, "for reads in flight"),
    ("queued samples", 210_000_000, "10 samples; largest of 8 batches that were drawn, and a "
     "margin of 3 %; planned: 121,004 nodes and 1,240,331 edges"),
    ("host level", 0, "none: the feature buffer's slots are in host memory themselves"),
]  # fmt: skip


def envelope(kind: str, words: str) -> dict[str, Any]:
    return {
        "gnndrive": "0.1.0",
        "kind": kind,
        "command": f"gnndrive {words}",
        "date": "2026-03-04T05:06:07+00:00",
        "machine": {
            "processors": 16, "memory_bytes": 68_719_476_736, "python": "3.11.7", "torch": "2.13.0",
        },
        "store": "/data/P10M.gnn",
    }  # fmt: skip


def interval(number: int) -> dict[str, float]:
    """What `on_stats` gets: a run that is slow in the beginning, while its buffer is cold."""
    cold = math.exp(-number / 3)
    return {
        "elapsed_s": 10.0 * (number + 1), "interval_s": 10.0, "batches": 12 - 6 * cold,
        "batches_per_s": 1.2 - 0.6 * cold, "bytes_read": 3e9 + 2e9 * cold, "requests": 9e4,
        "rows_hit": 6e5, "rows_loaded": 5e5, "wait_s": 4 + 4 * cold,
        "wait_disk_s": 3 + 4 * cold, "wait_sampling_s": 0.6, "wait_gather_s": 0.3,
        "wait_slots_s": 0.1, "extracting_queue": 1.5 + 2 * cold, "training_queue": 0.4,
        "output_queue": 0.7 - 0.6 * cold, "read_s_p50": 0.6, "read_s_p99": 1.1,
    }  # fmt: skip


def train_run() -> dict[str, Any]:
    """What `gnndrive train --json` prints, with all sections."""
    return {
        **envelope("train", "train /data/P10M.gnn --memory 3GB --epochs 2 --json"),
        "batches": 196, "rows": 21_345_678, "edges": 88_000_000, "rows_hit": 9_580_246,
        "rows_waited": 382_716, "rows_loaded": 11_382_716, "evictions": 9_781_154,
        "requests": 2_227_000, "bytes_read": 34_000_000_000, "bytes_wanted": 5_827_950_592,
        "retries": 0, "sample_s": 26.2, "extract_s": 140.26, "gather_s": 6.1, "samples": 196,
        "wait_s": 91.0, "wait_disk_s": 74.0, "wait_sampling_s": 11.0, "wait_gather_s": 4.0,
        "wait_slots_s": 2.0, "elapsed_s": 176.4, "buffer_slots": 1_601_562,
        "buffer_bytes": 820_000_000, "engine": "uring", "peak_memory_bytes": 3_512_000_000,
        "epochs": [
            {"epoch": 1, "loss": 1.2345, "accuracy": {"val": 0.61}, "seconds": 93.1},
            {"epoch": 2, "loss": None, "accuracy": {"val": 0.672}, "seconds": 88.2},
        ],
        "stages": {
            name: {"count": 196, "mean_s": 1.1 * p50, "p50_s": p50, "p90_s": 2 * p50,
                   "p99_s": 3.1 * p50}
            for name, p50 in STAGES.items()
        },
        "intervals": [interval(number) for number in range(17)],
        "plan": plan_section(),
        "miss_ratio": {
            "table": "nodes/x", "buffer_bytes": 820_000_000,
            "points": [
                {"bytes": each * 100_000_000, "hit_share": 1 - 0.8 ** each / 1.05,
                 "seconds_per_batch": 0.3 + 0.9 * 0.8 ** each}
                for each in (1, 2, 4, 6, 8, 12, 16, 20, 30)
            ],
        },
        "choice": [
            {"strategy": "gnndrive", "seconds_per_batch": 0.9, "seconds_per_epoch": 88.2,
             "bound_by": "disk", "changes": "none: gnndrive's batches", "note": ""},
            {"strategy": "ginex", "seconds_per_batch": 0.95, "seconds_per_epoch": 93.1,
             "bound_by": "disk", "note": "writes 1.3 GB of samples to disk"},
            {"strategy": "diskgnn", "seconds_per_batch": None, "seconds_per_epoch": None,
             "bound_by": None, "note": "needs a pack: gnndrive pack /data/P10M.gnn"},
        ],
        "verdict": "You wait for the disk; twice the buffer gives 1.4 times the speed; the "
        "training step is the next limit, at 2.1 times the speed.",
    }  # fmt: skip


def plan_section() -> dict[str, Any]:
    host = [{"what": a, "bytes": b, "why": c, "where": "host"} for a, b, c in ITEMS]
    device = {"what": "live batches", "bytes": 130_000_000, "why": "one in use, one ready",
              "where": "device"}  # fmt: skip
    text = "\n".join(f"{a:<16}{b:>14}  {c}" for a, b, c in ITEMS)
    return {"memory": 3_000_000_000, "items": [*host, device], "text": text}


def plan_run() -> dict[str, Any]:
    words = "plan /data/P10M.gnn --memory 3GB --json"
    return {**envelope("plan", words), "plan": plan_section()}


def strategies_run() -> dict[str, Any]:

    def ran(name: str, paper: str, took: float, **more: Any) -> dict[str, Any]:
        return {
            "strategy": name, "paper": paper, "seconds_per_batch": took,
            "command": f"gnndrive train /data/P10M.gnn --strategy {name}",
            "rounds": [0.9 * took, took, 1.24 * took], "first_batch_s": 2.7,
            "nodes_per_batch": 101_300, "edges_per_batch": 1_130_000,
            "rows_loaded_per_batch": 37_000, "requests_per_batch": 11_364,
            "bytes_read_per_batch": 173_000_000, "hit_share": 0.61, "peak_bytes": 2_900_000_000,
            "same_batches": True, "note": "", "predicted_s": 1.08 * took, "bound_by": "disk",
            "failed": None, **more,
        }  # fmt: skip

    runs = [
        ran("gnndrive", "GNNDrive (ICPP 2024)", 0.99),
        ran("ginex", "Ginex (VLDB 2022)", 1.04, note="writes samples to disk: 1.3 GB"),
        ran("marius", "MariusGNN (EuroSys 2023)", 0.21, same_batches=False, nodes_per_batch=64_000,
            note="samples inside partitions, so that neighbours outside of them are never seen"),
        ran("pyg+", "PyG with a memory map", 6.42, predicted_s=None, bound_by=None),
        {"strategy": "diskgnn", "paper": "DiskGNN (SIGMOD 2025)", "command": "gnndrive train …",
         "note": "", "failed": "there is no pack of these batches: run gnndrive pack first"},
    ]  # fmt: skip
    compared = {"memory": 3_000_000_000, "batches": 48, "rounds": 3, "runs": runs}
    words = "bench strategies /data/P10M.gnn --memory 3GB --json"
    return {**envelope("strategies", words), "strategies": compared}


def headroom_run() -> dict[str, Any]:
    took = {"nothing": 0.99, "sampler": 0.97, "disk": 0.41, "loader": 0.24, "step": 0.86}
    lines = [
        {"free": free, "seconds_per_batch": each, "times": 0.99 / each,
         "rounds": [0.95 * each, each, 1.1 * each]}
        for free, each in took.items()
    ]  # fmt: skip
    verdict = "You wait for the disk: without it, a batch takes 0.41 s, 2.4 times as fast."
    words = "bench headroom /data/P10M.gnn --memory 3GB --json"
    return {**envelope("headroom", words), "headroom": {"lines": lines, "verdict": verdict}}


RUNS = {
    "train": train_run,
    "plan": plan_run,
    "strategies": strategies_run,
    "headroom": headroom_run,
}
