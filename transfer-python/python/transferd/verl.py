"""verl: weights from the trainer to the rollouts, as one of verl's checkpoint engines.

    actor_rollout_ref.rollout.checkpoint_engine.backend=transferd

verl imports this module by itself, by the entry point group `verl.plugins`. Written for verl 0.9.1; docs/frameworks.md describes it.

The first rank of the trainer sends. Where no `socket` of sidecars that run is given, each node of the cluster of Ray gets a sidecar, as by
`transferd.ray.init()`, when the first weights are sent.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Sequence
from typing import Any

from verl.checkpoint_engine.base import CheckpointEngine, CheckpointEngineRegistry, CheckpointEngineWithCache

from . import _native, _plug, _weights
from ._calls import to_bytes
from ._client import Client
from ._weights import Named, Receiver, RoundFailed, Sender

__all__ = ["RoundFailed", "TransferdCacheEngine", "TransferdCheckpointEngine"]


@CheckpointEngineRegistry.register("transferd")
class TransferdCheckpointEngine(CheckpointEngine):  # type: ignore[misc]
    """Moves weights through the sidecars: by reference on the trainer's node, and once to each other node.

    `bucket_size` and `is_master` come from verl. The others are `engine_kwargs.transferd`: `socket` is that of sidecars that run on all nodes; `arena` is
    the memory of the sender, 4 buckets where nothing is said; `timeout` is how many seconds one side waits for the other. A bucket has at most 64 MiB where no
    `arena` is given, and at most a quarter of it.
    """

    def __init__(
        self,
        bucket_size: int,
        is_master: bool = False,
        socket: str | None = None,
        arena: int | str | None = None,
        timeout: float = 600.0,
    ) -> None:
        self._socket, self._timeout = socket, _native._seconds("timeout", timeout)
        bucket = bucket_size if arena is not None else min(bucket_size, _weights.BUCKET_BYTES)
        self._arena = to_bytes(arena, "arena") if arena is not None else 4 * bucket
        self._bucket = _weights.bucket_bytes(self._arena, bucket)
        self._is_master, self._name, self._key = is_master, _weights.name_here(), ""
        self._client: Client | None = None
        self._sender: Sender | None = None
        self._receiver: Receiver | None = None
        self._sending: Sender | None = None
        self._rank = -1

    def prepare(self) -> dict[str, Any]:
        """What `build_topology` needs of this worker."""
        if self._client is not None and (self._client.closed or self._client.gone):
            self._close()
        if self._sending is not None and self._sending is self._sender:
            # The manager has given an update up that still waits for a receiver: it ends by itself, under its key.
            self._sender = None
        if self._is_master and self._sender is None:
            self._key = f"verl/{_plug.unique()}"
        first = 1 if self._sender is None else self._sender.next
        return {"name": self._name, "socket": self._socket, "key": self._key, "first": first, "bucket": self._bucket}

    @classmethod
    def build_topology(
        cls, actor_wg_world_size: int, rollout_world_size: int, metadata: list[dict[str, Any]]
    ) -> tuple[dict[str, list[Any]], dict[str, list[Any]]]:
        """The first rank of the trainer sends, and all rollouts receive. It is called in one process, which starts the sidecars where there are none."""
        master = metadata[0]
        if master["socket"] is None:
            from . import ray

            # Three buckets land at a time, and others may use the pool, too.
            ray.init(sidecar={"pool_bytes": str(max(256 << 20, 4 * master["bucket"]))})
        receivers = [worker["name"] for worker in metadata[actor_wg_world_size:]]

        def same(size: int, ranks: list[int]) -> dict[str, list[Any]]:
            of = {"key": master["key"], "first": master["first"], "receivers": receivers}
            return {"rank": ranks, **{name: [value] * size for name, value in of.items()}}

        trainer = same(actor_wg_world_size, [0] + [-1] * (actor_wg_world_size - 1))
        return trainer, same(rollout_world_size, list(range(1, rollout_world_size + 1)))

    def init_process_group(self, rank: int, key: str, first: int, receivers: Sequence[str]) -> None:
        """Connects this worker, where it is not. There is no group: each round has the receivers of its own."""
        self._rank, self._receivers = rank, receivers
        if rank < 0:
            return
        if self._client is None:
            arena = self._arena if rank == 0 else _weights.RECEIVER_ARENA
            self._client = self._connect(arena)
        if rank == 0:
            self._sender = self._sender or Sender(self._client, key, self._bucket, self._timeout)
        else:
            if self._receiver is None or self._receiver.key != key:
                self._receiver = Receiver(self._client, key, self._name, self._timeout)
            self._receiver.next = first

    def finalize(self) -> None:
        """Gives the memory of the last bucket back. The session stays for the next round."""
        if self._sender is not None:
            self._sender.release()

    async def send_weights(self, weights: Any, global_steps: int | None = None) -> dict[str, float]:
        """Sends a round. Other ranks of the trainer walk through their weights, which may be collective, and send nothing."""
        sender, started = self._sender, time.monotonic()
        if self._rank < 0 or sender is None:
            async for _ in _each(weights):
                pass
            return {}
        sender.begin(self._receivers, {"step": global_steps})
        self._sending = sender
        try:
            async for name, tensor in _each(weights):
                # The weights are made on this thread, which has their device and streams; what waits has another one.
                for call in sender.add(name, tensor):
                    await asyncio.to_thread(call)
            for call in sender.finish():
                await asyncio.to_thread(call)
        except BaseException as error:
            sender.fail(error)
            raise
        finally:
            if self._sending is sender:
                self._sending = None
        return {"transferd/sent_bytes": float(sender.bytes_sent), "transferd/seconds": time.monotonic() - started}

    async def receive_weights(self, global_steps: int | None = None) -> AsyncIterator[Named]:
        """Receives a round. The tensors are on the CPU: views of the node's shared memory, which the sender waits for."""
        assert self._receiver is not None, "init_process_group was not called, or this is a worker of the trainer"
        buckets, bucket = self._receiver.receive(), None
        tensors: list[Named] = []
        try:
            while (bucket := await asyncio.to_thread(next, buckets, None)) is not None:
                note, tensors = bucket
                if global_steps is not None and note["step"] not in (None, global_steps):
                    text = f"weights of step {note['step']} came where those of step {global_steps} were asked for"
                    raise RoundFailed(text, self._receiver.key)
                tensors.reverse()
                while tensors:
                    # Nothing here keeps it when the next bucket is asked for.
                    yield tensors.pop()
        finally:
            # An error that is kept somewhere shall keep no weights.
            bucket, tensors = None, []
            # A call that was cancelled leaves its thread in there, which ends at its time-out.
            with contextlib.suppress(ValueError):
                buckets.close()

    def _connect(self, arena: int) -> Client:
        if self._socket is not None:
            return _weights.connect_to(self._socket, arena, self._timeout)
        from .ray import _clients, _places

        # It waits for the sidecar of a node that has just joined.
        return _clients.connect_to(_places.here(), self._timeout, arena)

    def _close(self) -> None:
        if self._client is not None:
            self._client.close()
        self._client = self._sender = self._receiver = None


@CheckpointEngineRegistry.register("transferd_cache")
class TransferdCacheEngine(TransferdCheckpointEngine, CheckpointEngineWithCache):  # type: ignore[misc]
    """The same, and each node keeps the last round in its shared memory, once for all its workers: `get_weights` has it again without the trainer.

    So the arena of the sender, and the landing pool of each other node, need room for all weights and for two buckets. The next round drops the last one.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._kept: list[Named] | None = None

    async def receive_weights(self, global_steps: int | None = None) -> AsyncIterator[Named]:
        """Receives a round, and keeps it."""
        self._kept, kept = None, []
        async for named in super().receive_weights(global_steps):
            kept.append(named)
            yield named
        self._kept = kept

    async def get_weights(self) -> AsyncIterator[Named]:
        """The weights of the last round that was received as a whole."""
        if self._kept is None:
            raise RuntimeError("no round of weights was received yet, or the last one failed: call receive_weights first")
        for named in self._kept:
            yield named


async def _each(weights: Any) -> AsyncIterator[Named]:
    """verl has iterators of both kinds."""
    if hasattr(weights, "__aiter__"):
        async for named in weights:
            yield named
    else:
        for named in weights:
            yield named
