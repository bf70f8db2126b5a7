"""Mooncake's transfer engine: writes from registered memory into that of another process. Its non-CUDA build has TCP here."""

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


def measure(ask):
    if ask.what == 'handover':
        raise common.CannotError('memory is written into the other process: a copy')
    if ask.place != 'tcp':
        raise common.CannotError('its build without CUDA has no shared memory')
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
