"""What all measurements have in common: two processes, a clock that both read, and how a figure is made of samples.

A measurement is a function `measure(ask)` in a module of its own, which starts a second process by `partner(function, ...)`. Processes
are spawned, not forked: each peer loads its library by itself, as two programs would.
"""

import dataclasses
import json
import multiprocessing
import pathlib
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
    # read: the same out of `buffers()` buffers in turn, and the receiver reads every byte.
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

    def credit(self):
        """The number of read messages after which the receiver of a `read` stream reports that."""
        return max(1, self.under_way() // 2)

    def buffers(self):
        """The number of buffers of each side of a `read` stream: together larger than the last-level cache, and each message under
        way has its own. It is a multiple of `under_way()`."""
        rounds = -(-rotation() // (self.size * self.under_way()))
        return max(1, rounds) * self.under_way()


class CannotError(Exception):
    """The peer does not do this, and why."""


def last_level_cache():
    """The bytes of the largest cache of the first CPU; 32 MiB where the system does not say."""
    sizes = pathlib.Path('/sys/devices/system/cpu/cpu0/cache').glob('index*/size')
    return max((int(path.read_text().strip().removesuffix('K')) << 10 for path in sizes), default=32 << 20)


def rotation():
    """The bytes that one side of a `read` stream rotates over, at least: four times the last-level cache, up to 1 GiB."""
    return min(4 * last_level_cache(), 1 << 30)


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


def read_all(array):
    """Reads all bytes of an array of numpy: a sum of words of 64 bits."""
    return array.view('u8').sum()


def read_rate(ask, send, credit):
    """The sender of a `read` stream. `send(i)` sends buffer `i`; `credit()` waits until `ask.credit()` more messages were read. Answers
    bytes per second, after two rotations that warm up."""
    buffers, under_way, step = ask.buffers(), ask.under_way(), ask.credit()
    sent = read = 0

    def stream(count):
        nonlocal sent, read
        for _ in range(count):
            while sent - read >= under_way:
                credit()
                read += step
            send(sent % buffers)
            sent += 1

    def settle():
        nonlocal read
        while read < sent:
            credit()
            read += step

    stream(2 * buffers)
    settle()
    first, began = sent, now()
    while now() - began < ask.seconds or sent - first < 2 * under_way:
        stream(under_way)
    settle()
    return (sent - first) * ask.size / (now() - began)


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
