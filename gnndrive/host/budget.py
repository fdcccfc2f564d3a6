"""`Budget`: the memory that a service may use, and what each of its users has of it."""

from __future__ import annotations

import asyncio

from gnndrive.common.errors import ConfigError
from gnndrive.common.memory import format_size

NAMED_MAX = 8  # users that an error names
MORE = "start the service with more --memory"
OR_MORE = f", end another one, or {MORE}"
LESS = "Give the loader less with memory= or buffer="
LESS_STAGING = "Most of it is staging: give the loader less with tuning=Tuning(io_depth=…)"
LESS_GRAPH = f"{MORE[0].upper()}{MORE[1:]}"
OR_DIRECT = ', or give the loader tuning=Tuning(topology="direct")'


class Budget:
    """Counts what is promised of `limit` bytes, before it is allocated; None: without a limit, it
    only counts. Used in one event loop."""

    def __init__(self, limit: int | None) -> None:
        self.limit = limit
        self._parts: dict[object, tuple[str, int]] = {}
        self._freeing: set[asyncio.Task[None]] = set()

    @property
    def used(self) -> int:
        """Bytes that are promised."""
        return sum(nbytes for _, nbytes in self._parts.values())

    @property
    def text(self) -> str:
        """How much is promised, and of how much, as people read it."""
        of_limit = "" if self.limit is None else f" of {format_size(self.limit)}"
        return f"{format_size(self.used)}{of_limit}"

    def _fits(self, nbytes: int) -> bool:
        return self.limit is None or self.used + nbytes <= self.limit

    async def take(
        self, owner: object, name: str, nbytes: int, remedy: str = LESS + OR_MORE
    ) -> None:
        """Promise memory to `owner`, which has nothing yet; wait for the tasks of `freed_by` if
        that of others is needed. ConfigError: there is less left; it calls the owner `name`, and
        says who has the rest, and the `remedy`."""
        while not self._fits(nbytes) and self._freeing:
            await asyncio.wait(self._freeing, return_when=asyncio.FIRST_COMPLETED)
        assert owner not in self._parts
        if not self._fits(nbytes):
            raise self._refusal(name, nbytes, remedy)
        self._parts[owner] = name, nbytes

    def freed_by(self, task: asyncio.Task[None]) -> None:
        """A task will give something back."""
        self._freeing.add(task)
        task.add_done_callback(self._freeing.discard)

    def correct(self, owner: object, nbytes: int) -> None:
        """Say how much an owner has taken of what it was promised."""
        name, _ = self._parts[owner]
        self._parts[owner] = name, nbytes

    def give(self, owner: object) -> None:
        """Give back what an owner was promised, if anything."""
        self._parts.pop(owner, None)

    def _refusal(self, name: str, nbytes: int, remedy: str) -> ConfigError:
        assert self.limit is not None
        parts = sorted(self._parts.values(), key=lambda part: -part[1])
        named = [f"{owner} has {format_size(size)}" for owner, size in parts[:NAMED_MAX]]
        if len(parts) > NAMED_MAX:
            rest = sum(size for _, size in parts[NAMED_MAX:])
            named.append(f"{len(parts) - NAMED_MAX} others have {format_size(rest)}")
        has, left = f": {', '.join(named)}" if named else "", self.limit - self.used
        return ConfigError(
            f"{name} needs {format_size(nbytes, left)} of the service, which has "
            f"{format_size(left, nbytes)} of --memory {format_size(self.limit)} left{has}"
            f". {remedy}"
        )
