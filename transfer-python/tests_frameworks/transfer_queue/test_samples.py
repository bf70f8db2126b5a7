"""Samples through TransferQueue's client, with a sidecar on a node of Ray."""

from __future__ import annotations

import os
import pickle
import signal
from collections.abc import Iterator

import numpy as np
import pytest
import ray
import torch
import transfer_queue as tq
import transferd as td
from conftest import until
from samples import LEAVES, begin, bits, check, cluster, dead, names, other, published, put, storage  # noqa: F401
from tensordict import NonTensorStack, TensorDict
from transferd.ray import _places

KINDS = ["bool", "uint8", "int8", "int16", "int32", "int64", "uint16", "uint32", "uint64"]
KINDS += ["float16", "bfloat16", "float32", "float64", "complex64", "complex128", "float8_e4m3fn", "float8_e5m2"]


@pytest.fixture(scope="module")
def started(cluster: None) -> Iterator[None]:
    begin(arena="64MiB")
    folder = _places.here().folder
    yield
    tq.close()
    until("the sidecar has ended with the queue", lambda: not folder.is_there())


@pytest.fixture
def queue(started: None) -> Iterator[None]:
    """One for all tests of this file, empty."""
    yield
    if "p" in tq.kv_list():
        tq.get_client().clear_partition("p")


# Promise: transfer-queue-samples
def test_tensors_of_every_type_come_back_as_they_were(queue):
    made = {kind: torch.arange(24).reshape(4, 6).to(getattr(torch, kind)) for kind in KINDS}
    made |= {"turned": torch.arange(24.0).reshape(6, 4).t(), "part": torch.arange(48.0).reshape(4, 12)[:, ::2], "none": torch.ones(4, 0, 3)}
    made |= {"one": torch.arange(4.0), "gradient": torch.ones(4, 2, requires_grad=True), "conjugate": torch.ones(4, 2, dtype=torch.complex64).conj()}
    put(names(4), **made)
    wanted = {name: [bits(row) for row in value] for name, value in made.items()}
    check(names(4), wanted)
    ray.get(other().check.remote(names(4), wanted))


# Promise: transfer-queue-samples
def test_rows_of_any_length_and_choice_come_back_in_the_order_that_is_asked_for(queue):
    rows = [torch.arange(n, dtype=torch.float32).reshape(-1, 1) + 100 * n for n in (3, 0, 70_000, 1)]
    put(names(4), x=torch.nested.as_nested_tensor(rows, layout=torch.jagged))
    for order in ([0, 1, 2, 3], [3, 0], [2], [2, 1, 0, 3], [1, 2]):
        back = tq.kv_batch_get(keys=[f"k{at}" for at in order], partition_id="p")["x"]
        assert back.layout == torch.jagged
        assert all(torch.equal(row, rows[at]) for row, at in zip(back, order, strict=True)), order
    shapes = [torch.ones(2, 3), torch.ones(4, 5)]
    put(["a", "b"], y=torch.nested.nested_tensor(shapes, layout=torch.strided))
    assert [row.shape for row in tq.kv_batch_get(keys=["b", "a"], partition_id="p")["y"]] == [(4, 5), (2, 3)]


# Promise: transfer-queue-samples
def test_what_is_no_tensor_comes_back_as_it_was(queue):
    put(names(len(LEAVES)), x=NonTensorStack(*LEAVES))
    check(names(len(LEAVES)), {"x": LEAVES})
    ray.get(other().check_leaves.remote(names(len(LEAVES))))


class Trap:
    """Something that says when it was unpickled."""

    def __reduce__(self):
        return os.mkdir, ("/nonexistent/was-unpickled",)


# Promise: transfer-queue-pickles
def test_nothing_of_another_process_is_unpickled(queue):
    with pytest.raises(TypeError, match=r"'0@x'.*has a test_samples.Trap.*set `pickle`"):
        storage().put(["0@x"], [Trap()])
    with pytest.raises(TypeError, match="has a TensorDict"):
        storage().put(["0@x"], [TensorDict({"a": torch.ones(1)}, batch_size=[])])
    (stored,) = storage().put(["0@x"], ["text"])
    bundle = stored.split(" ")[0]
    for text in (b"P" + pickle.dumps(Trap()), b"J{", b"J" + b"[" * 100_000, b'J{"with":[{"value":[0,0,9]},{"tensor":"value"}]}', b'J{"with":1}', b"?"):
        storage()._client.push_state(f"{bundle}x", {"-1": np.frombuffer(text, "uint8"), "0": torch.ones(3)}, version=1, keep="deleted")
        with pytest.raises((td.Invalid, ValueError), match="pickle|was not stored by|no row"):
            storage().get(["0@x"], custom_backend_meta=[f"{bundle}x 1 0 -1 0 {len(text)}"])
        storage()._client.delete(f"{bundle}x")
    for said in ("", "a b", f"{bundle} 1 1 -1 0 6", f"{bundle} 1 0 -2 0 6", f"{bundle} 1 0 -1 6 0", 7):
        with pytest.raises(ValueError, match="none of TransferdClient"):
            storage().get(["0@x"], custom_backend_meta=[said])
    for beyond in (f"{bundle} 1 0 -1 0 600", f"{bundle} 1 0 3 0 1"):
        with pytest.raises(ValueError, match="has no (row|column)"):
            storage().get(["0@x"], custom_backend_meta=[beyond])


# Promise: transfer-queue-batches
def test_many_samples_are_one_version_and_one_copy(queue):
    rows = torch.rand(5000, 64)
    before = published()
    put(names(5000), x=rows, y=rows.double(), s=NonTensorStack(*map(str, range(5000))))
    assert published() == before + 1
    storage_of = tq.get_client().storage_manager
    free = storage()._client.arena_free_bytes
    back = tq.kv_batch_get(keys=names(5000), partition_id="p")
    assert torch.equal(back["x"].values(), rows.reshape(-1)) and back["s"].tolist() == list(map(str, range(5000)))
    # What is got is the memory of the version, seen privately: a write is seen by the writer alone.
    assert back["x"].values()._base is not None and storage()._client.arena_free_bytes == free
    back["x"].values()[:] = 0
    assert torch.equal(tq.kv_batch_get(keys=["k7"], partition_id="p")["x"][0], rows[7])
    assert storage_of is tq.get_client().storage_manager


# Promise: transfer-queue-samples
@pytest.mark.parametrize("workers", [0, 1])
def test_a_loader_streams_samples_in_this_process_or_a_forked_one(queue, workers):
    rows = [torch.full((n + 1,), float(n)) for n in range(16)]
    put(names(16), x=torch.nested.as_nested_tensor(rows, layout=torch.jagged), n=torch.arange(16))
    config = ray.get(ray.get_actor("TransferQueueController", namespace="transfer_queue").get_config.remote())
    options = {"batch_size": 4, "micro_batch_size": 2, "data_fields": ["x", "n"], "partition_id": "p", "task_name": f"load-{workers}", "dp_rank": 0}
    dataset = tq.StreamingDataset(config=config, should_check_consumption_status=True, **options)
    seen = []
    for batch, _ in tq.StreamingDataLoader(dataset, num_workers=workers):
        numbers = batch["n"].tolist()
        assert len(numbers) == 2 and all(torch.equal(row, rows[n]) for row, n in zip(batch["x"], numbers, strict=True))
        seen += numbers
    assert sorted(seen) == list(range(16))


# Promise: transfer-queue-memory
def test_what_is_cleared_by_any_processes_is_free_when_all_of_its_bundle_is(queue):
    free, before = storage()._client.arena_free_bytes, published()
    second = other()
    put(names(100), x=torch.ones(100, 10_000))
    assert published() == before + 1
    tq.kv_clear(keys=names(50), partition_id="p")
    ray.get(second.clear.remote([f"k{number}" for number in range(50, 99)]))
    assert published() == before + 1 and tq.kv_batch_get(keys=["k99"], partition_id="p")["x"][0].sum() == 10_000
    ray.get(second.clear.remote(["k99"]))
    assert published() == before
    until("the arena is free", lambda: storage()._client.arena_free_bytes == free)


# Promise: transfer-queue-memory
def test_a_sample_that_is_put_again_frees_what_it_was(queue):
    second, before = other(), published()
    put(names(10), x=torch.zeros(10, 1000))
    for fill in range(1, 30):
        ray.get(second.put.remote(names(10), float(fill), 1000)) if fill % 2 else put(names(10), x=torch.full((10, 1000), float(fill)))
        assert tq.kv_batch_get(keys=names(10), partition_id="p")["x"].values().unique().tolist() == [fill]
    assert published() == before + 1
    tq.get_client().clear_partition("p")
    assert published() == before


# Promise: transfer-queue-deaths
def test_what_a_killed_process_has_put_stays_until_it_is_cleared(queue):
    second, before = other(), published()
    ray.get(second.put.remote(names(10), 3.0))
    os.kill(ray.get(second.pid.remote()), signal.SIGKILL)
    until("it is dead", lambda: dead(second))
    assert tq.kv_batch_get(keys=names(10), partition_id="p")["x"].values().sum() == 240
    tq.kv_clear(keys=names(10), partition_id="p")
    assert published() == before


# Promise: transfer-queue-errors
def test_a_sample_that_is_cleared_while_it_is_got_is_not_found_and_not_waited_for(queue):
    put(names(3), x=torch.ones(3, 5))
    meta = tq.get_client().get_meta(data_fields=["x"], batch_size=3, partition_id="p", mode="force_fetch", task_name="t")
    tq.kv_clear(keys=names(3), partition_id="p")
    with pytest.raises(tq.StorageKeyNotFoundError, match="was cleared"):
        tq.get_client().get_data(meta)
    with pytest.raises(tq.StorageKeyNotFoundError, match="nothing is stored under '0@x'"):
        storage().get(["0@x"], custom_backend_meta=[None])
    for wrong in ((["a"], "v"), (["a"], [1, 2])):
        with pytest.raises(ValueError, match="keys and"):
            storage().put(*wrong)
