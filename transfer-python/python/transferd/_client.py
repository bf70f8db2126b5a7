"""The client that waits on the thread of its caller."""

from __future__ import annotations

import atexit
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import Any, Self, Unpack

from . import _calls, _native
from ._calls import Aliases, FetchOptions, PushOptions, StateOptions, wait
from ._errors import Error
from ._exchange import Exchange
from ._native import Buffer, Pushed, Round, Table, Tensor
from ._pinned import Pinning
from ._sharded import Shard
from ._staged import StateSubscriber
from ._state import State
from ._versions import Publisher, PublisherOptions, Subscriber

Path = str | os.PathLike[str]


class Client(Pinning):
    """A session with the sidecar of this node. `connect` and `embedded` make one; any number of threads may share it.

    It is a context manager, which closes it. It pickles as the arguments that it was connected with.
    """

    _arguments: tuple[str, dict[str, Any]] | None

    def __new__(
        cls,
        path: Path | None,
        *,
        name: str | None = None,
        arena: int | str | None = None,
        timeout: float | None = None,
        spin: float | None = None,
        reconnect: bool = True,
        sidecar: _calls.Settings | None = None,
    ) -> Self:
        where = None if path is None else os.fspath(path)
        self = super().__new__(
            cls,
            where,
            name=name,
            arena_bytes=_calls.to_bytes(arena, "arena"),
            timeout=timeout,
            spin=spin,
            reconnect=reconnect,
            sidecar=_calls.to_settings(sidecar),
        )
        # A sidecar of this process is found by others at its socket.
        if where is None and (socket := _native._embedded_socket()) is not None:
            where = os.fspath(socket)
        arguments = {"name": name, "arena": arena, "timeout": timeout, "spin": spin, "reconnect": reconnect}
        self._arguments = None if where is None else (where, arguments)
        return self

    @property
    def path(self) -> str | None:
        """The socket of the sidecar: other processes of this user `connect` to it."""
        return self._arguments and self._arguments[0]

    def __reduce__(self) -> tuple[object, ...]:
        return _again, (self._arguments,)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Client {self.name!r} at node {self.node!r}>"

    # Tensors

    def empty(self, shape: int | Sequence[int], dtype: object = "float32", *, timeout: float | None = 0.0) -> Buffer:
        """Allocates a `Buffer` in the arena: memory that the sidecar and the fabrics read as it lies.

        It begins with what an earlier tensor left there. `dtype` is a name ("bfloat16") or a type of numpy, ml_dtypes or torch. Where there is no
        room it raises `ArenaFull`. Unlike other calls it does so at once, because the arena is most often full of buffers that the caller itself
        holds, which no wait would free. With `timeout` it waits for so many seconds for what is replaced or dropped.
        """
        return wait(_calls.allocate(self, shape, dtype, timeout))

    def push(
        self,
        key: str,
        value: object,
        *,
        aliases: Aliases = "refuse",
        dtype: object = None,
        **options: Unpack[PushOptions],
    ) -> Pushed:
        """Publishes `value` under `key`, as a version that never changes again.

        A `Buffer` is taken: no byte moves, until somebody fetches it elsewhere. While a view of it lives, that raises `StillExported`;
        with `aliases="allow"` it does not, and nobody may write through the view any more. Anything else with DLPack or the buffer
        protocol (numpy, torch and jax arrays, bytes, a fetched tensor) is copied into the arena once, which `report.copied` counts.

        With `dtype`, one of float16, bfloat16, float32 and float64, elements of another one of these types are cast to it while they are copied: to
        the nearest, and of two to the even one; on a GPU as torch rounds. Those of a `Buffer` are copied then, and it stays writable. All other types stay as they are.

        The options are those of `PushOptions`: `version`, `to`, `timeout`, `require`, `keep`, `outlive`, `takeover`, `readable_by`, `trace`.
        Raises `KeyOwned`, `ArenaFull`, `Timeout`, `PeerLost`, `RequireUnmet`, `SidecarGone`, and `Error` with code "version_not_rising".
        A buffer whose push failed is writable again, where nobody else can read it.
        """
        return wait(_calls.push(self, key, value, aliases, dtype, options))

    def produce(
        self,
        key: str,
        shape: int | Sequence[int],
        dtype: object = "float32",
        *,
        room: float | None = 0.0,
        **options: Unpack[PushOptions],
    ) -> Producing:
        """A context manager that gives a `Buffer`, and pushes it at the end. On an exception it is dropped.

        `room` is how many seconds it waits for room in the arena; the options are those of `push`.
        """
        return Producing(self, key, shape, dtype, room, options)

    def push_snapshot(self, key: str, buffer: Buffer, **options: Unpack[PushOptions]) -> Pushed:
        """Publishes a copy of a buffer that stays writable. The options are those of `push`."""
        return wait(_calls.push_snapshot(self, key, buffer, options))

    def fetch_many(self, keys: Sequence[str], **options: Unpack[FetchOptions]) -> list[Tensor | Error]:
        """Fetches many tensors with one wait and one time-out. The options are those of `fetch`. For each key, in order, it returns its tensor, or the
        `Error` that `fetch` would raise. One key that fails costs no other. Those that do not fit the landing pool come in buckets, beside the others."""
        return wait(_calls.one(self._fetch_many(_calls.keys_of(keys), **options)))

    def take(self, key: str, indices: object, **options: Unpack[FetchOptions]) -> Tensor:
        """Fetches rows of a tensor by their indices of the outermost dimension, whole numbers in a list or an array of one dimension: the result has a
        row for each, in their order, and all are of one version. Where it has to move, its owner gathers the rows, and nothing else moves; on this
        host they are copied out of the version, and the report says so. The options are those of `fetch`. Raises `Invalid` for an index that is below 0 or beyond the last row, with the index, the shape and what would be right.
        """
        return wait(_calls.take(self, key, indices, options))

    def delete(self, key: str, *, timeout: float | None = 30.0) -> None:
        """Ends a key of this worker's. Tensors of it that are being read stay until they are not."""
        return wait(_calls.one(self._delete(key, timeout)))

    def reserve(
        self, key: str, shape: Sequence[int], dtype: object, to: str, *, timeout: float | None = 30.0
    ) -> None:
        """Gets landing slots for tensors that will be pushed under `key` to the worker `to`, so that the first push waits for nothing."""
        return wait(_calls.one(self._reserve(key, shape, dtype, to, timeout)))

    # Versions of one key

    def publisher(self, key: str, **options: Unpack[PublisherOptions]) -> Publisher[Pushed, Producing]:
        """Makes a `Publisher` of `key`: its pushes have these options, those of `push` but `version`, `takeover` and `trace`."""
        return Publisher(self, key, options)

    def subscriber(
        self,
        key: str,
        *,
        after: int | None = None,
        timeout: float | None = 30.0,
        require: str | None = None,
        slice: object = None,
        verify: bool = False,
        require_digest: bool = False,
    ) -> Subscriber[Tensor]:
        """Makes a `Subscriber` of `key`: an iterator over its versions, which skips those that were replaced meanwhile.

        It begins after the version `after`. Each version may take `timeout` seconds; None is for ever. With `slice` it has this part of each,
        as `fetch` does. With `verify` or `require_digest` it compares each version as a fetch does; one that is wrong raises, and counts as not
        returned: the next call fetches it again, or a newer one.
        """
        fetch = partial(self.fetch, slice=slice, verify=verify, require_digest=require_digest)
        return Subscriber(fetch, key, after, timeout, require)

    def state_subscriber(
        self,
        key: str,
        *,
        after: int | None = None,
        timeout: float | None = 30.0,
        require: str | None = None,
        slices: Mapping[str, object] | None = None,
        base: Mapping[Any, object] | None = None,
        verify: bool = False,
        require_digest: bool = False,
    ) -> StateSubscriber:
        """As `subscriber`, of what `push_state` publishes, with `slices` and for the first version `base` as `fetch_state` has them. `stage` works in the background."""
        return StateSubscriber(self, key, slices, after, timeout, require, {"verify": verify, "require_digest": require_digest}, base)

    def table_subscriber(
        self,
        key: str,
        *,
        after: int | None = None,
        timeout: float | None = 30.0,
        require: str | None = None,
        verify: bool = False,
        require_digest: bool = False,
    ) -> Subscriber[Table]:
        """As `subscriber`, of what `push_table` publishes."""
        fetch = partial(self.fetch_table, verify=verify, require_digest=require_digest)
        return Subscriber(fetch, key, after, timeout, require)

    # States

    def push_state(
        self,
        key: str,
        state: Mapping[Any, object],
        *,
        aliases: Aliases = "refuse",
        dtype: object = None,
        rank: int | None = None,
        world_size: int | None = None,
        whole: bool = False,
        restart: int = 0,
        **options: Unpack[PushOptions],
    ) -> Pushed:
        """Publishes a state as one version: a mapping of tensors, such as the state dict of a model, or of an optimizer, with dicts, lists and
        tuples inside of each other, numbers, bools, None, texts and bytes. Who fetches it gets all of it, as it was; see docs/python.md.

        `Buffer`s are taken, by reference, as `push` takes one; all of them, or none where one cannot be taken. A push that fails gives
        them back, writable, with what they held. Anything else that `push` takes is copied into the arena once, which `report.copied` counts. Entries that
        are the same memory are pushed once. At most 131,072 tensors, or 131,071 with anything else, each with a name of 1 to 512 bytes. `dtype` casts floats as
        `push` does. The options are those of `push`.

        With `rank` and `world_size`, or where it has DTensors or `Shard`s, it is this rank's part of a *sharded state*: a version is there once
        all ranks have pushed theirs, and `fetch_state` takes it in any layout; see docs/python.md. It needs `version`. Without `rank` and `world_size`
        those of torch.distributed are taken. `whole` waits until the version is there. `restart` is the number of the
        job's attempt, the same one at all ranks and in all their pushes: a higher one begins the versions again, a lower one is refused. It takes `timeout`, `readable_by`, `digest`, `delta_of` and `keep_chain`.
        """
        commit = _calls.Commit(rank, world_size, whole, restart)
        return wait(_calls.push_any_state(self, key, state, aliases, dtype, commit, options))

    def push_shard(
        self,
        key: str,
        tensor: object,
        *,
        global_shape: Sequence[int],
        offset: Sequence[int],
        rank: int | None = None,
        world_size: int | None = None,
        whole: bool = False,
        restart: int = 0,
        **options: Unpack[PushOptions],
    ) -> Pushed:
        """Publishes this rank's part of one tensor, which `fetch_global` fetches: `tensor` begins at `offset` of `global_shape`. As `push_state` with a
        `Shard`."""
        state = {key: Shard(tensor, global_shape, offset)}
        return wait(_calls.push_shards(self, key, state, "refuse", None, _calls.Commit(rank, world_size, whole, restart), options))

    def fetch_global(self, key: str, *, slice: object = None, **options: Unpack[FetchOptions]) -> Tensor:
        """Fetches the tensor of which ranks have published parts by `push_shard`, or a slice of it, such as np.s_[0:1024, -512:]. Where several parts
        are put together, or one that has to be, it lies in memory of this process."""
        return wait(_calls.fetch_global(self, key, slice, options))

    def fetch_state(
        self,
        key: str,
        *,
        into: Mapping[Any, Any] | None = None,
        only: Iterable[str] | None = None,
        slices: Mapping[str, object] | None = None,
        layout: Mapping[str, object] | None = None,
        staged: bool = False,
        base: Mapping[Any, object] | None = None,
        **options: Unpack[StateOptions],
    ) -> State:
        """Fetches what `push_state` published: a `State`, that is a dict with `Tensor`s where tensors were, all of one version. Entries that were the
        same memory are the same `Tensor`.

        A state that has to move and does not fit the landing pool comes in buckets of `bucket_bytes`, which are copied into memory of this process; the report counts that. With
        `into` its tensors come into the arrays of `into`. Where an array is a part of a `Buffer` of this client, as those of `empty` and `nn.share_` are, a tensor of 64 KiB and
        more lands there from another node without a further copy; it may be half new after `DestinationTorn`, and after a call that was given up. All others are copied, see
        `State.copy_into`; those that came in buckets twice. What `into` does not name is returned all the same. With `staged` all are copied, when all are there. `landings` says
        how each came. With `only`, an iterable of names, the state is a dict of these tensors and no others by their names, which are "a/b/0" for what is at ["a"]["b"][0]; with
        `slices`, such as {"w": np.s_[0:1024, -512:]}, slices of these as well, as `fetch` has them; where the version has to move, only they do. The options are those of
        `fetch`. Raises `Invalid` where the state has none of such a name.

        With `base`, a state from elsewhere, such as a checkpoint, what has changed since comes in its place, if another node has pushed that state with `digest=True`
        (docs/python.md). Another state is no error: all comes, and `report.delta` is 0. `base` is copied into the arena meanwhile. The fetch is `staged`.

        Of a sharded state it fetches whole tensors, whatever the parts are that ranks have pushed. `into` with DTensors, and `layout`, fetch parts:
        a layout is names with DTensors, whose local parts are fetched, or with pairs of offset and shape, or None for all of a tensor.
        """
        return wait(_calls.fetch_state(self, key, into, only, slices, layout, staged, options, base))

    # Tables

    def push_table(self, key: str, table: object, **options: Unpack[PushOptions]) -> Pushed:
        """Publishes record batches under `key`: anything with Arrow's capsules (pyarrow, polars, duckdb). The options are those of `push`. What lies
        elsewhere than in the arena is copied once, and the report says so."""
        return wait(_calls.push_table(self, key, table, options))

    def fetch_table(self, key: str, **options: Unpack[FetchOptions]) -> Table:
        """Fetches record batches: a `Table`, which `pyarrow.table` takes with no copy. The options are those of `fetch`."""
        return wait(_calls.one(self._fetch_table(key, dict(options))))

    def push_stream(self, key: str, schema: object, *, readers: int = 1) -> BatchWriter:
        """Begins a stream of record batches under `key`. Each stays until `readers` have fetched it; where the arena is full, a push waits."""
        return BatchWriter(self._push_stream(key, _native.Rows(schema), readers))

    def fetch_stream(self, key: str, *, timeout: float | None = 30.0) -> BatchReader:
        """Reads a stream of record batches from its beginning: an iterator of `Table`. Each batch may take `timeout` seconds."""
        return BatchReader(self._fetch_stream(key, timeout))

    # Exchanges

    def exchange(
        self,
        name: str,
        *,
        partitions: int,
        tasks: int,
        deadline: float | None = None,
        timeout: float | None = 30.0,
    ) -> Exchange:
        """Opens an exchange of record batches: tasks write rows, and partitions are read. Other workers `join_exchange`.

        It is over `deadline` seconds later, or when it is released.
        """
        return Exchange(wait(_calls.one(self._open_exchange(name, partitions, tasks, deadline, timeout))))

    def join_exchange(self, name: str, *, timeout: float | None = 30.0) -> Exchange:
        """Joins an exchange, and waits until a worker has opened it."""
        return Exchange(wait(_calls.one(self._join_exchange(name, timeout))))

    # The job

    def counter(self, name: str, *, timeout: float | None = 30.0) -> Counter:
        """The counter of this name: the same one for every worker of the job. The first to ask makes it, with the value 0."""
        return Counter(wait(_calls.one(self._counter(name, timeout))))

    def barrier(self, name: str, members: int) -> Barrier:
        """The barrier of this name, for as many members as the job's other callers say."""
        return Barrier(self._barrier(name, members))

    # In place

    def take_back(self, key: str, *, timeout: float | None = 30.0) -> Buffer:
        """Takes the newest version of this worker's own `key` back, to be updated in place, once all who read it are done.

        Fetches wait for the next push meanwhile. Where the readers take longer, it raises `Timeout`, and the version is published again.
        """
        return wait(_calls.one(self._take_back(key, timeout)))

    def two_buffers(self, key: str, shape: Sequence[int], dtype: object = "float32") -> TwoBuffers:
        """Two buffers that take turns under `key`: while readers have the one, the other is written."""
        return TwoBuffers(self._two_buffers(key, shape, dtype))

    def push_state_snapshot(self, key: str, state: Mapping[Any, object], **options: Unpack[PushOptions]) -> Pushed:
        """Publishes a state as `push_state` does, with copies of its buffers, which stay writable. The options are those of `push`."""
        return wait(_calls.push_state(self, key, state, "refuse", None, options, copies=True))

    def take_back_state(self, key: str, *, timeout: float | None = 30.0) -> dict[Any, Any]:
        """Takes the newest state under this worker's own `key` back, to be updated in place, once it has no readers.

        Returns it with its buffers where tensors were, for `push_state`. Fetches wait for the next push meanwhile. Where the readers take longer, it raises
        `Timeout`, and the version is published again.
        """
        return wait(_calls.take_back_state(self, key, timeout))

    def two_state_buffers(
        self, key: str, tensors: Mapping[str, tuple[Sequence[int], object]]
    ) -> TwoStateBuffers:
        """Two sets of buffers that take turns under `key` as states. `tensors` has the shape and element type of each name."""
        return TwoStateBuffers(_calls.two_state_buffers(self, key, tensors))


@atexit.register
def _leave_no_folder() -> None:
    """Removes the socket of this process's sidecar, which ends with the process where something still holds it."""
    if (socket := _native._embedded_socket()) is not None:
        shutil.rmtree(os.path.dirname(socket), ignore_errors=True)


def _again(arguments: tuple[str, dict[str, Any]] | None) -> Client:
    if arguments is None:
        raise ValueError("a client of a sidecar that has ended cannot be pickled")
    path, others = arguments
    return Client(path, **others)


class Producing:
    """A tensor that is being written, and is pushed at the end; see `Client.produce`."""

    def __init__(
        self,
        client: Client,
        key: str,
        shape: int | Sequence[int],
        dtype: object,
        room: float | None,
        options: PushOptions,
    ) -> None:
        _native._check_seconds("room", room)
        self._client, self._key, self._options = client, key, options
        self._of = (shape, dtype, room)
        self._buffer: Buffer | None = None
        self.pushed: Pushed | None = None
        """How the push went, after the end."""

    def __enter__(self) -> Buffer:
        shape, dtype, room = self._of
        self._buffer = self._client.empty(shape, dtype, timeout=room)
        return self._buffer

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        buffer, self._buffer = self._buffer, None
        if error is None and buffer is not None:
            self.pushed = self._client.push(self._key, buffer, **self._options)


class Counter:
    """A counter that exists once in the job, from 0 to 2**64 - 1. It lives at the sidecar of the worker that first asked for it."""

    def __init__(self, counter: _native.Counter) -> None:
        self._counter = counter

    @property
    def name(self) -> str:
        """Its name."""
        return self._counter.name

    @property
    def home(self) -> str:
        """The node where it lives."""
        return self._counter.home

    def add(self, n: int = 1, *, timeout: float | None = 30.0) -> int:
        """Adds `n`. Returns what it held before."""
        return wait(_calls.one(self._counter._add(n, timeout)))

    def get(self, *, timeout: float | None = 30.0) -> int:
        """Reads it."""
        return wait(_calls.one(self._counter._get(timeout)))

    def compare_swap(self, expected: int, new: int, *, timeout: float | None = 30.0) -> tuple[bool, int]:
        """Makes it `new` where it is `expected`. Returns whether it was, and what it held before."""
        return wait(_calls.one(self._counter._compare_swap(expected, new, timeout)))


class Barrier:
    """A barrier that exists once in the job: who arrives waits until all have, round after round."""

    def __init__(self, barrier: _native.Barrier) -> None:
        self._barrier = barrier

    @property
    def name(self) -> str:
        """Its name."""
        return self._barrier.name

    @property
    def members(self) -> int:
        """How many have to arrive."""
        return self._barrier.members

    def wait(self, *, timeout: float | None = 30.0) -> Round:
        """Arrives, and waits until all have. A wait that is given up does not count."""
        return wait(_calls.one(self._barrier._wait(timeout)))


class TwoBuffers:
    """Two buffers of one key that take turns; see `Client.two_buffers`."""

    def __init__(self, buffers: _native.TwoBuffers) -> None:
        self._buffers = buffers

    def turn(self, *, timeout: float | None = 30.0) -> Buffer:
        """The buffer whose turn it is, once nobody reads the version that it held. It holds what was written two versions ago."""
        return wait(_calls.one(self._buffers._turn(timeout)))

    def push(self, buffer: Buffer, version: int, *, timeout: float | None = 30.0) -> Pushed:
        """Publishes the buffer as that version. It stays until its turn comes again."""
        return wait(_calls.one(self._buffers._push(buffer, version, timeout)))


class TwoStateBuffers:
    """Two sets of buffers of one key that take turns as states; see `Client.two_state_buffers`."""

    def __init__(self, buffers: _native.TwoBundleBuffers) -> None:
        self._buffers = buffers

    def turn(self, *, timeout: float | None = 30.0) -> dict[str, Buffer]:
        """The buffers whose turn it is, by name, once their version has no readers. They hold what was written two versions ago."""
        return wait(_calls.one(self._buffers._turn(timeout)))

    def push(self, buffers: Mapping[str, Buffer], version: int, *, timeout: float | None = 30.0) -> Pushed:
        """Publishes the buffers as that version. It stays until their turn comes again. A push that fails frees them."""
        return wait(_calls.one(self._buffers._push(list(buffers), list(buffers.values()), version, timeout)))


class BatchWriter:
    """The writing end of a stream of record batches, for one thread at a time. As a context manager it ends the stream and waits
    for its readers, as `finish` does, but not on an exception."""

    def __init__(self, stream: _native.StreamWriter) -> None:
        self._stream = stream

    def push(self, table: object) -> list[Pushed]:
        """Pushes each batch of `table`, in order."""
        return [wait(_calls.one(pending)) for pending in self._stream._push(_native.Rows(table))]

    def finish(self, *, timeout: float | None = 30.0) -> None:
        """Ends the stream, and waits until its readers have fetched all of it. Where they take longer than `timeout` seconds, it raises
        `Timeout` with the code "not_read", which says how many batches were not fetched. They stay until the client is closed, and
        another call waits for them again.
        """
        wait(_calls.one(self._stream._finish(timeout)))

    @property
    def unread(self) -> int | None:
        """How many batches a reader has not fetched, as the sidecar has said last; None before `finish` has heard it. It changes while
        another thread waits in `finish`."""
        return self._stream.unread

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if error is None:
            self.finish()


class BatchReader:
    """The reading end of a stream of record batches: an iterator, for one thread at a time."""

    def __init__(self, stream: _native.StreamReader) -> None:
        self._stream = stream

    def __iter__(self) -> Iterator[Table]:
        return self

    def __next__(self) -> Table:
        pending = self._stream._next()
        batch = None if pending is None else wait(_calls.one(pending))
        if batch is None:
            raise StopIteration
        return batch


def connect(
    path: Path,
    *,
    name: str | None = None,
    arena: int | str | None = None,
    timeout: float | None = None,
    spin: float | None = None,
    reconnect: bool = True,
) -> Client:
    """Connects to the sidecar that listens at `path`.

    `name` is this worker's, by which others push to it, and under which it owns its keys; without it a name of its own is made. `arena` is the
    memory that it allocates tensors in, in bytes or as "4GiB"; 64 MiB where nothing is said, 0 for a worker that only fetches. `timeout` is how
    many seconds it may take: 30, and 10 for each GiB of arena, where nothing is said. `spin` is how many seconds a call looks for its answer
    before it sleeps. With `reconnect` the client connects again by itself after a restart of the sidecar.

    Raises `SidecarGone` where there is no sidecar, or where it takes no more workers.
    """
    return Client(path, name=name, arena=arena, timeout=timeout, spin=spin, reconnect=reconnect)


def embedded(
    *,
    name: str | None = None,
    arena: int | str | None = None,
    timeout: float | None = None,
    spin: float | None = None,
    sidecar: _calls.Settings | None = None,
) -> Client:
    """Connects to a sidecar inside of this process, which is started where there is none yet, and ends with its last client.

    All embedded clients of a process share it; its children connect to `client.path`.

    `sidecar` are settings of `transferd` by the keys of its configuration file, such as {"pinned_limit": "6GiB"}. With "node", the name of this
    process in a cluster, and for example "listen" and "directory", it is a node beside the `transferd` of other nodes and other processes like
    this one:

        c = td.embedded(sidecar={"node": "trainer-0", "listen": "10.0.0.1:7471", "directory": "http://10.0.0.2:7471"})

    Raises `Error` where a setting is wrong, with its key, and where this process has one with other settings.
    """
    return Client(None, name=name, arena=arena, timeout=timeout, spin=spin, sidecar=sidecar)


def embedded_address() -> str | None:
    """The host and port at which other nodes reach the sidecar of this process: their "directory" is "http://" and this. None where there is
    none, or where it does not listen."""
    return _native._embedded_address()
