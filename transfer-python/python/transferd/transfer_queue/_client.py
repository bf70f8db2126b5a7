"""The storage client: values are published in bundles, and fetched by where they lie in them."""

from __future__ import annotations

import itertools
import time
import uuid
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import ray
from transfer_queue import StorageKeyNotFoundError
from transfer_queue.storage.clients.base import StorageClientFactory, StorageKVClient

from .._calls import to_bytes
from .._client import Client, connect
from .._errors import ArenaFull, Error, Timeout
from ..ray._clients import connect_to
from ..ray._places import Place, here
from ._settings import Settings
from ._values import SCALAR, TEXTS, Packer, Range, Text

NAME = "TransferdClient"

# A bundle keeps its memory until all its values are cleared, so what is put at once is several of about this many bytes.
_BUNDLE_BYTES = 64 << 20

# What a fetch says of a bundle that is not there, and a delete of one that is gone already.
_GONE = ("unknown_key", "version_gone")
_DELETED = (*_GONE, "closed", "sidecar_gone")

# A value that is known is published, so a bundle that is not found was cleared. How long it is looked for, in seconds.
_BUNDLE_SECONDS = 1.0

_Wanted = dict[str, dict[int, tuple[int, int]]]
"""The first and the last row that are needed of each column of each bundle."""


class Stored(NamedTuple):
    """Where a value lies. TransferQueue's controller keeps this beside the sample, and gives it to who gets or clears the sample."""

    bundle: str
    values: int
    """How many values the bundle has."""
    number: int
    """Which of them it is."""
    range: Range

    @classmethod
    def read(cls, key: str, said: Any) -> Stored:
        """What the controller gives. Raises `StorageKeyNotFoundError` where it knows of no value, and `ValueError` where it says something else."""
        if said is None:
            raise StorageKeyNotFoundError(f"nothing is stored under {key!r}")
        try:
            bundle, *numbers = said.rsplit(" ", 5)
            values, number, column, start, stop = map(int, numbers)
        except (AttributeError, ValueError):
            values = number = column = start = stop = -2
        if not (0 <= number < values and column >= TEXTS and start >= 0 and (start <= stop or stop == SCALAR)):
            raise ValueError(f"the metadata of {key!r} is {said!r}, and none of {NAME}")
        return cls(bundle, values, number, Range(column, start, stop))


class Ledger:
    """An actor of Ray, one for all processes: what is cleared of bundles of which something is left."""

    def __init__(self) -> None:
        self._cleared: dict[str, set[int]] = {}

    def clear(self, found: dict[str, tuple[int, list[int]]]) -> list[str]:
        """Notes that these values of these bundles are cleared. Answers the bundles of which nothing is left now."""
        empty = []
        for bundle, (values, numbers) in found.items():
            cleared = self._cleared.setdefault(bundle, set())
            cleared.update(numbers)
            if len(cleared) >= values:
                del self._cleared[bundle]
                empty.append(bundle)
        return empty


def ledger(run: str) -> Any:
    """The ledger of this start of TransferQueue."""
    options = {"name": f"TransferdLedger{run}", "namespace": "transfer_queue", "get_if_exists": True}
    return ray.remote(Ledger).options(num_cpus=0, max_restarts=-1, **options).remote()


@StorageClientFactory.register(NAME)
class TransferdClient(StorageKVClient):  # type: ignore[misc]
    """What TransferQueue's storage managers call: `put`, `get` and `clear` of many values at once."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self._settings = Settings.read(config)
        self._client = _connected(self._settings)
        self._prefix = f"transfer_queue/{self._client.node}/{uuid.uuid4().hex[:16]}"
        self._numbers = itertools.count()
        self._ledger: Any = None

    @property
    def closed(self) -> bool:
        """Whether `close` was called, or the sidecar is gone for good."""
        return self._client.closed

    def close(self) -> None:
        """Ends the session with the sidecar. What was got stays."""
        self._client.close()

    def put(self, keys: list[str], values: list[Any]) -> list[Any]:
        """Stores values: tensors of torch, and all that a state can have. Each byte is copied into the arena once, and values of one type lie in one column.

        Answers where each lies. Raises `TypeError` for a value that cannot be stored without pickle, and `ArenaFull`.
        """
        _check(keys, values)
        stored: list[Any] = []
        packer, size = Packer(self._settings.pickle), 0
        for key, value in zip(keys, values):
            if size >= _BUNDLE_BYTES:
                stored += self._publish(packer)
                packer, size = Packer(self._settings.pickle), 0
            size += packer.add(key, value)
        return stored + self._publish(packer) if packer.ranges else stored

    def _publish(self, packer: Packer) -> list[Any]:
        bundle, timeout = f"{self._prefix}/{next(self._numbers)}", self._settings.timeout
        try:
            state = packer.write(self._client, timeout)
        except ArenaFull as error:
            hint = "clear samples, or set `arena` of the backend to more memory for each process"
            raise ArenaFull(f"{error}: {hint}", error.code, True, "caller", bundle, error.waited) from None
        self._client.push_state(bundle, state, version=1, keep="deleted", outlive=self._settings.outlive, timeout=timeout)
        # Texts, because the controller's messages and copies of lists take ten times as long.
        head = f"{bundle} {len(packer.ranges)}"
        return [f"{head} {number} {column} {start} {stop}" for number, (column, start, stop) in enumerate(packer.ranges)]

    def get(self, keys: list[str], shapes: Any = None, dtypes: Any = None, custom_backend_meta: Any = None) -> list[Any]:
        """Gets values by where they lie. Tensors share the memory of the sidecar, and a write to one is seen by the writer alone.

        Raises `StorageKeyNotFoundError` where one was cleared.
        """
        stored = _stored(keys, custom_backend_meta)
        columns = _Columns(self._client, self._settings.timeout)
        columns.fetch((found.bundle, found.range) for found in stored)
        results: list[Any] = columns.all(stored)
        texts = {
            at: Text(keys[at], bytes(results[at].numpy()), self._settings.pickle)
            for at, found in enumerate(stored)
            if found.range.column == TEXTS
        }
        columns.fetch((stored[at].bundle, inside) for at, text in texts.items() for inside in text.ranges())
        for at, text in texts.items():
            bundle = stored[at].bundle
            results[at] = text.value(lambda inside: columns.one(bundle, inside))
        return results

    def clear(self, keys: list[str], custom_backend_meta: Any = None) -> None:
        """Clears values. The memory of a bundle is free when all its values are cleared, and nobody reads them."""
        found: dict[str, tuple[int, list[int]]] = {}
        for key, said in zip(keys, _metadata(keys, custom_backend_meta), strict=True):
            if said is not None:
                stored = Stored.read(key, said)
                found.setdefault(stored.bundle, (stored.values, []))[1].append(stored.number)
        whole = [bundle for bundle, (values, numbers) in found.items() if len(set(numbers)) == values]
        if parts := {bundle: of for bundle, of in found.items() if bundle not in whole}:
            if self._ledger is None:
                self._ledger = ledger(self._settings.run)
            whole += ray.get(self._ledger.clear.remote(parts), timeout=self._settings.timeout)
        for bundle in whole:
            self._delete(bundle)

    def _delete(self, bundle: str) -> None:
        timeout = self._settings.timeout
        try:
            if not bundle.startswith(f"{self._prefix}/"):
                # Its owner is the process that has put it, and may have ended.
                self._client.push(bundle, b"\0", takeover=True, timeout=timeout)
            self._client.delete(bundle, timeout=timeout)
        except Error as error:
            if error.code not in _DELETED:
                raise


class _Columns:
    """Columns of bundles, as far as they were fetched."""

    def __init__(self, client: Client, timeout: float) -> None:
        self._client, self._timeout = client, timeout
        self._found: dict[tuple[str, int], tuple[int, int, Any]] = {}

    def fetch(self, ranges: Iterable[tuple[str, Range]]) -> None:
        """Fetches what is not there yet of these ranges, of all bundles at once."""
        wanted: _Wanted = defaultdict(dict)
        for bundle, found in ranges:
            first, last = wanted[bundle].get(found.column, (found.start, found.end))
            wanted[bundle][found.column] = (min(first, found.start), max(last, found.end))
        pending = [(bundle, columns, self._begin(bundle, columns)) for bundle, columns in wanted.items() if self._lacks(bundle, columns)]
        deadline = time.monotonic() + self._timeout
        try:
            for bundle, columns, fetch in pending:
                self._take(bundle, columns, self._result(bundle, columns, fetch, deadline))
        except BaseException:
            for _, _, fetch in pending:
                fetch.cancel()
            raise

    def _lacks(self, bundle: str, columns: dict[int, tuple[int, int]]) -> bool:
        nothing = (0, -1, None)
        return any(
            not (found := self._found.get((bundle, column), nothing))[0] <= first <= last <= found[1] for column, (first, last) in columns.items()
        )

    def _begin(self, bundle: str, columns: dict[int, tuple[int, int]]) -> Any:
        # On this node all of it comes by reference; from another one nothing but these rows moves.
        here = bundle.split("/")[1:2] == [self._client.node]
        parts = None if here else [(str(column), slice(first, last)) for column, (first, last) in columns.items()]
        return self._client._fetch_bundle(bundle, parts, {"exactly": 1, "timeout": self._timeout})

    def _result(self, bundle: str, columns: dict[int, tuple[int, int]], fetch: Any, deadline: float) -> dict[str, Any]:
        """What a fetch brings. It does not wait for a bundle that was cleared."""
        try:
            try:
                tensors: dict[str, Any] = fetch.result(max(0.0, min(_BUNDLE_SECONDS, deadline - time.monotonic())))[0]
            except Timeout:
                if fetch.done():
                    raise
                # A row of it is enough to know.
                column, (first, _) = next(iter(columns.items()))
                probe = [(str(column), slice(first, first + 1))]
                try:
                    self._client._fetch_bundle(bundle, probe, {"exactly": 1, "timeout": _BUNDLE_SECONDS}).result()
                except Timeout as error:
                    if error.code in _GONE:
                        raise
                tensors = fetch.result(max(0.0, deadline - time.monotonic()))[0]
        except Error as error:
            if error.code in _GONE:
                raise StorageKeyNotFoundError(f"{bundle!r} was cleared: {error}") from None
            raise
        return tensors

    def _take(self, bundle: str, columns: dict[int, tuple[int, int]], tensors: dict[str, Any]) -> None:
        for column, (first, last) in columns.items():
            tensor = tensors.get(str(column))
            if tensor is None:
                raise ValueError(f"{bundle!r} has no column {column}")
            whole = not tensor._is_slice
            rows = tensor.torch()
            self._found[bundle, column] = (0, rows.shape[0], rows) if whole else (first, last, rows)

    def one(self, bundle: str, found: Range) -> Any:
        """The rows of a range."""
        first, last, rows = self._found[bundle, found.column]
        if found.end > last:
            raise ValueError(f"{bundle!r} has no row {found.end} in column {found.column}")
        return rows[found.start - first] if found.stop == SCALAR else rows[found.start - first : found.stop - first]

    def all(self, stored: Sequence[Stored]) -> list[Any]:
        """The rows of each value. Those that lie behind each other are cut at once, which takes a fifth of the time."""
        results: list[Any] = []
        run: list[int] = []
        start = end = 0
        column: tuple[str, int] | None = None
        for bundle, _, _, found in stored:
            if run and found.stop != SCALAR and (bundle, found.column) == column and found.start == end:
                run.append(found.stop - found.start)
                end = found.stop
                continue
            self._cut(column, start, end, run, results)
            run = []
            if found.stop == SCALAR:
                results.append(self.one(bundle, found))
            else:
                column, start, end, run = (bundle, found.column), found.start, found.stop, [found.stop - found.start]
        self._cut(column, start, end, run, results)
        return results

    def _cut(self, column: tuple[str, int] | None, start: int, end: int, run: list[int], results: list[Any]) -> None:
        if column is not None and run:
            rows = self.one(column[0], Range(column[1], start, end))
            results += rows.split(run) if len(run) > 1 else [rows]


def _connected(settings: Settings) -> Client:
    """A client of the sidecar that is named, or of the one that this job's nodes have."""
    if settings.path is not None:
        return connect(settings.path, arena=settings.arena, timeout=settings.timeout)
    own = here()
    return connect_to(Place(settings.job or own.job, own.node), settings.timeout, to_bytes(settings.arena, "arena"))


def _check(keys: Any, values: Any) -> None:
    if not isinstance(keys, list) or not isinstance(values, list):
        raise ValueError(f"keys and values have to be lists, and are a {type(keys).__name__} and a {type(values).__name__}")
    if len(keys) != len(values):
        raise ValueError(f"there are {len(keys)} keys and {len(values)} values")


def _metadata(keys: Any, custom_backend_meta: Any) -> Sequence[Any]:
    if custom_backend_meta is None:
        raise ValueError(f"{NAME} finds values by their custom_backend_meta, which put() has returned, and the controller keeps")
    _check(keys, list(custom_backend_meta))
    return list(custom_backend_meta)


def _stored(keys: Any, custom_backend_meta: Any) -> list[Stored]:
    return [Stored.read(key, said) for key, said in zip(keys, _metadata(keys, custom_backend_meta))]
