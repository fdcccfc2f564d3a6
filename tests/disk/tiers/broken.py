"""Tiers that each break the contract in one place, for the test that this is found."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

import numpy as np

from gnndrive.common.records import Int32Array, Int64Array, Landing, Stretch
from gnndrive.disk.tiers.base import Fetch
from tests.second import Keeping


class Listening:
    """A fetch whose stretches are changed on their way."""

    def __init__(self, fetch: Fetch, change: Callable[[Stretch], list[Stretch]]) -> None:
        self._fetch, self._change = fetch, change

    async def __aiter__(self) -> AsyncIterator[Stretch]:
        async for stretch in self._fetch:
            for each in self._change(stretch):
                yield each

    def cancel(self) -> None:
        self._fetch.cancel()


class Repeating(Keeping):
    """Reports every stretch twice."""

    def fetch(self, rows: Int64Array, places: Int32Array, landing: Landing) -> Fetch:
        return Listening(super().fetch(rows, places, landing), lambda stretch: [stretch, stretch])


class Silent(Keeping):
    """Reports no failure."""

    def fetch(self, rows: Int64Array, places: Int32Array, landing: Landing) -> Fetch:
        return Listening(
            super().fetch(rows, places, landing), lambda stretch: [Stretch(stretch.slots)]
        )


class Credulous(Keeping):
    """Takes a failed row for one that has landed."""

    def fetch(self, rows: Int64Array, places: Int32Array, landing: Landing) -> Fetch:
        def all_landed(stretch: Stretch) -> list[Stretch]:
            return [Stretch(np.concatenate([stretch.slots, stretch.failures["slot"]]))]

        return Listening(super().fetch(rows, places, landing), all_landed)


class Stale(Keeping):
    """Takes the rows of one fetch for those of another."""

    def keep(self, rows: Int64Array, content: Any) -> None:
        super().keep(rows[::-1], content)


class Headlong(Keeping):
    """Does not look at rows that it keeps."""

    def fetch(self, rows: Int64Array, places: Int32Array, landing: Landing) -> Fetch:
        distinct, first = np.unique(rows, return_index=True)
        return super().fetch(distinct, places[first], landing)


class Unstoppable(Keeping):
    """Cannot be cancelled."""

    def fetch(self, rows: Int64Array, places: Int32Array, landing: Landing) -> Fetch:
        fetch = Listening(super().fetch(rows, places, landing), lambda stretch: [stretch])
        fetch.cancel = lambda: None  # type: ignore[method-assign]
        return fetch


class Lazy(Keeping):
    """Starts when something listens."""

    def fetch(self, rows: Int64Array, places: Int32Array, landing: Landing) -> Fetch:
        later = super().fetch

        class Later:
            async def __aiter__(self) -> AsyncIterator[Stretch]:
                async for stretch in later(rows, places, landing):
                    yield stretch

            def cancel(self) -> None:
                pass

        return Later()
