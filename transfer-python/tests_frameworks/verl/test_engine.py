"""`transferd.verl` without Ray: both ends in this process, over the sidecar of the tests."""

from __future__ import annotations

import asyncio
import importlib.metadata
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import transferd as td
from conftest import ROOT
from transferd.verl import RoundFailed, TransferdCheckpointEngine
from verl.checkpoint_engine import CheckpointEngineRegistry


@pytest.fixture
def engines(sidecar) -> Iterator[Callable[..., list[Any]]]:
    """Makes a sender and its receivers."""
    made: list[Any] = []

    def make(receivers: int = 2, backend: str = "transferd", **options: Any) -> list[Any]:
        options = {"socket": sidecar.path, "timeout": 20.0, "arena": "4MiB", "bucket_size": 1 << 20, **options}
        found = [CheckpointEngineRegistry.new(backend, is_master=n == 0, **options) for n in range(1 + receivers)]
        made.extend(found)
        return found

    yield make
    for engine in made:
        engine._close()


def group(made: list[Any]) -> None:
    """What verl's manager does before each round."""
    trainer, rollouts = type(made[0]).build_topology(1, len(made) - 1, [engine.prepare() for engine in made])
    made[0].init_process_group(**{name: value[0] for name, value in trainer.items()})
    for n, engine in enumerate(made[1:]):
        engine.init_process_group(**{name: value[n] for name, value in rollouts.items()})


async def take(engine: Any, step: int | None = None) -> dict[str, torch.Tensor]:
    return {name: weight.clone() async for name, weight in engine.receive_weights(global_steps=step)}


async def rounds(made: list[Any], weights: dict[str, torch.Tensor], step: int | None = None, asked: int | None = None) -> list[Any]:
    group(made)
    sent = made[0].send_weights(iter(weights.items()), global_steps=step)
    return await asyncio.gather(sent, *(take(engine, asked or step) for engine in made[1:]), return_exceptions=True)


# Promise: verl-rounds
def test_verl_finds_it_by_its_entry_point():
    (point,) = (point for point in importlib.metadata.entry_points(group="verl.plugins") if point.name == "transferd")
    assert point.load().TransferdCheckpointEngine is CheckpointEngineRegistry.get("transferd")
    assert CheckpointEngineRegistry.get("transferd_cache").__mro__[1] is TransferdCheckpointEngine


# Promise: verl-rounds, seen to fail
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float8_e4m3fn, torch.float64, torch.int32, torch.bool, torch.complex64])
def test_each_type_and_shape_comes_as_it_was(engines, dtype):
    shapes = [(), (0,), (3,), (5, 7), (2, 0, 3), (600, 1000), (1, 2, 3, 4)]
    weights = {str(shape): torch.randint(0, 2, shape).to(dtype) for shape in shapes}
    weights["turned"] = weights["(5, 7)"].T
    made = engines()
    for step in range(3):
        _, *received = asyncio.run(rounds(made, weights, step))
        for found in received:
            assert list(found) == list(weights)
            assert all(found[name].dtype == dtype and torch.equal(found[name], weights[name]) for name in weights)


# Promise: verl-fan-out
def test_a_tied_tensor_is_sent_once(engines):
    embed = torch.ones(100, 100)
    metrics, *received = asyncio.run(rounds(engines(), {"embed": embed, "head": embed, "row": embed[:1]}))
    assert metrics["transferd/sent_bytes"] == embed.nbytes + 400
    assert all(torch.equal(found["head"], embed) and torch.equal(found["row"], embed[:1]) for found in received)


def mapping_of(address: int) -> str:
    """The line of /proc/self/maps with this address."""
    for line in open("/proc/self/maps"):
        begin, end = line.split()[0].split("-")
        if int(begin, 16) <= address < int(end, 16):
            return line
    raise AssertionError(f"nothing is at {address:#x}")


# Promise: verl-fan-out
def test_on_one_host_a_receiver_reads_what_the_sender_has_written(engines):
    made = engines(receivers=1)

    async def run() -> str:
        group(made)
        sent = asyncio.create_task(made[0].send_weights(iter({"w": torch.ones(1000, 100)}.items())))
        (found,) = [mapping_of(weight.data_ptr()) async for _, weight in made[1].receive_weights()]
        await sent
        return found

    # The pages are those of the arena's file, and not of this process's own memory.
    assert "memfd:" in asyncio.run(run())


# Promise: verl-errors
def test_a_wrong_step_is_named(engines):
    sent, *received = asyncio.run(rounds(engines(), {"w": torch.ones(3)}, step=4, asked=5))
    assert all(isinstance(error, RoundFailed) and isinstance(error, RuntimeError) for error in received)
    assert str(received[0]) == "weights of step 4 came where those of step 5 were asked for"
    # As Ray brings it to the manager.
    brought = pickle.loads(pickle.dumps(received[0]))
    assert type(brought) is RoundFailed and (str(brought), brought.key) == (str(received[0]), received[0].key)


# Promise: verl-errors
def test_a_receiver_that_does_not_come_is_named(engines):
    made = engines(receivers=1, timeout=2.0)
    group(made)
    with pytest.raises(TimeoutError, match="1 of 1 receivers have not asked for version 1 of 'verl/") as caught:
        asyncio.run(made[0].send_weights(iter({"w": torch.ones(3)}.items())))
    assert str(caught.value).endswith(made[1]._name)


# Promise: verl-errors
def test_a_version_that_does_not_come_is_named(engines):
    made = engines(receivers=1, timeout=2.0)
    group(made)
    made[0]._sender.begin(())
    with pytest.raises(td.Timeout, match="version 1 of 'verl/.*' did not come within 2 s"):
        asyncio.run(take(made[1]))


# Promise: verl-deaths
def test_a_sender_that_is_gone_ends_the_wait(engines):
    made = engines(receivers=1, timeout=600.0)
    group(made)
    made[0]._client.close()
    with pytest.raises(td.PeerLost, match="the sender of 'verl/.*' is gone: version 1 was not published"):
        asyncio.run(take(made[1]))


# Promise: verl-failures
def test_a_sender_that_fails_ends_the_round_and_the_next_goes_well(engines):
    def failing():
        for n in range(20):
            yield f"w{n}", torch.ones(40_000)
        raise ArithmeticError("no more")

    made = engines()

    async def run():
        group(made)
        return await asyncio.gather(made[0].send_weights(failing()), *(take(engine) for engine in made[1:]), return_exceptions=True)

    sent, *received = asyncio.run(run())
    assert isinstance(sent, ArithmeticError)
    assert all(isinstance(error, RoundFailed) and "ArithmeticError: no more" in str(error) for error in received)
    _, *received = asyncio.run(rounds(made, {"w": torch.ones(3)}))
    assert all(torch.equal(found["w"], torch.ones(3)) for found in received)


# Promise: verl-failures
def test_a_receiver_that_stops_ends_the_round_and_the_next_goes_well(engines):
    async def stop(engine):
        async for _ in engine.receive_weights():
            raise ArithmeticError("the engine takes no more")

    made = engines()
    weights = {f"w{n}": torch.ones(40_000) for n in range(40)}

    async def run():
        group(made)
        sent = made[0].send_weights(iter(weights.items()))
        return await asyncio.gather(sent, take(made[1]), stop(made[2]), return_exceptions=True)

    sent, other, stopped = asyncio.run(run())
    assert isinstance(stopped, ArithmeticError)
    assert isinstance(sent, RoundFailed) and f"receiver {made[2]._name} has stopped" in str(sent)
    assert isinstance(other, RoundFailed) and "has ended the round" in str(other)
    # Their tracebacks have the tensors that these receivers had last.
    del sent, other, stopped
    _, *received = asyncio.run(rounds(made, weights))
    assert all(len(found) == 40 for found in received)


# Promise: verl-errors
def test_an_arena_decides_the_size_of_buckets_and_one_that_is_too_small_is_refused(engines):
    assert engines(arena="1MiB")[0]._sender is None and engines(arena="1MiB")[0].prepare()["bucket"] == 256 << 10
    with pytest.raises(ValueError, match="arena=65536 is too small for weights: a bucket is a quarter of it, and has at least 65536 bytes"):
        engines(arena="64KiB")


# Promise: verl-errors
def test_weights_that_are_kept_need_a_larger_arena(engines):
    async def keep(engine):
        return [weight async for _, weight in engine.receive_weights()]

    made = engines(receivers=1, timeout=3.0)
    made[1]._timeout = 20.0

    async def run():
        group(made)
        sent = made[0].send_weights(iter({f"w{n}": torch.ones(40_000) for n in range(60)}.items()))
        return await asyncio.gather(sent, keep(made[1]), return_exceptions=True)

    sent, _ = asyncio.run(run())
    assert isinstance(sent, td.ArenaFull) and "a receiver that keeps tensors needs a larger arena here" in str(sent)


# Promise: verl-cache
def test_the_kind_with_a_cache_has_the_last_round_again(engines):
    made = engines(backend="transferd_cache", arena="64MiB", bucket_size=1 << 20)
    for step in (1, 2):
        weights = {f"w{n}": torch.full((40_000,), float(step)) for n in range(40)}
        asyncio.run(rounds(made, weights, step))

        async def cached(engine):
            return {name: weight async for name, weight in engine.get_weights()}

        for _ in range(2):
            found = asyncio.run(cached(made[1]))
            assert list(found) == list(weights) and all(torch.equal(found[name], weights[name]) for name in weights)
    with pytest.raises(RuntimeError, match="no round of weights was received yet"):
        asyncio.run(cached(made[0]))


# Promise: verl-jobs, seen to fail
def test_two_jobs_of_one_sidecar_do_not_meet(engines):
    jobs = [engines(), engines()]

    async def run() -> list[Any]:
        return await asyncio.gather(*(rounds(made, {"w": torch.full((40_000,), float(job))}, 1) for job, made in enumerate(jobs)))

    for job, (metrics, *received) in enumerate(asyncio.run(run())):
        assert metrics["transferd/sent_bytes"] == 160_000 and len(received) == 2
        assert all((found["w"] == job).all() for found in received)


# Promise: verl-failures, seen to fail
def test_an_update_that_was_given_up_does_not_meet_the_next_one(engines):
    made = engines(timeout=600.0)
    weights = {f"w{n}": torch.full((40_000,), float(n)) for n in range(40)}

    async def run() -> list[Any]:
        group(made)
        # One receiver does not come. The manager gives the update up, with all that its workers still do.
        given_up = [asyncio.create_task(made[0].send_weights(iter(weights.items()))), asyncio.create_task(take(made[1]))]
        while made[0]._sender._entries == []:
            await asyncio.sleep(0.01)
        group(made)
        sent = made[0].send_weights(iter(weights.items()))
        found = await asyncio.gather(sent, *(take(engine) for engine in made[1:]), return_exceptions=True)
        for task in given_up:
            task.cancel()
        await asyncio.gather(*given_up, return_exceptions=True)
        return found

    _, *received = asyncio.run(run())
    assert all(list(found) == list(weights) and all(torch.equal(found[name], weights[name]) for name in weights) for found in received)


def test_the_example_ends_well():
    done = subprocess.run([sys.executable, str(ROOT / "examples/python/verl_engine.py")], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "every rollout has the trainer's weights: True" in done.stdout
