"""What all measurements have in common: two processes, a clock that both read, and how a figure is made of samples.

A measurement is a function `measure(ask)` in a module of its own, which starts a second process by `partner(function, ...)`. Processes
are spawned, not forked: each peer loads its library by itself, as two programs would.
"""

import dataclasses
import json
import multiprocessing
import socket
import statistics
import sys
import time

SPAWN = multiprocessing.get_context('spawn')


@dataclasses.dataclass(frozen=True)
class Ask:
    """What to measure."""

    # handover: one side has the bytes; until the other side has them in hand. one-way: half of a round trip.
    # throughput: bytes in one direction, with `under_way()` messages at a time.
    what: str
    # 'one-host': by the fastest way that the peer has within a host. 'tcp': over TCP on loopback, as between hosts.
    place: str
    # Of one message or tensor.
    size: int
    # How long.
    seconds: float

    def under_way(self):
        """The number of messages of a stream that are under way at a time. It is the same for all peers."""
        return 8 if self.size <= 16 << 20 else 2


class CannotError(Exception):
    """The peer does not do this, and why."""


def now():
    """Seconds, on a clock that all processes of a host share."""
    return time.clock_gettime(time.CLOCK_MONOTONIC)


def free_port():
    with socket.socket() as taken:
        taken.bind(('127.0.0.1', 0))
        return taken.getsockname()[1]


def partner(function, *arguments):
    """Starts the second process; answers it and a pipe to it."""
    mine, theirs = SPAWN.Pipe()
    process = SPAWN.Process(target=function, args=(theirs, *arguments), daemon=True)
    process.start()
    return process, mine


def for_seconds(seconds, step, least=5):
    """Calls `step` for so long; answers what it answered, without the first tenth, which warms up."""
    seen, until = [], now() + seconds
    while now() < until or len(seen) < least:
        seen.append(step())
    return seen[len(seen) // 10:]


def rate(size, seconds, step, least=4):
    """Calls `step`, which moves `size` bytes and returns when they are there; answers bytes per second."""
    step()
    moved, began = 0, now()
    while now() - began < seconds or moved < least * size:
        step()
        moved += size
    return moved / (now() - began)


def figure(samples, unit):
    samples = sorted(samples)
    return {'value': statistics.median(samples), 'unit': unit, 'p99': samples[int(len(samples) * 0.99)], 'samples': len(samples)}


def microseconds(samples):
    return figure([1e6 * sample for sample in samples], 'us')


def gigabytes(value):
    return {'value': value / 1e9, 'unit': 'GB/s', 'samples': 1}


def main(measure):
    """The command line of one measurement: WHAT PLACE SIZE SECONDS. Prints one line of JSON."""
    what, place, size, seconds = sys.argv[1:5]
    try:
        said = measure(Ask(what, place, int(size), float(seconds)))
    except CannotError as why:
        said = {'cannot': str(why)}
    print(json.dumps(said), flush=True)
