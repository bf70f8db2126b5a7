"""Arrow Flight: record batches over gRPC. Latency is an exchange of one batch each way; throughput is DoGet, as its manual does it."""

import itertools

import common
import numpy
import pyarrow
import pyarrow.flight


def batch_of(size):
    return pyarrow.record_batch([pyarrow.array(numpy.ones(size, dtype=numpy.uint8))], names=['bytes'])


class Server(pyarrow.flight.FlightServerBase):
    def __init__(self, location, size, buffers):
        super().__init__(location)
        self.batch = batch_of(size)
        self.batches = itertools.cycle([self.batch, *(batch_of(size) for _ in range(buffers - 1))])

    def do_get(self, context, ticket):
        count = int(ticket.ticket)
        return pyarrow.flight.GeneratorStream(self.batch.schema, itertools.islice(self.batches, count))

    def do_exchange(self, context, descriptor, reader, writer):
        writer.begin(self.batch.schema)
        for chunk in reader:
            writer.write_batch(chunk.data)


def serve(pipe, location, size, buffers):
    server = Server(location, size, buffers)
    pipe.send(f'grpc+tcp://127.0.0.1:{server.port}' if 'tcp' in location else location)
    server.serve()


def measure(ask):
    if ask.what == 'handover':
        raise common.CannotError('batches are sent over a socket: a copy')
    location = 'grpc+tcp://127.0.0.1:0' if ask.place == 'tcp' else f'grpc+unix:///tmp/flight-{common.free_port()}.sock'
    process, pipe = common.partner(serve, location, ask.size, ask.buffers() if ask.what == 'read' else 1)
    client = pyarrow.flight.connect(pipe.recv())
    if ask.what == 'one-way':
        batch = batch_of(ask.size)
        writer, reader = client.do_exchange(pyarrow.flight.FlightDescriptor.for_command(b''))
        writer.begin(batch.schema)

        def round_trip():
            began = common.now()
            writer.write_batch(batch)
            reader.read_chunk()
            return (common.now() - began) / 2

        said = common.microseconds(common.for_seconds(ask.seconds, round_trip))
        writer.close()
    else:
        many = max(4, (64 << 20) // ask.size)

        def stream():
            for chunk in client.do_get(pyarrow.flight.Ticket(str(many).encode())):
                assert chunk.data.num_rows == ask.size
                if ask.what == 'read':
                    common.read_all(chunk.data.column(0).to_numpy())

        said = common.gigabytes(common.rate(ask.size * many, ask.seconds, stream))
    process.kill()
    return said


if __name__ == '__main__':
    common.main(measure)
