"""Sidecars on the nodes of a cluster: where they are, and what a death leaves behind."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest
import ray
import transferd as td
import transferd.ray as tr
from clusters import NODE, folder_of, folders, nodes, on, sidecars
from conftest import until


@ray.remote
class Worker:
    def node(self):
        return tr.client().node

    def push(self, key):
        tr.client().push(key, b"hello", outlive=False)
        return os.getpid()

    def fetch(self, key):
        return bytes(tr.client().fetch(key, timeout=20))

    def fabric(self, key):
        return tr.client().fetch(key, timeout=20).report.fabric

    def counters(self, *names):
        """What the sidecar of this node holds."""
        import json

        from transferd import _programs

        admin = os.path.join(os.path.dirname(tr.client().path), "admin.sock")
        command = _programs.command("transferctl", "status", "--json", "--admin", admin)
        found = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)["counters"]
        return {name: found[name] for name in names}


def starter(folder: Path) -> int:
    """The process of the actor that owns the sidecar in this folder."""
    return int((folder / "lock").read_text())


def alive(process: int) -> bool:
    return os.path.exists(f"/proc/{process}")


# Promise: ray-sidecars
def test_each_node_has_a_sidecar_that_its_workers_find(cluster):
    workers = [Worker.options(**on(node)).remote() for node in nodes()]
    names = [f"node-{node[:16]}" for node in nodes()]
    assert ray.get([worker.node.remote() for worker in workers]) == names
    tr.init()
    assert tr.client() is tr.client() and tr.client().node == names[0]
    ray.get(workers[0].push.remote("greeting"))
    assert ray.get(workers[1].fetch.remote("greeting")) == b"hello"


# Promise: ray-shared-memory
def test_nodes_of_one_host_share_memory(cluster):
    workers = [Worker.options(**on(node)).remote() for node in nodes()]
    for owner, reader in (workers, workers[::-1]):
        key = f"from-{ray.get(owner.node.remote())}"
        ray.get(owner.push.remote(key))
        assert ray.get(reader.fabric.remote(key)) == "shm"


# Promise: ray-keys
def test_keys_of_certificates_are_readable_by_nobody_else(cluster):
    for node in nodes():
        folder = folder_of(node)
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        assert stat.S_IMODE((folder / "node.key").stat().st_mode) == 0o600
    keys = {(folder_of(node) / "node.key").read_bytes() for node in nodes()}
    assert len(keys) == 2, "each node has a key of its own"
    assert not list(Path("/tmp").glob("transferd-certs-*")), "the authority's key is in the driver's memory alone"


# Promise: ray-sidecars
# Promise: ray-deaths
def test_a_node_that_joins_gets_a_sidecar_and_one_that_dies_leaves_nothing(cluster):
    before = folders()
    third = cluster.add_node(**NODE)
    until("it has a sidecar", lambda: len(folders()) == len(before) + 1)
    (folder,) = folders() - before
    node = next(node for node in nodes() if folder_of(node) == folder)
    worker = Worker.options(**on(node)).remote()
    assert ray.get(worker.node.remote()) == f"node-{node[:16]}"
    processes = [*sidecars(folder), starter(folder)]
    assert len(processes) >= 2
    cluster.remove_node(third, allow_graceful=False)
    until("nothing is left of it", lambda: not folder.exists() and not any(map(alive, processes)))


# Promise: ray-deaths
def test_an_actor_that_dies_leaves_nothing_and_a_sidecar_comes_back(cluster):
    place = nodes()[1]
    worker, other = (Worker.options(**on(place)).remote() for _ in range(2))
    before = ray.get(other.counters.remote("sessions", "tensors"))
    process = ray.get(worker.push.remote("mortal"))
    assert ray.get(other.counters.remote("tensors"))["tensors"] == before["tensors"] + 1
    os.kill(process, signal.SIGKILL)
    until("its tensors and its session end", lambda: ray.get(other.counters.remote("sessions", "tensors")) == before)
    folder = folder_of(place)
    owner, processes = starter(folder), sidecars(folder)
    os.kill(owner, signal.SIGKILL)
    until("its sidecar ends with it", lambda: not any(map(alive, [owner, *processes])))
    until("it is started anew", lambda: (folder / "worker.sock").exists() and starter(folder) != owner)
    until("its workers come back", lambda: pushes(other))
    # The other way round.
    owner, processes = starter(folder), sidecars(folder)
    for process in processes:
        os.kill(process, signal.SIGKILL)
    until("its actor ends with it", lambda: not any(map(alive, [owner, *processes])))
    until("it is started anew", lambda: (folder / "worker.sock").exists() and starter(folder) != owner)
    until("its workers come back", lambda: pushes(other))


def pushes(worker) -> bool:
    try:
        return ray.get(worker.push.remote("again")) > 0
    except td.SidecarGone:
        return False


DRIVER = """
import sys, ray, transferd.ray as tr
ray.init(address=sys.argv[1], log_to_driver=False)
tr.init(arena="16MiB")
c = tr.client()
c.push("k", b"hello")
print(c.path, flush=True)
sys.stdin.readline()
"""


# Promise: ray-deaths
@pytest.mark.parametrize("how", ["killed", "ends", "shutdown"])
def test_a_driver_that_dies_leaves_nothing(cluster, how):
    before = folders()
    code = DRIVER + ("tr.shutdown(); print('ended', flush=True); sys.stdin.readline()" if how == "shutdown" else "")
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    driver = subprocess.Popen([sys.executable, "-c", code, cluster.address], **pipes)
    path = driver.stdout.readline().strip()
    assert os.path.exists(path)
    new = folders() - before
    assert len(new) == len(nodes()) and Path(path).parent in new
    processes = [process for folder in new for process in (*sidecars(folder), starter(folder))]
    if how == "killed":
        driver.kill()
    else:
        driver.stdin.write("\n")
        driver.stdin.flush()
    until("nothing is left of its sidecars", lambda: folders() == before and not any(map(alive, processes)))
    driver.kill()
    driver.wait()
    driver.stdin.close()
    driver.stdout.close()


# Promise: ray-settings
def test_errors_say_what_would_be_right(cluster):
    for settings, says in (
        ({"socket": "/tmp/x"}, "'socket' is chosen by transferd.ray.init"),
        ({"pinned limit": 1}, "no key of transferd's configuration"),
        ({"log": ["info"]}, "has to be a text, a number"),
    ):
        with pytest.raises(td.Invalid, match=says):
            tr.init(sidecar=settings)
    with pytest.raises(td.Invalid, match="arena is a whole number of bytes"):
        tr.init(arena="many")


WRONG = """
import sys, ray, transferd as td, transferd.ray as tr
try:
    tr.init()
except td.Error as error:
    print(error)
ray.init(address=sys.argv[1], log_to_driver=False)
try:
    tr.init(sidecar={"nothing": 1})
except td.SidecarGone as error:
    print(error)
"""


# Promise: ray-settings
def test_a_sidecar_that_does_not_start_says_why(cluster):
    before = folders()
    done = subprocess.run([sys.executable, "-c", WRONG, cluster.address], capture_output=True, text=True, check=True)
    first, rest = done.stdout.split("\n", 1)
    assert first == "this process is in no job of Ray: call ray.init() first"
    assert "the sidecar of this node ended with status 2" in rest and "nothing" in rest, done.stdout
    assert folders() == before
