"""Arguments that are numbers and durations: what cannot be one is named with its value and its range."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest
import transferd as td
import transferd.ray as tr
from conftest import settled
from transferd.data import PartitionDataset

U32, U64 = (1 << 32) - 1, (1 << 64) - 1
TABLE = pa.table({"n": [1, 2, 3]})
STATE = {"exchange": "x", "seed": 1, "partition": 0, "position": 0}
NO_NUMBERS = ("3", 3.0, -1, [1], 1 << 64, float("nan"))
NO_SECONDS = ("1", -1, -0.5, float("nan"), [1], -(10**400), 10**400)

# The argument, its least and greatest value, and a call that takes it.
WHOLE = [
    ("partitions", 1, U32, lambda o, v: o.c.exchange("y", partitions=v, tasks=1)),
    ("tasks", 1, U32, lambda o, v: o.c.exchange("y", partitions=1, tasks=v)),
    ("partition", 0, U32, lambda o, v: o.x.partition(v)),
    ("task", 0, U32, lambda o, v: o.x.task(v)),
    ("attempt", 0, U32, lambda o, v: o.x.task(0, v)),
    ("order", 0, U64, lambda o, v: o.x.partition(0, order=v)),
    ("position", 0, U64, lambda o, v: o.x.partition(0, order=1, position=v)),
    ("rows_per_batch", 1, U64, lambda o, v: o.x.partition(0, order=1, rows_per_batch=v)),
    ("random", 0, U64, lambda o, v: o.task.write(TABLE, random=v)),
    ("readers", 1, U32, lambda o, v: o.c.push_stream("y", TABLE.schema, readers=v)),
    ("members", 1, U32, lambda o, v: o.c.barrier("y", v)),
    ("n", 0, U64, lambda o, v: o.counter.add(v)),
    ("expected", 0, U64, lambda o, v: o.counter.compare_swap(v, 1)),
    ("new", 0, U64, lambda o, v: o.counter.compare_swap(1, v)),
    ("version", 0, U64, lambda o, v: o.two.push(o.buffer, v)),
    ("version", 0, U64, lambda o, v: o.sets.push({"w": o.buffer}, v)),
    ("after", 0, U64, lambda o, v: o.c.subscriber("y", after=v)),
    ("after", 0, U64, lambda o, v: o.c.state_subscriber("y", after=v)),
    ("after", 0, U64, lambda o, v: o.c.table_subscriber("y", after=v)),
]

SECONDS = [
    ("timeout", lambda o, v: o.connect(o.path, timeout=v)),
    ("timeout", lambda o, v: o.c.empty(4, timeout=v)),
    ("room", lambda o, v: o.c.produce("y", 4, room=v)),
    ("timeout", lambda o, v: o.c.push("y", b"x", timeout=v)),
    ("timeout", lambda o, v: o.c.push("y", o.buffer, timeout=v)),
    ("timeout", lambda o, v: o.c.push_snapshot("y", o.buffer, timeout=v)),
    ("timeout", lambda o, v: o.c.push_state("y", {"w": b"x"}, timeout=v)),
    ("timeout", lambda o, v: o.c.push_state_snapshot("y", {"w": o.buffer}, timeout=v)),
    ("timeout", lambda o, v: o.c.push_table("y", TABLE, timeout=v)),
    ("timeout", lambda o, v: o.c.publisher("y", timeout=v).push(b"x")),
    ("timeout", lambda o, v: o.c.fetch("y", timeout=v)),
    ("timeout", lambda o, v: o.c.fetch_many(["y"], timeout=v)),
    ("timeout", lambda o, v: o.c.fetch_state("y", timeout=v)),
    ("timeout", lambda o, v: o.c.fetch_table("y", timeout=v)),
    ("timeout", lambda o, v: o.c.fetch_stream("y", timeout=v)),
    ("timeout", lambda o, v: o.c.delete("y", timeout=v)),
    ("timeout", lambda o, v: o.c.reserve("y", 4, "uint8", "nobody", timeout=v)),
    ("timeout", lambda o, v: o.c.take_back("y", timeout=v)),
    ("timeout", lambda o, v: o.c.take_back_state("y", timeout=v)),
    ("timeout", lambda o, v: o.c.subscriber("y", timeout=v)),
    ("timeout", lambda o, v: o.c.state_subscriber("y", timeout=v)),
    ("timeout", lambda o, v: o.c.table_subscriber("y", timeout=v)),
    ("timeout", lambda o, v: o.two.turn(timeout=v)),
    ("timeout", lambda o, v: o.two.push(o.buffer, 1, timeout=v)),
    ("timeout", lambda o, v: o.sets.turn(timeout=v)),
    ("timeout", lambda o, v: o.sets.push({"w": o.buffer}, 1, timeout=v)),
    ("timeout", lambda o, v: o.c.counter("y", timeout=v)),
    ("timeout", lambda o, v: o.counter.add(1, timeout=v)),
    ("timeout", lambda o, v: o.counter.get(timeout=v)),
    ("timeout", lambda o, v: o.counter.compare_swap(0, 1, timeout=v)),
    ("timeout", lambda o, v: o.barrier.wait(timeout=v)),
    ("timeout", lambda o, v: o.stream.finish(timeout=v)),
    ("timeout", lambda o, v: o.c.exchange("y", partitions=1, tasks=1, timeout=v)),
    ("deadline", lambda o, v: o.c.exchange("y", partitions=1, tasks=1, deadline=v)),
    ("timeout", lambda o, v: o.c.join_exchange("y", timeout=v)),
    ("timeout", lambda o, v: o.x.task(1, timeout=v)),
    ("timeout", lambda o, v: o.x.partition(0, timeout=v)),
    ("timeout", lambda o, v: o.x.release(timeout=v)),
    ("timeout", lambda o, v: o.task.write(TABLE, timeout=v)),
    ("timeout", lambda o, v: o.task.commit(timeout=v)),
]

# What only the blocking client has.
BLOCKING_WHOLE = [
    ("seed", 0, U64, lambda o, v: PartitionDataset(o.c, "x", seed=v)),
    ("rows_per_batch", 1, U64, lambda o, v: PartitionDataset(o.c, "x", seed=1, rows_per_batch=v)),
    ("partition", 0, U32, lambda o, v: PartitionDataset(o.c, "x", seed=1, partitions=[0, v])),
    ("partition", 0, U64, lambda o, v: PartitionDataset(o.c, "x", seed=1).load_state_dict({**STATE, "partition": v})),
    ("position", 0, U64, lambda o, v: PartitionDataset(o.c, "x", seed=1).load_state_dict({**STATE, "position": v})),
]
BLOCKING_SECONDS = [
    ("spin", lambda o, v: o.connect(o.path, spin=v)),
    ("timeout", lambda o, v: o.c.fetch_later("y", timeout=v)),
    ("timeout", lambda o, v: o.c.fetch_later("y").result(v)),
    ("timeout", lambda o, v: PartitionDataset(o.c, "x", seed=1, timeout=v)),
    ("timeout", lambda o, v: td.init(timeout=v)),
]

OTHERS = [
    (
        'keep is "replaced", "deleted", or the number of fetches, from 1 to 4294967295',
        (0, -1, 2.0, 1 << 32, "2", [1]),
        lambda o, v: o.c.push("y", b"x", keep=v),
    ),
    (
        f"shape is whole numbers from 0 to {U64}, or one of them",
        (-1, 2.5, (2, -1), (2, 1.5), "ab", None),
        lambda o, v: o.c.empty(v),
    ),
    (
        f"shape is whole numbers from 0 to {U64}, or one of them",
        (-1, (2, 1.5)),
        lambda o, v: o.c.two_state_buffers("y", {"w": (v, "uint8")}),
    ),
    (
        f'arena is a whole number of bytes from 0 to {U64}, or a text such as "512MiB" or "4GiB"',
        (-1, 2.5, "many", "-1GiB", "infGiB", 1 << 64, [1]),
        lambda o, v: o.connect(o.path, arena=v),
    ),
    (
        f'memory is a whole number of bytes from 0 to {U64}, or a text such as "512MiB" or "4GiB"',
        (-1, 2.5, "many", "-1GiB", 1 << 64),
        lambda o, v: o.x.partition(0, order=1, memory=v),
    ),
]
NO_TENANTS = ("abc", [1], 3, b"x", None)
OTHERS += [
    ('readable_by is a list of names of tenants, such as ["eval"]', NO_TENANTS, call)
    for call in (
        lambda o, v: o.c.push("y", b"x", readable_by=v),
        lambda o, v: o.c.push_snapshot("y", o.buffer, readable_by=v),
        lambda o, v: o.c.push_state("y", {"w": b"x"}, readable_by=v),
        lambda o, v: o.c.push_state_snapshot("y", {"w": o.buffer}, readable_by=v),
        lambda o, v: o.c.push_table("y", TABLE, readable_by=v),
        lambda o, v: o.c.publisher("y", readable_by=v).push(b"x"),
    )
]
BLOCKING_OTHERS = [
    (
        f'memory is a whole number of bytes from 0 to {U64}, or a text such as "512MiB" or "4GiB"',
        (-1, 2.5, "many", "-1GiB", 1 << 64),
        lambda o, v: PartitionDataset(o.c, "x", seed=1, memory=v),
    ),
    (
        "partitions is a list of whole numbers, or None",
        (3, 2.5),
        lambda o, v: PartitionDataset(o.c, "x", seed=1, partitions=v),
    ),
]


# Ray is not installed here: they are checked before it is needed.
RAY_WHOLE = [
    ("partitions", 1, U32, lambda v: tr.shuffle([TABLE], by="n", partitions=v)),
    ("seed", 0, U64, lambda v: tr.Random(v)),
    ("partition", 0, 3, lambda v: tr.Shuffled("x", 4, tr.Hash("n"), [], [], {}, 30.0).partition(v)),
]
RAY_SECONDS = [
    ("timeout", lambda v: tr.init(timeout=v)),
    ("timeout", lambda v: tr.client(timeout=v)),
    ("timeout", lambda v: tr.shuffle([TABLE], by="n", partitions=2, timeout=v)),
]
RAY_BYTES = [
    lambda v: tr.init(arena=v),
    lambda v: tr.shuffle([TABLE], by="n", partitions=2, arena=v),
]


# Promise: python-arguments
def test_numbers_and_durations_of_transferd_ray_that_cannot_be_are_named():
    def refuses(call, value, right):
        with pytest.raises(td.Invalid) as error:
            call(value)
        assert (str(error.value), error.value.code) == (f"{right}; this is {value!r}", "invalid")

    for name, least, most, call in RAY_WHOLE:
        for value in (*NO_NUMBERS, None, least - 1, most + 1):
            refuses(call, value, f"{name} is a whole number from {least} to {most}")
    for name, call in RAY_SECONDS:
        for value in NO_SECONDS:
            refuses(call, value, f"{name} is seconds, a number from 0 on, or None")
    for call in RAY_BYTES:
        for value in (-1, 2.5, "many", "-1GiB", 1 << 64, [1]):
            refuses(call, value, f'arena is a whole number of bytes from 0 to {U64}, or a text such as "512MiB" or "4GiB"')
    # What can be goes on until Ray is needed.
    for call in (lambda: tr.init(timeout=None), lambda: tr.client(timeout=np.float32(1)), lambda: tr.shuffle([TABLE], by="n", partitions=np.int8(2))):
        with pytest.raises(tr.RayUnusable):
            call()
    assert tr.Random(np.int64(3)) == tr.Random(3)


async def refused(call, objects, value, right):
    with pytest.raises(td.Invalid) as error:
        await settled(call(objects, value))
    assert (str(error.value), error.value.code) == (f"{right}; this is {value!r}", "invalid")


# Promise: python-arguments
@pytest.mark.parametrize("module", [td, td.aio])
def test_numbers_and_durations_that_cannot_be_are_named(sidecar, module):
    async def tried():
        c = await settled(module.connect(sidecar.path, arena="4MiB"))
        o = SimpleNamespace(c=c, path=sidecar.path, connect=module.connect, buffer=await settled(c.empty(4)))
        o.x = await settled(c.exchange("x", partitions=2, tasks=2))
        o.task, o.counter = await settled(o.x.task(0)), await settled(c.counter(f"n of {module.__name__}"))
        o.barrier, o.stream = c.barrier("b", 2), c.push_stream("s", TABLE.schema)
        o.two, o.sets = c.two_buffers("two", 4), c.two_state_buffers("sets", {"w": (4, "float32")})
        is_blocking = module is td
        for name, least, most, call in WHOLE + BLOCKING_WHOLE * is_blocking:
            for value in (*NO_NUMBERS, least - 1, most + 1):
                await refused(call, o, value, f"{name} is a whole number from {least} to {most}")
        for name, call in SECONDS + BLOCKING_SECONDS * is_blocking:
            for value in NO_SECONDS:
                await refused(call, o, value, f"{name} is seconds, a number from 0 on, or None")
        for right, values, call in OTHERS + BLOCKING_OTHERS * is_blocking:
            for value in values:
                await refused(call, o, value, right)
        with pytest.raises(TypeError, match="fetch_many takes keys, such as \\['abc'\\], not the one string 'abc'"):
            await settled(c.fetch_many("abc"))
        # Nothing was taken or ended by the calls that were refused, and a number of numpy is one.
        assert not o.buffer.pushed
        assert await settled(o.counter.add(np.uint8(3), timeout=np.float32(5))) == 0
        await settled(o.task.write(TABLE, random=np.int64(1)))
        assert await settled(o.task.commit(timeout=None)) == 3
        assert (await settled(c.empty((np.int64(2), 3), timeout=float("inf")))).shape == (2, 3)
        await settled(c.close())

    asyncio.run(tried())
