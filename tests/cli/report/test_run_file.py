"""What every RUN.json has, and the sections that `gnndrive train` and `gnndrive plan` write."""

import json
import os
from datetime import datetime

import torch

import gnndrive as gd
from gnndrive.cli.report import run_envelope
from gnndrive.cli.report.run_file import typed
from tests.cli.conftest import SKETCH, SMALL


def test_the_envelope_says_what_ran_when_and_where(monkeypatch):
    with typed(["plan", "my store"]):
        envelope = run_envelope("plan")
    assert (envelope["gnndrive"], envelope["kind"]) == (gd.__version__, "plan")
    assert envelope["command"] == "gnndrive plan 'my store'"
    assert datetime.fromisoformat(envelope["date"]).tzinfo is not None
    machine = envelope["machine"]
    assert machine["processors"] == os.cpu_count()
    assert machine["memory_bytes"] > 1 << 20
    assert machine["torch"] == torch.__version__
    assert json.loads(json.dumps(envelope)) == envelope
    monkeypatch.setattr("sys.argv", ["/usr/bin/gnndrive", "train", "a;b"])
    assert run_envelope("train")["command"] == "gnndrive train 'a;b'"


def test_a_plan_as_json(gnndrive, planted):
    words = ("plan", planted, *SMALL, "--memory", "60MB")
    found = gnndrive(*words, "--json").json
    assert (found["kind"], found["store"]) == ("plan", str(planted))
    assert found["command"].startswith(f"gnndrive plan {planted} --fanout 3,2")
    plan = found["plan"]
    assert plan["memory"] == 60_000_000
    items = {item["what"]: item for item in plan["items"]}
    assert items["feature buffer"]["bytes"] > 0
    assert items["staging"]["why"] == "for reads in flight"
    assert {item["where"] for item in plan["items"]} == {"host"}
    # The seconds are of batches that are drawn and timed anew.
    assert plan["text"].split("\n\n")[0] == gnndrive(*words).out.split("\n\n")[0]
    assert "a batch, from 8 batches drawn from the store" in plan["text"]
    found = gnndrive("plan", *SKETCH, "--memory", "400MB", "--json").json
    assert "store" not in found
    assert "rows are taken to lie at random" in found["plan"]["text"]


def test_a_training_says_what_it_planned(gnndrive, planted):
    words = (*SMALL, "--epochs", "2", "--memory", "60MB", "--json")
    found = gnndrive("train", planted, *words).json
    assert (found["gnndrive"], found["kind"]) == (gd.__version__, "train")
    assert "--epochs 2" in found["command"]
    items = found["plan"]["items"]
    assert items[0]["what"] == "feature buffer"
    assert sum(item["bytes"] for item in items) <= found["plan"]["memory"] == 60_000_000
    assert found["plan"]["text"].startswith("feature buffer")
    assert (len(found["epochs"]), found["batches"]) == (2, 16)
