"""torchft's own test of a transport, with ours; and what ours promises beside."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import unittest
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import numpy as np
import pytest
import torch
import torch.distributed as dist
import transferd as td
from conftest import GIVE_UP
from test_examples import run_example
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.placement_types import _StridedShard
from torchft.checkpointing.transport_test import run_multi_recovery_test
from transferd.torchft import TransferTransport


# Promise: torchft-transport, seen to fail
@pytest.mark.parametrize("given", [False, True])
def test_torchfts_test_of_a_transport_passes(sidecar, given):
    clients = []

    def transport(rank, world_size):
        if not given:
            return TransferTransport()
        clients.append(td.connect(sidecar.path, arena=0))
        return TransferTransport(clients[-1])

    run_multi_recovery_test(unittest.TestCase(), transport, device=torch.device("cpu"))
    for client in clients:
        client.close()


@pytest.fixture
def ends():
    """A sender and a receiver of one process, which share the sidecar inside of it."""
    both = TransferTransport(), TransferTransport()
    yield both
    for one in both:
        one.shutdown()


def receive(ends, step, timeout=20.0):
    return ends[1].recv_checkpoint(0, ends[0].metadata(), step, timedelta(seconds=timeout))


def send(ends, step, state):
    ends[0].send_checkpoint([1], step, state, timedelta(seconds=20))


# Promise: torchft-states, seen to fail
def test_a_state_comes_back_as_it_was(ends):
    tied = torch.arange(1 << 15, dtype=torch.float32)
    state = {
        "model": {"a": tied, "b": tied, "half": torch.ones(3, 2, dtype=torch.bfloat16).t(), "none": torch.empty(0, 4), "bits": torch.tensor([True])},
        "adam": {"state": {0: {"step": torch.tensor(7.0), "m": torch.ones(2)}}, "param_groups": [{"lr": 0.1, "betas": (0.9, 0.95), "foreach": None}]},
        "numpy": np.arange(3),
        "step": 12,
    }
    send(ends, 1, state)
    found = receive(ends, 1)
    assert found["model"]["a"] is found["model"]["b"]
    for name, tensor in state["model"].items():
        assert found["model"][name].dtype == tensor.dtype and torch.equal(found["model"][name], tensor), name
    assert found["adam"]["param_groups"] == state["adam"]["param_groups"] and found["adam"]["state"][0]["step"] == 7 and found["step"] == 12
    assert torch.equal(found["numpy"], torch.arange(3))
    # The state changes behind the sender, and what was received in the hands of the receiver: neither sees the other.
    tied.zero_()
    found["model"]["a"][:] = 5
    assert torch.equal(receive(ends, 1)["model"]["a"], torch.arange(1 << 15, dtype=torch.float32))


@pytest.fixture
def into():
    """A sender, a receiver, and the state of the receiver."""
    mine = {"model": {"w": torch.zeros(1 << 22), "t": torch.zeros(3, 2), "b": torch.zeros(5, dtype=torch.bfloat16)}, "step": 0}
    both = TransferTransport(), TransferTransport(state_dict=lambda: mine)
    yield both, mine
    for one in both:
        one.shutdown()


# Promise: torchft-in-place, seen to fail
def test_a_state_is_received_into_the_tensors_that_are_there(into):
    ends, mine = into
    # The first one is in other buckets than the others, and the last one is not there at the receiver.
    model = {"w": torch.rand(1 << 22), "t": torch.rand(3, 2), "b": torch.rand(5).bfloat16(), "big": [torch.rand(1 << 23), torch.rand(1 << 23)]}
    turned = mine["model"]["t"] = torch.zeros(2, 3).T
    for step in (1, 2):
        model["w"] += 1
        send(ends, step, {"model": model, "step": step})
        found = receive(ends, step)
        assert found["step"] == step and list(found["model"]) == list(model)
        for name, tensor in mine["model"].items():
            assert found["model"][name] is tensor and torch.equal(tensor, model[name]), name
        assert all(torch.equal(a, b) for a, b in zip(found["model"]["big"], model["big"]))
    assert mine["model"]["t"] is turned and mine["step"] == 0


# Promise: torchft-in-place
def test_a_tensor_that_does_not_fit_its_target_is_named(into):
    ends, mine = into
    send(ends, 1, {"model": {"t": torch.rand(2, 3)}})
    with pytest.raises(td.Invalid, match=r"state/model/t.* is float32 \[2, 3\] in the state and float32 \[3, 2\]"):
        receive(ends, 1)
    assert mine["model"]["t"].sum() == 0


# Promise: torchft-in-place
def test_a_dtensor_is_received_into_the_local_tensor_of_another(world):
    mesh = init_device_mesh("cpu", (1,))
    mine = distribute_tensor(torch.zeros(4, 4), mesh, [Shard(0)])
    ends = TransferTransport(), TransferTransport(state_dict=lambda: {"w": mine})
    sent = distribute_tensor(torch.arange(16.0).reshape(4, 4), mesh, [Shard(0)])
    send(ends, 1, {"w": sent})
    found = receive(ends, 1)["w"]
    assert isinstance(found, DTensor) and found.to_local().data_ptr() == mine.to_local().data_ptr() and torch.equal(mine.full_tensor(), sent.full_tensor())
    for one in ends:
        one.shutdown()


@pytest.fixture
def world():
    dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
    yield
    dist.destroy_process_group()


# Promise: torchft-dtensors, seen to fail
def test_dtensors_come_back_on_an_equal_mesh(ends, world):
    mesh = init_device_mesh("cpu", (1, 1), mesh_dim_names=("dp", "tp"))
    state = {
        "both": distribute_tensor(torch.arange(12.0).reshape(3, 4), mesh, [Shard(0), Replicate()]),
        "part": [distribute_tensor(torch.arange(4), mesh["tp"], [Shard(0)])],
        "sum": DTensor.from_local(torch.ones(2), mesh, [Partial(), Replicate()]),
        "strided": DTensor.from_local(torch.ones(4, 2), mesh, [_StridedShard(0, split_factor=1), Shard(0)]),
    }
    send(ends, 1, state)
    found = receive(ends, 1)
    for a, b in ((state["both"], found["both"]), (state["part"][0], found["part"][0]), (state["sum"], found["sum"]), (state["strided"], found["strided"])):
        assert isinstance(b, DTensor) and a._spec == b._spec and torch.equal(a.to_local(), b.to_local())
    # What a model does with it.
    target = distribute_tensor(torch.zeros(4, dtype=torch.int64), mesh["tp"], [Shard(0)])
    target.copy_(found["part"][0])
    assert torch.equal(target.full_tensor(), torch.arange(4))


# Promise: torchft-errors, seen to fail
def test_what_cannot_be_sent_is_refused_with_its_path(ends, world):
    class Other(Shard):
        pass

    mesh = init_device_mesh("cpu", (1,))
    odd = DTensor.from_local(torch.ones(2), mesh, [Replicate()])
    odd._spec.placements = (Other(0),)
    for state, words in [
        ({"user": {"seen": {1, 2}}}, "user.*set"),
        ({"user": {"w": torch.ones(2).to_sparse()}}, "state/user/w.*not dense"),
        ({"user": {"w": odd}}, "'user/w'.*placement"),
    ]:
        with pytest.raises((td.Error, TypeError), match=words):
            send(ends, 1, state)
    send(ends, 1, {"w": torch.ones(2)})
    assert torch.equal(receive(ends, 1)["w"], torch.ones(2))


# Promise: torchft-errors
def test_a_step_that_is_not_there_is_named(ends):
    with pytest.raises(TimeoutError, match="timed out: receiving step 3 of 'torchft/.*replica 0"):
        receive(ends, 3, timeout=0.05)
    send(ends, 5, {"w": torch.ones(2)})
    with pytest.raises(td.VersionGone, match="4"):
        receive(ends, 4)
    assert receive(ends, 5)["w"].sum() == 2


def test_metadata_of_another_kind_and_of_another_host_are_errors(ends):
    for metadata in ("http://host:80/checkpoint/", "[]", '{"key": 1, "host": "a", "path": "b", "cluster": false}'):
        with pytest.raises(td.Invalid, match="no metadata of a TransferTransport"):
            ends[1].recv_checkpoint(0, metadata, 1, timedelta(seconds=1))
    far = json.dumps({**json.loads(ends[0].metadata()), "host": "far", "path": "/nowhere/worker.sock"})
    with pytest.raises(td.Invalid, match="step 1 .* of the host far.*client="):
        ends[1].recv_checkpoint(0, far, 1, timedelta(seconds=1))


# Promise: torchft-transport
def test_steps_are_sent_again_and_receivers_keep_what_they_have(ends):
    # The arena has room for all that follow.
    send(ends, 1, {"w": torch.ones(1 << 21)})
    kept = []
    for step, value in ((5, 1.0), (5, 2.0), (3, 3.0), (4, 4.0)):
        send(ends, step, {"w": torch.full((1 << 18,), value)})
        kept.append(receive(ends, step)["w"])
    assert [float(w.mean()) for w in kept] == [1.0, 2.0, 3.0, 4.0]


# Promise: torchft-transport
def test_a_state_of_more_bytes_gets_a_larger_arena(ends):
    for size in (1, 1 << 20, 1 << 22):
        send(ends, 1, {"w": torch.ones(size)})
        assert receive(ends, 1)["w"].sum() == size


def dies(pipe):
    transport = TransferTransport()
    pipe.send(transport.metadata())
    pipe.recv()


# Promise: torchft-deaths
def test_a_sender_that_is_killed_ends_the_call_and_nothing_else(ends):
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    child = context.Process(target=dies, args=(theirs,))
    child.start()
    metadata = ours.recv()
    with ThreadPoolExecutor(1) as pool:
        call = pool.submit(ends[1].recv_checkpoint, 0, metadata, 1, timedelta(seconds=10 * GIVE_UP))
        child.kill()
        child.join()
        with pytest.raises(td.Error) as ended:
            call.result()
    assert not isinstance(ended.value, td.Timeout)
    with pytest.raises(td.Error):
        ends[1].recv_checkpoint(0, metadata, 1, timedelta(seconds=10 * GIVE_UP))
    send(ends, 1, {"w": torch.ones(2)})
    assert receive(ends, 1)["w"].sum() == 2


def dies_while_it_sends(pipe, file):
    transport = TransferTransport()
    pipe.send(transport.metadata())
    pages = torch.from_numpy(np.memmap(file, dtype="float32", mode="w+", shape=(1 << 23,)))
    # The kernel ends a process that reads pages which the file has no more.
    os.truncate(file, 0)
    transport.send_checkpoint([1], 1, {"first": torch.ones(1 << 23), "second": pages}, timedelta(seconds=10 * GIVE_UP))


# Promise: torchft-deaths
def test_a_sender_that_dies_while_it_sends_ends_the_call(ends, tmp_path):
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    child = context.Process(target=dies_while_it_sends, args=(theirs, tmp_path / "pages"))
    child.start()
    with pytest.raises(td.Error) as ended:
        ends[1].recv_checkpoint(0, ours.recv(), 1, timedelta(seconds=10 * GIVE_UP))
    child.join()
    assert child.exitcode == -signal.SIGBUS and not isinstance(ended.value, td.Timeout)
    send(ends, 1, {"w": torch.ones(2)})
    assert receive(ends, 1)["w"].sum() == 2


# Promise: torchft-recovery, seen to fail
def test_a_replica_group_that_was_killed_is_back_within_a_step():
    run_example("torchft_recovery", [])
