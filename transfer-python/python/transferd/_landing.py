"""States that land in the arrays into which they are fetched, where these are memory of `Buffer`s.

All is checked before the first array is written. So the table of the state and its record are fetched first, and then exactly that version. A new
owner may have pushed another state under that number meanwhile. So the state is built of the record that came with the tensors, and checked again. What
fails from there on is a `DestinationTorn`.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from . import _native, _sharded, _torch, _tree
from ._arrays import is_masked
from ._errors import DestinationTorn, Error, Invalid, VersionGone
from ._native import Buffer, Report, Tensor
from ._spans import address_of
from ._state import Copy, Described, Plan, State, array, checked, copy_tensor, described, is_taken, landed, planned, words

_ATTEMPTS = 3
"""How often it is tried anew where the version is replaced meanwhile. Then the state is fetched as a whole."""
_SHORTEST = 64 << 10
"""The shortest run that lands in place, in bytes."""

Options = Callable[..., dict[str, Any]]
Target = tuple[str, int, str, Sequence[int], "Sequence[int] | None"]
"""A name, and where in a buffer what has it is fetched to: address, element type, shape, and strides in bytes."""


class _Layout(NamedTuple):
    """A version, as it is known before it is fetched."""

    version: int
    tensors: dict[str, Described]
    records: dict[str, Tensor]
    """What says what the state is beside its tensors, by the names of the records."""
    restore: Callable[[str, dict[str, Any]], dict[Any, Any]]
    """What makes the state of its tensors and records."""

    def state(self, key: str, tensors: Mapping[str, Any]) -> dict[Any, Any]:
        """The state that has these things where tensors are."""
        return self.restore(key, {**tensors, **self.records})


def land(client: _native.Client, key: str, into: Mapping[Any, Any], left: Options) -> Generator[Any, Any, State | None]:
    """Fetches a state into the arrays of `into`. None where nothing of it would land in place: then nothing was written."""
    if not _may_land(_leaves(into)):
        return None
    for _ in range(_ATTEMPTS):
        try:
            layout = yield from _layout(client, key, left)
            places = {} if layout is None else _places(layout, key, into)
            if layout is None or not places:
                return None
            targets = [_target(name, place, layout.tensors[name].dtype, layout.tensors[name].shape) for name, place in places.items()]
            (found, _, report), ways = yield client._fetch_bundle_into(key, targets, None, left(exactly=layout.version))
        except VersionGone:
            if left().get("exactly") is not None:
                raise
            continue
        try:
            _check_there(targets, places)
            return _state(layout, key, into, places, found, report, ways)
        except Exception as error:
            raise _torn(key, places, error) from error
    return None


def destination(key: str, target: Any, is_staged: bool) -> tuple[Target | None, str]:
    """Where a tensor lands in an array, or why it is copied there. Raises `Invalid` where the array cannot be written."""
    array(target)
    _check_free(key, target)
    if is_staged:
        return None, "copied: it landed beside first, as staged"
    if not _in_buffer(target):
        return None, "copied: the array is no part of a Buffer in which its elements rise"
    return _target(key, target, *described(target)), ""


def copied(key: str, tensor: Tensor, target: Any, why: str) -> tuple[Report, str]:
    """Copies a tensor that was fetched for it into an array. If it does not lie on this host, `why` it has not landed there."""
    has, wants = described(tensor), described(target)
    if has != wants:
        raise Invalid(f"key {key!r} has {words(has)}, and the destination is {words(wants)}")
    _check_free(key, target)
    copy_tensor(tensor, target, key)
    on_gpu = getattr(target, "is_cuda", False)
    landing = "copied: the version lies on this host" if _is_here(tensor.report) else why
    return tensor.report._with_copied(tensor.nbytes), landing.replace("copied:", "copied by the GPU:") if on_gpu else landing


def _check_free(key: str, target: Any) -> None:
    """Raises the error of a buffer that was pushed already where an array is a part of one."""
    if is_taken(target):
        raise Error(f"the buffer for {key!r} was pushed already, or fetched into", "pushed", False, "caller", key)


def arrived(at: Target, target: Any) -> None:
    """Checks that what has landed in an array is there, and says to torch that a tensor of its has been written."""
    name = at[0]
    try:
        _check_there([at], {name: target})
    except Invalid as error:
        raise _torn(name, {name: target}, error) from error
    note_change(target)


def _check_there(targets: Iterable[Target], arrays: Mapping[str, Any]) -> None:
    """Raises where an array is not where it was when its fetch began: what has come lies where the array was."""
    moved = [at[0] for at in targets if _target(at[0], arrays[at[0]], at[2], at[3])[1:] != tuple(at[1:])]
    if moved:
        names = f"{', '.join(map(repr, moved[:8]))}{' and others' if len(moved) > 8 else ''}"
        raise Invalid(f"the memory of the array for {names} is another one than when the fetch began: leave its memory and its shape as they are until the call has ended")


def note_change(target: Any) -> None:
    """Says to torch that a tensor of its has been written."""
    if _torch.is_tensor(target):
        _torch.note_change(target)


def land_sharded(
    client: _native.Client, key: str, into: Mapping[Any, Any], version: int, manifest: Sequence[Tensor], left: Options
) -> Generator[Any, Any, State | None]:
    """As `land`, for a sharded state of which this manifest was fetched."""
    if not _may_land(_leaves(into)):
        return None
    for _ in range(_ATTEMPTS):
        try:
            options = left(exactly=version)
            tensors: list[tuple[str, str, tuple[int, ...], int]] = yield _native._sharded_layout(client, key, options, manifest)
            records = {}
            if any(name.startswith(_sharded.TREE) for name, *_ in tensors):
                named = [(name, None) for name, *_ in tensors if name.startswith(_sharded.TREE)]
                records, _, _ = yield client._fetch_sharded(key, named, left(exactly=version), manifest)
            known = {name: Described(dtype, shape, nbytes) for name, dtype, shape, nbytes in tensors if name not in records}
            layout = _Layout(version, known, records, _sharded.restore)
            places = _places(layout, key, into)
            if not places:
                return None
            targets = [_target(name, place, known[name].dtype, known[name].shape) for name, place in places.items()]
            rest, beside = {}, None
            # Before the first array is written.
            if others := [(name, None) for name in known if name not in places]:
                rest, _, beside = yield client._fetch_sharded(key, others, left(exactly=version), manifest)
            _check_there(targets, places)
            asked = [(name, None) for name in places]
            (_, _, report), ways = yield client._fetch_sharded_into(key, targets, asked, left(exactly=version), manifest)
        except VersionGone:
            if left().get("exactly") is not None:
                raise
            before = version, _bytes_of(manifest)
            found, version, _ = yield client._fetch_bundle(key, None, left())
            manifest = list(found.values())
            # It is no sharded state any more, or has lost a rank.
            if list(found) != [_sharded.MANIFEST, _sharded.LAYOUTS] or (version, _bytes_of(manifest)) == before:
                raise
            continue
        try:
            _check_there(targets, places)
            state = _state(layout, key, into, places, {**rest, **records}, report, ways)
        except Exception as error:
            raise _torn(key, places, error) from error
        if beside is not None:
            state.report = state.report._with(beside)
        return state
    return None


def _bytes_of(tensors: Sequence[Tensor]) -> list[bytes]:
    return [bytes(memoryview(tensor._raw())) for tensor in tensors]


def land_parts(
    client: _native.Client, key: str, into: Mapping[Any, Any], given: Mapping[Any, Any], parts: Mapping[str, object],
    manifest: Sequence[Any] | None, options: Mapping[str, Any],
) -> Generator[Any, Any, State | None]:
    """Fetches slices of tensors into the arrays of `into`, and names in the state what is `given`. None where an array is none of a buffer, or a name
    or an array does not fit: then nothing was written, and who fetches it as a whole says why. `manifest` is what of a sharded state's was fetched
    already; None for another state."""
    if into.keys() != parts.keys() or not all(_in_buffer(target) for target in into.values()) or not _may_land(into.values()):
        return None
    targets = [_target(name, target, *described(target)) for name, target in into.items()]
    asked = list(parts.items())
    try:
        if manifest is None:
            (_, version, report), ways = yield client._fetch_bundle_into(key, targets, asked, dict(options))
        else:
            (_, version, report), ways = yield client._fetch_sharded_into(key, targets, asked, dict(options), manifest)
    except Invalid:
        return None
    try:
        _check_there(targets, into)
    except Invalid as error:
        raise _torn(key, into, error) from error
    for target in into.values():
        note_change(target)
    state = State(given, version, report)
    state.landings = {name: way for name, (way, _) in ways.items()}
    return state


def _is_here(report: Report) -> bool:
    """Whether a version was read where it lies, on this host. Over shared memory what is read so is not copied, and what is sent is."""
    return report.fabric == "local" or report.fabric == "shm" and report.copied == 0


def _target(name: str, target: Any, dtype: str, shape: Sequence[int]) -> Target:
    """Where a tensor of this type and shape is fetched to."""
    return name, address_of(target), dtype, shape, None if isinstance(target, Buffer) else _strides(target)


def _strides(target: Any) -> list[int]:
    """How many bytes lie from one index of each dimension to the next. Of one with one index, which may say anything, 0."""
    size, strides = (target.element_size(), target.stride()) if _torch.is_tensor(target) else (1, target.strides)
    return [stride * size if length > 1 else 0 for length, stride in zip(target.shape, strides)]


def time_left(options: Mapping[str, Any]) -> Options:
    """Makes the options of each request, with the time that is left."""
    timeout = options.get("timeout", 30.0)
    _native._check_seconds("timeout", timeout)
    until = None if timeout is None else time.monotonic() + timeout

    def left(exactly: int | None = None) -> dict[str, Any]:
        now = dict(options)
        if exactly is not None:
            now = {name: value for name, value in now.items() if name not in ("at_least", "after")} | {"exactly": exactly}
        return now if until is None else {**now, "timeout": max(0.0, until - time.monotonic())}

    return left


def _layout(client: _native.Client, key: str, left: Options) -> Generator[Any, Any, _Layout | None]:
    """What the state is that comes. None where it is not known before: it is no state, or lies on this host."""
    known = client._bundle_layout(key) or []
    record = [(_tree.RECORD, None)]
    try:
        found, version, report = yield client._fetch_bundle(key, record if any(name == _tree.RECORD for name, *_ in known) else [], left())
        if _is_here(report):
            return None
        tensors = {name: Described(dtype, shape, nbytes) for name, dtype, shape, nbytes in client._bundle_layout(key) or []}
        if _tree.RECORD in tensors and not found:
            found, _, _ = yield client._fetch_bundle(key, record, left(exactly=version))
    except Invalid:
        return None
    tensors.pop(_tree.RECORD, None)
    return _Layout(version, tensors, found, _tree.restore)


def _places(layout: _Layout, key: str, into: Mapping[Any, Any]) -> dict[str, Any]:
    """Which tensors land in place, and where. None of them where the state does not fit: who fetches it as a whole says why."""
    try:
        plan = checked(layout.state(key, layout.tensors), into)
    except (ValueError, KeyError, TypeError):
        return {}
    names = {id(tensor): name for name, tensor in layout.tensors.items()}
    copies: dict[int, list[Copy]] = {}
    for copy in plan.copies:
        copies.setdefault(id(copy.tensor), []).append(copy)
    # Tied entries are one tensor. It lands in one place.
    alone = (of[0] for of in copies.values() if len({copy.place for copy in of}) == 1)
    return {names[id(copy.tensor)]: copy.given for copy in alone if _fits(copy.given, copy.tensor)}


def _fits(target: Any, tensor: Any) -> bool:
    # numpy has a byte for each element of 4 bits.
    return _in_buffer(target) and _nbytes(target) == tensor.nbytes


def _nbytes(target: Any) -> int:
    return int(target.numel() * target.element_size() if _torch.is_tensor(target) else target.nbytes)


def _may_land(targets: Iterable[Any]) -> bool:
    """Whether something of these arrays may land in place. Short ones may be neighbours in a buffer."""
    return sum(_nbytes(target) for target in targets if _in_buffer(target)) >= _SHORTEST


def _in_buffer(target: Any) -> bool:
    """Whether an array is a part of a writable `Buffer`, in which its elements rise."""
    if isinstance(target, Buffer):
        return target.nbytes > 0 and not target.pushed and _native._in_buffer(address_of(target), target.nbytes) is True
    numpy = sys.modules.get("numpy")
    if _torch.is_tensor(target):
        if not _torch.lies_plainly(target):
            return False
        size = target.element_size()
    elif numpy is not None and isinstance(target, numpy.ndarray):
        # The bytes of a version are little-endian, as this host is.
        if not target.flags.writeable or not target.dtype.isnative or is_masked(target) or str(target.dtype) in _native._PACKED:
            return False
        size = target.itemsize
    else:
        return False
    if _nbytes(target) == 0:
        return False
    extent = size
    for length, stride in reversed(list(zip(target.shape, _strides(target)))):
        if length > 1 and stride < extent:
            return False
        extent += (length - 1) * stride
    return _native._in_buffer(address_of(target), extent) is True


def _leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, Mapping):
        for entry in value.values():
            yield from _leaves(entry)
    elif isinstance(value, (list, tuple)):
        for entry in value:
            yield from _leaves(entry)
    else:
        yield value


def _state(
    layout: _Layout, key: str, into: Mapping[Any, Any], places: Mapping[str, Any], found: dict[str, Tensor], report: Report, ways: Mapping[str, tuple[str, bool]]
) -> State:
    """The state that has come. What has not landed in place is copied."""
    came: dict[str, Any] = {**{name: layout.tensors[name] for name in places}, **found}
    layout = layout._replace(tensors=came, records={name: came.pop(name) for name in list(came) if name in layout.records})
    names = {id(tensor): name for name, tensor in came.items()}
    plan: Plan = planned(layout.state(key, came), into)
    for copy in plan.copies:
        if not isinstance(copy.tensor, Tensor) and copy.given is not places[names[id(copy.tensor)]]:
            raise Invalid(f"another owner has pushed another state as version {layout.version}, in which {copy.name!r} is another tensor")
    copied, landings = 0, []
    for copy in plan.copies:
        if isinstance(copy.tensor, Tensor):
            copy.make()
            copied += copy.tensor.nbytes
            landings.append((copy, _beside(copy)))
        else:
            note_change(copy.given)
            landings.append((copy, ways[names[id(copy.tensor)]][0]))
    state = State(layout.state(key, {name: places.get(name, tensor) for name, tensor in came.items()}), layout.version, report._with_copied(copied))
    state.landings = landed(landings, copied).landings
    return state


def _torn(key: str, places: Mapping[str, Any], error: Exception) -> DestinationTorn:
    """The error of a fetch that has failed when tensors had landed."""
    names = sorted(places)
    text = f"the arrays for {', '.join(map(repr, names[:8]))}{' and others' if len(names) > 8 else ''} of key {key!r} are new, and others may be: {error}"
    can_retry = isinstance(error, Error) and error.can_retry
    return DestinationTorn(text, "destination_torn", can_retry, error.fault if isinstance(error, Error) else "caller", key, tensors=names)


def _beside(copy: Copy) -> str:
    how = "copied by the GPU" if getattr(copy.target, "is_cuda", False) else "copied"
    if copy.tensor.nbytes < _SHORTEST:
        return f"{how}: it landed beside, since it has less than 64 KiB"
    return f"{how}: it landed beside, since its array is no part of a Buffer"
