"""Publishers and subscribers."""

from __future__ import annotations

import asyncio
import threading

import numpy as np
import pyarrow as pa
import pytest
import transferd as td
from conftest import GIVE_UP


def test_a_subscriber_returns_each_version_once(c, other):
    weights, read = c.publisher("w"), other.subscriber("w", timeout=GIVE_UP)
    assert (weights.key, read.key, read.seen) == ("w", "w", None)
    assert weights.push(np.full(3, 1.0)).version == 1
    assert read.next().version == 1
    weights.push(np.full(3, 2.0))
    weights.push(np.full(3, 5.0), version=5)
    found = read.next()
    assert (found.version, found.numpy().tolist(), read.seen) == (5, [5.0] * 3, 5)
    assert read.latest().version == 5
    with pytest.raises(td.Timeout):
        other.subscriber("w", after=5, timeout=0.05).next()
    weights.push(np.full(3, 6.0))
    assert read.next().version == 6


# Promise: subscribers
def test_a_call_that_timed_out_skips_nothing(c, other):
    read = other.subscriber("w", timeout=0.05)
    with pytest.raises(td.Timeout):
        read.next()
    c.push("w", b"1")
    assert read.next().version == 1
    with pytest.raises(td.Timeout):
        read.next()
    assert read.seen == 1
    c.push("w", b"2")
    assert [bytes(read.next()), read.seen] == [b"2", 2]


def test_a_loop_waits_for_each_version(c, other):
    found, enough = [], threading.Event()

    def read():
        for weights in other.subscriber("w", after=0, timeout=None):
            found.append(weights.version)
            if weights.version == 20:
                return enough.set()

    reader = threading.Thread(target=read)
    reader.start()
    weights = c.publisher("w")
    for _ in range(20):
        weights.push(b"x")
    assert enough.wait(GIVE_UP)
    reader.join(GIVE_UP)
    assert found == sorted(set(found))


# Promise: subscribers
def test_a_subscriber_goes_on_when_the_versions_begin_again(sidecar, other):
    def trainer(version):
        with td.connect(sidecar.path, name="trainer", arena="1MiB") as c:
            c.push("w", b"x", version=version)
            c.push_state("s", {"w": np.zeros(version % 7)}, version=version)
            yield

    def run(version, check):
        for _ in trainer(version):
            check()

    weights, states = other.subscriber("w", timeout=GIVE_UP), other.state_subscriber("s", timeout=GIVE_UP)

    def each(version, began):
        for read in (weights, states):
            assert (read.next().version, read.seen, read.epoch_began) == (version, version, began)

    run(1000, lambda: each(1000, None))
    run(901, lambda: each(901, (1000, 901)))
    run(902, lambda: each(902, (1000, 901)))
    run(3, lambda: each(3, (902, 3)))

    def after():
        assert other.fetch("w", after=3).version == 7 == other.fetch_state("s", after=1000).version
        with pytest.raises(td.Timeout):
            other.fetch("w", after=7, timeout=0.05)
        with pytest.raises(td.Invalid, match="one of at_least, exactly and after"):
            other.fetch("w", after=7, at_least=7)
        # A subscriber that begins behind a version has not seen it.
        with pytest.raises(td.Timeout):
            other.subscriber("w", after=8, timeout=0.05).next()

    run(7, after)


def test_states_and_tables_have_subscribers(c, other):
    states, tables = c.publisher("s"), c.publisher("t")
    states.push_state({"w": np.arange(3), "b": np.zeros(1)}, version=7)
    tables.push_table(pa.table({"x": [1, 2]}), version=8)
    state, table = other.state_subscriber("s").next(), other.table_subscriber("t").next()
    assert (state.version, state["w"].numpy().tolist()) == (7, [0, 1, 2])
    assert (table.version, pa.table(table).to_pydict()) == (8, {"x": [1, 2]})


def test_options_of_a_publisher_hold_for_each_push(c, other):
    kept = c.publisher("k", keep="deleted")
    with kept.produce(1, "uint8") as buffer:
        np.from_dlpack(buffer)[:] = 7
    kept.push(b"b")
    kept.push(b"c", keep="replaced")
    assert bytes(other.fetch("k", exactly=1)) == b"\x07"
    assert bytes(other.fetch("k", exactly=2)) == b"b"
    with pytest.raises(TypeError, match=r"keep.*not 'version'"):
        c.publisher("k", version=3)
    far = c.publisher("far", to="nobody", timeout=0.05)
    with pytest.raises(td.Error):
        far.push(b"x")
    assert far.push(b"x", to=None).version == 1


def test_asyncio(sidecar):
    async def run():
        async with td.aio.connect(sidecar.path) as c:
            weights, read = c.publisher("a"), c.subscriber("a", timeout=GIVE_UP)
            waiting = asyncio.create_task(read.next())
            await weights.push(b"1")
            assert (await waiting).version == 1
            given_up = asyncio.create_task(read.next())
            await asyncio.sleep(0)
            given_up.cancel()
            with pytest.raises(asyncio.CancelledError):
                await given_up
            await weights.push(b"2", version=9)
            async for version in read:
                assert (version.version, read.seen) == (9, 9)
                break
            await weights.push_state({"x": np.ones(2)})
            assert (await c.state_subscriber("a").next())["x"].numpy().tolist() == [1, 1]
            await weights.push_table(pa.table({"x": [3]}))
            assert pa.table(await c.table_subscriber("a").latest()).to_pydict() == {"x": [3]}
            async with weights.produce(1, "uint8") as buffer:
                np.from_dlpack(buffer)[:] = 1
            assert bytes(await read.next()) == b"\x01"

    asyncio.run(run())
