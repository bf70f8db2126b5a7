#!/usr/bin/env python3
"""Times how a state of torchft comes to a replica that has come back: by `transferd.torchft` on one host and over TCP between two sidecars, beside torchft's
HTTP transport and its process group transport, all in one run. Sender and receiver are two processes, and begin at the same time, as managers do. A time
ends when the receiver has the state, and a second one when it has copied it into its own tensors, as `load_state_dict` does. Where a transport receives into
these tensors, as it does with `state_dict=`, both are the same.
Processor time is that of both processes, without sidecars that are processes of their own; it depends less on what else the machine does.

    PYTHONPATH=... transfer-python/benches/torchft_recovery.py [--transferd PATH] [--rounds N] [--tensors N] [--mib N]
"""

from __future__ import annotations

import argparse
import logging
import statistics
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import transferd as td
from states import sidecars
from torchft.checkpointing.http_transport import HTTPTransport
from torchft.checkpointing.pg_transport import PGTransport
from torchft.process_group import ProcessGroupGloo
from transferd.torchft import TransferTransport

TIMEOUT = timedelta(seconds=60)
ROUNDS_AHEAD = 1


def http(rank: int, place: Any, state_dict: Any) -> Any:
    return HTTPTransport(timeout=TIMEOUT, num_chunks=0)


def http_chunks(rank: int, place: Any, state_dict: Any) -> Any:
    return HTTPTransport(timeout=TIMEOUT, num_chunks=4)


def process_group(rank: int, port: Any, state_dict: Any) -> Any:
    group = ProcessGroupGloo()
    group.configure(store_addr=f"localhost:{port}/bench", replica_id="0", rank=rank, world_size=2)
    return PGTransport(group, timeout=TIMEOUT, device=torch.device("cpu"))


def process_group_into(rank: int, port: Any, state_dict: Any) -> Any:
    group = ProcessGroupGloo()
    group.configure(store_addr=f"localhost:{port}/into", replica_id="0", rank=rank, world_size=2)
    return PGTransport(group, timeout=TIMEOUT, device=torch.device("cpu"), state_dict=state_dict)


def one_host(rank: int, place: Any, state_dict: Any) -> Any:
    return TransferTransport()


def one_host_into(rank: int, place: Any, state_dict: Any) -> Any:
    return TransferTransport(state_dict=state_dict)


def over_tcp(rank: int, sockets: Any, state_dict: Any) -> Any:
    # The sidecar fills its landing pool first, which may take long on a machine that is busy.
    return TransferTransport(td.connect(sockets[rank], arena=0, timeout=120))


def over_tcp_into(rank: int, sockets: Any, state_dict: Any) -> Any:
    return TransferTransport(td.connect(sockets[rank], arena=0, timeout=120), state_dict)


def new_state(tensors: int, length: int, value: float) -> dict[str, torch.Tensor]:
    return {f"layer{n}": torch.full((length,), value + n) for n in range(tensors)}


def receiver(pipe: Any, make: Callable[[int, Any, Any], Any], place: Any, tensors: int, length: int) -> None:
    logging.disable(logging.CRITICAL)
    mine = new_state(tensors, length, -1.0)
    transport = make(1, place, lambda: {"user": mine})
    pipe.send("ready")
    while (asked := pipe.recv()) is not None:
        step, metadata = asked
        processor = time.process_time()
        state = transport.recv_checkpoint(0, metadata, step, TIMEOUT)
        received = time.monotonic()
        for name, tensor in state["user"].items():
            mine[name].copy_(tensor)
        loaded = time.monotonic()
        del state, tensor
        pipe.send((received, loaded, time.process_time() - processor, float(mine[f"layer{tensors - 1}"][-1])))
    transport.shutdown()


def measure(what: str, make: Callable[[int, Any, Any], Any], place: Any, rounds: int, tensors: int, length: int) -> tuple[float, ...]:
    context = mp.get_context("spawn")
    ours, theirs = context.Pipe()
    child = context.Process(target=receiver, args=(theirs, make, place, tensors, length))
    child.start()
    transport = make(0, place, None)
    assert ours.recv() == "ready"
    times = []
    for step in range(1, rounds + 1 + ROUNDS_AHEAD):
        state = {"user": new_state(tensors, length, float(step)), "torchft": {"step": step}}
        begun, processor = time.monotonic(), time.process_time()
        ours.send((step, transport.metadata()))
        transport.send_checkpoint([1], step, state, TIMEOUT)
        received, loaded, theirs_processor, last = ours.recv()
        processor = time.process_time() - processor + theirs_processor
        assert last == step + tensors - 1, "the state is another one"
        transport.disallow_checkpoint()
        times.append((received - begun, loaded - begun, processor))
    ours.send(None)
    child.join()
    transport.shutdown()
    columns = list(zip(*times[ROUNDS_AHEAD:]))
    shown = "   ".join(f"{name} {statistics.median(of):6.3f} s (best {min(of):6.3f})" for name, of in zip(("received", "loaded", "processor"), columns))
    print(f"{what:36} first {times[0][0]:6.3f} s   warm: {shown}", flush=True)
    return tuple(statistics.median(of) for of in columns)


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--transferd", default="transferd", help="the program of the sidecars")
    arguments.add_argument("--rounds", type=int, default=7)
    arguments.add_argument("--tensors", type=int, default=64)
    arguments.add_argument("--mib", type=int, default=16, help="the size of each tensor")
    given = arguments.parse_args()
    logging.disable(logging.CRITICAL)
    size = given.rounds, given.tensors, given.mib * (1 << 20) // 4
    print(f"{given.tensors} tensors of {given.mib} MiB, {given.rounds} warm rounds, medians")
    store = dist.TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    base = [measure("torchft HTTP, without chunks", http, None, *size), measure("torchft HTTP, 4 chunks", http_chunks, None, *size)]
    measure("torchft process group, gloo", process_group, store.port, *size)
    measure("torchft process group, in place", process_group_into, store.port, *size)
    best = [min(column) for column in zip(*base)]
    ours = {
        "on one host": measure("transferd, one host", one_host, None, *size),
        "on one host, in place": measure("transferd, one host, in place", one_host_into, None, *size),
    }
    with sidecars(given.transferd) as sockets:
        ours["over TCP"] = measure("transferd, TCP between two sidecars", over_tcp, sockets, *size)
        ours["over TCP, in place"] = measure("transferd, TCP, in place", over_tcp_into, sockets, *size)
    for what, times in ours.items():
        received, loaded, processor = (theirs / mine for theirs, mine in zip(best, times))
        print(f"the best of HTTP takes {received:.1f} times as long as transferd {what} until received, {loaded:.1f} until loaded; {processor:.1f} of processor time")


if __name__ == "__main__":
    main()
