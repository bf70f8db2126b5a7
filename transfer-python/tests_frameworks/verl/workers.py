"""A trainer and rollouts as verl has them, with its own workers, groups and manager: what its tests of other engines do (tests/checkpoint_engine in its
wheel), for a machine without a GPU. Ray's workers import this module."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
from typing import Any

import ray
import torch
import transferd.ray as tr
from transferd import _programs
from verl.checkpoint_engine import CheckpointEngineManager, CheckpointEngineRegistry, CheckpointEngineWorker
from verl.single_controller.base import Worker
from verl.single_controller.base.decorator import Dispatch, register
from verl.single_controller.ray import RayClassWithInitArgs, RayResourcePool, RayWorkerGroup
from verl.workers.config import CheckpointEngineConfig, RolloutConfig
from verl.workers.rollout import BaseRollout, RolloutReplica


def weights(step: int) -> dict[str, torch.Tensor]:
    """The model at a step: of several types, with a tensor that is larger than a bucket, one without elements, and two names for one tensor."""
    of = torch.Generator().manual_seed(step)
    model = {f"layers.{n}.w": torch.randn(64, 300, generator=of).bfloat16() for n in range(40)}
    model |= {"head": torch.randn(700, 700, generator=of), "scale": torch.tensor(float(step)), "ids": torch.arange(7) + step}
    return model | {"empty": torch.empty(0, 3), "turned": model["head"].T, "tied": model["layers.39.w"], "flags": torch.tensor([True, False])}


class Trainer(Worker):
    def __init__(self, config: CheckpointEngineConfig) -> None:
        super().__init__()
        options = config.engine_kwargs.get(config.backend, {})
        size = config.update_weights_bucket_megabytes << 20
        self.checkpoint_engine = CheckpointEngineRegistry.new(config.backend, is_master=self.rank == 0, bucket_size=size, **options)
        self.walked = 0
        self.dies_after: int | None = None

    @register(dispatch_mode=Dispatch.ONE_TO_ALL, blocking=False)
    async def update_weights(self, global_steps: int = 0, mode: str = "auto") -> Any:
        return await self.checkpoint_engine.send_weights(self._weights(global_steps), global_steps=global_steps)

    def _weights(self, step: int):
        for named in weights(step).items():
            self.walked += 1
            if self.walked == self.dies_after:
                os.kill(os.getpid(), signal.SIGKILL)
            yield named

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def dies(self, after: int) -> None:
        self.dies_after = self.walked + after

    @register(dispatch_mode=Dispatch.DP_COMPUTE, blocking=False)
    def execute_checkpoint_engine(self, method: str, *args: Any, **kwargs: Any) -> Any:
        return getattr(self.checkpoint_engine, method)(*args, **kwargs)

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def names_walked(self) -> int:
        return self.walked


class Adapter(BaseRollout):
    """Stands for the inference engine: it keeps copies."""

    def __init__(self, config: RolloutConfig, model_config: Any) -> None:
        super().__init__(config, model_config, device_mesh=None)
        self.received: dict[str, torch.Tensor] = {}
        self.ends: tuple[str, int] | None = None
        self.error = ""

    async def resume(self, tags: list[str]) -> None:
        raise NotImplementedError

    async def release(self) -> None:
        raise NotImplementedError

    async def update_weights(self, weights: Any, global_steps: int = 0, **kwargs: Any) -> None:
        assert kwargs["wire_format"] == "named_tensors"
        self.received, self.error = {}, ""
        try:
            async for name, weight in weights:
                self.received[name] = weight.clone()
                if self.ends is not None and len(self.received) == self.ends[1]:
                    await end(self.ends[0])
        except Exception as error:
            self.error = f"{type(error).__name__}: {error}"
            raise


class Rollout(CheckpointEngineWorker):
    def __init__(self, rollout_config: RolloutConfig) -> None:
        super().__init__(rollout_config, None, Adapter(rollout_config, None))

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def check(self, step: int) -> bool:
        received, sent = self.server_adapter.received, weights(step)
        assert list(received) == list(sent)
        assert all(torch.equal(received[name], sent[name]) and received[name].dtype == sent[name].dtype for name in sent)
        return True

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def ends(self, how: str, after: int) -> None:
        self.server_adapter.ends = how, after

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def error(self) -> str:
        return self.server_adapter.error

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def landed_bytes(self) -> int:
        return landed()


async def end(how: str) -> None:
    """Ends a receiver in the middle of an update: by a kill, or by a wait that does not end."""
    if how == "dies":
        os.kill(os.getpid(), signal.SIGKILL)
    await asyncio.Event().wait()


class Replica(RolloutReplica):
    def get_ray_class_with_init_args(self) -> RayClassWithInitArgs:
        raise NotImplementedError

    async def launch_servers(self) -> None:
        raise NotImplementedError

    # There is no server here, so nothing stops or sleeps.
    async def abort_all_requests(self, reject_request: bool = False) -> None: ...

    async def resume_generation(self) -> None: ...

    async def release_kv_cache(self) -> None: ...

    async def resume_kv_cache(self) -> None: ...


def landed() -> int:
    """The bytes that have come to the sidecar of this node from others."""
    admin = os.path.join(os.path.dirname(tr.client().path), "admin.sock")
    command = _programs.command("transferctl", "links", "--json", "--admin", admin)
    lines = subprocess.run(command, capture_output=True, check=True).stdout.splitlines()
    return sum(int(json.loads(line)["bytes_in"]) for line in lines)


def group(cls: type, size: int, **arguments: Any) -> RayWorkerGroup:
    pool = RayResourcePool(process_on_nodes=[size], max_colocate_count=3, use_gpu=False)
    return RayWorkerGroup(resource_pool=pool, ray_cls_with_init=RayClassWithInitArgs(cls=ray.remote(cls), **arguments), device_name="cpu")


class Job:
    """A trainer of two ranks, and its manager; replicas come and go."""

    def __init__(self, **options: Any) -> None:
        self.config = CheckpointEngineConfig(backend="transferd", update_weights_bucket_megabytes=1, engine_kwargs={"transferd": options})
        self.rollout_config = RolloutConfig(name="vllm", checkpoint_engine=self.config)
        self.trainer = group(Trainer, 2, config=self.config)
        self.manager = CheckpointEngineManager(config=self.config, actor_wg=self.trainer, replicas=[])

    def add(self, workers: int) -> tuple[Replica, RayWorkerGroup]:
        found = group(Rollout, workers, rollout_config=self.rollout_config)
        replica = Replica(replica_rank=len(self.manager.replicas), config=self.rollout_config, model_config=None)
        replica.workers = found.workers
        self.manager.add_replicas([replica])
        return replica, found
