"""The calls of a client, each a generator: it yields what it waits for, and is sent what that brings.

`transferd.Client` waits on its thread, and `transferd.aio.Client` in its event loop.
"""

from __future__ import annotations

import array
import sys
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, TypeAlias, TypedDict, TypeVar, overload

from . import _landing, _native, _sharded, _torch, _tree
from ._arrays import foreign
from ._errors import Error, Invalid, VersionGone
from ._native import Buffer, Pending, Pushed, Report, Tensor
from ._state import State

T = TypeVar("T")
Call = Generator[Pending[Any], Any, T]
Aliases = Literal["refuse", "allow"]
# How often a version can be replaced between two requests of one call.
_ATTEMPTS = 10


class PushOptions(TypedDict, total=False):
    """What every push can be told."""

    version: int | None
    """The version that it shall have, above the key's last one. Without it: the last one plus one."""
    to: str | None
    """Where it shall land before the push is done: at the sidecar of that worker."""
    timeout: float | None
    """How many seconds it may take, 30 where nothing is said. None is for ever."""
    require: str | None
    """The fabric that has to carry it, such as "tcp"."""
    keep: str | int | None
    """Until what the version stays: "replaced" (by a newer one, as if nothing were said), "deleted", or a number of fetches."""
    outlive: bool
    """The version outlives this worker, and stays until its sidecar ends."""
    takeover: bool
    """Takes the key from the worker that owns it."""
    readable_by: Sequence[str]
    """Other tenants that may fetch it."""
    trace: str | None
    """The trace context of this push, as a traceparent."""
    digest: bool | Literal["xxh3", "blake3"] | None
    """Makes digests, with which a fetch with `verify` compares: True is "xxh3", at the speed of memory, and "blake3" is slower. Both find damage. They travel
    with the bytes, so one who changes these can change them, too."""
    delta_of: int | None
    """Makes a delta: what has changed since this version, which this client has published under the key and which still is. A node that has got that version
    gets the delta in its place. Name the version before in each push, beginning with the first. `pushed.delta` says what has become of it."""
    keep_chain: int | None
    """How many deltas before it stay published with it, 2 by default, 8 at most: a node that has missed as many versions gets them in place of a whole one. All
    together have at most half of the bytes of the version."""


class FetchOptions(TypedDict, total=False):
    """What every fetch can be told."""

    at_least: int | None
    """The newest version, once it is this one or later."""
    exactly: int | None
    """This version and no other."""
    after: int | None
    """The newest, once it is another than this one, which was fetched before: a later one, or a lower one where the key's versions
    have begun again since."""
    timeout: float | None
    """How many seconds it may take, the wait for the version included; 30 where nothing is said. None is for ever."""
    require: str | None
    """The fabric that has to carry it."""
    trace: str | None
    """The trace context of this fetch, as a traceparent."""
    verify: bool
    """Compares what comes with the digests of its push, if that has made some. Nothing is returned if a byte is wrong."""
    require_digest: bool
    """Verifies, and refuses a version without digests."""


class StateOptions(FetchOptions, total=False):
    """What a fetch of a state can be told."""

    bucket_bytes: int | None
    """The length of a bucket of a state that does not fit the landing pool, 64 KiB to 1 TiB; 32 MiB where nothing is said."""


def allocate(client: _native.Client, shape: int | Sequence[int], dtype: object, timeout: float | None) -> Call[Buffer]:
    buffer: Buffer = yield client._allocate(shape, dtype, timeout)
    return buffer


def push(
    client: _native.Client, key: str, value: object, aliases: Aliases, dtype: object, options: PushOptions
) -> Call[Pushed]:
    _check(aliases)
    _check_readers(options)
    cast = _cast(dtype)
    copied = 0
    if isinstance(value, Buffer) and cast(value.dtype) == value.dtype:
        buffer = value
    else:
        buffer, copied = yield from _copied(client, value, options.get("timeout", 30.0), key, cast=cast)
    pushed: Pushed = yield client._push(key, buffer, aliases == "allow", copied, dict(options))
    return pushed


def _check(aliases: str) -> None:
    if aliases not in ("refuse", "allow"):
        raise ValueError(f'aliases is "refuse" or "allow", not {aliases!r}')


def _check_readers(options: PushOptions) -> None:
    """Raises where `readable_by` is anything but names: one text is a sequence of texts as well."""
    tenants = options.get("readable_by", ())
    if isinstance(tenants, str) or not isinstance(tenants, Sequence) or not all(isinstance(tenant, str) for tenant in tenants):
        raise Invalid(f'readable_by is a list of names of tenants, such as ["eval"]; this is {tenants!r}')


def take(client: _native.Client, key: str, indices: object, options: FetchOptions) -> Call[Tensor]:
    rows: Tensor = yield client._take(key, _rows(indices), dict(options))
    return rows


def _rows(indices: Any) -> bytes:
    """Indices of rows, as integers of 8 bytes."""
    if _torch.is_tensor(indices):
        indices = indices.detach().cpu().numpy()
    if (numpy := sys.modules.get("numpy")) is not None and isinstance(indices, numpy.ndarray):
        if indices.ndim != 1 or indices.dtype.kind not in "iu" and indices.size > 0:
            raise Invalid(f"{_ROWS}; this is an array of {indices.dtype} with the shape {list(indices.shape)}")
        if indices.dtype.kind == "u" and indices.size > 0 and indices.max() >= 1 << 63:
            raise Invalid(f"{_ROWS}; this has {indices.max()}")
        rows: bytes = indices.astype("int64").tobytes()
        return rows
    try:
        listed = list(indices)
        if not any(isinstance(index, bool) for index in listed):
            return array.array("q", listed).tobytes()
    except (TypeError, OverflowError):
        pass
    shown = repr(indices)
    raise Invalid(f"{_ROWS}; this is {shown if len(shown) <= 200 else shown[:200] + '...'}")


_ROWS = "indices are whole numbers from -2**63 to 2**63 - 1 in one dimension, such as [7, 3] or np.array([7, 3])"


def keys_of(keys: Sequence[str]) -> list[str]:
    """The keys that `fetch_many` is given."""
    if isinstance(keys, str):
        raise TypeError(f"fetch_many takes keys, such as [{keys!r}], not the one string {keys!r}")
    return list(keys)


def _cast(dtype: object) -> Callable[[str], str]:
    """What element type one has after a push with this `dtype`: floats are cast, and nothing else."""
    to = None if dtype is None else _native._cast_type(dtype)
    return lambda of: of if to is None or of not in _native._FLOATS else to


def _copied(
    client: _native.Client,
    value: object,
    timeout: float | None,
    key: str,
    entry: str | None = None,
    cast: Callable[[str], str] = lambda of: of,
) -> Call[tuple[Buffer, int]]:
    memory = foreign(value, key, entry, cast)
    buffer: Buffer = yield client._allocate(memory.shape, cast(memory.dtype), timeout)
    if memory.on_gpu:
        copied: int = yield memory.copy_later(buffer)
        return buffer, copied
    return buffer, memory.copy_to(buffer)


def push_snapshot(client: _native.Client, key: str, buffer: Buffer, options: PushOptions) -> Call[Pushed]:
    _check_readers(options)
    copy, copied = yield from _copied(client, buffer, options.get("timeout", 30.0), key)
    pushed: Pushed = yield client._push(key, copy, False, copied, dict(options))
    return pushed


def two_state_buffers(
    client: _native.Client, key: str, tensors: Mapping[str, tuple[Sequence[int], object]]
) -> _native.TwoBundleBuffers:
    _tree.check_names(f"the state {key!r}", tensors)
    described = [(name, shape, dtype) for name, (shape, dtype) in tensors.items()]
    return client._two_bundle_buffers(key, described)


def push_table(client: _native.Client, key: str, table: object, options: PushOptions) -> Call[Pushed]:
    _check_readers(options)
    pushed: Pushed = yield client._push_table(key, _native.Rows(table), dict(options))
    return pushed


def push_state(
    client: _native.Client,
    key: str,
    state: Mapping[Any, object],
    aliases: Aliases,
    dtype: object,
    options: PushOptions,
    copies: bool = False,
) -> Call[Pushed]:
    """Publishes a state. With `copies` its buffers are copied as well, and stay writable."""
    _check(aliases)
    _check_readers(options)
    return (yield from push_flat(client, key, _tree.flatten(f"the state {key!r}", state), options, aliases, dtype, copies))


def push_flat(
    client: _native.Client,
    key: str,
    flat: _tree.Flat,
    options: PushOptions,
    aliases: Aliases = "refuse",
    dtype: object = None,
    copies: bool = False,
) -> Call[Pushed]:
    """Publishes a state that was taken apart."""
    names, buffers, copied = yield from _buffers(client, key, flat, options.get("timeout", 30.0), _cast(dtype), copies)
    pushed: Pushed = yield client._push_bundle(key, names, buffers, aliases == "allow", copied, dict(options))
    return pushed


def _buffers(
    client: _native.Client, key: str, flat: _tree.Flat, timeout: float | None, cast: Callable[[str], str], copies: bool
) -> Call[tuple[list[str], list[Buffer], int]]:
    """The names and buffers of a state that was taken apart, and how many bytes were copied for it: of all, with `copies`."""
    (tensors, record), buffers, copied = flat, [], 0
    for name, value in tensors.items():
        if isinstance(value, Buffer) and not copies and cast(value.dtype) == value.dtype:
            buffers.append(value)
        else:
            buffer, bytes_copied = yield from _copied(client, value, timeout, key, name, cast)
            buffers.append(buffer)
            copied += bytes_copied
    names = list(tensors)
    if record is not None:
        # It is made here, and no copy of a tensor.
        buffer, _ = yield from _copied(client, record, timeout, key, _tree.RECORD)
        names, buffers = [*names, _tree.RECORD], [*buffers, buffer]
    return names, buffers, copied


class Commit(NamedTuple):
    """How a rank pushes its part of a state."""

    rank: int | None
    world_size: int | None
    whole: bool
    """Whether the call waits until the version is whole."""
    restart: int
    """The number of the job's attempt."""


def push_any_state(
    client: _native.Client,
    key: str,
    state: Mapping[Any, object],
    aliases: Aliases,
    dtype: object,
    commit: Commit,
    options: PushOptions,
) -> Call[Pushed]:
    """Publishes a state, or a rank's part of one."""
    if commit == (None, None, False, 0) and not _sharded.has_shards(state):
        return (yield from push_state(client, key, state, aliases, dtype, options))
    return (yield from push_shards(client, key, state, aliases, dtype, commit, options))


def push_shards(
    client: _native.Client,
    key: str,
    state: Mapping[Any, object],
    aliases: Aliases,
    dtype: object,
    commit: Commit,
    options: PushOptions,
) -> Call[Pushed]:
    _check(aliases)
    _check_readers(options)
    cast = _cast(dtype)
    rank, world_size = _sharded.world(commit.rank, commit.world_size)
    restart = _sharded.attempt(key, commit.restart)
    version = options.get("version")
    if version is None:
        raise Invalid(f"the sharded state {key!r} needs version=, the same one at all ranks")
    tensors, record = _tree.flatten(f"the state {key!r}", state)
    timeout, copied = options.get("timeout", 30.0), 0
    places: list[tuple[str, Sequence[int], Sequence[int]]] = []
    buffers: list[Buffer] = []
    for name, value in tensors.items():
        for piece in _sharded.pieces(f"{name!r} of the state {key!r}", value):
            if isinstance(piece.tensor, Buffer) and cast(piece.tensor.dtype) == piece.tensor.dtype:
                buffer = piece.tensor
            else:
                buffer, bytes_copied = yield from _copied(client, piece.tensor, timeout, key, name, cast)
                copied += bytes_copied
            buffers.append(buffer)
            if piece.global_shape is None:
                places.append((name, buffer.shape, (0,) * len(buffer.shape)))
            else:
                places.append((name, piece.global_shape, piece.offset))
    if record is not None:
        buffer, _ = yield from _copied(client, record, timeout, key, _tree.RECORD)
        buffers.append(buffer)
        places.append((f"{_sharded.TREE}{rank}", buffer.shape, (0,)))
    others = {name: value for name, value in options.items() if name != "version"}
    how = (rank, world_size, commit.whole, restart)
    pushed: Pushed = yield client._push_shards(key, version, how, places, buffers, aliases == "allow", copied, others)
    return pushed


def fetch_global(client: _native.Client, key: str, part: object, options: FetchOptions) -> Call[Tensor]:
    """Fetches the tensor of which `push_shard` has published the shards, or a slice of it."""
    tensors, _, _ = yield client._fetch_sharded(key, [(key, part)], dict(options), ())
    tensor: Tensor = tensors[key]
    return tensor


def take_back_state(client: _native.Client, key: str, timeout: float | None) -> Call[dict[Any, Any]]:
    buffers: dict[str, Buffer] = yield client._take_back_bundle(key, timeout)
    return _tree.restore(key, buffers)


def fetch_state(
    client: _native.Client,
    key: str,
    into: Mapping[Any, Any] | None,
    only: Iterable[str] | None,
    slices: Mapping[str, object] | None,
    layout: Mapping[str, object] | None,
    staged: bool,
    options: StateOptions,
    base: Mapping[Any, object] | None = None,
) -> Call[State]:
    if base is None:
        return (yield from _fetch_state(client, key, into, only, slices, layout, staged, None, options))
    if only is not None or slices is not None or layout is not None:
        raise Invalid("base= is for all of a state: leave only=, slices= and layout= out")
    left = _landing.time_left(options)
    flat = _tree.flatten("base=", base)
    lent: _native.LentBase | None = None
    try:
        # It does not wait for room: without a base all comes.
        names, buffers, _ = yield from _buffers(client, key, flat, 0.0, _cast(None), True)
        lent = yield _native._lend_base(client, key, names, buffers, 0.0)
    except Error as error:
        if error.code not in ("arena_full", "too_large_for_arena", "busy", "draining", "deadline", "no_answer"):
            raise
    try:
        # What is made of a delta lies in memory of the sidecar.
        rest: Any = left()
        return (yield from _fetch_state(client, key, into, None, None, None, True, lent, rest))
    finally:
        if lent is not None:
            lent._end()


def _fetch_state(
    client: _native.Client,
    key: str,
    into: Mapping[Any, Any] | None,
    only: Iterable[str] | None,
    slices: Mapping[str, object] | None,
    layout: Mapping[str, object] | None,
    staged: bool,
    base: _native.LentBase | None,
    options: StateOptions,
) -> Call[State]:
    if isinstance(only, str):
        raise TypeError(f"only= takes names, such as [{only!r}], not the one string {only!r}")
    parts: dict[str, object] | None = None
    own = None if into is None else _sharded.targets(into)
    # What is proved is compared before it is written to arrays of the caller.
    is_staged = staged or bool(options.get("verify") or options.get("require_digest"))
    # All requests have one deadline.
    left = _landing.time_left(options)
    if layout is not None or own is not None:
        if only is not None or slices is not None or layout is not None and own is not None:
            raise Invalid("layout=, and an into= with a DTensor, say which parts are fetched: leave only= and slices= out, and one of the two")
        parts = (own if layout is None else _sharded.slices_of(layout)) or {}
        local = None if into is None else _sharded.local_parts(into)
        if into is not None and local is not None and not is_staged:
            here = yield from _landing.land_parts(client, key, local, into, parts, (), left())
            if here is not None:
                return here
        tensors, version, report = yield client._fetch_sharded(key, list(parts.items()), left(), ())
        state = State(tensors, version, report)
        if local is not None:
            state.land_in(local)
        return state
    if only is not None or slices is not None:
        names = list(only or ())
        _tree.check_names(f"only= of the state {key!r}", names)
        _tree.check_names(f"slices= of the state {key!r}", slices or ())
        parts = {**dict.fromkeys(names), **(slices or {})}
    if into is not None and not is_staged:
        if parts is None:
            here = yield from _landing.land(client, key, into, left)
        else:
            here = yield from _landing.land_parts(client, key, into, into, parts, None, left())
        if here is not None:
            return here
    try:
        tensors, version, report = yield client._fetch_bundle(key, None if parts is None else list(parts.items()), left(), base)
    except Invalid as error:
        if not parts:
            raise
        try:
            unproved = {name: value for name, value in left().items() if name not in ("verify", "require_digest")}
            manifest, _, _ = yield client._fetch_bundle(key, [(_sharded.MANIFEST, None)], unproved)
        except Invalid:
            tensors, version, report = yield from _tied(client, key, parts, left, error)
        else:
            if into is not None and not is_staged:
                here = yield from _landing.land_parts(client, key, into, into, parts, list(manifest.values()), left())
                if here is not None:
                    return here
            tensors, version, report = yield client._fetch_sharded(key, list(parts.items()), left(), list(manifest.values()))
    if parts is None and list(tensors) == [_sharded.MANIFEST, _sharded.LAYOUTS]:
        manifest = tensors
        if into is not None and not is_staged:
            here = yield from _landing.land_sharded(client, key, into, version, list(manifest.values()), left)
            if here is not None:
                return here
        tensors, version, report = yield client._fetch_sharded(key, None, left(), list(manifest.values()))
        state = State(_sharded.restore(key, tensors), version, report)
    else:
        state = State(_tree.restore(key, tensors) if parts is None else tensors, version, report)
    if into is not None:
        state.land_in(into)
    return state


def _tied(
    client: _native.Client, key: str, parts: Mapping[str, object], left: _landing.Options, error: Invalid
) -> Call[tuple[dict[str, Tensor], int, Report]]:
    """Fetches tensors by names of which the version's bundle does not have all, which `error` says: those that are tied have another name there."""
    for attempt in range(_ATTEMPTS):
        try:
            record, version, _ = yield client._fetch_bundle(key, [(_tree.RECORD, None)], left())
        except Invalid:
            raise error from None
        ties = _tree.ties(key, record[_tree.RECORD])
        if not any(name in ties for name in parts):
            raise error
        wanted = {name: ties.get(name, name) for name in parts}
        named = [(wanted[name], part) for name, part in parts.items()]
        try:
            found, version, report = yield client._fetch_bundle(key, named, left(exactly=version))
        except VersionGone:
            # It was replaced in between.
            if left().get("exactly") is not None or attempt + 1 == _ATTEMPTS:
                raise
        except Invalid:
            # There is none of a name that was asked for, or of one that the record says.
            try:
                yield client._fetch_bundle(key, [(ties[name], None) for name in parts if name in ties], left(exactly=version))
            except Invalid as absent:
                raise _tree.no_record(key, str(absent)) from None
            raise
        else:
            return {name: found[of] for name, of in wanted.items()}, version, report
    raise error


def partitioning(
    how: dict[str, object],
) -> tuple[str, list[str] | int | None, _native.Rows | None]:
    """What chooses the partitions of rows, of the arguments of a write."""
    chosen = [(name, value) for name, value in how.items() if value is not None]
    if len(chosen) > 1:
        raise TypeError(f"rows are partitioned by one of {', '.join(how)}, not by {' and '.join(name for name, _ in chosen)}")
    for name, value in chosen:
        if name == "range":
            return name, None, _native.Rows(value)
        if name == "random":
            return name, _native._whole(name, value), None
        columns = [value] if isinstance(value, str) else value
        if not isinstance(columns, Sequence) or not all(isinstance(column, str) for column in columns):
            raise TypeError(f"{name}= takes names of columns, not {value!r}")
        return name, list(columns), None
    return "round_robin", None, None


def write_rows(
    task: _native.ExchangeTask, table: object, how: dict[str, object], timeout: float | None
) -> Call[None]:
    by, rows, batch = partitioning(how), _native.Rows(table), 0
    while (pending := task._write(rows, batch, by, timeout)) is not None:
        yield pending
        batch += 1


def one(pending: Pending[T]) -> Call[T]:
    """A call of one step."""
    value: T = yield pending
    return value


def run_a_line() -> None:
    """Lets the interpreter do on this thread what it does between two lines. Waits in the native half call this."""


def wait(call: Call[T], begins: Callable[[Pending[Any]], None] = lambda _: None) -> T:
    """Makes a call on this thread. `begins` hears of each step that is waited for."""
    try:
        pending = next(call)
        while True:
            begins(pending)
            try:
                value = pending.result()
            except BaseException as error:
                pending.cancel()
                pending = call.throw(error)
            else:
                pending = call.send(value)
    except StopIteration as ended:
        result: T = ended.value
        return result


_UNITS = {"": 1, "B": 1, "KIB": 1 << 10, "MIB": 1 << 20, "GIB": 1 << 30, "TIB": 1 << 40, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}


# Of a sidecar inside of this process.
Settings: TypeAlias = Mapping[str, str | int | float | bool | Sequence[str]]


def to_settings(sidecar: Settings | None) -> tuple[str | None, list[tuple[str, str]]] | None:
    """The node's name, if it is a node of a cluster, and pairs of a key and a value of `transferd`'s configuration file: several for a
    list."""
    if sidecar is None:
        return None
    node = sidecar.get("node")
    if not isinstance(node, str) and "node" in sidecar:
        raise ValueError(f'sidecar: "node" is {node!r}, where a name is needed, such as "trainer-0"')
    pairs: list[tuple[str, str]] = []
    for key, value in sidecar.items():
        if key == "node":
            continue
        values = [value] if isinstance(value, (str, int, float)) else list(value)
        pairs += [(key, str(one).lower() if isinstance(one, bool) else str(one)) for one in values]
    return node if isinstance(node, str) else None, pairs


@overload
def to_bytes(size: int | str, name: str) -> int: ...
@overload
def to_bytes(size: None, name: str) -> None: ...
def to_bytes(size: int | str | None, name: str) -> int | None:
    """A number of bytes, or a text such as "4GiB", that the argument `name` has."""
    if size is None:
        return None
    try:
        return _native._whole(name, _parsed(size) if isinstance(size, str) else size)
    except (KeyError, ValueError, OverflowError):
        known = f'a whole number of bytes from 0 to {2**64 - 1}, or a text such as "512MiB" or "4GiB"'
        raise Invalid(f"{name} is {known}; this is {size!r}") from None


def _parsed(size: str) -> int:
    text = size.strip()
    digits = text.rstrip("".join(set("".join(_UNITS) + "".join(_UNITS).lower() + "iK "))).strip()
    unit = text[len(digits) :].strip().upper()
    return int(float(digits) * _UNITS[unit])


