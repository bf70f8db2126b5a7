"""vLLM: weights from a trainer to its workers, as one of its weight transfer backends.

    vllm serve ... --weight-transfer-config '{"backend": "transferd"}'

vLLM calls `register` in each of its processes, by the entry point group `vllm.general_plugins`; a trainer that is no process of vLLM calls it itself. Written
for vLLM 0.33, and for 0.32, whose `WeightSource` is another one; docs/frameworks.md describes it.
"""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from vllm.distributed.weight_transfer.base import (
    TrainerInitInfo,
    TrainerWeightTransferEngine,
    VLLMWeightSyncClient,
    WeightSource,
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)
from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory, WeightTransferTrainerFactory

from . import _native, _plug, _weights
from ._calls import to_bytes
from ._client import Client
from ._weights import Named, Receiver, RoundFailed, Sender

__all__ = [
    "RoundFailed",
    "TransferdEngine",
    "TransferdInitInfo",
    "TransferdTrainerEngine",
    "TransferdTrainerInitInfo",
    "TransferdUpdateInfo",
    "register",
]

_BACKEND = "transferd"
# A model may keep tensors until the update ends, such as the scales of attention. A small one shall not keep its whole bucket.
_SMALL_BYTES = 64 << 10


def register() -> None:
    """Makes the backend "transferd" known to both factories of vLLM. Another call does nothing."""
    for factory, engine in ((WeightTransferEngineFactory, TransferdEngine), (WeightTransferTrainerFactory, TransferdTrainerEngine)):
        if _BACKEND not in factory._registry:
            factory.register_engine(_BACKEND, engine)


@dataclass
class TransferdInitInfo(WeightTransferInitInfo):  # type: ignore[misc]
    """What a trainer tells vLLM's workers once: where the sidecar is, the key of its weights, and how many seconds one side waits for the other."""

    socket: str
    key: str
    timeout: float = 300.0

    def __post_init__(self) -> None:
        for name in ("socket", "key"):
            if not isinstance(value := getattr(self, name), str) or not value:
                raise ValueError(f"{name} is a text, such as the trainer sends it; this is {value!r}")
        self.timeout = _native._seconds("timeout", self.timeout)


@dataclass
class TransferdUpdateInfo(WeightTransferUpdateInfo):  # type: ignore[misc]
    """What a trainer tells vLLM's workers for each update: the version of the key with which it begins."""

    first: int

    def __post_init__(self) -> None:
        self.first = _native._whole("first", self.first, 1)


@dataclass
class TransferdTrainerInitInfo(TrainerInitInfo):  # type: ignore[misc]
    """How a trainer sends. `rank` is this process's; rank 0 is the sender.

    `socket` is that of a sidecar that runs on this host, and of those of the hosts of vLLM's workers. Without it the trainer uses that of `td.init()` below
    torchrun, and else starts one inside of its process; then vLLM's workers are on this host, and of this user. `arena` is the memory of the sender; a bucket is
    a quarter of it. `timeout` is how many seconds one side waits for the other.
    """

    backend: ClassVar[str] = _BACKEND

    socket: str | None = None
    arena: int | str = 4 * _weights.BUCKET_BYTES
    timeout: float = 300.0


class TransferdEngine(WeightTransferEngine):  # type: ignore[misc]
    """The worker's side: it loads tensors from the node's shared memory as they come."""

    init_info_cls = TransferdInitInfo
    update_info_cls = TransferdUpdateInfo

    _client: Client | None = None
    _receiver: Receiver | None = None

    def init_transfer_engine(self, init_info: TransferdInitInfo) -> None:
        """Connects to the sidecar, and counts this worker among those that receive."""
        self.shutdown()
        self._client = _weights.connect_to(init_info.socket, _weights.RECEIVER_ARENA, init_info.timeout)
        number = self._client.counter(f"{init_info.key}/workers", timeout=init_info.timeout).add(1, timeout=init_info.timeout)
        self._receiver = Receiver(self._client, init_info.key, str(number), init_info.timeout)

    def start_weight_update(self) -> None:
        """Prepares the model to be loaded layer by layer."""
        from vllm.model_executor.model_loader.reload import initialize_layerwise_reload

        initialize_layerwise_reload(self.model)

    def update_weights(self, update_info: dict[str, Any]) -> None:
        """Receives and loads one round. vLLM's own waits for an accelerator, which a CPU is not."""
        self.receive_weights(self.parse_update_info(update_info))
        if torch.accelerator.is_available():
            torch.accelerator.synchronize()

    def receive_weights(self, update_info: TransferdUpdateInfo) -> None:
        """Receives one round, and loads each bucket while the next one is on its way."""
        from vllm.model_executor.model_loader.mtp_validation import disable_mtp_completeness_check

        if self._receiver is None:
            raise RuntimeError("the weight transfer is not initialized: call init_transfer_engine() first")
        on_cpu = self.device.type == "cpu"
        self._receiver.next = update_info.first
        buckets = self._receiver.receive(None if on_cpu else self.device)
        try:
            with disable_mtp_completeness_check():
                for _, tensors in buckets:
                    self.model.load_weights(_own_small(tensors) if on_cpu else tensors)
                    tensors.clear()
        finally:
            buckets.close()

    def finish_weight_update(self) -> None:
        """Ends the loading of the model."""
        from vllm.model_executor.model_loader.reload import finalize_layerwise_reload

        finalize_layerwise_reload(self.model, self.model_config)

    def shutdown(self) -> None:
        """Ends the session. Weights that were loaded stay."""
        if self._client is not None:
            self._client.close()
        self._client = self._receiver = None


class TransferdTrainerEngine(TrainerWeightTransferEngine):  # type: ignore[misc]
    """The trainer's side: rank 0 publishes the weights, which the other ranks help to gather."""

    init_info_cls = TransferdTrainerInitInfo

    _home: Client | None = None
    _client: Client | None = None
    _sender: Sender | None = None

    @classmethod
    def trainer_init(
        cls, init_info: TransferdTrainerInitInfo, *, client: VLLMWeightSyncClient, source: WeightSource | None = None
    ) -> TransferdTrainerEngine:
        """Connects rank 0 to its sidecar, or starts one, and vLLM's workers to it."""
        if source is None:
            raise ValueError("transferd sends all weights in each round: give a WeightSource")
        _check(source)
        engine = cls(client=client, source=source, is_sender=init_info.is_sender)
        if engine.is_sender:
            try:
                engine._connect(init_info)
            except BaseException:
                engine.shutdown()
                raise
        return engine

    def _connect(self, info: TransferdTrainerInitInfo) -> None:
        timeout = _native._seconds("timeout", info.timeout)
        arena = to_bytes(info.arena, "arena")
        bucket = _weights.bucket_bytes(arena, arena)
        self._home = _weights.connect_to(info.socket, 0, timeout) if info.socket else _plug.home(None, "vllm")
        self._client = _plug.session(_plug.path_of(self._home), arena)
        key = f"vllm/{_plug.unique()}"
        self.client.init_weight_transfer_engine({"socket": str(self._home.path), "key": key, "timeout": timeout})
        # Each of them has counted itself by now.
        self._workers = self._client.counter(f"{key}/workers", timeout=timeout).get(timeout=timeout)
        self._sender = Sender(self._client, key, bucket, timeout)

    def send_weights(self) -> None:
        """Sends a round, while vLLM's workers load it. Every rank of the trainer calls it."""
        sender = self._sender
        if sender is None:
            for _ in _each(self.source):
                pass
            return
        self.client.start_weight_update()
        # It returns when the workers have loaded all, and so it runs beside the sender.
        calls = ThreadPoolExecutor(max_workers=1, thread_name_prefix="transferd-vllm")
        try:
            loading = calls.submit(self.client.update_weights, {"first": sender.next})
            sender.begin([str(number) for number in range(self._workers)], watch=lambda: _raise_if_failed(loading))
            sender.send(_each(self.source))
            loading.result()
        finally:
            # Where this has failed, the workers have been told, and the call ends with an error of its own.
            calls.shutdown(wait=False)
        sender.release()
        self.client.finish_weight_update()

    def shutdown(self) -> None:
        """Ends the session, and the sidecar that was started for it."""
        for client in (self._client, self._home):
            if client is not None:
                client.close()
        self._client = self._home = self._sender = None


def _raise_if_failed(loading: Future[None]) -> None:
    if loading.done():
        loading.result()


def _own_small(tensors: Iterable[Named]) -> list[Named]:
    return [(name, tensor.clone() if tensor.nbytes < _SMALL_BYTES else tensor) for name, tensor in tensors]


def _each(source: Any) -> Iterable[Named]:
    """The full tensors of a source: those of 0.33 have a method for them, and those of 0.32 are iterators of them."""
    full: Iterable[Named] = source.iter_full() if hasattr(source, "iter_full") else iter(source)
    return full


def _check(source: Any) -> None:
    """Raises where rank 0 does not have every parameter as a full tensor."""
    if not hasattr(source, "iter_full"):
        if source.held_names() is not None:
            raise ValueError("transferd has one sender, rank 0, and the source says that ranks hold parts of the model")
        return
    if not source.implements_iter_full():
        raise TypeError(f"transferd sends full tensors, but {type(source).__name__} does not implement iter_full()")
    for parameter in source.metadata:
        if parameter.owners is not None and 0 not in parameter.owners:
            raise ValueError(
                f"parameter {parameter.name!r} is owned by the ranks {parameter.owners}, but transferd has one sender, rank 0, which has to be among them"
            )
