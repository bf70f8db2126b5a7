"""What the tests of samples have in common: a cluster of Ray, and another process there."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import ray
import torch
import transfer_queue as tq
from conftest import TRANSFERCTL
from tensordict import NonTensorStack, TensorDict
from transferd.ray import _places
from transferd.transfer_queue import TransferdClient

MIB = 1 << 20

def begin(**settings: Any) -> None:
    # A get that waits as long as this for what was cleared, or was lost, hangs the test.
    tq.init({"controller": {"polling_mode": True}, "backend": {"storage_backend": "transferd", "transferd": {"timeout": 300.0, **settings}}})


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    ray.init("local", num_cpus=4, include_dashboard=False, object_store_memory=150 * MIB, log_to_driver=False)
    yield
    ray.shutdown()


def storage() -> TransferdClient:
    return tq.get_client().storage_manager.storage_client


def listed(admin: str) -> int:
    command = [TRANSFERCTL, "tensors", "--prefix", "transfer_queue/", "--json", "--admin", admin]
    return len(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout.splitlines())


def published() -> int:
    """How many versions of samples the sidecar of this node has."""
    return listed(_places.here().folder.admin)


def put(keys: list[str], partition: str = "p", **fields: Any) -> None:
    tq.kv_batch_put(keys=keys, partition_id=partition, fields=TensorDict(fields, batch_size=len(keys)), tags=[{}] * len(keys))


def names(count: int) -> list[str]:
    return [f"k{number}" for number in range(count)]


class Other:
    """Another process."""

    def sum(self, keys: list[str]) -> float:
        return float(tq.kv_batch_get(keys=keys, partition_id="p")["x"].values().sum())

    def check(self, keys: list[str], wanted: dict[str, list[Any]]) -> None:
        check(keys, wanted)

    def check_leaves(self, keys: list[str]) -> None:
        check(keys, {"x": LEAVES})

    def put(self, keys: list[str], fill: float, columns: int = 8) -> None:
        put(keys, x=torch.full((len(keys), columns), fill))

    def clear(self, keys: list[str]) -> None:
        tq.kv_clear(keys=keys, partition_id="p")

    def pid(self) -> int:
        return os.getpid()


def other() -> Any:
    return ray.remote(num_cpus=0)(Other).remote()


LEAVES = [
    {"text": "ü", "half": "\ud800", "n": -(1 << 70), "x": float("nan"), "none": None, "yes": True, "b": b"\x00\xff", "t": (1, [2, ()]), 7: "seven"},
    {"pixels": torch.arange(6).reshape(2, 3), "inner": [np.arange(3, dtype=">i2"), np.float32(2.5), np.str_("s")]},
    {"nested": torch.nested.as_nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged), "empty": np.empty((0, 2), "<U3")},
    np.array([[b"ab", b"c"]], "S2"),
    "a text",
    17,
    [],
]


def bits(row: torch.Tensor) -> tuple[str, tuple[int, ...], bytes]:
    """What a tensor is. torch does not pickle all types."""
    plain = row.detach().resolve_conj().contiguous()
    return str(row.dtype), tuple(row.shape), plain.reshape(-1).view(torch.uint8).numpy().tobytes()


def check(keys: list[str], wanted: dict[str, list[Any]]) -> None:
    """Gets these samples, and compares them with what they were: bits of tensors, or other values."""
    back = tq.kv_batch_get(keys=keys, partition_id="p")
    for name, rows in wanted.items():
        found = back[name]
        for row, want in zip(found.tolist() if isinstance(found, NonTensorStack) else list(found), rows, strict=True):
            same(bits(row) if isinstance(row, torch.Tensor) and isinstance(want, tuple) else row, want)


def same(found: Any, wanted: Any) -> None:
    assert type(found) is type(wanted)
    if isinstance(wanted, dict):
        assert list(found) == list(wanted)
        for key in wanted:
            same(found[key], wanted[key])
    elif isinstance(wanted, (list, tuple)):
        assert len(found) == len(wanted)
        for a, b in zip(found, wanted):
            same(a, b)
    elif isinstance(wanted, torch.Tensor):
        assert found.layout == wanted.layout and all(torch.equal(a, b) for a, b in zip(found.unbind(), wanted.unbind(), strict=True))
    elif isinstance(wanted, (np.ndarray, np.generic)):
        assert found.dtype == wanted.dtype and found.shape == wanted.shape and np.array_equal(found, wanted)
    else:
        assert repr(found) == repr(wanted)


def dead(actor: Any) -> bool:
    try:
        ray.get(actor.pid.remote(), timeout=5)
    except ray.exceptions.RayActorError:
        return True
    return False
