"""The tensor transports of Ray Direct Transport: a put is a push, a receive is a fetch, and garbage collection is a delete.

What Ray carries from the source to the destination is a key, a version and the name of a node. The tensors themselves, with their shapes and
types, come from the sidecar, which has checked them; nothing of them is unpickled.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import re
import threading
import time
import weakref
from dataclasses import dataclass
from typing import Any

from ray.exceptions import RayDirectTransportError
from ray.experimental.rdt.tensor_transport_manager import (
    CommunicatorMetadata,
    FetchRequest,
    TensorTransportManager,
    TensorTransportMetadata,
)

from .. import _native, _state, _torch, _tree
from .._client import Client
from .._errors import ArenaFull, Error, NoDevice, Timeout
from . import _clients, _found

_PREFIX = "ray/"

# Where tensors can be.
_DEVICES = ("cpu", "cuda")

# Of a job, an object and the process that has published it.
_KEY = re.compile(f"{_PREFIX}[0-9a-f]+/[0-9a-f]+/[0-9a-f]+")

# What a delete says if there is nothing.
_GONE = ("closed", "not_owner", "sidecar_gone", "unknown_key", "version_gone")

# How long a receiver waits before it looks whether the process that has published still lives, and how long that look takes, in seconds.
_LOOK_EVERY, _LIFE_SECONDS = 2.0, 1.0

# How many aborts are remembered whose fetch has not begun.
_ABORTS = 1024


@dataclass
class Metadata(TensorTransportMetadata):  # type: ignore[misc]
    """What Ray carries. Of Ray's own fields it needs `tensor_meta`, a shape and a type for each tensor, and the device."""

    key: str = ""
    version: int = 0
    node: str = ""


class Fetch(FetchRequest):  # type: ignore[misc]
    """A fetch in progress. Dropping it gives it up."""

    def __init__(
        self, number: int, obj_id: str, metadata: Metadata, pending: list[_native.Pending[Any]], target: list[Any] | None
    ) -> None:
        super().__init__(obj_id=obj_id, tensors=[])
        self.number, self.metadata, self.pending, self.target = number, metadata, pending, target
        self.aborted = False

    def cancel(self) -> None:
        """Gives it up, also while another thread waits for it."""
        for pending in list(self.pending):
            pending.cancel()


class Transport(TensorTransportManager):  # type: ignore[misc]
    """What both transports have in common. There is one in each process."""

    name: str

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pushed: dict[str, Metadata] = {}
        self._fetches: weakref.WeakValueDictionary[int, Fetch] = weakref.WeakValueDictionary()
        self._numbers = itertools.count()
        self._aborted: dict[str, None] = {}
        # The session of this process whose life is published.
        self._alive: tuple[Client, int] | None = None

    def push(self, client: Client, key: str, objects: list[Any]) -> None:
        """Publishes the objects, as version 1."""
        raise NotImplementedError

    def keys(self, metadata: Metadata) -> list[str]:
        """The keys that `push` has published."""
        raise NotImplementedError

    def fetch(self, client: Client, metadata: Metadata) -> list[_native.Pending[Any]]:
        """Begins to fetch them."""
        raise NotImplementedError

    def take(self, metadata: Metadata, results: list[Any], target: list[Any] | None) -> list[Any]:
        """The objects, of what the fetch has brought."""
        raise NotImplementedError

    def describe(self, objects: list[Any]) -> list[tuple[Any, Any]]:
        """A shape and a type for each object. Raises `ValueError` where one cannot be carried."""
        raise NotImplementedError

    def device(self, objects: list[Any]) -> str:
        """The type of the device where all of them are."""
        return "cpu"

    # What Ray calls everywhere

    def tensor_transport_backend(self) -> str:
        return self.name

    @staticmethod
    def is_one_sided() -> bool:
        return True

    @staticmethod
    def can_abort_transport() -> bool:
        return True

    def actor_has_tensor_transport(self, actor: Any) -> bool:
        # Ray waits for the answer before it submits a task. Each node of the job has a sidecar, or will have one.
        return True

    def get_communicator_metadata(self, src_actor: Any, dst_actor: Any, backend: str | None = None) -> Any:
        return CommunicatorMetadata()

    # What it calls at the source

    def extract_tensor_transport_metadata(self, obj_id: str, rdt_object: list[Any]) -> Metadata:
        with self._lock:
            # Where Ray has tried the task again, it has the objects of the first attempt.
            if (known := self._pushed.get(obj_id)) is not None:
                return known
        metadata = Metadata(tensor_meta=self.describe(rdt_object), tensor_device=self.device(rdt_object))
        if rdt_object:
            context = _found.ray().get_runtime_context()
            # A later attempt of the task in another process has a key of its own, so the two are never mixed.
            metadata.key = f"{_PREFIX}{context.get_job_id()}/{obj_id}/{context.get_worker_id()}"
            metadata.version = 1
            metadata.node = _clients.again(lambda client: self._push(client, metadata, rdt_object))
        with self._lock:
            self._pushed[obj_id] = metadata
        return metadata

    def _push(self, client: Client, metadata: Metadata, objects: list[Any]) -> str:
        """Publishes the objects, all of them or none. Answers the node."""
        try:
            if self._alive != (client, client.incarnation):
                client.push(_life_of(metadata), b"1")
                self._alive = (client, client.incarnation)
            self.push(client, metadata.key, objects)
        except Error as error:
            with contextlib.suppress(Error):
                _delete(client, self.keys(metadata))
            if not isinstance(error, ArenaFull):
                raise
            hint = "call transferd.ray.init(arena=...) with more memory for each process"
            raise ArenaFull(f"{error}: {hint}", error.code, True, "caller", error.key, error.waited) from None
        return client.node

    def send_multiple_tensors(self, tensors: Any, tensor_transport_metadata: Any, communicator_metadata: Any) -> None:
        raise NotImplementedError(f"{self.name} is one-sided: the receiver fetches, and nobody sends")

    def garbage_collect(self, obj_id: str, tensor_transport_meta: Any, tensors: list[Any]) -> None:
        with self._lock:
            metadata = self._pushed.pop(obj_id, None)
        if metadata is not None and metadata.key:
            _delete(_clients.client(), self.keys(metadata))

    # What it calls at the destination

    def recv_multiple_tensors(
        self, obj_id: str, tensor_transport_metadata: Any, communicator_metadata: Any, target_buffers: list[Any] | None = None
    ) -> list[Any]:
        fetch = self.fetch_multiple_tensors(obj_id, tensor_transport_metadata, communicator_metadata, target_buffers)
        return self.wait_fetch_complete(fetch)

    def fetch_multiple_tensors(
        self, obj_id: str, tensor_transport_metadata: Any, communicator_metadata: Any, target_buffers: list[Any] | None = None
    ) -> Fetch:
        metadata = checked(tensor_transport_metadata)
        with self._lock:
            if obj_id in self._aborted:
                del self._aborted[obj_id]
                raise _failed(obj_id, metadata, "Ray has aborted it")
        pending = self.fetch(_clients.reader(), metadata) if metadata.tensor_meta else []
        fetch = Fetch(next(self._numbers), obj_id, metadata, pending, target_buffers)
        with self._lock:
            self._fetches[fetch.number] = fetch
        return fetch

    def wait_fetch_complete(self, fetch_request: Any, timeout: float = -1) -> list[Any]:
        fetch: Fetch = fetch_request
        deadline = math.inf if timeout < 0 else time.monotonic() + timeout
        results: list[Any] = []
        try:
            for pending in fetch.pending:
                results.append(_result(fetch, pending, deadline))
            return self.take(fetch.metadata, results, fetch.target)
        except Error as error:
            if isinstance(error, TimeoutError) and time.monotonic() >= deadline:
                raise TimeoutError(f"{fetch.obj_id} was not received within {timeout} s: {error}") from None
            why = "Ray has aborted it" if fetch.aborted else str(error)
        finally:
            # Ray may keep the error, and with it these frames and what they refer to.
            results.clear()
        fetch.cancel()
        fetch.pending.clear()
        with self._lock:
            self._fetches.pop(fetch.number, None)
        raise _failed(fetch.obj_id, fetch.metadata, why)

    def abort_transport(self, obj_id: str, communicator_metadata: Any) -> None:
        with self._lock:
            going = [fetch for fetch in self._fetches.values() if fetch.obj_id == obj_id]
            if not going:
                # It begins later, or has ended.
                self._aborted[obj_id] = None
                while len(self._aborted) > _ABORTS:
                    del self._aborted[next(iter(self._aborted))]
        for fetch in going:
            fetch.aborted = True
            fetch.cancel()


def _result(fetch: Fetch, pending: _native.Pending[Any], deadline: float) -> Any:
    """What a part of a fetch brings. Raises where the process that has published it has ended: it would be waited for otherwise."""
    while True:
        left = max(0.0, deadline - time.monotonic())
        try:
            return pending.result(min(left, _LOOK_EVERY))
        except Timeout:
            if pending.done():
                return pending.result()
            if left <= _LOOK_EVERY:
                raise
        if _has_ended(fetch.metadata):
            pending.cancel()
            raise Error("the process that had published it has ended", "version_gone", key=fetch.metadata.key)


def _has_ended(metadata: Metadata) -> bool:
    """Whether the process that had published it is known to have ended: it may be that nobody can be asked."""
    client = _clients.reader()
    try:
        client.fetch(_life_of(metadata), timeout=_LIFE_SECONDS)
    except Error as error:
        if error.code != "unknown_key":
            return False
    else:
        return False
    # Nobody has the key, or the directory does not answer.
    try:
        client.counter(_clients.looks(), timeout=_LIFE_SECONDS).add(timeout=_LIFE_SECONDS)
    except Error:
        return False
    return True


def _life_of(metadata: Metadata) -> str:
    """The key that is there as long as the process that has published this object."""
    _, job, _, worker = metadata.key.split("/")
    return f"{_PREFIX}{job}/alive/{worker}"


def _delete(client: Client, keys: list[str]) -> None:
    """Deletes what is there of these keys."""
    for key in keys:
        try:
            client.delete(key)
        except Error as error:
            # What a sidecar that has ended since had published has ended with it.
            if error.code not in _GONE:
                raise


def checked(metadata: Any) -> Metadata:
    """What came from the source, looked at before it is used."""
    if not isinstance(metadata, Metadata):
        raise TypeError(f"the metadata of a transfer is a {type(metadata).__name__}, and not one of transferd.ray")
    if metadata.tensor_meta and not (isinstance(metadata.key, str) and _KEY.fullmatch(metadata.key)):
        raise ValueError(f"the key of a transfer is {metadata.key!r}: it has to be {_PREFIX}JOB/OBJECT/WORKER")
    if metadata.tensor_device not in _DEVICES:
        raise ValueError(f"the device of a transfer is {metadata.tensor_device!r}: it has to be one of {', '.join(_DEVICES)}")
    if not isinstance(metadata.version, int) or metadata.version < 0:
        raise ValueError(f"the version of a transfer is {metadata.version!r}: it has to be a number of 0 or more")
    return metadata


def _failed(obj_id: str, metadata: Metadata, why: str) -> Exception:
    found: Exception = RayDirectTransportError(
        f"{obj_id} was not received: {metadata.key} of version {metadata.version} at {metadata.node}: {why}"
    )
    return found


class Tensors(Transport):
    """Tensors of torch. Those of one object are one version."""

    name = "TRANSFERD"

    def describe(self, objects: list[Any]) -> list[tuple[Any, Any]]:
        for tensor in objects:
            if tensor.device.type not in _DEVICES:
                raise ValueError(f"{self.name} carries tensors in the host's memory or on GPUs of CUDA, and not on {tensor.device}: call cpu() first")
            if tensor.device.type != objects[0].device.type:
                # Ray has one device for all.
                raise ValueError(f"{self.name} carries objects whose tensors are all on devices of one type, and not on {objects[0].device} and {tensor.device}")
        return [(tensor.shape, tensor.dtype) for tensor in objects]

    def device(self, objects: list[Any]) -> str:
        return str(objects[0].device.type) if objects else "cpu"

    def push(self, client: Client, key: str, objects: list[Any]) -> None:
        state = {str(number): tensor for number, tensor in enumerate(objects)}
        client.push_state(key, state, version=1)

    def keys(self, metadata: Metadata) -> list[str]:
        return [metadata.key]

    def fetch(self, client: Client, metadata: Metadata) -> list[_native.Pending[Any]]:
        return [client._fetch_bundle(metadata.key, None, {"exactly": metadata.version, "timeout": None})]

    def take(self, metadata: Metadata, results: list[Any], target: list[Any] | None) -> list[Any]:
        expected = [(shape, dtype) for shape, dtype in metadata.tensor_meta]
        found = _tree.restore(metadata.key, results[0][0]) if results else {}
        # A record, which any worker of the tenant can have written, may say other things.
        entries = [found.get(str(number)) for number in range(len(found))]
        tensors = [entry for entry in entries if isinstance(entry, _native.Tensor)]
        described = [_torch.layout(tensor) for tensor in tensors]
        if described != expected:
            raise Error(f"it has tensors of {described}, and Ray was told of {expected}", "wrong_type", key=metadata.key)
        if target is not None:
            for tensor, buffer in zip(tensors, target, strict=True):
                _state._copy(tensor, buffer)
            return target
        if metadata.tensor_device != "cuda":
            return [tensor.torch() for tensor in tensors]
        try:
            return [tensor.torch(device="cuda") for tensor in tensors]
        except NoDevice as error:
            hint = 'where the object is taken, call ray.experimental.set_target_device_for_ref(ref, "cpu")'
            raise NoDevice(f"{error}: {hint}", error.code, False, "caller", metadata.key) from None


class Tables(Transport):
    """Tables of pyarrow. Each is a version of its own."""

    name = "TRANSFERD_ARROW"

    def describe(self, objects: list[Any]) -> list[tuple[Any, Any]]:
        return [((table.num_rows, table.num_columns), None) for table in objects]

    def push(self, client: Client, key: str, objects: list[Any]) -> None:
        for number, table in enumerate(objects):
            client.push_table(f"{key}/{number}", table, version=1)

    def keys(self, metadata: Metadata) -> list[str]:
        return [f"{metadata.key}/{number}" for number in range(len(metadata.tensor_meta))]

    def fetch(self, client: Client, metadata: Metadata) -> list[_native.Pending[Any]]:
        options = {"exactly": metadata.version, "timeout": None}
        return [client._fetch_table(key, options) for key in self.keys(metadata)]

    def take(self, metadata: Metadata, results: list[Any], target: list[Any] | None) -> list[Any]:
        if target is not None:
            raise Error(f"{self.name} receives no tables into buffers", "wrong_type", key=metadata.key)
        return [table.pyarrow() for table in results]
