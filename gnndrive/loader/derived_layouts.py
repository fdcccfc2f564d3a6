"""`DerivedLayouts`: the part of a loader that finds the pack or the partitions that it reads.

`StoreLoader` inherits it. A pack has the batches themselves (`find_pack.py`); a partitioned store
has windows that batches are sampled inside (`find_partitioned.py`, `window_size.py`). Other
strategies read the store alone.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from gnndrive.common.errors import ConfigError
from gnndrive.loader.arguments import OWN_ARGUMENTS
from gnndrive.loader.assembly import Assembly
from gnndrive.loader.find_pack import find_recording, replays
from gnndrive.loader.find_partitioned import (
    check_window_arguments,
    find_partitioned,
    refuse_window_arguments,
)
from gnndrive.loader.megabatches import Megabatches
from gnndrive.loader.resumable import Resumable
from gnndrive.loader.runtime import Runtime
from gnndrive.loader.window_size import choose_megabatches, still_fit
from gnndrive.pyg.collate import Collate
from gnndrive.store.packed.recording import Recording
from gnndrive.store.partitioned.partitioned import Partitioned


class DerivedLayouts(Resumable):
    """Base class of `StoreLoader`, which sets its attributes."""

    packed: Any
    partitioned: Any
    megabatch: int | None
    static: float | None
    passes: int | None
    order: str | None
    _collate: Collate
    _runtime: Runtime | None = None
    _partitioned: Partitioned | None = None

    def _with_derived(self, assembly: Assembly) -> Assembly:
        """The assembly with the pack or the windows that the loader reads."""
        recording, megabatches = self._find_recording(assembly), self._find_megabatches(assembly)
        return replace(assembly, recording=recording, megabatches=megabatches)

    def _open_partitioned(self) -> None:
        """Open the partitioned store, if the strategy's windows are partitions.

        Raises:
            ConfigError, StoreError: see `find_partitioned`.
        """
        own, name = {each: getattr(self, each) for each in OWN_ARGUMENTS}, self._strategy.name
        if not self._strategy.partitioned:
            refuse_window_arguments(own, name)
            return
        check_window_arguments(own, name)
        tables = [table.name for table in self._collate.tables]
        self._partitioned = find_partitioned(self.data, self.partitioned, tables, name)

    def _find_megabatches(self, assembly: Assembly) -> Megabatches | None:
        """The windows of the partitioned store, which stay the same once the runtime is made."""
        if self._partitioned is None:
            return None
        depends, found = repr([assembly.own, assembly.num_neighbors, assembly.batch_size]), None
        if self._megabatches is not None:
            known, found = self._megabatches
            if self._runtime is None and (known != depends or not still_fit(assembly, found)):
                found = None
        if found is None:
            found = choose_megabatches(assembly, self._partitioned)
            self._megabatches = depends, found
        return found

    def _check_packed(self) -> None:
        """Refuse `packed=` with a strategy that draws its batches.

        Raises:
            ConfigError: it is given.
        """
        if self.packed is not None and not self._strategy.replays:
            raise ConfigError(
                f"packed= is for a strategy that replays, and strategy={self._strategy.name!r} "
                "draws its batches: leave it out, or give strategy='diskgnn'"
            )

    def _find_recording(self, assembly: Assembly) -> Recording | None:
        """The pack that this loader replays, opened once; None: it draws its batches.

        Raises:
            ConfigError, StoreError: see `find_recording`.
        """
        if not self._strategy.replays:
            return None
        if self._recording is None or not replays(self._recording, assembly):
            found = find_recording(assembly, self.packed)
            if self._runtime is not None:
                raise ConfigError(
                    "arguments of this loader have changed so that it would replay another pack, "
                    f"{found.path}, and another one is open already: make "
                    "another loader"
                )
            self._recording = found
        return self._recording
