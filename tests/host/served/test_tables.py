"""Loaders whose feature tables are not those that the service's store had when it was opened."""

from __future__ import annotations

import shutil

import pytest
import torch

import gnndrive
from gnndrive import StoreError
from tests.host.served.conftest import NODES
from tests.host.served.test_loading import digests
from tests.store.test_store_added import add


def test_a_store_without_features(serve, load, without_x):
    served, own = load(gnndrive.connect(serve(without_x).name)), load(without_x)
    for _ in range(2):
        assert digests(served) == digests(own)
    assert served.stats()["engine"] == "host service"


def test_a_store_whose_features_the_job_has_set(serve, load, store):
    opened, own = gnndrive.connect(serve().name), gnndrive.open(store.path)
    x = torch.arange(NODES * 5.0).view(NODES, 5)
    opened.x, own.x = x, x.clone()
    batch = next(iter(load(opened)))
    assert torch.equal(batch.x, x[batch.n_id])
    served = load(opened)
    assert digests(served) == digests(load(own))
    assert served.stats()["engine"] == "host service"


@pytest.mark.parametrize("width", [20, 16, 24])
def test_an_attribute_that_was_computed_again(serve, load, store, tmp_path, width):
    copied = gnndrive.open(shutil.copytree(store.path, tmp_path / "copy.gnn"))
    first = torch.arange(NODES * 20.0).view(NODES, 20)
    add(copied, first, run="0" * 16)
    serving = serve(gnndrive.open(copied.path))
    old, other = gnndrive.connect(serving.name), gnndrive.connect(serving.name)
    before = load(old, buffer="100KB")
    batches = iter(before)
    next(batches)
    again = -torch.arange(float(NODES * width)).view(NODES, width)
    add(copied, again, run="1" * 16)
    for batch in load(gnndrive.connect(serving.name), buffer="100KB"):
        assert torch.equal(batch.h, again[batch.n_id])
    for batch in batches:  # an epoch that has begun goes on
        assert torch.equal(batch.h, first[batch.n_id])
    with pytest.raises(StoreError, match=r"nodes/h of .* was replaced since this process opened "):
        iter(load(other, buffer="100KB"))
    other.find_added()
    batch = next(iter(load(other, buffer="100KB")))
    assert torch.equal(batch.h, again[batch.n_id])
