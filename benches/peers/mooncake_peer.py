"""Mooncake's transfer engine: writes from registered memory into that of another process. Its non-CUDA build has TCP here."""

import collections
import itertools
import os

import common
import numpy


def engine():
    from mooncake.engine import TransferEngine

    made = TransferEngine()
    if made.initialize('127.0.0.1', 'P2PHANDSHAKE', 'tcp', ''):
        raise SystemExit('Mooncake: it cannot be initialized')
    return made


def registered(made, size):
    memory = numpy.zeros(size, dtype=numpy.uint8)
    if made.register_memory(memory.ctypes.data, size):
        raise SystemExit('Mooncake: memory cannot be registered')
    return memory


def write(made, name, here, there, size):
    if made.transfer_sync_write(name, here, there, size):
        raise SystemExit('Mooncake: the transfer failed')


def echo(pipe, size):
    """The second process: for round trips it waits for a new first byte, and writes back. There are no notifications for Python."""
    made = engine()
    memory = registered(made, size)
    pipe.send((f'127.0.0.1:{made.get_rpc_port()}', memory.ctypes.data))
    other, there = pipe.recv()
    last = 0
    while last != 255:
        while memory[size - 1] == last:
            os.sched_yield()
        last = int(memory[size - 1])
        if last != 255:
            write(made, other, memory.ctypes.data, there, size)


def marker(number, ask):
    """The last byte of message `number` of a `read` stream: it differs from the one before in the same buffer."""
    return number // ask.buffers() % 255 + 1


def reader(pipe, ask):
    """The second process of a `read` stream: waits for the last byte of each message, and writes the number of credits back, as a byte."""
    made = engine()
    memory, credits = registered(made, ask.size * ask.buffers()), registered(made, 1)
    pipe.send((f'127.0.0.1:{made.get_rpc_port()}', memory.ctypes.data))
    other, there = pipe.recv()
    buffers, under_way = memory.reshape(-1, ask.size), collections.deque()
    for number in itertools.count():
        buffer, wanted = buffers[number % len(buffers)], marker(number, ask)
        while buffer[-1] != wanted:
            os.sched_yield()
        common.read_all(buffer)
        if not (number + 1) % ask.credit():
            finish(made, under_way, 1)
            credits += numpy.uint8(1)
            under_way.append(made.transfer_submit_write(other, credits.ctypes.data, there, 1))


def finish(made, under_way, left):
    """Waits until at most so many of the transfers are not done."""
    while len(under_way) > left:
        if (state := made.transfer_check_status(under_way[0])) < 0:
            raise SystemExit('Mooncake: the transfer failed')
        if state:
            under_way.popleft()
        else:
            os.sched_yield()


def read(ask):
    process, pipe = common.partner(reader, ask)
    made = engine()
    memory, credits = registered(made, ask.size * ask.buffers()), registered(made, 1)
    name, there = pipe.recv()
    pipe.send((f'127.0.0.1:{made.get_rpc_port()}', credits.ctypes.data))
    buffers, under_way = memory.reshape(-1, ask.size), collections.deque()
    numbers, seen = itertools.count(), 0

    def send(i):
        buffers[i][-1] = marker(next(numbers), ask)
        under_way.append(made.transfer_submit_write(name, buffers[i].ctypes.data, there + i * ask.size, ask.size))
        finish(made, under_way, ask.under_way())

    def credit():
        nonlocal seen
        while credits[0] == seen:
            os.sched_yield()
        seen = (seen + 1) % 256

    said = common.gigabytes(common.read_rate(ask, send, credit))
    process.kill()
    return said


def measure(ask):
    if ask.what == 'handover':
        raise common.CannotError('memory is written into the other process: a copy')
    if ask.place != 'tcp':
        raise common.CannotError('its build without CUDA has no shared memory')
    if ask.what == 'read':
        return read(ask)
    process, pipe = common.partner(echo, ask.size)
    made = engine()
    memory, answers = registered(made, ask.size), registered(made, ask.size)
    name, there = pipe.recv()
    pipe.send((f'127.0.0.1:{made.get_rpc_port()}', answers.ctypes.data))
    if ask.what == 'one-way':
        state = {'last': 0}

        def round_trip():
            state['last'] = state['last'] % 250 + 1
            memory[ask.size - 1] = state['last']
            began = common.now()
            write(made, name, memory.ctypes.data, there, ask.size)
            # The engine's own threads need the cores as well.
            while answers[ask.size - 1] != state['last']:
                os.sched_yield()
            return (common.now() - began) / 2

        said = common.microseconds(common.for_seconds(ask.seconds, round_trip))
    else:
        many = ask.under_way()
        here, far, sizes = [memory.ctypes.data] * many, [there] * many, [ask.size] * many

        def batch():
            if made.batch_transfer_sync_write(name, here, far, sizes):
                raise SystemExit('Mooncake: the transfer failed')

        said = common.gigabytes(common.rate(ask.size * many, ask.seconds, batch))
    process.kill()
    return said


if __name__ == '__main__':
    common.main(measure)
