"""`transferd.verl` with verl's own workers, groups and manager, on a cluster of Ray with two nodes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import ray
import transferd as td
import transferd.ray as tr
from conftest import until
from ray.cluster_utils import Cluster
from workers import Job, weights

NODE = {"object_store_memory": 150 << 20, "include_dashboard": False}


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    # verl asks for three processors for each worker: there is room for the trainer, `near`, and one more.
    cluster = Cluster(head_node_args={**NODE, "num_cpus": 17}, initialize_head=True)
    ray.init(address=cluster.address, log_to_driver=False)
    # Both nodes are on this host, where a fetch would read the other's memory, and nothing would move. Without this call the plug makes it.
    tr.init(sidecar={"shm": "off"})
    yield cluster
    ray.shutdown()
    cluster.shutdown()


@pytest.fixture(scope="module")
def job(cluster) -> Job:
    return Job(timeout=600.0, arena="4MiB")


@pytest.fixture(scope="module")
def near(job):
    """Two rollouts at the trainer's node."""
    return job.add(2)[1]


@pytest.fixture(scope="module")
def far(cluster, job, near):
    """Two rollouts at another node, which has joined the job since."""
    # Room for the jobs and members of all tests: those that have died keep theirs.
    cluster.add_node(**NODE, num_cpus=40)
    return job.add(2)[1]


# Promise: verl-rounds
def test_weights_come_round_after_round_and_members_come_and_go(job, near):
    for step in range(3):
        metrics = job.manager.update_weights(global_steps=step)
        assert near.check(step) == [True, True] and metrics["transferd/sent_bytes"] > 5e6
    replica, another = job.add(1)
    job.manager.update_weights(global_steps=3)
    assert near.check(3) == [True, True] and another.check(3) == [True]
    job.manager.remove_replicas([replica])
    job.manager.update_weights(global_steps=4)
    assert near.check(4) == [True, True] and another.check(3) == [True]
    assert job.trainer.names_walked() == [5 * len(weights(0))] * 2


# Promise: verl-fan-out
def test_a_node_pulls_each_byte_once_for_all_its_workers(job, near, far):
    job.manager.update_weights(global_steps=5)
    before = far.landed_bytes()[0]
    sent = sum(job.manager.update_weights(global_steps=step)["transferd/sent_bytes"] for step in range(6, 9))
    assert near.check(8) == far.check(8) == [True, True]
    # What is beside the weights are their names, and headers.
    assert sent <= far.landed_bytes()[0] - before < 1.1 * sent


def failed(job, step):
    """The error of an update."""
    with pytest.raises(Exception) as ended:
        job.manager.update_weights(global_steps=step)
    return ended.value


# Promise: verl-deaths
def test_a_rollout_that_dies_ends_the_update_and_no_process(job, near, far):
    replica, doomed = job.add(1)
    doomed.ends("dies", 20)
    # That of Ray for a process that has died, or of the sender, which has waited for it.
    assert isinstance(failed(job, 9), (ray.exceptions.ActorDiedError, td.PeerLost))
    job.manager.remove_replicas([replica])
    job.manager.update_weights(global_steps=10)
    assert near.check(10) == far.check(10) == [True, True]


# Promise: verl-deaths
def test_a_rollout_that_hangs_ends_the_update_at_the_time_out(far):
    # A trainer of its own, whose sender waits for two seconds and not for ten minutes.
    job = Job(timeout=2.0, arena="4MiB")
    replica, hanging = job.add(1)
    hanging.ends("hangs", 20)
    error = failed(job, 1)
    assert isinstance(error, TimeoutError) and "1 of 1 receivers have not asked for version" in str(error)
    assert hanging.error() == [""]


# Promise: verl-deaths
def test_a_trainer_that_dies_ends_the_update_of_all_rollouts_and_no_process(job, near, far):
    job.trainer.dies(20)
    failed(job, 11)
    for group in (near, far):
        until("the rollouts have failed", lambda: all(group.error()))
        assert all(error.startswith("PeerLost: the sender of 'verl/") for error in group.error())
