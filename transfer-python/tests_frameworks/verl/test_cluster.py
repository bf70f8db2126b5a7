"""`transferd.verl` with verl's own workers, groups and manager, on a cluster of Ray with two nodes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import ray
import transferd.ray as tr
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
    cluster.add_node(**NODE, num_cpus=16)
    return job.add(2)[1]


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


def test_a_node_pulls_each_byte_once_for_all_its_workers(job, near, far):
    job.manager.update_weights(global_steps=5)
    before = far.landed_bytes()[0]
    sent = sum(job.manager.update_weights(global_steps=step)["transferd/sent_bytes"] for step in range(6, 9))
    assert near.check(8) == far.check(8) == [True, True]
    # What is beside the weights are their names, and headers.
    assert sent <= far.landed_bytes()[0] - before < 1.1 * sent
