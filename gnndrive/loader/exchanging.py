"""How a loader uses an exchange (`gnndrive.exchange`): its ranks connect, and share their rows."""

from __future__ import annotations

import asyncio
import socket
import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from gnndrive.buffer.devices.base import Device
from gnndrive.buffer.feature_buffer import FeatureBuffer
from gnndrive.common.array_pool import Allocate
from gnndrive.common.errors import ConfigError, PeerError
from gnndrive.common.owners import Owners
from gnndrive.common.plugins import find
from gnndrive.common.records import Int32Array
from gnndrive.exchange.exchanged_buffer import ExchangedBuffer
from gnndrive.exchange.items import COPIERS, Exchange
from gnndrive.exchange.links import Address, Link, Meeting
from gnndrive.exchange.pulled_rows import PulledRows
from gnndrive.exchange.remote_rows import RemoteRows
from gnndrive.exchange.share import NOTHING, Asked, Rows, Share
from gnndrive.host.arena import ArenaShape
from gnndrive.host.messages import Kind, Message, ProtocolError
from gnndrive.host.start import host_identity
from gnndrive.loader.buffer_pool import BufferPool
from gnndrive.loader.ranks import TIMEOUT_S, Ranks, check_same
from gnndrive.loader.settings import RuntimeSettings
from gnndrive.loader.sharing import SPARE_PLACES, RankBuffers
from gnndrive.pipeline.workers import ThreadWorkers
from gnndrive.plan.request import batch_entries_max
from gnndrive.store.feature_tables import FeatureTable
from gnndrive.store.reader import Store

STRIDE = "stride"
CLOSED = (
    "has closed its loader or left it in the middle of an epoch, and owns rows that this one needs"
)
BLAMED = "is late, has closed its loader or has died, says rank {}, which has closed its own"
BEHIND = (
    "closing this loader waits, for at most {timeout:g} s, until ranks {ranks} have as many "
    "batches of the epoch: have them ask for these, or close their loaders"
)
TELL_S = 30.0  # that closing waits before it says why
STAGED = (
    "this GPU cannot read the slots of rank {rank}, so its rows go through host memory, of which "
    "that takes more than the plan says: {error}"
)


def exchange_of(
    wanted: bool | str, ranks: Ranks, tables: Sequence[FeatureTable], why_not: str, store: Store,
    places: Sequence[int] | None, kept_bytes: int = 0,
) -> Exchange | None:  # fmt: skip
    """What `exchange=` asks for, or a shard needs; None: nothing is exchanged, also because there
    is one rank. ConfigError if it cannot be had: `why_not`, if that is known, or because of the
    ranks. `places`: see `places_of`; None: they are not known yet. `kept_bytes`: see
    `Exchange`."""
    parts = {each.name: each.parts for each in tables if each.parts is not None}
    if ranks.group is None and ranks.world > 1:
        why_not = "ranks= is not given"
    if parts:
        _check_parts(store, next(iter(parts)), ranks, why_not, wanted)
    elif not wanted:
        if kept_bytes:
            raise ConfigError(
                "remote_cache= is for ranks that exchange rows: leave it out, or give exchange=True"
            )
        return None
    elif why_not:
        raise ConfigError(f"exchange={wanted!r} cannot be had, because {why_not}: leave it out")
    if ranks.group is None or not tables:
        return None
    owners = {
        each.name: Owners.of(each.rows, each.file.row_bytes, ranks.world, wanted == STRIDE)
        if each.parts is None
        else replace(each.parts, world=ranks.world)
        for each in tables
    }
    shard = store.info.shard
    if places is None:  # for a plan, to which only this rank's counts
        places = range(ranks.world) if shard is None else [shard.index] * ranks.world
    return Exchange(owners, ranks.rank, places, parts, kept_bytes)


def _check_parts(
    store: Store, table: str, ranks: Ranks, why_not: str, wanted: bool | str
) -> None:  # fmt: skip
    """Raise ConfigError if a shard's loader cannot exchange rows."""
    if ranks.group is None:
        assert store.info.shard is not None
        raise ConfigError(
            f"{store.lacking(table)}, which ranks that open the other parts send: give ranks=True, "
            f"and start torchrun with --nnodes {store.info.shard.shards}; or use the whole store"
        )
    if why_not:
        raise ConfigError(
            f"{store.lacking(table)}, which ranks cannot send to each other, because {why_not}: "
            "change that, or use the whole store"
        )
    if wanted is False:
        raise ConfigError(f"exchange=False: {store.lacking(table)}: leave it out")
    if wanted == STRIDE:
        raise ConfigError(
            f"exchange={wanted!r}: {store.path} is a part of a store that was divided in stretches:"
            " leave it out"
        )


def places_of(shards: Sequence[tuple[int, int] | None]) -> tuple[int, ...]:
    """Which of the owners each rank is, from its shard's number and how many there are; None: it
    has the whole store. A rank owns rows that its shard has. ConfigError unless each shard is
    there, with as many ranks as the others."""
    indices, count = [each[0] for each in shards if each], shards[0][1] if shards[0] else 0
    if len(indices) < len(shards):
        return tuple(range(len(shards)))
    ranks = {index: indices.count(index) for index in range(count)}
    if len(set(ranks.values())) > 1:
        opened = ", ".join(f"part {index} by {each}" for index, each in ranks.items())
        raise ConfigError(
            f"the ranks have a store in {count} parts, and not as many have opened each: {opened}. "
            "Open on each host the part that was made for it, and start as many ranks on each"
        )
    return tuple(index + count * indices[:rank].count(index) for rank, index in enumerate(indices))


class Exchanging:
    """A rank's connections to the others, until `buffers` uses them. A collective call: each rank
    makes one. ConfigError if one cannot be reached."""

    def __init__(self, ranks: Ranks, settings: RuntimeSettings) -> None:
        request, stages = settings.request, settings.stages
        assert request.exchange is not None
        self.exchange = request.exchange
        self.foreseen = [name for name in self.exchange.owners if settings.foresees(name)]
        self._timeout_s = ranks.timeout_s or TIMEOUT_S
        rows_max = batch_entries_max(request, request.bounds)
        needs: dict[str, Any] = {
            "the owners of rows": {n: repr(each) for n, each in self.exchange.owners.items()},
            "the most rows of a batch": rows_max,
            "tables whose next uses are known": self.foreseen,
        }
        places = stages.extracting_queue + stages.training_queue + SPARE_PLACES
        self._ranks, plugin = ranks, settings.request.device[0]
        host = None
        if find("devices", plugin).pulls and self.exchange.pulls:
            host = host_identity()
        error: Exception | None = None
        meeting, address = None, Address("", 0, b"")
        self._socks: dict[int, socket.socket] = {}
        with ExitStack() as undo:
            try:
                meeting = undo.enter_context(Meeting())
                address = meeting.address
            except Exception as caught:
                error = caught
            told = needs, places, address, host
            everyone = ranks.all_or_none("finding the ranks", told, error)
            check_same([each for each, *_ in everyone])
            self._hosts = [each for *_, each in everyone]
            assert meeting is not None
            try:
                self._socks = meeting.connect(ranks.rank, [each for _, _, each, _ in everyone])
            except Exception as caught:
                error = caught
            try:
                ranks.all_or_none("connecting the ranks", None, error)
            except BaseException:
                self.close()
                raise
        wide = max(each.rows for each in self.exchange.owners.values()) >= 1 << 31
        places = max(each for _, each, _, _ in everyone)
        self.shape = ArenaShape(places, rows_max, wide)
        planned = zip(request.tables, batch_entries_max(request, request.planned), strict=True)
        self.kept_slots = self.exchange.kept_slots(
            [(each.name, each.file.row_bytes, most) for each, most in planned]
        )

    def buffers(self, pool: BufferPool, device: Device, empty: Allocate) -> ExchangeBuffers:
        """Begin to serve the other ranks, in the loop thread."""
        socks, self._socks = self._socks, {}
        return ExchangeBuffers(pool, self, socks, self._timeout_s, device, empty)

    def open_slots(
        self, buffers: ExchangeBuffers | Exception, call: Callable[..., Any] = lambda _: None
    ) -> None:
        """Have the ranks of each host open each other's slots on GPUs, before they ask for rows. A
        collective call, with the error of a rank that has no `buffers`, which is raised. `call` has
        the loop thread await something."""
        if not any(self._hosts):  # the ranks have no GPUs, or slots in host memory
            return
        exported, rank = None, self._ranks.rank
        failed = buffers if isinstance(buffers, Exception) else None
        if not isinstance(buffers, Exception):
            exported = call(buffers.export())
        everyone = self._ranks.all_or_none("telling where the slots are", exported, failed)
        assert not isinstance(buffers, Exception)
        near = [n for n, host in enumerate(self._hosts) if host and host == self._hosts[rank]]
        for why in call(buffers.open({n: everyone[n] for n in near})):
            warnings.warn(why, stacklevel=2)

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
        device: Device, empty: Allocate,
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
            self._copiers, self._allocating = ThreadWorkers(COPIERS), ThreadWorkers(1)
            undo.callback(self._copiers.close)
            undo.callback(self._allocating.close)
            foreseen = {name: exchange.count(name) for name in given.foreseen}
            self._share = Share(
                exchange.world, self._own, stages, shape, self._copiers, given.foreseen, empty
            )
            self._pulls = PulledRows(device, self._copiers)
            self._places, send = exchange.places, dict[int, Any]()
            self._links, loop = dict[int, Link](), asyncio.get_running_loop()
            for rank, place in enumerate(exchange.places):
                if rank == exchange.rank:
                    later: Any = loop.call_soon
                    asker = self._share.enter(rank, self._answer_own)
                    send[place] = partial(later, asker.receive)
                    continue
                link = self._links[rank] = Link(
                    socks[rank], rank, timeout_s, sum(shape.rows_max), shape.wide, [*row_bytes],
                    foreseen, partial(self._places_of, place), partial(self._receive, rank),
                    partial(self._ended, rank),
                )  # fmt: skip
                undo.callback(link.abort)  # closing does not end a thread that receives
                self._share.enter(rank, link.answer)
                send[place] = link.ask
            self._device, self._send = device, send
            by_place = [send[place] for place in sorted(send)]
            own = exchange.places[exchange.rank]
            kept = {
                name: RemoteRows(
                    exchange.owners[name].rows, own, slots, row_bytes[name], self._copiers
                )
                for name, slots in given.kept_slots.items()
            }
            self.buffer = ExchangedBuffer(
                exchange.owners,
                row_bytes,
                shape,
                by_place,
                empty,
                exchange.rank,
                given.foreseen,
                device,
                kept,
                self._allocating,
            )
            for link in self._links.values():
                link.start()
            self._taking_own = loop.create_task(self._take_own())
            self._taking_own.add_done_callback(self._own_ended)
            undo.pop_all()

    # ---- slots on GPUs; see `Exchanging.open_slots`

    async def export(self) -> Any:
        """What other ranks of this host open this rank's slots with, or a text why they cannot."""
        try:
            return self._device.export_slots(self._own_slots())
        except Exception as error:  # of torch, or of the driver
            return f"GPU memory cannot be exported ({error})"

    def _own_slots(self) -> list[torch.Tensor]:
        shared = (table.memory.shared for table in self._own.tables.values())
        return [each for each in shared if each is not None]

    async def open(self, exported: Mapping[int, Any]) -> list[str]:
        """Open what ranks of this host have exported, and say so to them; why not, if a rank's
        cannot be opened. ConfigError: there is no memory for rows that go through the host's."""
        refused, pulled = list[str](), set[int]()
        for rank, each in exported.items():
            try:
                if rank == self._rank:  # whether or not others can have it
                    self._pulls.add(rank, self._own_slots())
                elif isinstance(each, str):
                    raise ConfigError(each)
                else:
                    self._pulls.open(rank, each)
            except Exception as error:
                refused.append(STAGED.format(rank=rank, error=error))
            else:
                pulled.add(self._places[rank])
                self._send[self._places[rank]](Message(Kind.PULLS), NOTHING)
        self.buffer.pulled = pulled
        if len(pulled) < len(self._places):  # as likely this rank's are not opened by all
            self._share.copies()
        return refused

    def _pull(self, rank: int, message: Message, slots: Sequence[Int32Array]) -> None:
        """Copy a batch's rows out of a rank's slots, and tell that rank."""
        place, pulled = self._places[rank], replace(message, kind=Kind.PULLED)
        key = message.epoch, message.step

        def ended(error: Exception | None) -> None:
            if error is not None:
                self.buffer.spoil(key, error)
            self._send[place](pulled, NOTHING)

        try:
            arriving = self.buffer.places_of(place, key)
        except KeyError:  # the owner has been lost
            ended(None)
            return
        self._pulls.pull(rank, arriving, slots, ended)

    @property
    def owner(self) -> str:  # type: ignore[override]
        """See `RankBuffers`; whom `ExchangedBuffer.awaited` asks."""
        return f"rank {self._places.index(self.buffer.late)} does"

    async def _awaited(self) -> int:
        self.buffer.blamed = self._places.index(self.buffer.late)
        self.buffer.blamed = await super()._awaited()
        return self.buffer.blamed

    @property
    def _blamed(self) -> int:
        broken = self.buffer.broken
        return broken.rank if isinstance(broken, PeerError) else self.buffer.blamed

    @property
    def settings(self) -> RuntimeSettings:  # type: ignore[override]
        """See `Buffers.settings`."""
        return self._pool.settings

    # ---- what comes from the other ranks ----

    def _places_of(self, owner: int, key: tuple[int, int]) -> Any:
        return self.buffer.places_of(owner, key)

    def _receive(self, rank: int, for_owner: bool, message: Message, asked: Asked) -> None:
        if self._closed:
            return
        try:
            if for_owner:
                self._share.askers[rank].receive(message, asked)
            elif message.kind is Kind.SLOTS:
                self._pull(rank, message, asked.slots)
            else:
                self.buffer.receive(self._places[rank], message)
        except ProtocolError as error:
            self._links[rank].abort(error)

    def _answer_own(self, message: Message, rows: Rows) -> None:
        self._own_answers.put_nowait((message, rows))

    async def _take_own(self) -> None:
        """Take what this rank's own share answers, in order, as the other ranks' threads do."""
        while True:
            message, rows = await self._own_answers.get()
            if message.kind is Kind.SLOTS:
                self._pull(self._rank, message, [each.numpy() for each in rows])
                continue
            if rows:
                key = message.epoch, message.step
                arriving = self.buffer.places_of(self._places[self._rank], key)
                for each, own in zip(arriving, rows, strict=True):
                    await self._copiers.run(each.land, 0, own.numpy().reshape(-1))
            self.buffer.receive(self._places[self._rank], message)
            del message, rows

    def _own_ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self.buffer.lose(self._places[self._rank], error)

    def _ended(self, rank: int, why: Exception | None) -> None:
        """The connection to a rank has ended; without `why`, by its goodbye."""
        if self._closed:
            return
        self._share.askers[rank].leave(lost=why is not None)
        self._pulls.shut(rank)
        blamed = self._links[rank].blamed
        if why is not None:
            error = PeerError(rank, f"has died, was killed or cannot be reached ({why})")
        elif blamed in self._links and blamed != rank:
            error = PeerError(blamed, BLAMED.format(rank))
        else:  # it blames none, itself or this one
            error = PeerError(rank, CLOSED)
        self.buffer.lose(self._places[rank], error)

    # ---- what the runtime calls ----

    def stats(self) -> Counter[str]:
        """See `Buffers.stats`; of this rank's rows, for all ranks."""
        return self._pool.stats()

    async def unneeded(self) -> None:
        """See `Buffers.unneeded`. The others will get as many batches as this rank's user, and are
        waited for; but not if an error has ended the epoch, because they may wait for this rank
        elsewhere."""
        if self._closed:
            return
        passed = self.buffer.epoch, self.buffer.taken
        telling = asyncio.get_running_loop().call_later(TELL_S, self._tell_behind, *passed)
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._timeout_s):
                    await self._share.passed(*passed)
        finally:
            telling.cancel()

    def _tell_behind(self, epoch: int, taken: float) -> None:
        ranks = ", ".join(map(str, self._share.behind(epoch, taken)))
        warnings.warn(BEHIND.format(ranks=ranks, timeout=self._timeout_s), stacklevel=2)

    async def drain(self) -> None:
        """Tell the other ranks that this one leaves, and end its share."""
        if not self._closed:
            self._closed = True
            self._taking_own.cancel()
            await asyncio.wait([self._taking_own])
            await self._pulls.aclose()  # before the others hear that their slots are not used
            blamed = self._blamed
            for link in self._links.values():
                link.say_goodbye(blamed)
            await self._share.aclose()
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
        self._allocating.close()
        self.buffer.close()  # a closed loader may live on, for its numbers
        await self._pool.close()
