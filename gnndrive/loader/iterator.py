"""`BatchIterator`: one epoch's batches; what `iter(loader)` and `aiter(loader)` return.

It starts the epoch in the `Runtime` and takes batches from its output queue. After a warm-up, and
at a batch that is larger than the plan counts, it ends the epoch, has the runtime make another
feature buffer, and starts the rest of the epoch with that.
"""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial
from itertools import chain
from math import inf
from typing import Any

from gnndrive.common.errors import BatchTooLarge, ClosedError, LateError
from gnndrive.common.records import Seeds
from gnndrive.exchange.exchanged_buffer import ExchangedBuffer
from gnndrive.host.remote_buffer import RemoteBuffer
from gnndrive.loader.arguments import OnStats
from gnndrive.loader.epoch_assembly import EpochAssembly
from gnndrive.loader.epoch_state import EpochState
from gnndrive.loader.ranks import Ranks
from gnndrive.loader.runtime import Runtime
from gnndrive.pipeline.batch_times import EpochTimes, Snapshot
from gnndrive.pipeline.epoch import Epoch
from gnndrive.pipeline.output_queue import LATE, OutputEnded
from gnndrive.sampling.schedules.base import Window

GAVE_WAY = (
    "another iterator of this loader was begun, and the host service has one feature buffer for it"
    ": use one iterator at a time, or give the loader host_service=False"
)
WENT_ON = (
    "rank {} went on with this epoch while this rank waited to begin another loader's, so it was "
    "ended here: leave an epoch on all ranks after the same batch, close its iterator first, or "
    "give the loader host_service=False"
)
COUNTED = ("batches", "bytes_read", "requests", "rows_hit", "rows_loaded")
"""The counters of `loader.stats()` whose increase `on_stats` gets."""
_of_ranks: list[weakref.ref[BatchIterator]] = []
"""Iterators whose epochs take turns with other ranks."""
WARM_UP = 3  # batches, after which training has used as much device memory as it will use


class Intervals:
    """Calls `on_stats` when `interval_s` seconds have passed, for all of a loader's iterators."""

    def __init__(self, runtime: Runtime, on_stats: OnStats, interval_s: float) -> None:
        self._read, self._times = runtime.stats, runtime.counters.times
        self._on_stats, self._interval_s = on_stats, interval_s
        self._lock = threading.RLock()
        self._counted, self._snapshot = self._now()

    def tell(self, ended: bool = False) -> None:
        """Call `on_stats` if an interval has passed, or the epoch has `ended`. It may raise."""
        with self._lock:
            passed_s = (self._times.clock() - self._snapshot.at_ns) / 1e9
            if passed_s < self._interval_s and not ended:
                return
            (before, earlier), (now, snapshot) = (self._counted, self._snapshot), self._now()
            self._counted, self._snapshot = now, snapshot
        interval_s = max(snapshot.at_ns - earlier.at_ns, 1) / 1e9
        counted = {name: now[name] - before[name] for name in COUNTED}
        self._on_stats(
            {
                "elapsed_s": now["elapsed_s"],
                "interval_s": interval_s,
                **counted,
                "batches_per_s": counted["batches"] / interval_s,
                **snapshot.since(earlier),
            }
        )

    def _now(self) -> tuple[dict[str, float], Snapshot]:
        read = self._read()
        counted = {name: float(read[name]) for name in (*COUNTED, "elapsed_s")}
        return counted, self._times.snapshot()


class ReplayableSeeds(Iterator[tuple[Window, Seeds]]):
    """The seeds of an epoch that may be run in several parts.

    At the end of a part, the pipeline has drawn seeds of batches that it has not delivered.
    `replay` yields these seeds again, then the others; `forget` drops those of delivered batches.
    """

    def __init__(self, batches: Iterator[tuple[Window, Seeds]]) -> None:
        self._batches, self._drawn = batches, deque[tuple[Window, Seeds]]()
        self._error: BaseException | None = None

    def __next__(self) -> tuple[Window, Seeds]:
        try:
            drawn = next(self._batches)
        except BaseException as error:
            # The end, or the user's error, which `replay` raises again behind the seeds so far.
            self._error = error
            raise
        self._drawn.append(drawn)  # another thread may forget it at once
        return drawn

    def forget(self, first: int) -> None:
        """Drop the seeds of the batches before `first`; any thread may call this."""
        while self._drawn and self._drawn[0][1].index < first:
            self._drawn.popleft()

    def replay(self, first: int) -> Iterator[tuple[Window, Seeds]]:
        """Yield the seeds of the batches from `first` on."""
        yield from [each for each in self._drawn if each[1].index >= first]
        if self._error is not None and not isinstance(self._error, StopIteration):
            raise self._error
        yield from self._batches


async def in_thread(batches: Iterator[Any]) -> AsyncIterator[Any]:
    """Yield the batches of an ordinary iterator for `async for`; each is made in a thread."""
    end = object()
    while (batch := await asyncio.to_thread(next, batches, end)) is not end:
        yield batch


class BatchIterator(Iterator[Any]):
    """One epoch's batches, for `for` and `async for`. Closing or dropping it ends the epoch.

    It counts the batches that it yields in `state`. After `timeout` seconds without a batch it
    raises LateError; 0: without limit, or after that of the process group if ranks share a buffer.
    """

    def __init__(
        self, loader: object, assembly: EpochAssembly, state: EpochState, timeout: float,
        intervals: Intervals | None,
    ) -> None:  # fmt: skip
        # In `for batch in NeighborLoader(…)` this is the only reference to the loader.
        self._loader = loader
        runtime, ranks = assembly.runtime, assembly.ranks
        self._runtime, self._assembly, self._state = runtime, assembly, state
        # A rank whose turn does not come is an error, as it is in a collective call.
        limit = ranks.timeout_s if runtime.shares_buffer else None
        self._ranks, self._timeout = ranks, timeout or limit
        self._times = EpochTimes(runtime.counters.times, runtime.timeline, state.epoch)
        self._intervals = intervals
        self._yielded = 0  # batches, by this iterator
        self._epoch_lock, self._closed = threading.Lock(), False
        # How many batches are yielded in a warm-up; None: there is none, or it has ended.
        self._warm_up_end = WARM_UP if runtime.warming_up else None
        self._between_parts: asyncio.Future[None] | None = None
        self._user = threading.get_ident()
        self._shared: RemoteBuffer | ExchangedBuffer | None = (
            None  # the feature buffer, if ranks share it
        )
        self._start(assembly.batches)

    def _start(self, batches: Iterator[tuple[Window, Seeds]]) -> None:
        """Start the epoch, or the rest of it, whose seeds are `batches`."""
        several = self._warm_up_end is not None or self._runtime.settings.limits is not None
        self._replayable = ReplayableSeeds(batches) if several else None
        self._rest = self._replayable or batches
        inputs = self._assembly.inputs(self._rest, self._yielded)
        self._runtime.begin(inputs, self._times, self._own)

    def _own(self, epoch: Epoch) -> None:
        """In the loop thread: a part of the epoch has begun."""
        self._epoch, self._output = epoch, epoch.output
        self._finalizer = weakref.finalize(self, self._runtime.drop, epoch)
        if self._closed:  # meanwhile, because the user's thread was interrupted
            self._runtime.drop(epoch)
        elif isinstance(epoch.buffer, RemoteBuffer | ExchangedBuffer):
            self._shared = epoch.buffer
            stop = self._runtime.stop
            self._shared.on_passed(lambda rank: stop(epoch, ClosedError(WENT_ON.format(rank))))
            _of_ranks.append(weakref.ref(self, _of_ranks.remove))

    def __iter__(self) -> BatchIterator:
        return self

    def _ask(self) -> bool:
        """The user asks for a batch, in this thread; tells whether the epoch is under way."""
        self._runtime.check_caller()
        self._tell()
        if (shared := self._shared) is not None:
            self._user = threading.get_ident()
            if isinstance(shared, ExchangedBuffer) and not self._closed:
                # It may be an error, after which no rank is waited for.
                shared.taken, shared.blamed = 0, -1
            if shared.ask_for(self._yielded, self._ranks.history.exchanges):
                self._runtime.loop_thread.call_soon(shared.say_passed)
        return not self._closed

    def _tell(self, ended: bool = False) -> None:
        """Call the user's `on_stats`, if it is time."""
        if self._intervals is None:
            return
        try:
            self._intervals.tell(ended)
        except BaseException:
            self.close()
            raise

    def __next__(self) -> Any:
        under_way, ended = self._ask(), False
        started = self._times.asked()
        try:
            if self._yielded == self._warm_up_end:
                self._end_warm_up()
            while True:
                try:
                    return self._deliver(self._output.get(self._timeout))
                except BatchTooLarge as error:
                    self._plan_again(error)
                except OutputEnded:
                    if not self._has_next_part:
                        raise
                    self._begin_next_part()
        except OutputEnded:
            self._finish()
            ended = under_way
            raise StopIteration from None
        except LateError as error:
            raise self._explained(error) from None
        except BaseException:
            self.close()
            raise
        finally:
            self._times.waited(started)
            if ended:
                self._tell(ended=True)

    @property
    def _has_next_part(self) -> bool:
        """Whether another part follows the one whose batches have ended."""
        return not self._closed and self._epoch.inputs.feed.following is not None

    def _begin_next_part(self) -> None:
        with self._epoch_lock:
            if self._closed:
                return
            self._end_part()
            inputs = self._assembly.next_part(self._epoch.inputs, self._rest)
            self._runtime.begin(inputs, self._times, self._own)

    def _end_part(self) -> None:
        self._finalizer.detach()
        self._runtime.end(self._epoch)

    def _explained(self, error: LateError) -> LateError:
        reason = self._runtime.late_reason()
        return LateError(f"{error} ({reason})") if reason else error

    def _deliver(self, batch: Any) -> Any:
        self._times.took(self._output.taken)
        self._yielded += 1
        if isinstance(self._shared, ExchangedBuffer):
            self._shared.taken = self._yielded
        self._state.batches += self._ranks.per_step
        if self._replayable is not None:
            self._replayable.forget(self._yielded)
        self._runtime.device.hand_over(batch)
        return batch

    def _end_warm_up(self) -> None:
        """Run the rest of the epoch with a larger feature buffer, in the device memory that
        training leaves. Batches stay the same, because they depend on their numbers only."""
        with self._epoch_lock:
            self._warm_up_end, replayable = None, self._replayable
            ended = self._closed or self._output.ended
            if replayable is None or ended or not self._runtime.runs_only(self._epoch):
                return
            self._end_part()
            self._epoch.inputs.feed.discard()
            self._runtime.grow()
            self._start(replayable.replay(self._yielded))

    def _plan_again(self, error: BatchTooLarge) -> None:
        """Run the rest of the epoch by a new plan, because the next batch is larger than the plan
        counts. The epoch has ended before that batch, so all batches before it are delivered."""
        with self._epoch_lock:
            if self._closed:
                return
            assert self._replayable is not None
            self._end_part()
            self._epoch.inputs.feed.discard()
            batches = self._replayable.replay(self._yielded)
            first = next(batches)
            self._assembly.plan_again(first[1], error.size)
            self._start(chain([first], batches))

    def __aiter__(self) -> BatchIterator:
        return self

    async def __anext__(self) -> Any:
        under_way, ended = self._ask(), False
        started, waiting = self._times.asked(), asyncio.timeout(self._timeout)
        try:
            if self._yielded == self._warm_up_end:
                self._in_a_thread(self._end_warm_up)
            while True:
                await self._part_begun()
                try:
                    async with waiting:
                        return self._deliver(await self._output.aget())
                except BatchTooLarge as error:
                    waiting = asyncio.timeout(self._timeout)
                    self._in_a_thread(partial(self._plan_again, error))
                except OutputEnded:
                    if not self._has_next_part:
                        raise
                    waiting = asyncio.timeout(self._timeout)
                    self._in_a_thread(self._begin_next_part)
        except TimeoutError:
            if not waiting.expired():  # making the batch raised it
                self.close()
                raise
            late = LateError(LATE.format(self._timeout))
            raise await asyncio.to_thread(self._explained, late) from None
        except OutputEnded:
            self._finish()
            ended = under_way
            raise StopAsyncIteration from None
        except Exception:  # not CancelledError: the task may ask again
            self.close()
            raise
        finally:
            self._times.waited(started)
            if ended:
                self._tell(ended=True)

    def _in_a_thread(self, change: Callable[[], None]) -> None:
        """Begin to end a part of the epoch and to start the next one."""
        if self._between_parts is None:
            self._between_parts = asyncio.ensure_future(asyncio.to_thread(change))

    async def _part_begun(self) -> None:
        """Wait until the next part has begun, if one is to. A cancelled task may ask again."""
        if self._between_parts is not None:
            try:
                await asyncio.shield(self._between_parts)
            finally:
                if self._between_parts.done():
                    self._between_parts = None

    def _finish(self) -> None:
        if not self._closed:  # else the user has closed it before the end
            self._state.finished = True
            if isinstance(self._shared, ExchangedBuffer):
                self._shared.taken = inf
        self.close()

    @classmethod
    def leave_all(cls, ranks: Ranks) -> None:
        """Until the coming exchange with other ranks, this thread asks no iterator for a batch."""
        here, group = threading.get_ident(), ranks.group
        if group is None:
            return
        for each in filter(None, [reference() for reference in list(_of_ranks)]):
            if each._user == here and each._ranks.group is group:
                each._leave(ranks.history.exchanges + 1)

    def _leave(self, exchange: int) -> None:
        assert self._shared is not None
        loop_thread, say = self._runtime.loop_thread, self._shared.say_away
        if not (self._closed or loop_thread.guard.forked):
            self._shared.leave_epoch()
            loop_thread.call_soon(partial(say, self._yielded, exchange))

    def give_way(self) -> None:
        """End the epoch because another one needs the buffer that ranks share."""
        with self._epoch_lock:
            self._runtime.end(self._epoch, ClosedError(GAVE_WAY))
            self._times.end()
            self._finalizer.detach()

    def close(self) -> None:
        """End the epoch and wait until all its reads and tasks have ended; idempotent. ConfigError
        in a forked child, and in a thread of the loader itself."""
        self._runtime.check_caller()
        with self._epoch_lock:
            self._closed = True
            self._runtime.end(self._epoch)
            self._times.end()
            self._epoch.inputs.feed.discard()  # else it is kept for a following part
            self._finalizer.detach()  # Ctrl-C that arrives while a finalizer runs may be lost
