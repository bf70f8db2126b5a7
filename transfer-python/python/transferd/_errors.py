"""What calls raise. Each class says what to do about it; `code` says what it was exactly."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

Fault = Literal["caller", "nobody", "operator"]


class Error(Exception):
    """A call that failed. All errors of this package are of this class."""

    code: str
    """What failed, as one word of docs/operations.md in small letters: "key_owned", "deadline", "arena_full"."""
    can_retry: bool
    """Whether the same call may succeed later with nothing changed by the caller."""
    fault: Fault
    """Who has to change something: the "caller", the "operator" of the sidecars and the network, or "nobody"."""
    key: str | None
    """The key, counter or barrier that the call was about."""
    waited: float | None
    """How long the call took, in seconds."""

    def __init__(
        self,
        text: str,
        code: str = "invalid",
        can_retry: bool = False,
        fault: Fault = "caller",
        key: str | None = None,
        waited: float | None = None,
    ) -> None:
        super().__init__(text)
        self.code, self.can_retry, self.fault, self.key, self.waited = code, can_retry, fault, key, waited

    def __str__(self) -> str:
        return str(self.args[0])

    def __reduce__(self) -> tuple[object, ...]:
        return make, (self.code, self.args[0], self.can_retry, self.fault, self.key, self.waited)


class Timeout(Error, TimeoutError):
    """It took longer than the call's `timeout`."""


class ArenaFull(Error, MemoryError):
    """No room in this worker's arena: drop or replace tensors, wait, or connect with a larger `arena`."""


class PeerLost(Error, ConnectionError):
    """The other node cannot be reached, or the link to it broke."""


class SidecarGone(Error):
    """The sidecar ended, or cannot be reached. What was fetched stays readable."""


class VersionGone(Error):
    """The version was replaced, deleted, or skipped."""


class KeyOwned(Error):
    """Another worker owns the key; see `takeover`."""


class RequireUnmet(Error):
    """The fabric that `require` names cannot carry it; the text says why."""


class Forked(Error):
    """The client, or the memory, belongs to the process that this one was forked from. Connect anew."""


class StillExported(Error, BufferError):
    """A view of the buffer lives, and could change what is published."""


class PermissionDenied(Error, PermissionError):
    """The tensor belongs to another tenant, or the sidecar that `init` found to another user."""


class NoDevice(Error):
    """There is no such GPU, or no CUDA driver; the text says what was looked for."""


class Committed(Error):
    """Another attempt of the task has committed. This one is dropped."""


class Lost(Error):
    """What some tasks of an exchange have committed is lost. Run `tasks` again, each as another attempt; then read on."""

    tasks: list[int]
    """The numbers of the tasks, in rising order."""

    def __init__(self, *arguments: object, tasks: Sequence[int] = ()) -> None:
        super().__init__(*arguments)  # type: ignore[arg-type]
        self.tasks = list(tasks)

    def __reduce__(self) -> tuple[object, ...]:
        return (*super().__reduce__(), {"tasks": self.tasks})


class ExchangeOver(Error):
    """The exchange was released, or its deadline has passed, or the worker that opened it is gone."""


class DestinationTorn(Error):
    """A fetch into a buffer, or of a state into arrays, has failed, and these may be half new. Nobody writes there any more; the text says why it
    failed."""

    tensors: list[str]
    """The names of the tensors that may be half new. A tensor that is no part of a state has its key as its name."""

    def __init__(self, *arguments: object, tensors: Sequence[str] = ()) -> None:
        super().__init__(*arguments)  # type: ignore[arg-type]
        self.tensors = list(tensors)

    def __reduce__(self) -> tuple[object, ...]:
        return (*super().__reduce__(), {"tensors": self.tensors})


class WrongDigest(Error):
    """The bytes that came are not those of which the push made its digests. None of them is returned; the text names the chunk."""


class NoDigest(Error):
    """The version has no digests, and the fetch requires them: its pusher has to make them, with `digest=`."""


class Invalid(Error, ValueError):
    """An argument that cannot be; the text says what would be right."""


_CLASSES: dict[str, type[Error]] = {
    "deadline": Timeout,
    "no_answer": Timeout,
    "unknown_key": Timeout,
    "arena_full": ArenaFull,
    "too_large_for_arena": ArenaFull,
    "peer_lost": PeerLost,
    "peer_unreachable": PeerLost,
    "sidecar_gone": SidecarGone,
    "connect": SidecarGone,
    "not_started": SidecarGone,
    "shutting_down": SidecarGone,
    "version_gone": VersionGone,
    "key_owned": KeyOwned,
    "require_unmet": RequireUnmet,
    "forked": Forked,
    "still_exported": StillExported,
    "permission_denied": PermissionDenied,
    "no_device": NoDevice,
    "committed": Committed,
    "lost": Lost,
    "not_committed": Timeout,
    "not_read": Timeout,
    "not_staged": Timeout,
    "over": ExchangeOver,
    "destination_torn": DestinationTorn,
    "wrong_digest": WrongDigest,
    "no_digest": NoDigest,
    "invalid": Invalid,
}


def make(code: str, text: str, can_retry: bool, fault: Fault, key: str | None, waited: float | None) -> Error:
    """The error with this code."""
    return _CLASSES.get(code, Error)(text, code, can_retry, fault, key, waited)
