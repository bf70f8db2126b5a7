"""A real cluster of Ray with two nodes on this host, for the tests: `scripts/test-ray.sh` loads this beside the fixtures of the other tests."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import transferd.ray as tr
from conftest import until
from transferd import _folder

# Ray gives up a transfer after that, and aborts it. It reads this when it is imported.
os.environ["RAY_rdt_fetch_fail_timeout_milliseconds"] = "8000"

import ray  # noqa: E402
from ray.cluster_utils import Cluster  # noqa: E402
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy  # noqa: E402

NODE = {"num_cpus": 2, "object_store_memory": 150 << 20, "include_dashboard": False}


def start() -> Cluster:
    cluster = Cluster()
    cluster.add_node(**NODE)
    ray.init(address=cluster.address, log_to_driver=False)
    return cluster


def on(node: str) -> dict[str, Any]:
    """Options of a task or an actor that runs at this node."""
    return {"scheduling_strategy": NodeAffinitySchedulingStrategy(node, soft=False), "num_cpus": 0}


def nodes() -> list[str]:
    """The ids of the nodes that live, the driver's first."""
    own = ray.get_runtime_context().get_node_id()
    others = [node["NodeID"] for node in ray.nodes() if node["Alive"] and node["NodeID"] != own]
    return [own, *others]


def folder_of(node: str) -> Path:
    """Where the sidecar of this job is at that node."""
    return Path(tr._places.Place(ray.get_runtime_context().get_job_id(), node).folder.path)


def folders() -> set[Path]:
    """The folders of all sidecars on this host that belong to jobs of Ray."""
    return set(Path(_folder.parent()).glob(f"transferd-{os.geteuid()}-ray-*"))


def sidecars(folder: Path) -> list[int]:
    """The processes that run for the sidecar in this folder."""
    found = subprocess.run(["pgrep", "-f", f"^[^ ]*python.*{folder}"], capture_output=True, text=True)
    return [int(line) for line in found.stdout.split()]


@pytest.fixture(scope="session")
def started() -> Iterator[Cluster]:
    cluster = start()
    cluster.add_node(**NODE)
    yield cluster
    ray.shutdown()
    cluster.shutdown()
    until("no sidecar is left", lambda: not folders())


@pytest.fixture
def cluster(started: Cluster) -> Cluster:
    """Two nodes with sidecars. Tests that kill a node have a cluster of their own."""
    if not started.worker_nodes:
        started.add_node(**NODE)
    for node in list(started.worker_nodes)[1:]:
        # What a test has left that failed.
        started.remove_node(node, allow_graceful=False)
    tr.init(arena="64MiB")
    until("both nodes have sidecars", lambda: all((folder_of(node) / "worker.sock").exists() for node in nodes()) and len(nodes()) == 2)
    return started
