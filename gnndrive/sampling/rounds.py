"""How sampling threads wait: for their turn, for each other, and no longer than they are wanted."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Generic, TypeVar

from gnndrive.common.errors import ClosedError
from gnndrive.common.ffi import ffi

Request = TypeVar("Request")
STOPPED = "the sampler was stopped: its loader or iterator was closed"


class StopToken:
    """Said once, that nobody wants the rest: C looks at `flag`, Python waits under `calling`."""

    def __init__(self) -> None:
        self.flag = ffi.new("int32_t *")
        self._lock = threading.Lock()
        self._calls: dict[object, Callable[[], object]] = {}

    def __bool__(self) -> bool:
        return bool(self.flag[0])

    def set(self) -> None:
        """Stop: every function under `calling` is called, now or when it gets there."""
        with self._lock:
            self.flag[0] = 1
            calls = list(self._calls.values())
        for call in calls:
            call()

    @contextmanager
    def calling(self, function: Callable[[], object]) -> Iterator[None]:
        """Within it `set` calls `function`, which ends what the calling thread waits for."""
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
    """Who fetches now: one sampler at a time, whichever edge type it is at."""

    def __init__(self) -> None:
        self._change = threading.Condition()
        self._taken = False

    @contextmanager
    def held(self, stop: StopToken) -> Iterator[None]:
        """Wait until no other sampler fetches.

        Raises:
            ClosedError: `stop` was set.
        """
        with stop.calling(self._look_again), self._change:
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

    def _look_again(self) -> None:
        with self._change:
            self._change.notify_all()


@dataclass(eq=False, slots=True)
class _Waiter(Generic[Request]):
    """A thread in a round.

    Attributes:
        what: it wants something of; only wishes of the same are carried out together.
        wish: what it wants.
        taken: whether a thread, it or another, is at it.
        done: whether it was carried out, or failed with `error`.
    """

    what: object
    request: Request
    taken: bool = False
    done: bool = False
    error: BaseException | None = None


class Participant:
    """A sample's place in its round."""

    def __init__(self, leave: Callable[[Participant], object]) -> None:
        self._leave = leave

    def leave(self, *_: object) -> None:
        """It will want nothing more: the sample is drawn, or never will be. Once or more often; a
        task or future may call it back."""
        self._leave(self)


class CombinedFetch(Generic[Request]):
    """Samples that are drawn side by side and fetch together.

    A sorted pass over a file costs little more for four samples than for one, if each wants some of
    all of it. So whoever wants something waits until all members do, or have left; then one of them
    carries out what all want of the same thing.

    All members must be able to run at once, each in a thread of its own, or those that run wait for
    ever for those that do not.
    """

    def __init__(self) -> None:
        self._change = threading.Condition()
        self._members: set[Participant] = set()
        self._waiting: list[_Waiter[Request]] = []

    def join(self) -> Participant:
        """A new member; others wait for it until it leaves."""
        member = Participant(self._leave)
        with self._change:
            self._members.add(member)
        return member

    def _leave(self, member: Participant) -> None:
        with self._change:
            self._members.discard(member)
            self._change.notify_all()

    def fetch(
        self,
        what: object,
        request: Request,
        stop: StopToken,
        carry_out: Callable[[list[Request]], object],
    ) -> None:
        """Return when `request` has been carried out, by this thread or another member's.

        Args:
            what: compared by identity: wishes of the same go together.
            wish: handed to `carry_out` together with others.
            stop: ends the waiting; the members of a round share it.
            carry_out: what it raises all raise whose wishes it was given, the same object.

        Raises:
            ClosedError: `stop` was set.
        """
        me = _Waiter(what, request)
        with stop.calling(self._look_again):
            group = self._wait(me, stop)
            if group:
                self._carry_out(group, carry_out)
        error, me.error = me.error, None
        try:
            if error is not None:
                raise error
        finally:
            del error  # its traceback knows this frame, and so the wish

    def _wait(self, me: _Waiter[Request], stop: StopToken) -> list[_Waiter[Request]]:
        """Those whose wishes this thread is to carry out; none: its own was, by another."""
        with self._change:
            self._waiting.append(me)
            self._change.notify_all()
            try:
                # What another thread is at must end there: it looks at this one's sample.
                while not (me.done or (not me.taken and (stop or self._leads(me)))):
                    self._change.wait()
                if me.done:
                    return []
                if stop:
                    raise ClosedError(STOPPED)
            except BaseException:
                if not me.taken:
                    self._waiting.remove(me)
                raise
            group = [waiter for waiter in self._waiting if waiter.what is me.what]
            self._waiting = [waiter for waiter in self._waiting if waiter.what is not me.what]
            for waiter in group:
                waiter.taken = True
            return group

    def _leads(self, me: _Waiter[Request]) -> bool:
        """Whether all members are here, `me` first: then those at work have nothing to add."""
        return len(self._waiting) >= len(self._members) and self._waiting[0] is me

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
        del error  # its traceback knows this frame

    def _look_again(self) -> None:
        with self._change:
            self._change.notify_all()
