"""`SingleBatches`: the methods of PyG's loaders that make one batch, without the pipeline.

`StoreLoader` inherits it. When not to use it: an epoch; iterating reads ahead.
"""

from __future__ import annotations

from typing import Any

import torch

from gnndrive.common.errors import ConfigError
from gnndrive.loader.resumable import Resumable
from gnndrive.sampling.graph import mapped
from gnndrive.sampling.samplers.base import batch_key


class SingleBatches(Resumable):
    """Base class of `StoreLoader`, which sets its attributes."""

    filter_per_worker: bool | None
    _device: tuple[Any, torch.device | None]

    def __call__(self, index: torch.Tensor | list[int]) -> Any:
        """One batch around the seeds at positions `index` (int64 [n] or a list), read without the
        pipeline."""
        if not self._from_store:
            return super().__call__(index)  # type: ignore[misc]
        out = self.collate_fn(index)
        return out if self.filter_per_worker else self.filter_fn(out)

    def collate_fn(self, index: Any) -> Any:
        """Sample around the seeds at positions `index` (int64 [n] or a list)."""
        if not self._from_store:
            return super().collate_fn(index)
        if why := self._scheme.single:
            raise ConfigError(
                f"loader(index) and collate_fn sample around any seeds, and {why}: iterate over "
                "the loader, or make another one with strategy='gnndrive'"
            )
        chosen = torch.as_tensor(index, dtype=torch.int64).reshape(-1)
        seeds = self._inputs.seeds(0, chosen.numpy())
        key = self._draw_seed()
        if self.seed is not None:
            key = batch_key(self.seed, self.epoch, 0)
        topologies = [mapped(edges) for edges in self.data.all_edges()]
        out = seeds, self._assembly().sampler().sample(seeds, key, topologies)
        return self.filter_fn(out) if self.filter_per_worker else out

    def filter_fn(self, out: Any) -> Any:
        """Join a sample with its features and attributes: a Data, on the loader's device."""
        if not self._from_store:
            return super().filter_fn(out)  # type: ignore[misc]
        return self._collate.from_map(out[0], out[1], self._device[1])

    def check_worker_number_rationality(self) -> None:
        """Warn of too many worker processes, as torch does; a store's loader has none."""
        if not self._from_store:
            super().check_worker_number_rationality()
