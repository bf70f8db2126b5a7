"""Gloo, which PyTorch's distributed package has for CPUs: point-to-point send and receive. Needs a Python that has torch."""

import collections
import itertools
import os

import common


def join(rank, port):
    import torch
    import torch.distributed

    os.environ['GLOO_SOCKET_IFNAME'] = 'lo'
    torch.set_num_threads(1)
    torch.distributed.init_process_group('gloo', init_method=f'tcp://127.0.0.1:{port}', rank=rank, world_size=2)
    return torch, torch.distributed


def batches(distributed, call, tensors):
    """Starts all of them and waits for all of them."""
    for work in [call(tensor, tag=tag) for tag, tensor in enumerate(tensors)]:
        work.wait()


def echo(pipe, what, size, many, port):
    torch, distributed = join(1, port)
    if what == 'one-way':
        memory = torch.zeros(size, dtype=torch.uint8)
        while True:
            distributed.recv(memory, 0)
            distributed.send(memory, 0)
    tensors, done = [torch.zeros(size, dtype=torch.uint8) for _ in range(many)], torch.ones(1)
    while True:
        batches(distributed, lambda tensor, tag: distributed.irecv(tensor, 0, tag=tag), tensors)
        distributed.send(done, 0, tag=many)


def buffers_of(torch, ask):
    """The buffers of a `read` stream: for Gloo, and for the reader."""
    import numpy

    arrays = [numpy.ones(ask.size, dtype=numpy.uint8) for _ in range(ask.buffers())]
    return [torch.from_numpy(array) for array in arrays], arrays


def reader(pipe, ask, port):
    torch, distributed = join(1, port)
    tensors, arrays = buffers_of(torch, ask)
    done, step, receives = torch.ones(1), ask.credit(), collections.deque()
    for number in itertools.count():
        while len(receives) < ask.under_way():
            receives.append(distributed.irecv(tensors[(number + len(receives)) % len(tensors)], 0))
        receives.popleft().wait()
        common.read_all(arrays[number % len(arrays)])
        if not (number + 1) % step:
            distributed.send(done, 0, tag=1)


def read(ask):
    port = common.free_port()
    process, _ = common.partner(reader, ask, port)
    torch, distributed = join(0, port)
    (tensors, _), done, sends = buffers_of(torch, ask), torch.ones(1), collections.deque()

    def send(i):
        sends.append(distributed.isend(tensors[i], 1))

    def credit():
        distributed.recv(done, 1, tag=1)
        # What was read was sent.
        for _ in range(ask.credit()):
            sends.popleft().wait()

    said = common.gigabytes(common.read_rate(ask, send, credit))
    process.kill()
    return said


def measure(ask):
    if ask.what == 'handover':
        raise common.CannotError('tensors are sent: a copy')
    if ask.place != 'tcp':
        raise common.CannotError('it sends over TCP within a host too')
    if ask.what == 'read':
        return read(ask)
    many = ask.under_way()
    port = common.free_port()
    process, _ = common.partner(echo, ask.what, ask.size, many, port)
    torch, distributed = join(0, port)
    if ask.what == 'one-way':
        memory = torch.ones(ask.size, dtype=torch.uint8)

        def round_trip():
            began = common.now()
            distributed.send(memory, 1)
            distributed.recv(memory, 1)
            return (common.now() - began) / 2

        said = common.microseconds(common.for_seconds(ask.seconds, round_trip))
    else:
        tensors, done = [torch.ones(ask.size, dtype=torch.uint8) for _ in range(many)], torch.ones(1)

        def batch():
            batches(distributed, lambda tensor, tag: distributed.isend(tensor, 1, tag=tag), tensors)
            distributed.recv(done, 1, tag=many)

        said = common.gigabytes(common.rate(ask.size * many, ask.seconds, batch))
    process.kill()
    return said


if __name__ == '__main__':
    common.main(measure)
