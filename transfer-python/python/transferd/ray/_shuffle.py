"""`shuffle`: blocks of rows to partitions, through an exchange of the nodes' sidecars."""

from __future__ import annotations

import contextlib
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from .. import _native
from .._calls import to_bytes
from .._exchange import Exchange
from .._errors import ExchangeOver, Invalid, Lost, PeerLost, SidecarGone, Timeout
from . import _by, _clients, _found
from ._by import By
from ._sort import bounds, in_order, rows_per_block, sample
from ._writing import Work, write

# The most partitions that an exchange has a number for.
_MOST = (1 << 32) - 1

# The largest block of an exchange.
_BLOCK_BYTES = 1 << 20

# The rows of each table of a partition in an order of its own.
_ROWS = 1 << 16

# The size that a block is taken for where Ray does not know it.
_UNKNOWN_BYTES = 64 << 20

# How long it may take to find an exchange that is there, in seconds.
_JOIN = 10.0

# How long a reader waits before it looks again for tasks that were lost, in seconds.
_PAUSE = 0.1


def shuffle(
    blocks: Iterable[Any],
    *,
    by: By,
    partitions: int,
    arena: int | str | None = None,
    timeout: float | None = 300.0,
) -> Shuffled:
    """Moves the rows of `blocks` to `partitions`, and answers the partitions once all rows are written.

    A block is a table of pyarrow, an object reference of Ray to one, such as those of `from_dataset`, or a function without arguments that
    returns one: it runs where the rows are written. All have the same schema. `by` says which partition a row goes to: the name of a column, or a list of
    names, for the hash of them, or `Hash`, `Sort`, `Random` or `Column`.

    Tasks of Ray write the blocks, on the nodes where these lie: at most one for each processor, so each writes several blocks. The rows stay in
    the arenas of these tasks until the result is released, so an arena has to have room for them: `arena` bytes for each task; if
    nothing is said, as much as the sizes of the blocks need. They outlive the processes that wrote them. If a node dies, what was there is
    written again at another one.

    Each step may take `timeout` seconds; None is for ever. Raises what the writing of a block raises: `Invalid` where there is no such column, `ArenaFull`.
    """
    read = _by.read(by)
    partitions = _native._whole("partitions", partitions, 1, _MOST)
    seconds, arena_bytes = _native._seconds("timeout", timeout), to_bytes(arena, "arena")
    ray = _found.connected()
    given = list(blocks)
    if not given:
        raise Invalid("there are no blocks to shuffle: give at least one, such as an empty table")
    refs = [block if isinstance(block, ray.ObjectRef) else ray.put(block) for block in given]
    # Where a function lies and how large it is says nothing of the table that it returns.
    lying = [ref for ref, block in zip(refs, given, strict=True) if not callable(block)]
    limits = None
    if isinstance(read, _by.Sort):
        task = ray.remote(sample)
        rows = rows_per_block(len(refs), partitions)
        with _causes(ray):
            limits = bounds(ray.get([task.remote(ref, read.columns, rows) for ref in refs]), read.columns, partitions)
    name = f"ray-{uuid.uuid4().hex}"
    exchange = _clients.reader().exchange(name, partitions=partitions, tasks=len(refs))
    try:
        placed = _placed(ray, refs, lying)
        sizes = {place: arena_bytes for place, _ in placed} if arena_bytes is not None else _arenas(placed, partitions)
        places = [(*place, sizes[place]) for place, _ in placed]
        result = Shuffled(name, partitions, read, refs, places, _by.how(read, limits), seconds)
        result._exchange = exchange
    except BaseException:
        exchange.release()
        raise
    try:
        result._run(range(len(refs)))
    except BaseException:
        result.release()
        raise
    return result


class Shuffled:
    """The partitions of a shuffle. As a context manager it releases them. It pickles: tasks and actors of the job read partitions, too."""

    def __init__(
        self,
        name: str,
        partitions: int,
        by: _by.Hash | _by.Sort | _by.Random | _by.Column,
        blocks: list[Any],
        places: list[tuple[str, int, int]],
        how: dict[str, Any],
        timeout: float,
    ) -> None:
        self._name, self._by, self._blocks, self._places, self._how = name, by, blocks, places, how
        self._partitions, self._timeout = partitions, timeout
        # In the process that has called `shuffle`.
        self._exchange: Exchange | None = None
        self._released = False

    def __reduce__(self) -> tuple[object, ...]:
        given = (self._name, self._partitions, self._by, self._blocks, self._places, self._how, self._timeout)
        return Shuffled, given

    @property
    def partitions(self) -> int:
        """The number of partitions."""
        return self._partitions

    def partition(self, partition: int) -> Iterator[Any]:
        """The rows of a partition: an iterator of tables of pyarrow, which share the memory of the sidecar of this node.

        With `Sort` it is one table. If what a task had written is lost, the task runs again, and the iterator goes on.
        """
        partition = _native._whole("partition", partition, 0, self._partitions - 1)
        tables = self._tables(partition)
        return _sorted(tables, self._by.columns) if isinstance(self._by, _by.Sort) else tables

    def _tables(self, partition: int) -> Iterator[Any]:
        exchange = self._exchange or self._joined()
        order = self._by.seed if isinstance(self._by, _by.Random) else None
        reader = exchange.partition(partition, order=order, rows_per_batch=_ROWS, timeout=self._timeout)
        while True:
            try:
                found = next(reader, None)
            except Lost as lost:
                self._run(lost.tasks)
                time.sleep(_PAUSE)
                continue
            if found is None:
                return
            yield found.pyarrow()

    def _joined(self) -> Exchange:
        # It was opened before: if it is not there, it is over.
        with contextlib.suppress(Timeout):
            if not self._released:
                return _clients.reader().join_exchange(self._name, timeout=_JOIN)
        raise ExchangeOver("these partitions were released: read them before, or shuffle again", "over")

    def __iter__(self) -> Iterator[Iterator[Any]]:
        """The partitions, in order."""
        return (self.partition(number) for number in range(self._partitions))

    def map(self, function: Callable[[Iterator[Any]], Any], **options: Any) -> list[Any]:
        """Calls `function` with the tables of each partition, in a task of Ray. Answers the object references of the results.

        `options` are those of a task of Ray. Ray runs a task again whose node dies.
        """
        ray = _found.connected()
        asked: dict[str, Any] = {"max_retries": -1, "retry_exceptions": [SidecarGone, PeerLost], **options}
        task = ray.remote(_reduce).options(**asked)
        return [task.remote(self, number, function) for number in range(self._partitions)]

    def _run(self, tasks: Iterable[int]) -> None:
        """Runs these tasks, each as another attempt, and waits for all."""
        ray = _found.connected()
        together: dict[tuple[str, int, int], list[tuple[int, list[Any]]]] = {}
        for task in tasks:
            together.setdefault(self._places[task], []).append((task, [self._blocks[task]]))
        affinity = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy
        remote, running = ray.remote(write), []
        for (node, _, arena), blocks in together.items():
            # Soft: if the node dies, Ray runs the task at another one.
            options = remote.options(max_retries=-1, scheduling_strategy=affinity(node, soft=True))
            running.append(options.remote(Work(self._name, blocks, self._how, arena, self._timeout)))
        with _causes(ray):
            ray.get(running)

    def release(self) -> None:
        """Ends the exchange, and frees what was written. What was read stays readable. Does nothing in another process."""
        exchange, self._exchange, self._released = self._exchange, None, self._released or self._exchange is not None
        if exchange is not None:
            exchange.release()

    def __enter__(self) -> Shuffled:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


def _reduce(shuffled: Shuffled, partition: int, function: Callable[[Iterator[Any]], Any]) -> Any:
    return function(shuffled.partition(partition))


def _sorted(tables: Iterator[Any], columns: tuple[str, ...]) -> Iterator[Any]:
    import pyarrow

    if found := list(tables):
        yield in_order(pyarrow.concat_tables(found), columns)


@contextlib.contextmanager
def _causes(ray: Any) -> Iterator[None]:
    """Raises what a task has raised, and not that it has."""
    try:
        yield
    except ray.exceptions.RayTaskError as error:
        if isinstance(error.cause, Exception):
            raise error.cause from error
        raise


def _placed(ray: Any, refs: list[Any], lying: list[Any]) -> list[tuple[tuple[str, int], int]]:
    """The place of each block, a node and the number of a task of Ray there, and its bytes: of those that lie somewhere there, of others in turns."""
    nodes = {node["NodeID"]: max(1, int(node["Resources"].get("CPU", 1))) for node in ray.nodes() if node["Alive"]}
    found = {}
    if lying:
        ray.wait(lying, num_returns=len(lying), fetch_local=False)
        found = ray.experimental.get_object_locations(lying)
    tasks = dict.fromkeys(nodes, 0)
    placed = []
    for ref in refs:
        at = found.get(ref, {})
        # The one with the least to do for each of its processors.
        among = [node for node in at.get("node_ids", ()) if node in nodes] or list(nodes)
        node = min(among, key=lambda node: tasks[node] / nodes[node])
        placed.append(((node, tasks[node] % nodes[node]), at.get("object_size") or _UNKNOWN_BYTES))
        tasks[node] += 1
    return placed


def _arenas(placed: list[tuple[tuple[str, int], int]], partitions: int) -> dict[tuple[str, int], int]:
    """How large an arena has to be at each place."""
    needed: dict[tuple[str, int], int] = {}
    for place, size in placed:
        # Rows take more room than in their block, and the last block of each partition is in part empty.
        more = partitions * min(_BLOCK_BYTES, size // partitions + 4096)
        needed[place] = needed.get(place, 32 << 20) + size * 3 // 2 + more
    return needed
