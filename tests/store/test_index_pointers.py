"""Index pointers in memory: read when they are first used, or shared by processes."""

import gc
import os
import pickle
import weakref
from concurrent.futures import ThreadPoolExecutor
from unittest.mock import Mock

import numpy as np
import pytest

import gnndrive
from gnndrive.common.errors import ConfigError, StoreError
from gnndrive.common.shared_memory import SharedMemory
from gnndrive.sampling.graph import mapped
from gnndrive.store import Store, mapped_arrays
from tests.store.conftest import EDGES, NODES, poke


def shared(store: Store) -> np.ndarray:
    """A copy of a store's index pointers in memory that processes share."""
    pointers = store.index_pointers
    memory = SharedMemory.create(pointers.nbytes, "pointers")
    memory.array.view(pointers.dtype)[:] = pointers
    return SharedMemory.attach(os.dup(memory.fd), pointers.nbytes).array.view(pointers.dtype)


def test_threads_read_them_once_and_opening_does_not(store, monkeypatch):
    load = Mock(wraps=mapped_arrays.load_checked)
    monkeypatch.setattr(mapped_arrays, "load_checked", load)
    opened = gnndrive.open(store.path)
    load.assert_not_called()
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda _: opened.index_pointers, range(50)))
    load.assert_called_once()
    assert all(each is found[0] for each in found)
    assert np.array_equal(found[0], opened.indptr)


def test_a_store_uses_shared_ones_and_frees_its_own(store):
    own, edges, theirs = weakref.ref(store.index_pointers), store.edges(), shared(store)
    topology = mapped(edges)
    store.use_pointers({None: theirs})
    gc.collect()
    assert own() is not None  # the topology was made of them
    del topology
    gc.collect()
    assert own() is None
    assert edges.index_pointers is store.index_pointers is theirs
    assert np.array_equal(theirs, store.indptr)
    assert len(pickle.loads(pickle.dumps(store)).index_pointers) == NODES + 1
    child = os.fork()
    if not child:
        os._exit(0 if int(store.index_pointers[-1]) == EDGES else 1)
    assert os.waitpid(child, 0)[1] == 0


def test_other_arrays_are_refused(store):
    good = store.index_pointers
    for wrong in (good[:-1], good[1:], good.astype(np.int64), good.reshape(1, -1), good[:0],
                  good + np.uint32(1)):  # fmt: skip
        with pytest.raises(ConfigError, match="share those of the same store"):
            store.use_pointers({None: wrong})
    with pytest.raises(ConfigError, match="share those of the same store"):
        store.use_pointers({("a", "to", "b"): good})
    assert store.index_pointers is good


def test_damage_is_found_when_the_store_is_opened_and_when_they_are_read(store):
    opened = gnndrive.open(store.path)
    poke(store.path / "graph" / "indptr.npy", 4096 + 8, np.int64(EDGES + 1).tobytes())
    for use in (lambda: gnndrive.open(store.path), lambda: opened.index_pointers):
        with pytest.raises(StoreError, match="decreases at node 2"):
            use()
