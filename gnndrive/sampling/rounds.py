"""How sampling threads wait for each other: a stop token, a lock that it cancels, combined fetches.

The sample stage runs several samplers side by side, each in a worker thread, and a topology whose
indices are on disk (`topologies/direct.py`) makes them wait: for the sampler that reads now
(`CancellableLock`) and for the samples with which a fetch is combined (`CombinedFetch`). A loader
or iterator that closes sets a `StopToken`, which ends each of these waits.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Generic, TypeVar

from gnndrive.common.errors import ClosedError
from gnndrive.common.ffi import ffi, holding_gil

Request = TypeVar("Request")
STOPPED = "the sampler was stopped: its loader or iterator was closed"


class StopToken:
    """Signals cancellation; set at most once, by any thread.

    Attributes:
        flag: a C `int32_t *`, 1 once the token is set; C code that samples polls it.
    """

    def __init__(self) -> None:
        self.flag = ffi.new("int32_t *")
        self._lock = threading.Lock()
        self._calls: dict[object, Callable[[], object]] = {}

    def __bool__(self) -> bool:
        return bool(self.flag[0])

    def set(self) -> None:
        """Signal cancellation, and call each function that is registered with `calling` now."""
        with self._lock:
            holding_gil.gd_stop(self.flag)
            calls = list(self._calls.values())
        for call in calls:
            call()

    @contextmanager
    def calling(self, function: Callable[[], object]) -> Iterator[None]:
        """Have `set` call `function` within the `with` block; if the token is set already, it is
        called at once. It wakes the thread in the block, or cancels the reads that it waits for."""
        key = object()
        with self._lock:
            self._calls[key] = function
            stopped = bool(self)
        try:
            if stopped:
                function()
            yield
        finally:
            with self._lock:
                del self._calls[key]


class CancellableLock:
    """A lock whose waiting threads a stop token wakes with ClosedError.

    One sampler of a store fetches at a time, because two fetches at once would pass over the disk
    twice and need the memory of two plans. All edge types of the store share the lock.
    """

    def __init__(self) -> None:
        self._change = threading.Condition()
        self._taken = False

    @contextmanager
    def held(self, stop: StopToken) -> Iterator[None]:
        """Wait until the lock is free and hold it within the `with` block. ClosedError if `stop` is
        set before this thread gets the lock."""
        with stop.calling(self._wake_all), self._change:
            while self._taken and not stop:
                self._change.wait()
            if stop:
                raise ClosedError(STOPPED)
            self._taken = True
        try:
            yield
        finally:
            with self._change:
                self._taken = False
                self._change.notify_all()

    def _wake_all(self) -> None:
        with self._change:
            self._change.notify_all()


@dataclass(eq=False, slots=True)
class _Waiter(Generic[Request]):
    """A thread that waits in `CombinedFetch.fetch`.

    Attributes:
        source: what it fetches from; only requests to the same source are combined.
        taken: whether a thread, this one or another, carries the request out.
        done: whether the request was carried out, or failed with `error`.
    """

    source: object
    request: Request
    taken: bool = False
    done: bool = False
    error: BaseException | None = None


class Participant:
    """The membership of one sample in a combined fetch."""

    def __init__(self, leave: Callable[[Participant], object]) -> None:
        self._leave = leave

    def leave(self, *_: object) -> None:
        """Say that this sample requests nothing more, because it is drawn or was given up.
        Idempotent; may be the callback of a task or future, whose argument it ignores."""
        self._leave(self)


class CombinedFetch(Generic[Request]):
    """Samples that are drawn side by side and fetch together.

    A sorted pass over a file costs little more for four samples than for one, if each sample needs
    something from most parts of the file. So a request waits until every participant has made a
    request or has left; then one of the waiting threads carries out all requests to its source.

    Each participant must run in a thread of its own. If a participant gets no thread, the others
    wait for ever.
    """

    def __init__(self) -> None:
        self._change = threading.Condition()
        self._participants: set[Participant] = set()
        self._waiting: list[_Waiter[Request]] = []

    def join(self) -> Participant:
        """Add a participant; the others wait for its requests until it leaves."""
        participant = Participant(self._leave)
        with self._change:
            self._participants.add(participant)
        return participant

    def _leave(self, participant: Participant) -> None:
        with self._change:
            self._participants.discard(participant)
            self._change.notify_all()

    def fetch(
        self,
        source: object,
        request: Request,
        stop: StopToken,
        carry_out: Callable[[list[Request]], object],
    ) -> None:
        """Return when `request` has been carried out, by this thread or another participant's.

        Args:
            source: compared by identity; requests to the same source are carried out together.
            stop: ends the waiting with ClosedError; all participants must pass the same token.
            carry_out: carries out a list of requests. If it raises, every thread whose request was
                in the list raises the same exception object.
        """
        waiter = _Waiter(source, request)
        with stop.calling(self._wake_all):
            group = self._wait(waiter, stop)
            if group:
                self._carry_out(group, carry_out)
        error, waiter.error = waiter.error, None
        try:
            if error is not None:
                raise error
        finally:
            del error  # its traceback refers to this frame, and so to the request

    def _wait(self, waiter: _Waiter[Request], stop: StopToken) -> list[_Waiter[Request]]:
        """Wait, then return the waiters whose requests this thread must carry out: none if another
        thread carried out the request of `waiter`."""
        with self._change:
            self._waiting.append(waiter)
            self._change.notify_all()
            try:
                # A request that another thread carries out must end there, stopped or not, because
                # that thread accesses the sample of this one.
                while not (waiter.done or (not waiter.taken and (stop or self._is_leader(waiter)))):
                    self._change.wait()
                if waiter.done:
                    return []
                if stop:
                    raise ClosedError(STOPPED)
            except BaseException:
                if not waiter.taken:
                    self._waiting.remove(waiter)
                raise
            group = [each for each in self._waiting if each.source is waiter.source]
            self._waiting = [each for each in self._waiting if each.source is not waiter.source]
            for each in group:
                each.taken = True
            return group

    def _is_leader(self, waiter: _Waiter[Request]) -> bool:
        """Whether every participant waits, `waiter` longest: then it carries out the requests."""
        return len(self._waiting) >= len(self._participants) and self._waiting[0] is waiter

    def _carry_out(
        self, group: list[_Waiter[Request]], carry_out: Callable[[list[Request]], object]
    ) -> None:
        error: BaseException | None = None
        try:
            carry_out([waiter.request for waiter in group])
        except BaseException as raised:
            error = raised
        with self._change:
            for waiter in group:
                waiter.done, waiter.error = True, error
            self._change.notify_all()
        del error  # its traceback refers to this frame

    def _wake_all(self) -> None:
        with self._change:
            self._change.notify_all()
