"""Ray's object store: `put` copies into shared memory, `get` maps what is there. Between nodes it needs a cluster: not measured."""

import collections

import common
import numpy


def measure(ask):
    if ask.place == 'tcp':
        raise common.CannotError('its transfers between nodes need two hosts, or a cluster of two raylets; one host is measured')
    import ray

    ray.init(num_cpus=2, include_dashboard=False, logging_level='ERROR', log_to_driver=False, object_store_memory=2 << 30)

    @ray.remote
    class Reader:
        def read(self, references):
            began = common.now()
            array = ray.get(references[0])
            seen = int(array[0])
            return common.now() - began + 0 * seen

        def take(self, array):
            return common.now()

        def read_all(self, array):
            common.read_all(array)

    reader = Reader.remote()
    memory = numpy.ones(ask.size, dtype=numpy.uint8)
    if ask.what == 'handover':

        def step():
            reference = ray.put(memory)
            return ray.get(reader.read.remote([reference]))

        said = common.microseconds(common.for_seconds(ask.seconds, step))
    elif ask.what == 'one-way':

        def step():
            began = common.now()
            return ray.get(reader.take.remote(ray.put(memory))) - began

        said = common.microseconds(common.for_seconds(ask.seconds, step))
    elif ask.what == 'read':
        buffers, calls = [numpy.ones(ask.size, dtype=numpy.uint8) for _ in range(ask.buffers())], collections.deque()

        def send(i):
            calls.append(reader.read_all.remote(ray.put(buffers[i])))

        def credit():
            ray.get([calls.popleft() for _ in range(ask.credit())])

        said = common.gigabytes(common.read_rate(ask, send, credit))
    else:

        def step():
            ray.get(reader.take.remote(ray.put(memory)))

        said = common.gigabytes(common.rate(ask.size, ask.seconds, step))
    ray.shutdown()
    return said


if __name__ == '__main__':
    common.main(measure)
