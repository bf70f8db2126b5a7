"""What Ray's own tests of its tensor transports check, with this one: its wheel brings none."""

from __future__ import annotations

import asyncio
import threading

import pytest
import ray
import torch
import transferd.ray as tr
from clusters import nodes, on
from conftest import until

tr.register()


@ray.remote(enable_tensor_transport=True)
class Actor:
    def __init__(self):
        self.open = threading.Event()
        self.kept = [torch.tensor([1, 2, 3]), torch.tensor([4, 5, 6]), torch.tensor([7, 8, 9])]

    @ray.method(tensor_transport="transferd")
    def echo(self, value):
        return value

    @ray.method(tensor_transport="transferd")
    def some(self, *which):
        return {f"{number}": self.kept[number] for number in which}

    def double(self, value):
        return [self.double(item) for item in value] if isinstance(value, list) else value * 2

    def add(self, a, b):
        return a + b

    def sum(self, value):
        return sum(int(item.sum()) for item in value.values()) if isinstance(value, dict) else int(value.sum())

    def produce(self, values):
        return [ray.put(value, _tensor_transport="transferd") for value in values]

    def consume(self, refs, **options):
        return sum(int(ray.get(ref, **options).sum()) for ref in refs)

    def block(self):
        self.open.wait()

    @ray.method(concurrency_group="_ray_system")
    def unblock(self):
        self.open.set()

    def put_and_free(self):
        tensor = torch.tensor([1, 2, 3])
        ref = ray.put(tensor, _tensor_transport="transferd")
        del ref
        ray.experimental.wait_tensor_freed(tensor, timeout=20)
        return self.objects()

    def objects(self):
        return manager().rdt_store.get_num_objects()


@ray.remote(enable_tensor_transport=True, max_concurrency=10)
class Async:
    @ray.method(tensor_transport="transferd")
    async def tensor(self, number):
        await asyncio.sleep(0.001 * (number % 3))
        return torch.full((3,), number)

    async def sum(self, value):
        return int(value.sum())


def manager():
    return ray._private.worker.global_worker.rdt_manager


def pair(kind=Actor):
    return [kind.options(**on(node)).remote() for node in nodes()]


def are_freed(*actors):
    until("all objects are freed", lambda: all(ray.get(actor.objects.remote()) == 0 for actor in actors))


# Promise: ray-contract
def test_tensors_and_other_data_of_any_size_go_together(cluster):
    a, b = pair()
    for size in (100, 1_000_000):
        data = [torch.randn(1), torch.randn(500, 500), b"1" * size, 7, [torch.arange(3)]]
        made = a.echo.remote(data)
        for back in (ray.get(b.double.remote(made)), ray.get(b.double.remote(made)), ray.get(a.double.remote(made))):
            assert torch.equal(back[0], data[0] * 2) and torch.equal(back[1], data[1] * 2)
            assert back[2:4] == [b"1" * 2 * size, 14] and torch.equal(back[4][0], torch.arange(3) * 2)
        del made, back
    are_freed(a, b)
    assert ray.get(b.double.remote(a.echo.remote(123))) == 246


# Promise: ray-contract
def test_a_reference_goes_to_one_call_twice_to_its_own_actor_and_to_others(cluster):
    a, b = pair()
    tensor = torch.randn(10)
    made = a.echo.remote(tensor)
    assert torch.equal(ray.get(b.add.remote(made, made)), tensor * 2)
    assert torch.equal(ray.get(a.add.remote(made, made)), tensor * 2)
    assert all(torch.equal(found, tensor * 2) for found in ray.get([a.double.remote(made), b.double.remote(made), a.double.remote(made)]))
    # One tensor in two objects, and twice in one.
    first, second = a.some.remote(0, 1), a.some.remote(0, 2)
    assert ray.get([b.sum.remote(first), b.sum.remote(second), b.sum.remote(first)]) == [21, 30, 21]
    both = ray.get(b.double.remote(a.echo.remote([tensor, tensor])))
    assert torch.equal(both[0], tensor * 2) and torch.equal(both[1], tensor * 2)
    del made, first, second
    are_freed(a, b)


# Promise: ray-contract
def test_a_reference_that_is_dropped_before_its_object_is_received_or_made(cluster):
    a, b = pair()
    made = a.echo.remote([torch.ones(3), b"1"])
    took = b.double.remote(made)
    del made
    assert torch.equal(ray.get(took)[0], torch.full((3,), 2.0))
    blocked = a.block.remote()
    made = a.echo.remote(torch.ones(3))
    number = made.hex()
    del made
    a.unblock.remote()
    ray.get(blocked)
    until("the driver has forgotten it", lambda: not manager().is_managed_object(number))
    are_freed(a, b)


# Promise: ray-contract
def test_objects_that_are_put_are_got_by_their_references_and_through_the_object_store(cluster):
    a, b = pair()
    values = [torch.tensor([1, 2, 3]), torch.tensor([4, 5, 6, 0]), torch.tensor([7, 8, 9, 0, 0])]
    assert ray.get(a.put_and_free.remote()) == 0
    refs = a.produce.remote(values)
    assert ray.get(b.consume.remote(refs)) == 45
    assert ray.get(b.consume.remote(refs, _use_object_store=True)) == 45
    made = a.echo.remote(values[0])
    # Ray lends no object whose metadata is not there yet, and it may come after the object.
    until("the driver has the metadata", lambda: manager().get_rdt_metadata(made.hex()).tensor_transport_meta is not None)
    assert ray.get(b.consume.remote([made])) == 6
    assert torch.equal(ray.get(a.echo.remote(values[1]), _use_object_store=True), values[1])
    del refs, made
    are_freed(a, b)


# Promise: ray-contract
def test_the_source_may_be_busy_while_others_receive(cluster):
    a, b = pair()
    made = a.echo.remote(torch.ones(500, 500))
    ray.wait([made])
    blocked = a.block.remote()
    assert ray.get(b.sum.remote(made)) == 250_000
    a.unblock.remote()
    ray.get(blocked)


# Promise: ray-contract
def test_calls_of_asynchronous_actors_end_in_any_order(cluster):
    a, b = pair(Async)
    sums = ray.get([b.sum.remote(a.tensor.remote(number)) for number in range(100)])
    assert sums == [3 * number for number in range(100)]


# Promise: ray-contract
def test_a_source_that_dies_before_its_object_is_made(cluster):
    a, b = pair()
    blocked = a.block.remote()
    took = b.sum.remote(a.echo.remote(torch.ones(3)))
    ray.kill(a)
    with pytest.raises(ray.exceptions.ActorDiedError):
        ray.get(took)
    del blocked
    other = Actor.options(**on(nodes()[0])).remote()
    assert ray.get(b.sum.remote(other.echo.remote(torch.tensor([4, 5, 6])))) == 15


# Promise: ray-targets
def test_tensors_are_received_into_the_tensors_that_are_given(cluster):
    a, _ = pair()
    made = a.echo.remote([torch.arange(6.0).reshape(2, 3), torch.arange(4)])
    targets = [torch.zeros(2, 3), torch.zeros(4, dtype=torch.int64)]
    ray.experimental.set_target_for_ref(made, targets)
    back = ray.get(made)
    assert back[0] is targets[0] and back[1] is targets[1]
    assert torch.equal(targets[0], torch.arange(6.0).reshape(2, 3)) and torch.equal(targets[1], torch.arange(4))
    for wrong, says in (
        ([torch.zeros(2, 3)], "Length"),
        ([torch.zeros(3, 2), targets[1]], "Shape"),
        ([torch.zeros(2, 3), torch.zeros(4)], "Dtype"),
        ([torch.zeros(3, 2).t(), targets[1]], "not contiguous"),
    ):
        made = a.echo.remote([torch.arange(6.0).reshape(2, 3), torch.arange(4)])
        ray.experimental.set_target_for_ref(made, wrong)
        with pytest.raises(ValueError, match=says):
            ray.get(made)
        assert all(not tensor.any() for tensor in wrong if tensor is not targets[1])
    # Ray holds no target: one that is gone is none.
    made = a.echo.remote(torch.ones(3))
    ray.experimental.set_target_for_ref(made, [torch.zeros(3)])
    assert ray.get(made).sum() == 3


# Promise: ray-targets
def test_tensors_are_received_on_the_device_that_is_named(cluster):
    a, _ = pair()
    made = a.echo.remote(torch.arange(30_000.0))
    kept = torch.zeros(30_000)
    ray.experimental.set_target_for_ref(made, [kept])
    ray.experimental.set_target_device_for_ref(made, "cpu")
    back = ray.get(made)
    assert back is not kept and not kept.any() and back.device.type == "cpu" and torch.equal(back, torch.arange(30_000.0))
    with pytest.raises(ValueError, match="TRANSFERD does not support.*xpu"):
        ray.experimental.set_target_device_for_ref(made, "xpu")
    # Ray asks whether the transport goes there, before it makes tensors on the device.
    ray.experimental.set_target_device_for_ref(a.echo.remote(torch.ones(3)), "cuda")
    with pytest.raises(ValueError, match="is not an RDT object"):
        ray.experimental.set_target_device_for_ref(ray.put(1), "cpu")


# Promise: ray-targets
def test_what_was_on_a_gpu_comes_to_one_or_the_error_says_what_to_do(cluster):
    from ray.experimental.rdt.util import get_tensor_transport_manager

    transport = get_tensor_transport_manager("TRANSFERD")
    metadata = transport.extract_tensor_transport_metadata("ef" * 28, [torch.arange(3)])
    metadata.tensor_device = "cuda"
    if torch.cuda.is_available():
        assert transport.recv_multiple_tensors("ef" * 28, metadata, None)[0].is_cuda
    else:
        with pytest.raises(ray.exceptions.RayDirectTransportError, match='set_target_device_for_ref\\(ref, "cpu"\\)'):
            transport.recv_multiple_tensors("ef" * 28, metadata, None)
    target = [torch.zeros(3, dtype=torch.int64)]
    assert transport.recv_multiple_tensors("ef" * 28, metadata, None, target) is target and target[0].tolist() == [0, 1, 2]
    metadata.tensor_device = "xpu"
    with pytest.raises(ValueError, match="has to be one of cpu, cuda"):
        transport.recv_multiple_tensors("ef" * 28, metadata, None)
    transport.garbage_collect("ef" * 28, metadata, [])
    with pytest.raises(ValueError, match="and not on meta: call cpu"):
        transport.describe([torch.ones(1), torch.ones(1, device="meta")])
