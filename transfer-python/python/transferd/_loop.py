"""How the calls of a client wait in an event loop."""

from __future__ import annotations

import asyncio
from typing import Any, TypeVar

from . import _client, _native
from ._calls import Call
from ._errors import make
from ._native import Pending

T = TypeVar("T")


class Waiting:
    """A call that the event loop waits for."""

    def __init__(self, pending: Pending[Any], bell: _native.Bell, future: asyncio.Future[None]) -> None:
        self.pending, self.bell, self.future = pending, bell, future
        self.timer: asyncio.TimerHandle | None = None


class Loop:
    """Makes calls in the event loop that it was made in."""

    def __init__(self, client: _client.Client) -> None:
        self.client, self.loop = client, asyncio.get_running_loop()
        self._bell: _native.Bell | None = None
        self._waiting: dict[int, Waiting] = {}
        self._next = 0
        self.closed = False
        """Whether the client is being closed: no call begins any more."""

    def _current(self) -> _native.Bell:
        """The bell of the client's session: another one after a restart of the sidecar."""
        if self._bell is None or self._bell.incarnation != self.client.incarnation:
            self.detach()
            self._bell = bell = _native.Bell(self.client)
            for descriptor in bell.descriptors():
                self.loop.add_reader(descriptor, self._serve, bell)
            self._serve(bell)
        return self._bell

    def close(self) -> None:
        """Ends what waits, now that the client is closed."""
        self.detach()
        for number in list(self._waiting):
            self._step(number)

    def detach(self) -> None:
        if self._bell is not None:
            for descriptor in self._bell.descriptors():
                self.loop.remove_reader(descriptor)
            self._bell = None

    def _serve(self, bell: _native.Bell) -> None:
        woken, lives = bell.serve()
        if not lives:
            # It stays readable for ever. Calls that were under way have failed, and are among those that are woken.
            self.loop.remove_reader(bell.descriptors()[0])
        for number in woken:
            self._step(number)

    def _step(self, number: int) -> None:
        waiting = self._waiting.get(number)
        if waiting is None or waiting.future.done():
            return
        if waiting.timer is not None:
            waiting.timer.cancel()
        delay = waiting.pending._step(waiting.bell, number)
        if delay is None:
            waiting.future.set_result(None)
        else:
            waiting.timer = self.loop.call_later(delay, self._step, number)

    async def wait(self, pending: Pending[T]) -> T:
        if self.closed:
            pending.cancel()
            raise make("closed", "this client was closed; connect again", False, "caller", None, None)
        number, self._next = self._next, self._next + 1
        waiting = self._waiting[number] = Waiting(pending, self._current(), self.loop.create_future())
        try:
            self._step(number)
            await waiting.future
            return pending.result(0)
        finally:
            del self._waiting[number]
            if waiting.timer is not None:
                waiting.timer.cancel()
            pending.cancel()

    async def run(self, call: Call[T]) -> T:
        try:
            pending = next(call)
            while True:
                try:
                    value = await self.wait(pending)
                except BaseException as error:
                    pending = call.throw(error)
                else:
                    pending = call.send(value)
        except StopIteration as ended:
            result: T = ended.value
            return result
