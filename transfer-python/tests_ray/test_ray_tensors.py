"""Tensors and tables between actors: Ray Direct Transport over sidecars."""

from __future__ import annotations

import os
import pickle
import signal

import pyarrow as pa
import pytest
import ray
import torch
import transferd as td
import transferd.ray as tr
from clusters import folder_of, nodes, on, sidecars
from conftest import until

tr.register()

KINDS = ["float32", "float64", "float16", "bfloat16", "int8", "int16", "int32", "int64", "uint8", "bool"]


def manager(name="TRANSFERD"):
    from ray.experimental.rdt.util import get_tensor_transport_manager

    return get_tensor_transport_manager(name)


@ray.remote(enable_tensor_transport=True)
class Worker:
    @ray.method(tensor_transport="transferd")
    def tensor(self, fill=1.0, n=1000):
        return torch.full((n,), fill)

    @ray.method(tensor_transport="transferd")
    def kinds(self):
        made = {kind: torch.arange(12).reshape(3, 4).to(getattr(torch, kind)) for kind in KINDS}
        square = torch.arange(16.0).reshape(4, 4)
        return {**made, "turned": square.t(), "part": square[1:3, ::2], "one": torch.tensor(7), "none": torch.empty(0, 3)}

    @ray.method(tensor_transport="transferd")
    def nothing(self):
        return {"step": 7}

    @ray.method(tensor_transport="transferd_arrow")
    def tables(self):
        table = pa.table({"n": range(1000), "name": pa.array([None, "b"] * 500).dictionary_encode(), "l": [[1, 2]] * 1000})
        return [table, table.slice(10, 5), table.slice(0, 0)]

    def sum(self, tensor):
        return float(tensor.sum())

    def take(self, value):
        return value

    def write(self, tensor):
        tensor += 1
        return float(tensor.sum())

    def kept(self):
        """How many objects this process has published, and the room in its arena."""
        return sum(len(manager(name)._pushed) for name in ("TRANSFERD", "TRANSFERD_ARROW")), tr.client().arena_free_bytes

    def fetching(self):
        return len(manager()._fetches)

    def pid(self):
        return os.getpid()


def _direct_life():
    """The key that is there as long as this process."""
    context = ray.get_runtime_context()
    return f"ray/{context.get_job_id()}/alive/{context.get_worker_id()}"


def is_there(key):
    try:
        tr.client().fetch(key, timeout=0.1)
    except td.Timeout:
        return False
    return True


def pair(first=0, second=1, **options):
    places = nodes()
    return [Worker.options(**on(places[which]), **options).remote() for which in (first, second)]


# Promise: ray-tensors
@pytest.mark.parametrize("second", [0, 1], ids=["one-node", "two-nodes"])
def test_tensors_of_every_kind_go_from_actor_to_actor(cluster, second):
    a, b = pair(0, second)
    back = ray.get(b.take.remote(a.kinds.remote()))
    for kind in KINDS:
        assert torch.equal(back[kind], torch.arange(12).reshape(3, 4).to(getattr(torch, kind))), kind
    square = torch.arange(16.0).reshape(4, 4)
    assert torch.equal(back["turned"], square.t()) and torch.equal(back["part"], square[1:3, ::2])
    assert back["one"] == 7 and back["none"].shape == (0, 3)
    assert ray.get(b.take.remote(a.nothing.remote())) == {"step": 7}


# Promise: ray-tensors
@pytest.mark.parametrize("second", [0, 1], ids=["one-node", "two-nodes"])
def test_tables_go_from_actor_to_actor(cluster, second):
    a, b = pair(0, second)
    first, part, none = ray.get(b.take.remote(a.tables.remote()))
    assert first["n"].to_pylist() == list(range(1000)) and first["name"].to_pylist() == [None, "b"] * 500
    assert part.equals(first.slice(10, 5)) and (none.num_rows, none.schema) == (0, first.schema)


# Promise: ray-tensors
def test_the_driver_puts_and_gets(cluster):
    a, b = pair()
    assert torch.equal(ray.get(a.tensor.remote(3.0)), torch.full((1000,), 3.0))
    put = ray.put(torch.full((10,), 2.0), _tensor_transport="transferd")
    assert ray.get(b.sum.remote(put)) == 20.0
    target = [torch.zeros(1000)]
    made = a.tensor.remote(5.0)
    ray.experimental.set_target_for_ref(made, target)
    assert ray.get(made) is target[0] and target[0].sum() == 5000.0


# Promise: ray-freed-objects
def test_what_is_freed_is_deleted(cluster):
    a, b = pair()
    ray.get(b.sum.remote(a.tensor.remote()))
    until("the first one is freed", lambda: ray.get(a.kept.remote())[0] == 0)
    _, free = ray.get(a.kept.remote())
    made = [a.tensor.remote(float(n), 100_000) for n in range(20)] + [a.tables.remote()]
    assert [ray.get(b.sum.remote(tensor)) for tensor in made[:20]] == [100_000.0 * n for n in range(20)]
    kept, less = ray.get(a.kept.remote())
    assert kept == 21 and less < free - 20 * 400_000
    del made
    until("all are freed", lambda: ray.get(a.kept.remote()) == (0, free))


# Promise: ray-writes
def test_who_writes_to_what_was_received_is_alone_in_seeing_it(cluster):
    a, b, c = [*pair(), pair()[0]]
    made = a.tensor.remote()
    assert [ray.get(other.write.remote(made)) for other in (b, c, b)] == [2000.0] * 3
    assert ray.get(b.sum.remote(made)) == 1000.0


# Promise: ray-references
def test_what_ray_carries_is_a_key_a_version_and_a_node(cluster):
    metadata = manager().extract_tensor_transport_metadata("ab" * 28, [torch.ones(3)])
    again = manager().extract_tensor_transport_metadata("ab" * 28, [torch.zeros(3)])
    assert again is metadata, "a retry has what the first attempt has published"
    own = {name: value for name, value in vars(metadata).items() if name not in ("tensor_meta", "tensor_device")}
    worker = ray.get_runtime_context().get_worker_id()
    job = ray.get_runtime_context().get_job_id()
    assert own == {"key": f"ray/{job}/{'ab' * 28}/{worker}", "version": 1, "node": tr.client().node}
    assert metadata.tensor_meta == [(torch.Size([3]), torch.float32)]
    assert pickle.loads(pickle.dumps(metadata)) == metadata
    manager().garbage_collect("ab" * 28, metadata, [])


class Trap:
    """Something that says when it was unpickled."""

    def __reduce__(self):
        return os.mkdir, ("/nonexistent/was-unpickled",)


# Promise: ray-references
def test_nothing_of_a_peer_is_unpickled(cluster):
    metadata = manager().extract_tensor_transport_metadata("cd" * 28, [torch.ones(3)])
    # A peer that publishes bytes of its own under the key, where a tensor is expected.
    c = tr.client()
    c.delete(metadata.key)
    c.push(metadata.key, pickle.dumps(Trap()), version=1)
    with pytest.raises(ray.exceptions.RayDirectTransportError):
        manager().recv_multiple_tensors("cd" * 28, metadata, None)
    c.delete(metadata.key)
    c.push_state(metadata.key, {"0": torch.ones(4)}, version=1)
    with pytest.raises(ray.exceptions.RayDirectTransportError, match="Ray was told of"):
        manager().recv_multiple_tensors("cd" * 28, metadata, None)
    manager().garbage_collect("cd" * 28, metadata, [])
    for name, value, says in (("key", "weights", "has to be ray/"), ("version", "1", "number of 0 or more")):
        wrong = pickle.loads(pickle.dumps(metadata))
        setattr(wrong, name, value)
        with pytest.raises(ValueError, match=says):
            manager().recv_multiple_tensors("cd" * 28, wrong, None)
    with pytest.raises(TypeError, match="is a dict"):
        manager().recv_multiple_tensors("cd" * 28, {}, None)


# Promise: ray-settings
def test_errors_say_what_would_be_right(cluster):
    a, _ = pair()
    with pytest.raises(Exception, match="do not fit into an arena.*transferd.ray.init\\(arena"):
        ray.get(a.take.remote(a.tensor.remote(1.0, 20_000_000)))
    with pytest.raises(ValueError, match="meta.*call cpu"):
        manager().describe([torch.ones(1, device="meta")])


# Promise: ray-dead-processes
@pytest.mark.parametrize("first", [0, 1])
def test_an_object_whose_process_has_ended_fails_and_is_not_waited_for(cluster, first):
    a, b = pair(first, 1 - first)
    made = a.tensor.remote()
    assert ray.get(b.sum.remote(made)) == 1000.0
    life = ray.get(a.__ray_call__.remote(lambda self: _direct_life()))
    os.kill(ray.get(a.pid.remote()), signal.SIGKILL)
    until("its sidecar has seen it", lambda: not is_there(life))
    with pytest.raises(Exception, match="the process that had published it has ended"):
        ray.get(b.sum.remote(made))
    assert ray.get(b.take.remote(1)) == 1


# Promise: ray-retries
def test_a_task_that_ray_tries_again_gives_what_the_first_would_have(cluster):
    a, b = pair(max_restarts=1, max_task_retries=1)
    pid = ray.get(a.pid.remote())
    made = a.tensor.remote(4.0)
    assert ray.get(b.sum.remote(made)) == 4000.0
    os.kill(pid, signal.SIGKILL)
    assert ray.get(b.sum.remote(a.tensor.remote(5.0))) == 5000.0
    assert ray.get(a.pid.remote()) != pid


# Promise: ray-aborts
@pytest.mark.parametrize("first", [0, 1], ids=["with-the-directory", "without"])
def test_a_transfer_that_hangs_is_aborted_and_no_actor_is_killed(cluster, first):
    a, b = pair(first, 1 - first)
    pids = ray.get([a.pid.remote(), b.pid.remote()])
    # Larger than what is in flight at once.
    made = a.tensor.remote(1.0, 5_000_000)
    ray.get(a.kept.remote())
    stopped = sidecars(folder_of(nodes()[first]))
    try:
        for process in stopped:
            os.kill(process, signal.SIGSTOP)
        with pytest.raises(Exception, match="not found in RDT object store|aborted"):
            ray.get(b.sum.remote(made))
        until("the fetch has ended", lambda: ray.get(b.fetching.remote()) == 0)
    finally:
        for process in stopped:
            os.kill(process, signal.SIGCONT)
    assert ray.get([a.pid.remote(), b.pid.remote()]) == pids
    assert ray.get(b.sum.remote(a.tensor.remote(2.0))) == 2000.0


def test_a_record_that_stands_for_other_things_is_no_object():
    from transferd.ray._direct import Metadata

    record = b'{"tree":{"dict":["0",[1],"1",{"tensor":"w"},"2","text"]},"ties":{}}'
    with td.embedded(arena="1MiB") as c:
        buffers = {"w": c.empty(3), "__tree__": c.empty(len(record), "uint8")}
        buffers["__tree__"].torch()[:] = torch.frombuffer(bytearray(record), dtype=torch.uint8)
        c._push_bundle("ray/01/02/03", list(buffers), list(buffers.values()), False, 0, {}).result()
        fetched = c._fetch_bundle("ray/01/02/03", None, {}).result()
        told = Metadata(tensor_meta=[(torch.Size([3]), torch.float32)] * 3, tensor_device="cpu", key="ray/01/02/03", version=1)
        with pytest.raises(td.Error, match="and Ray was told of"):
            manager().take(told, [fetched], None)
