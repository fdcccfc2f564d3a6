"""How a loader uses an exchange (`gnndrive.exchange`): its ranks connect, and share their rows."""

from __future__ import annotations

import asyncio
import socket
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import partial
from typing import Any

from gnndrive.buffer.feature_buffer import FeatureBuffer
from gnndrive.common.array_pool import Allocate
from gnndrive.common.errors import ConfigError, PeerError
from gnndrive.common.records import Int64Array
from gnndrive.exchange.exchanged_buffer import ExchangedBuffer
from gnndrive.exchange.items import Exchange
from gnndrive.exchange.links import Address, Link, Meeting
from gnndrive.exchange.owners import Owners
from gnndrive.exchange.share import Rows, Share
from gnndrive.host.arena import ArenaShape
from gnndrive.host.messages import Message, ProtocolError
from gnndrive.loader.buffer_pool import BufferPool
from gnndrive.loader.ranks import TIMEOUT_S, Ranks, check_same
from gnndrive.loader.settings import RuntimeSettings
from gnndrive.loader.sharing import SPARE_PLACES, RankBuffers
from gnndrive.pipeline.workers import ThreadWorkers
from gnndrive.plan.request import batch_entries_max
from gnndrive.store.feature_tables import FeatureTable

STRIDE = "stride"
CLOSED = (
    "has closed its loader or left it in the middle of an epoch, and owns rows that this one needs"
)
COPIERS = 2  # threads that copy rows for other ranks


def exchange_of(
    wanted: bool | str, ranks: Ranks, tables: Sequence[FeatureTable], why_not: str
) -> Exchange | None:
    """What `exchange=` asks for; None: nothing is exchanged, also because there is one rank.
    ConfigError if it cannot be had: `why_not`, if that is known, or because of the ranks."""
    if not wanted:
        return None
    if ranks.group is None and ranks.world > 1:
        why_not = "ranks= is not given"
    if why_not:
        raise ConfigError(f"exchange={wanted!r} cannot be had, because {why_not}: leave it out")
    if ranks.group is None or not tables:
        return None
    owners = {
        each.name: Owners.of(
            each.file.row_count, each.file.row_bytes, ranks.world, wanted == STRIDE
        )
        for each in tables
    }
    return Exchange(owners, ranks.rank, ranks.world)


class Exchanging:
    """A rank's connections to the others, until `buffers` uses them. A collective call: each rank
    makes one. ConfigError if one cannot be reached."""

    def __init__(self, ranks: Ranks, settings: RuntimeSettings) -> None:
        request, stages = settings.request, settings.stages
        assert request.exchange is not None
        self.exchange = request.exchange
        self._timeout_s = ranks.timeout_s or TIMEOUT_S
        needs: dict[str, Any] = {
            "the owners of rows": {n: repr(each) for n, each in self.exchange.owners.items()},
            "the most rows of a batch": batch_entries_max(request),
        }
        places = stages.extracting_queue + stages.training_queue + SPARE_PLACES
        error: Exception | None = None
        meeting, address = None, Address("", 0, b"")
        self._socks: dict[int, socket.socket] = {}
        with ExitStack() as undo:
            try:
                meeting = undo.enter_context(Meeting())
                address = meeting.address
            except Exception as caught:
                error = caught
            told = needs, places, address
            everyone = ranks.all_or_none("finding the ranks", told, error)
            check_same([each for each, _, _ in everyone])
            assert meeting is not None
            try:
                self._socks = meeting.connect(ranks.rank, [each for _, _, each in everyone])
            except Exception as caught:
                error = caught
            try:
                ranks.all_or_none("connecting the ranks", None, error)
            except BaseException:
                self.close()
                raise
        wide = max(each.rows for each in self.exchange.owners.values()) >= 1 << 31
        places = max(each for _, each, _ in everyone)
        self.shape = ArenaShape(places, batch_entries_max(request), wide)

    def buffers(self, pool: BufferPool, empty: Allocate) -> ExchangeBuffers:
        """Begin to serve the other ranks, in the loop thread."""
        socks, self._socks = self._socks, {}
        return ExchangeBuffers(pool, self, socks, self._timeout_s, empty)

    def close(self) -> None:
        """Close the connections that are not used."""
        while self._socks:
            self._socks.popitem()[1].close()


class ExchangeBuffers(RankBuffers):
    """The feature buffers of all ranks, for one epoch at a time; and this rank's share of them, for
    as long as the loader is open."""

    buffer: ExchangedBuffer

    def __init__(
        self, pool: BufferPool, given: Exchanging, socks: Mapping[int, Any], timeout_s: float,
        empty: Allocate,
    ) -> None:  # fmt: skip
        super().__init__(given.exchange.rank)
        self._pool, self.facts, self._closed = pool, pool.facts, False
        self._timeout_s = timeout_s
        self._own_answers: asyncio.Queue[tuple[Message, Rows]] = asyncio.Queue()
        exchange, shape, tables = given.exchange, given.shape, pool.settings.plan.tables
        row_bytes = {each.name: each.row_bytes for each in tables}
        stages = replace(pool.settings.stages, group=1)
        with ExitStack() as undo:
            for sock in socks.values():
                undo.callback(sock.close)
            self._own: FeatureBuffer = pool.take()
            self._copiers = ThreadWorkers(COPIERS)
            undo.callback(self._copiers.close)
            self._share = Share(exchange.world, self._own, stages, shape, self._copiers)
            send, self._links, loop = list[Any](), dict[int, Link](), asyncio.get_running_loop()
            for rank in range(exchange.world):
                if rank == exchange.rank:
                    later: Any = loop.call_soon
                    asker = self._share.enter(rank, self._answer_own)
                    send.append(partial(later, asker.receive))
                    continue
                link = self._links[rank] = Link(
                    socks[rank], rank, timeout_s, shape.id_bytes * sum(shape.rows_max), shape.wide,
                    len(row_bytes), partial(self._places_of, rank), partial(self._receive, rank),
                    partial(self._ended, rank),
                )  # fmt: skip
                undo.callback(link.abort)  # closing does not end a thread that receives
                self._share.enter(rank, link.answer)
                send.append(link.ask)
            self.buffer = ExchangedBuffer(exchange.owners, row_bytes, shape, send, empty)
            for link in self._links.values():
                link.start()
            self._taking_own = loop.create_task(self._take_own())
            undo.pop_all()

    @property
    def owner(self) -> str:  # type: ignore[override]
        """See `RankBuffers`; whom `ExchangedBuffer.awaited` asks."""
        return f"rank {self.buffer.late} does"

    @property
    def settings(self) -> RuntimeSettings:  # type: ignore[override]
        """See `Buffers.settings`."""
        return self._pool.settings

    # ---- what comes from the other ranks ----

    def _places_of(self, owner: int, key: tuple[int, int]) -> Any:
        return self.buffer.places_of(owner, key)

    def _receive(
        self, rank: int, for_owner: bool, message: Message, rows: Sequence[Int64Array] | None
    ) -> None:
        if self._closed:
            return
        try:
            if for_owner:
                self._share.askers[rank].receive(message, rows)
            else:
                self.buffer.receive(rank, message)
        except ProtocolError:
            self._links[rank].abort()

    def _answer_own(self, message: Message, rows: Rows) -> None:
        self._own_answers.put_nowait((message, rows))

    async def _take_own(self) -> None:
        """Take what this rank's own share answers, in order, as the other ranks' threads do."""
        while True:
            message, rows = await self._own_answers.get()
            if rows:
                key = message.epoch, message.step
                arriving = self.buffer.places_of(self._rank, key)
                for each, own in zip(arriving, rows, strict=True):
                    await self._copiers.run(each.land, 0, own.numpy().reshape(-1))
            self.buffer.receive(self._rank, message)
            del message, rows

    def _ended(self, rank: int, why: Exception | None) -> None:
        """The connection to a rank has ended; without `why`, by its goodbye."""
        if self._closed:
            return
        self._share.askers[rank].leave(lost=why is not None)
        said = CLOSED if why is None else f"has died, was killed or cannot be reached ({why})"
        self.buffer.lose(rank, PeerError(rank, said))

    # ---- what the runtime calls ----

    def stats(self) -> Counter[str]:
        """See `Buffers.stats`; of this rank's rows, for all ranks."""
        return self._pool.stats()

    async def unneeded(self) -> None:
        """See `Buffers.unneeded`. If the user has got all batches of an epoch, the others will get
        theirs, and are waited for; but not if an error has ended it, because they may wait for this
        rank elsewhere."""
        if self.buffer.finished and not self._closed:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._timeout_s):
                    await self._share.ended(self.buffer.epoch)

    async def drain(self) -> None:
        """Tell the other ranks that this one leaves, and end its share."""
        if not self._closed:
            self._closed = True
            for link in self._links.values():
                link.say_goodbye()
            await self._share.aclose()
            self._taking_own.cancel()
            await asyncio.wait([self._taking_own])
            await asyncio.gather(*(link.aclose() for link in self._links.values()))
            self._pool.give(self._own)
        await self._pool.drain()

    async def closed(self) -> None:
        """See `Buffers.closed`."""
        await self._pool.closed()

    async def close_tiers(self) -> None:
        """See `Buffers.close_tiers`."""
        await self._pool.close_tiers()

    async def close(self) -> None:
        """See `Buffers.close`."""
        await self.drain()
        self._copiers.close()
        await self._pool.close()
