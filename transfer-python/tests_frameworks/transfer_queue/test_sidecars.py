"""Starts of TransferQueue with other settings, and their sidecars."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import ray
import torch
import transfer_queue as tq
import transferd.ray as tr
from conftest import GIVE_UP, until
from samples import MIB, begin, cluster, listed, names, other, put, storage  # noqa: F401
from tensordict import NonTensorStack
from transferd.ray import _places

# Promise: transfer-queue-pickles
def test_pickle_is_used_where_it_is_set(cluster):
    begin(arena="8MiB", pickle=True)
    put(["a"], x=NonTensorStack(pytest.raises))
    assert tq.kv_batch_get(keys=["a"], partition_id="p")["x"].tolist() == [pytest.raises]
    tq.close()


# Promise: transfer-queue-errors
def test_a_full_arena_makes_a_put_wait_until_samples_are_cleared_or_its_time_is_over(cluster):
    begin(arena="4MiB", timeout=2.0)
    with pytest.raises(MemoryError, match="set `arena`"):
        put(["large"], x=torch.ones(1, 2 * MIB))
    put(["a"], x=torch.ones(1, MIB * 3 // 4))
    with pytest.raises(MemoryError, match="clear samples, or set `arena`"):
        put(["b"], x=torch.ones(1, MIB * 3 // 4))
    tq.close()
    begin(arena="4MiB")
    put(["a"], x=torch.ones(1, MIB * 3 // 4))
    waits = threading.Thread(target=put, args=(["b"],), kwargs={"x": torch.ones(1, MIB * 3 // 4)})
    waits.start()
    ray.get(other().clear.remote(["a"]))
    waits.join(GIVE_UP)
    assert not waits.is_alive() and tq.kv_batch_get(keys=["b"], partition_id="p")["x"].values().sum() == MIB * 3 // 4
    tq.close()


# Promise: transfer-queue-errors
def test_a_setting_that_cannot_be_is_named(cluster):
    for settings, says in (({"arenas": "1GiB"}, "no setting 'arenas'"), ({"arena": "much"}, "arena is"), ({"timeout": -1}, "timeout")):
        with pytest.raises(ValueError, match=says):
            begin(**settings)
        tq.close()


# Promise: transfer-queue-sidecars
def test_a_sidecar_that_runs_is_used_and_samples_end_with_their_process(sidecar, cluster):
    begin(path=sidecar.path, arena="8MiB")
    second = other()
    put(["a"], x=torch.ones(1, 5))
    ray.get(second.put.remote(["b"], 2.0))
    assert ray.get(second.sum.remote(["a", "b"])) == 5 + 16
    assert listed(sidecar.admin) == 2
    os.kill(ray.get(second.pid.remote()), signal.SIGKILL)
    until("the sidecar has seen it", lambda: listed(sidecar.admin) == 1)
    with pytest.raises(tq.StorageKeyNotFoundError, match="was cleared"):
        tq.kv_batch_get(keys=["b"], partition_id="p")
    assert tq.kv_batch_get(keys=["a"], partition_id="p")["x"].values().sum() == 5
    tq.close()
    assert listed(sidecar.admin) == 0


# Promise: transfer-queue-sidecars
def test_sidecars_of_the_job_that_run_are_used_and_stay(cluster):
    tr.init(arena="8MiB")
    folder = _places.here().folder
    begin(arena="8MiB")
    assert storage()._client.path == folder.socket
    tq.close()
    assert folder.answers()
    tr.shutdown()


JOB = """
import sys, ray, torch, transfer_queue as tq, transferd.transfer_queue
ray.init("local", num_cpus=2, include_dashboard=False, object_store_memory=150 << 20, log_to_driver=False)
tq.init({"controller": {"polling_mode": True}, "backend": {"storage_backend": "transferd", "transferd": {"arena": "8MiB"}}})
tq.kv_put("a", "p", fields={"x": torch.full((4,), 7.0)})
print(tq.get_client().storage_manager.storage_client._client.path, flush=True)
sys.stdin.read()
assert tq.kv_batch_get(keys="a", partition_id="p")["x"].values().sum() == 28
print(sorted(tq.kv_list()["p"]))
tq.close()
"""


# Promise: transfer-queue-sidecars
def test_two_jobs_on_one_host_do_not_meet(cluster):
    begin(arena="8MiB")
    with subprocess.Popen([sys.executable, "-c", JOB], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as job:
        assert job.stdin is not None and job.stdout is not None
        path = job.stdout.readline().strip()
        assert path and path != storage()._client.path
        put(["a"], x=torch.full((1, 4), 3.0))
        assert "p" in tq.kv_list() and tq.kv_batch_get(keys="a", partition_id="p")["x"].values().sum() == 12
        tq.kv_clear(keys=["a"], partition_id="p")
        job.stdin.close()
        assert job.stdout.read() == "['a']\n" and job.wait(10 * GIVE_UP) == 0
        # Its sidecars have ended.
        assert not Path(path).exists()
    tq.close()
