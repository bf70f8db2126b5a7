"""iceoryx2: a publisher loans a sample in shared memory and sends it; the subscriber polls. Through its Python binding."""

import ctypes

import common


class Bytes(ctypes.Structure):
    _fields_ = [('first', ctypes.c_uint8)]


def ports(iceoryx2, node, out, back, size):
    def service(name):
        made = node.service_builder(iceoryx2.ServiceName.new(name)).publish_subscribe(iceoryx2.Slice[ctypes.c_uint8])
        return made.open_or_create()

    publisher = service(out).publisher_builder().initial_max_slice_len(size).create()
    return publisher, service(back).subscriber_builder().create()


def receive(subscriber):
    while True:
        sample = subscriber.receive()
        if sample is not None:
            return sample


def send(publisher, size):
    sample = publisher.loan_slice_uninit(size)
    sample.assume_init().send()


def echo(pipe, name, size):
    import iceoryx2

    iceoryx2.set_log_level(iceoryx2.LogLevel.Error)
    node = iceoryx2.NodeBuilder.new().create(iceoryx2.ServiceType.Ipc)
    publisher, subscriber = ports(iceoryx2, node, f'{name}/back', f'{name}/out', size)
    pipe.send('ready')
    while True:
        receive(subscriber).delete()
        send(publisher, size)


def reader(pipe, name, ask):
    """The second process of a `read` stream: reads where the sample is, and reports that."""
    import iceoryx2
    import numpy

    node = iceoryx2.NodeBuilder.new().create(iceoryx2.ServiceType.Ipc)
    subscriber = service(iceoryx2, node, f'{name}/out', ask).subscriber_builder().create()
    publisher = service(iceoryx2, node, f'{name}/back', ask).publisher_builder().create()
    pipe.send('ready')
    while True:
        for _ in range(ask.credit()):
            sample = receive(subscriber)
            common.read_all(numpy.frombuffer(sample.payload().as_memory_view(), dtype=numpy.uint8))
            sample.delete()
        send(publisher, 1)


def service(iceoryx2, node, name, ask):
    """The service of a `read` stream. Its samples do not replace each other: none is lost."""
    iceoryx2.set_log_level(iceoryx2.LogLevel.Error)
    made = node.service_builder(iceoryx2.ServiceName.new(name)).publish_subscribe(iceoryx2.Slice[ctypes.c_uint8])
    return made.enable_safe_overflow(False).subscriber_max_buffer_size(ask.under_way()).open_or_create()


def read(ask):
    import iceoryx2
    import numpy

    name = f'peers{common.free_port()}'
    node = iceoryx2.NodeBuilder.new().create(iceoryx2.ServiceType.Ipc)
    publisher = service(iceoryx2, node, f'{name}/out', ask).publisher_builder().initial_max_slice_len(ask.size).create()
    subscriber = service(iceoryx2, node, f'{name}/back', ask).subscriber_builder().create()
    process, pipe = common.partner(reader, name, ask)
    pipe.recv()
    buffers = [numpy.ones(ask.size, dtype=numpy.uint8) for _ in range(ask.buffers())]

    def send_copy(i):
        sample = publisher.loan_slice_uninit(ask.size)
        ctypes.memmove(sample.payload_ptr, buffers[i].ctypes.data, ask.size)
        sample.assume_init().send()

    said = common.gigabytes(common.read_rate(ask, send_copy, lambda: receive(subscriber).delete()))
    process.kill()
    return said


def measure(ask):
    if ask.place == 'tcp':
        raise common.CannotError('it is for one host')
    if ask.what == 'throughput':
        raise common.CannotError('nothing is copied: its throughput is that of who writes the memory')
    if ask.what == 'read':
        return read(ask)
    import iceoryx2

    iceoryx2.set_log_level(iceoryx2.LogLevel.Error)
    name = f'peers{common.free_port()}'
    node = iceoryx2.NodeBuilder.new().create(iceoryx2.ServiceType.Ipc)
    publisher, subscriber = ports(iceoryx2, node, f'{name}/out', f'{name}/back', ask.size)
    process, pipe = common.partner(echo, name, ask.size)
    pipe.recv()

    def round_trip():
        began = common.now()
        send(publisher, ask.size)
        receive(subscriber).delete()
        return (common.now() - began) / 2

    # The hand-over of a sample is a message of any length.
    said = common.microseconds(common.for_seconds(ask.seconds, round_trip))
    process.kill()
    return said


if __name__ == '__main__':
    common.main(measure)
