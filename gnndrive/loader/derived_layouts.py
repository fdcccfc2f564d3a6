"""`DerivedLayouts`: the part of a loader that finds the pack or the partitions that it reads.

`StoreLoader` inherits it. A pack has the batches themselves (`find_pack.py`); a partitioned store
has windows that batches are sampled inside (`find_partitioned.py`, `window_size.py`). Other
strategies read the store alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from gnndrive.common.errors import ConfigError
from gnndrive.loader.arguments import OWN_ARGUMENTS
from gnndrive.loader.assembly import Assembly
from gnndrive.loader.find_pack import find_recording, replays
from gnndrive.loader.find_partitioned import (
    check_tables,
    check_window_arguments,
    find_partitioned,
    refuse_window_arguments,
)
from gnndrive.loader.megabatches import Megabatches, passes_for
from gnndrive.loader.resumable import Resumable
from gnndrive.loader.runtime import Runtime
from gnndrive.loader.window_size import choose_megabatches, still_fit
from gnndrive.pyg.collate import Collate
from gnndrive.store.packed.recording import Recording
from gnndrive.store.partitioned.format import TABLE
from gnndrive.store.partitioned.partitioned import Partitioned


class DerivedLayouts(Resumable):
    """Base class of `StoreLoader`, which sets its attributes."""

    packed: Any
    partitioned: Any
    megabatch: int | None
    static: float | None
    passes: int | str | None
    order: str | None
    _collate: Collate
    _runtime: Runtime | None = None
    _partitioned: Partitioned | None = None
    _megabatches: tuple[str, Megabatches] | None = None  # and what they were chosen for
    _resumed_size: int | None = None  # megabatch= of the state that was loaded

    def _with_derived(self, assembly: Assembly) -> Assembly:
        """The assembly with the pack or the windows that the loader reads."""
        recording = self._find_recording(assembly)
        if recording is not None or self._partitioned is not None:
            tables = {TABLE} if recording is None else recording.files
            self._collate = self._collate.buffering(tables)
        assembly = replace(assembly, collate=self._collate, recording=recording)
        return replace(assembly, megabatches=self._find_megabatches(assembly))

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
        self._partitioned = find_partitioned(self.data, self.partitioned, name)
        self._check_tables()

    def _check_tables(self) -> None:
        check_tables([table.name for table in self._collate.tables], self._strategy.name)

    def _find_megabatches(self, assembly: Assembly) -> Megabatches | None:
        """The windows of the partitioned store, which stay the same once the runtime is made."""
        if self._partitioned is None:
            return None
        self._check_tables()  # the program may have set features meanwhile
        if assembly.own["megabatch"] is None:
            own = assembly.own | {"megabatch": self._resumed_size}
            assembly = replace(assembly, own=own)
        depends, found = repr([assembly.own, assembly.num_neighbors, assembly.batch_size]), None
        if self._megabatches is not None:
            known, found = self._megabatches
            if self._runtime is None and (known != depends or not still_fit(assembly, found)):
                found = None
        if found is None:
            found = choose_megabatches(assembly, self._partitioned)
            self._megabatches = depends, found
        if not found.measured:
            return found
        self._measure_passes()
        return replace(found, passes=self._passes or 1)

    def _measure_passes(self) -> None:
        """Decide how many passes the next epochs have, once a whole epoch has been measured."""
        state, runtime = self._state, self._runtime
        if self._passes is not None or self._resumed is not None or runtime is None:
            return
        if state is not None and state.finished:
            self._passes = passes_for(runtime.counters.window_seconds)

    # ---- what the state of an epoch has of the windows; see `Resumable` ----

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """See `Resumable.load_state_dict`. Without `megabatch=`, a loader that has not begun takes
        the size of the state's windows, because its batches depend on it.

        Raises:
            ConfigError: also if such windows do not fit into the memory.
        """
        before = self._resumed_size
        try:
            if self._partitioned is not None and self.megabatch is None and self._runtime is None:
                self._take_size(state, self._partitioned.num_parts)
            super().load_state_dict(state)
        except ConfigError:
            self._resumed_size = before
            raise

    def _take_size(self, state: Any, parts: int) -> None:
        settings = state.get("settings") if isinstance(state, Mapping) else None
        size: Any = settings.get("megabatch") if isinstance(settings, Mapping) else None
        if type(size) is not int or not 1 <= size <= parts:
            return
        self._resumed_size = size
        try:
            self._assembly()
        except ConfigError as error:
            raise ConfigError(f"the state was saved with megabatch={size}: {error}") from None

    def _batch_settings(self) -> dict[str, Any]:
        megabatches = None if self._partitioned is None else self._assembly().megabatches
        settings = super()._batch_settings()
        return settings if megabatches is None else settings | megabatches.settings()

    def _dealt_to(self) -> int | None:
        if self._partitioned is None:
            return super()._dealt_to()
        world = self._assembly().ranks.per_step
        return world if world > 1 else None

    def _assembly(self) -> Assembly:
        """The assembly of the arguments as they are now."""
        raise NotImplementedError

    def _check_single(self) -> None:
        """Refuse single batches, which lie in no window.

        Raises:
            ConfigError: the strategy samples inside windows.
        """
        if self._partitioned is not None:
            raise ConfigError(
                "loader(index) and collate_fn sample around any seeds, and "
                f"strategy={self._strategy.name!r} samples inside windows: iterate over the "
                "loader, or make another one with strategy='gnndrive'"
            )

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
