"""What `fetch_state` returns: a state of one version, and how it is copied into another one."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, MutableMapping
from functools import partial
from typing import Any, NamedTuple

from . import _torch, _tree
from ._arrays import is_masked, view
from ._errors import Invalid
from ._native import Buffer, Foreign, Report, Tensor, _in_buffer
from ._spans import Span, check_apart, span_of


class Landed(NamedTuple):
    """How the tensors of a state came into the memory of the caller."""

    landings: dict[str, str]
    """How each came there, by its name in the state, and why not in place."""
    copied: int
    """The bytes that were copied for it in this process, or by a GPU."""


class State(dict[Any, Any]):
    """What `fetch_state` returns: the state as it was pushed, with `Tensor`s where tensors were, all of one version."""

    version: int
    """Their version."""
    report: Report
    """How the fetch of all of them went, with the copies of `into`."""
    landings: dict[str, str]
    """How each tensor came into `into`, by its name, and why not in place. Empty without `into`. What came in place is in this state as the array
    of `into`."""

    def __init__(self, entries: Mapping[Any, Any], version: int, report: Report) -> None:
        super().__init__(entries)
        self.version, self.report, self.landings = version, report, {}

    def __repr__(self) -> str:
        what = "tensors" if all(isinstance(value, Tensor) for value in self.values()) else "entries"
        return f"<State of {len(self)} {what}, version {self.version}>"

    def copy_into(self, into: Mapping[Any, Any]) -> Landed:
        """Copies the state into one that has the same entries: its tensors into arrays of numpy, of torch, or `Buffer`s. What is no tensor is
        put into the dicts and lists of `into`. What those do not have is left out.

        Raises `KeyError` where the state has no such entry, and `ValueError` where a shape, an element type or a length is another one, where
        an array cannot be written (one that is read-only, broadcast, masked, fetched, or pushed already), where two tensors that differ
        would be written to one memory, or where a tuple has another value. All is checked first, so nothing was written then. What a dict of
        `into` raises, where it does not take a value, comes before the first array is written.
        """
        plan = planned(self, into)
        for copy in plan.copies:
            copy.make()
        return landed([(copy, copy.landing()) for copy in plan.copies], sum(copy.tensor.nbytes for copy in plan.copies))

    def land_in(self, into: Mapping[Any, Any]) -> None:
        """Copies the state into `into`, and counts it in `landings` and the report."""
        self.landings, copied = self.copy_into(into)
        self.report = self.report._with_copied(copied)


def copy_tensor(tensor: Tensor, target: Any, name: str) -> None:
    """Copies a tensor, which errors call `name`, into an array as `State.copy_into` does."""
    _copy(tensor, _fitting(tensor, target, name))


class Described:
    """A tensor of a state that is not there yet."""

    def __init__(self, dtype: str, shape: tuple[int, ...], nbytes: int) -> None:
        self.dtype, self.shape, self.nbytes = dtype, shape, nbytes


class Copy(NamedTuple):
    """A tensor that has to be copied, and where to."""

    path: tuple[Any, ...]
    name: str
    tensor: Any
    """A `Tensor`, or one that is `Described`."""
    given: Any
    """The entry of `into`."""
    target: Any
    """What is written."""
    place: tuple[object, ...]
    """Where the target lies, and with which strides. Two targets of one place are the same memory, while both live."""

    def make(self) -> None:
        _copy(self.tensor, self.target)

    def make_ranges(self, ranges: list[tuple[int, int]]) -> int:
        """Makes the copy of these ranges of its bytes, or of all where it or what is written does not lie in one piece in the host's memory. Returns how
        many bytes it has copied."""
        nbytes: int = self.tensor.nbytes
        is_part = ranges != [(0, nbytes)] and not self.tensor._is_slice
        flat = _flat(self.target, nbytes) if is_part else None
        if flat is None:
            self.make()
            return nbytes
        source = memoryview(self.tensor._raw()).cast("B")
        for begin, end in ranges:
            flat[begin:end] = source[begin:end]
        return sum(end - begin for begin, end in ranges)

    def landing(self) -> str:
        """How the copy was made, and why the tensor has not landed there at once."""
        report = self.tensor.report
        # Over shared memory what is read where it lies is not copied, and what is sent is.
        if report.fabric == "local" or report.fabric == "shm" and report.copied == 0:
            why = "the version lies on this host"
        else:
            why = "a state lands as a whole before its first tensor is written"
        how = "copied by the GPU" if getattr(self.target, "is_cuda", False) else "copied"
        return f"{how}: {why}"


def landed(landings: Iterable[tuple[Copy, str]], copied: int) -> Landed:
    """Names how each tensor came. Where two have one name, as "a/b" and "b" in "a", `~` is behind the second."""
    named: dict[str, str] = {}
    for copy, landing in landings:
        name = copy.name
        while name in named:
            name += "~"
        named[name] = landing
    return Landed(named, copied)


class Plan(NamedTuple):
    """What has to be done to copy a state."""

    copies: list[Copy]
    values: list[tuple[Callable[[Any], object], Any]]
    spans: list[Span]


def checked(state: Mapping[Any, Any], into: Mapping[Any, Any]) -> Plan:
    """Checks that a state can be copied into another one. Nothing is written yet."""
    plan = Plan([], [], [])
    _match(state, into, (), None, plan)
    check_apart(plan.spans)
    return plan


def planned(state: Mapping[Any, Any], into: Mapping[Any, Any]) -> Plan:
    """Checks that a state can be copied into another one, and puts what is no tensor there. No tensor is written yet."""
    plan = checked(state, into)
    # These are classes of the caller's, which may refuse a value.
    for put, value in plan.values:
        put(value)
    return plan


def _match(found: Any, target: Any, path: tuple[Any, ...], put: Callable[[Any], object] | None, plan: Plan) -> None:
    """Plans how `found`, an entry of a state, is copied into `target`, whose container takes another value by `put`, if it does."""
    name = _tree.shown(_tree.joined(path))
    if isinstance(found, (Tensor, Described)):
        writable = _fitting(found, target, name)
        place: tuple[object, ...] = ()
        if found.nbytes > 0:
            span = span_of(target, name, found)
            plan.spans.append(span)
            place = span.place()
        plan.copies.append(Copy(path, _tree.joined(path), found, target, writable, place))
        return
    is_dict = isinstance(found, dict)
    if not (isinstance(target, Mapping) if is_dict else type(target) is type(found) or _is_plain(found) and _is_plain(target)):
        raise Invalid(f"{name} is a {type(found).__name__} in the state and a {type(target).__qualname__} where it shall be copied")
    if is_dict:
        if missing := [key for key in target if key not in found]:
            where = f"no {_tree.joined((*path, missing[0]))!r} ({len(missing)} of {len(target)} names are missing)"
            raise KeyError(f"the state has {where}")
        into = target if isinstance(target, MutableMapping) else None
        for key in target:
            _match(found[key], target[key], (*path, key), None if into is None else partial(into.__setitem__, key), plan)
    elif isinstance(found, (list, tuple)):
        if len(found) != len(target):
            raise Invalid(f"{name} has {len(found)} entries in the state and {len(target)} where it shall be copied")
        for at, item in enumerate(found):
            _match(item, target[at], (*path, at), partial(target.__setitem__, at) if type(target) is list else None, plan)
    elif put is not None:
        plan.values.append((put, found))
    elif type(found) is not type(target) or (repr(found) != repr(target) if type(found) is float else found != target):
        has_value, wants_value = _tree.shown(found), _tree.shown(target)
        raise Invalid(f"{name} is {has_value} in the state and {wants_value} where it shall be copied, in what cannot be changed")


def _fitting(found: Tensor | Described, target: Any, name: str) -> Any:
    """What a tensor is copied into. Raises `Invalid` where it does not fit."""
    try:
        held = writable(target)
    except Invalid as error:
        raise Invalid(f"cannot copy into {name}: {error}") from None
    has, wants = described(found), described(target)
    if has != wants:
        raise Invalid(f"{name} is {words(has)} in the state and {words(wants)} where it shall be copied")
    return held


def _is_plain(value: Any) -> bool:
    """Whether it is one value, and no array of any library."""
    numpy = sys.modules.get("numpy")
    plain = isinstance(value, (int, float, str, bytes, type(None)))
    return plain or numpy is not None and isinstance(value, numpy.generic)


class Held(NamedTuple):
    """A buffer that nothing can push, since a view of it lives."""

    buffer: Buffer
    view: memoryview


def writable(target: Any) -> Any:
    """What a tensor is copied into: the array itself, or the memory of a buffer, which nothing can push meanwhile."""
    held = array(target)
    if is_taken(target):
        raise Invalid("the Buffer of which the array is a part was pushed already, or is fetched into")
    return held


def is_taken(target: Any) -> bool:
    """Whether an array of `array` is a part of a `Buffer` that was pushed, or is fetched into. Others read or write it then."""
    if isinstance(target, Buffer) or 0 in target.shape or getattr(target, "is_cuda", False):
        return False
    span = span_of(target, "", None)
    return _in_buffer(span.start, span.end - span.start) is False


def array(target: Any) -> Any:
    """As `writable`, whether or not the buffer of which an array is a part is taken."""
    if isinstance(target, Buffer):
        if target.pushed:
            raise Invalid("the Buffer was pushed already")
        return Held(target, memoryview(target._raw()))
    if _torch.is_tensor(target):
        _torch.check_writable(target)
        return target
    numpy = sys.modules.get("numpy")
    if numpy is None or not isinstance(target, numpy.ndarray):
        raise Invalid(f"a {type(target).__qualname__} is not written: give an array of numpy, a tensor of torch or a Buffer")
    if not target.flags.writeable:
        raise Invalid("the array is read-only")
    if is_masked(target):
        raise Invalid("the array has a mask, and a state has none: give its .data")
    if _torch.is_overlapping(target.shape, target.strides, target.itemsize):
        raise Invalid("several elements of the array lie at one address, as in what is broadcast, and in sliding windows")
    return target


def described(value: Any) -> tuple[str, tuple[int, ...]]:
    """The element type and the shape of an array."""
    if _torch.is_tensor(value):
        return _torch.description(value)
    return str(getattr(value.dtype, "name", value.dtype)), tuple(value.shape)


def words(description: tuple[str, tuple[int, ...]]) -> str:
    return f"{description[0]} {list(description[1])}"


def _flat(target: Any, nbytes: int) -> Any:
    """The bytes of a target, if they lie in one piece in the host's memory, are as many, and are those of a tensor."""
    flat: Any
    if isinstance(target, Held):
        flat = target.view.cast("B")
    elif _torch.is_tensor(target):
        flat = _torch.flat(target)
    else:
        # An element type of the other byte order has the same name.
        flat = target.reshape(-1).view("uint8") if target.dtype.isnative and target.flags.c_contiguous else None
    return flat if flat is not None and flat.nbytes == nbytes else None


def _copy(tensor: Tensor, target: Any) -> None:
    if isinstance(target, Held):
        Foreign(tensor).copy_to(target.buffer)
    elif _torch.is_tensor(target) and target.is_cuda:
        import torch

        from ._gpu import copy_into

        with torch.no_grad():
            copy_into(tensor, target)
    elif _torch.is_tensor(target):
        _torch.assign(target, tensor)
    else:
        target[...] = view(tensor)
