"""Loaders whose feature tables are not those that the service's store had when it was opened."""

from __future__ import annotations

import torch

import gnndrive
from gnndrive import Store
from tests.host.served.conftest import NODES, Load, Serve
from tests.host.served.test_loading import digests


def test_a_store_without_features(serve: Serve, load: Load, without_x: Store) -> None:
    served, own = load(gnndrive.connect(serve(without_x).name)), load(without_x)
    for _ in range(2):
        assert digests(served) == digests(own)
    assert served.stats()["engine"] == "host service"


def test_a_store_whose_features_the_job_has_set(serve: Serve, load: Load, store: Store) -> None:
    opened, own = gnndrive.connect(serve().name), gnndrive.open(store.path)
    x = torch.arange(NODES * 5.0).view(NODES, 5)
    opened.x, own.x = x, x.clone()
    batch = next(iter(load(opened)))
    assert torch.equal(batch.x, x[batch.n_id])
    served = load(opened)
    assert digests(served) == digests(load(own))
    assert served.stats()["engine"] == "host service"
