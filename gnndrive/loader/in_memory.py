"""`GroupedIterator`: makes several consecutive batches of data in memory at once.

A small batch is little work for C and much for Python. One call samples a group of batches, and one
copies the rows of each attribute. This happens in the thread that iterates, in the call of `next`
that finds no batch ready. Each batch is what PyG's class makes with gnndrive's sampler. Its
negative edges and its key are drawn from torch's generator as there, but with those of the other
batches of its group.
"""

from __future__ import annotations

from collections import deque
from contextlib import suppress
from itertools import chain
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import BatchSampler, RandomSampler, SequentialSampler
from torch.utils.data._utils.pin_memory import pin_memory
from torch.utils.data.dataloader import _SingleProcessDataLoaderIter
from torch_geometric.sampler import NegativeSampling

from gnndrive.plan.choice import GROUP_BYTES, GROUP_MAX
from gnndrive.pyg.in_memory import RowsInMemory, StorageAttributes, sampler_of
from gnndrive.pyg.sampler import NeighborSampler


def comes_in_groups(loader: Any, rows: RowsInMemory) -> bool:
    """Whether `GroupedIterator` serves for this loader over data in memory, which PyG's class
    serves otherwise."""
    sampler, of_edges = sampler_of(loader), hasattr(loader, "link_sampler")
    return (
        isinstance(sampler, NeighborSampler)
        and sampler.groups(of_edges)
        and not (of_edges and _draws_of_its_own(loader.neg_sampling))
        and loader.num_workers == 0
        and loader.batch_sampler is not None
        and loader.transform_sampler_output is None
        and bool(loader.filter_per_worker and rows.attributes(loader.data))
    )


def _draws_of_its_own(negatives: NegativeSampling | None) -> bool:
    """Whether the user's code may change how negative edges are drawn from batch to batch. Drawing
    by weights takes longer than what groups save."""
    if negatives is None:
        return False
    weights = negatives.src_weight, negatives.dst_weight
    return type(negatives) is not NegativeSampling or any(each is not None for each in weights)


class GroupedIterator(_SingleProcessDataLoaderIter):
    """torch's iterator, whose batches are made in groups.

    The first group is one batch, and each has twice as many batches as the one before, up to a
    limit. A batch is made again by PyG's way if torch changed the data after its group was made.
    """

    def __init__(self, loader: Any, rows: RowsInMemory) -> None:
        super().__init__(loader)
        self._loader, self._rows = loader, rows
        torchs = type(loader.batch_sampler) is BatchSampler
        torchs = torchs and type(loader.sampler) in (RandomSampler, SequentialSampler)
        self._size, self._ahead = 1, torchs  # a sampler of the user's is not asked ahead
        self._sampler: NeighborSampler = sampler_of(loader)
        self._of_edges, self._gathering = hasattr(loader, "link_sampler"), self._sampler.gathering()
        # Of batches to be made: positions of seeds, and keys; of edges what PyG's code drew, or the
        # error that it raised.
        self._drawn: deque[Any] = deque()
        # Samples, and batches made of them, or None; or the error at its batch's turn.
        self._made: deque[tuple[Any, Any] | Exception] = deque()
        self._attributes: list[StorageAttributes] = []  # that the batches were made of
        self._versions: list[list[tuple[int, int]]] = []

    def _next_data(self) -> Any:
        if not self._made:
            if not self._drawn:
                self._draw()
            with torch.inference_mode(False):  # a batch may be used outside, too
                self._make()
        made = self._made.popleft()
        if isinstance(made, Exception):
            raise made
        out, batch = made
        current = self._rows.attributes(self._loader.data) is self._attributes
        if batch is None or not current or self._versions != _versions(self._attributes):
            self._size = 1
            batch = self._loader.filter_fn(out)
        elif self._loader.transform is not None:
            batch = self._loader.transform(batch)
        if self._pin_memory:
            return pin_memory(batch, self._pin_memory_device)  # type: ignore[no-untyped-call]
        return batch

    def _draw(self) -> None:
        """Draw seeds and keys of the next batches; StopIteration: there are none."""
        for _ in range(self._size):
            try:
                index = self._next_index()  # type: ignore[no-untyped-call]
            except StopIteration:
                if self._drawn:
                    break
                raise
            if not self._ahead:
                index = [self._dataset[each] for each in index]
            if self._of_edges:
                try:
                    self._drawn.append(self._gathered(index))
                except Exception as error:  # at its batch's turn
                    self._drawn.append(error)
                    break
            else:
                self._drawn.append((index, self._sampler.batch_key()))

    def _gathered(self, index: list[int]) -> Any:
        """What `gathering` gathers of a batch around edges."""
        with torch.inference_mode(False):
            inputs, negatives = self._loader.input_data[index], self._loader.neg_sampling
            self._gathering.sample_from_edges(inputs, neg_sampling=negatives)
        assert self._gathering.gathered
        return self._gathering.gathered.pop()

    def _sampled(self) -> tuple[list[Any], Exception | None]:
        """The samples of the batches that were drawn, up to one that cannot be sampled, and its
        error."""
        gathered, failed = list(self._drawn), None
        if isinstance(gathered[-1], Exception):
            failed = gathered.pop()
        if not gathered:
            return [], failed
        try:
            if not self._of_edges:
                parts, keys = zip(*gathered, strict=True)
                inputs = self._loader.input_data[list(chain.from_iterable(parts))]
                gathered = self._sampler.gather_nodes(inputs, parts, keys)
            found, error = self._sampler.sample_gathered(gathered)
        except Exception as raised:
            return [], raised
        return [each.output for each in found], error or failed

    def _make(self) -> None:
        """Make the batches that were drawn, up to one that cannot be sampled."""
        loader, (outs, error) = self._loader, self._sampled()
        batches: list[Any] = [None] * len(outs)
        self._attributes = self._rows.attributes(loader.data)
        self._versions = _versions(self._attributes)
        if self._attributes and outs:
            with suppress(Exception):  # `filter_fn` raises it at its batch's turn
                batches = self._rows.joined(loader, self._attributes, outs)
        self._made.extend(zip(outs, batches, strict=True))
        if error is not None:
            self._made.append(error)
        for _ in range(len(self._made)):
            self._drawn.popleft()
        if self._ahead and batches and batches[0] is not None:
            self._size = min(2 * self._size, _group_size(batches[0], self._attributes))


def _group_size(batch: Any, attributes: list[StorageAttributes]) -> int:
    """How many batches of about the size of this one make a group."""
    shared = {id(value) for each in attributes for value in each.all.values()}
    values = [value for storage in batch.stores for value in storage.values()]
    own = [each for each in values if isinstance(each, Tensor) and id(each) not in shared]
    return max(min(GROUP_MAX, GROUP_BYTES // max(sum(each.nbytes for each in own), 1)), 1)


def _versions(attributes: list[StorageAttributes]) -> list[list[tuple[int, int]]]:
    return [each.versions for each in attributes]
