"""NIXL with its UCX backend: an agent writes from its registered memory into that of another agent, and notifies it."""

import collections
import os

import common
import numpy


def agent_of(name, tcp):
    if tcp:
        os.environ.update(UCX_TLS='self,tcp', UCX_NET_DEVICES='lo')
    from nixl_cu12 import nixl_agent, nixl_agent_config

    # Both sides ask all the time, which makes progress; a thread of its own for it would only take a core from them.
    return nixl_agent(name, nixl_agent_config(enable_prog_thread=False, backends=['UCX']))


def registered(agent, size):
    memory = numpy.ones(size, dtype=numpy.uint8)
    described = agent.get_reg_descs([(memory.ctypes.data, size, 0, '')], 'DRAM')
    agent.register_memory(described)
    return memory


def wait_for(agent, sender):
    """Until the other agent has notified this one."""
    while True:
        if agent.get_new_notifs().get(sender):
            return
        # On a machine of few cores the other side may wait for this one.
        os.sched_yield()


def pieces(agent, memory, size):
    at = memory.ctypes.data
    return agent.get_xfer_descs([(at + size * i, size, 0) for i in range(len(memory) // size)], 'DRAM')


def write(agent, handle):
    if agent.transfer(handle) == 'ERR':
        raise SystemExit('NIXL: the transfer failed')


def done(agent, handle):
    while (state := agent.check_xfer_state(handle)) != 'DONE':
        if state == 'ERR':
            raise SystemExit('NIXL: the transfer failed')
        os.sched_yield()


def echo(pipe, size, tcp):
    """The second process: lets itself be written to, and for round trips writes back."""
    agent = agent_of('b', tcp)
    memory = registered(agent, size)
    pipe.send((agent.get_agent_metadata(), agent.get_serialized_descs(pieces(agent, memory, size))))
    other, there = pipe.recv()
    agent.add_remote_agent(other)
    back = agent.initialize_xfer('WRITE', pieces(agent, memory, size), agent.deserialize_descs(there), 'a', b'pong')
    pipe.send('ready')
    while True:
        while not (heard := agent.get_new_notifs().get('a')):
            os.sched_yield()
        if b'end' in heard:
            return
        if b'ping' in heard:
            write(agent, back)
            done(agent, back)


def reader(pipe, ask):
    """The second process of a `read` stream: reads what it is notified of, and reports that."""
    agent = agent_of('b', ask.place == 'tcp')
    memory = registered(agent, ask.size * ask.buffers())
    pipe.send((agent.get_agent_metadata(), agent.get_serialized_descs(pieces(agent, memory, ask.size))))
    agent.add_remote_agent(pipe.recv())
    pipe.send('ready')
    buffers, arrived, read = memory.reshape(-1, ask.size), set(), 0
    while True:
        while not (heard := agent.get_new_notifs().get('a')):
            os.sched_yield()
        if b'end' in heard:
            return
        # Writes may overtake each other, and a credit is for the oldest.
        arrived.update(map(int, heard))
        while (i := read % len(buffers)) in arrived:
            arrived.remove(i)
            common.read_all(buffers[i])
            read += 1
            if not read % ask.credit():
                agent.send_notif('a', b'read')


def read(ask):
    process, pipe = common.partner(reader, ask)
    agent = agent_of('a', ask.place == 'tcp')
    memory = registered(agent, ask.size * ask.buffers())
    theirs, there = pipe.recv()
    agent.add_remote_agent(theirs)
    pipe.send(agent.get_agent_metadata())
    pipe.recv()
    here = agent.prep_xfer_dlist('', pieces(agent, memory, ask.size))
    there = agent.prep_xfer_dlist('b', agent.deserialize_descs(there))
    handles = [agent.make_prepped_xfer('WRITE', here, [i], there, [i], str(i).encode()) for i in range(ask.buffers())]
    under_way, credits = collections.deque(), 0

    def send(i):
        write(agent, handles[i])
        under_way.append(handles[i])

    def credit():
        nonlocal credits
        while not credits:
            # A write makes progress, and its notification is sent, when its state is asked for.
            while under_way and agent.check_xfer_state(under_way[0]) == 'DONE':
                under_way.popleft()
            credits += len(agent.get_new_notifs().get('b', ()))
            if not credits:
                os.sched_yield()
        credits -= 1

    said = common.gigabytes(common.read_rate(ask, send, credit))
    agent.send_notif('b', b'end')
    process.join(5)
    return said


def measure(ask):
    if ask.what == 'handover':
        raise common.CannotError('memory is written into the other process: a copy')
    if ask.what == 'read':
        return read(ask)
    tcp = ask.place == 'tcp'
    many = ask.under_way() if ask.what == 'throughput' else 1
    process, pipe = common.partner(echo, ask.size, tcp)
    agent = agent_of('a', tcp)
    memory = registered(agent, ask.size * many)
    theirs, there = pipe.recv()
    agent.add_remote_agent(theirs)
    pipe.send((agent.get_agent_metadata(), agent.get_serialized_descs(agent.get_xfer_descs([(memory.ctypes.data, ask.size, 0)], 'DRAM'))))
    pipe.recv()
    remote = agent.deserialize_descs(there)
    first = agent.get_xfer_descs([(memory.ctypes.data, ask.size, 0)], 'DRAM')
    if ask.what == 'one-way':
        ping = agent.initialize_xfer('WRITE', first, remote, 'b', b'ping')

        def round_trip():
            began = common.now()
            write(agent, ping)
            done(agent, ping)
            wait_for(agent, 'b')
            return (common.now() - began) / 2

        said = common.microseconds(common.for_seconds(ask.seconds, round_trip))
    else:
        handles = [agent.initialize_xfer('WRITE', first, remote, 'b') for _ in range(many)]

        def batch():
            for handle in handles:
                write(agent, handle)
            for handle in handles:
                done(agent, handle)

        said = common.gigabytes(common.rate(ask.size * many, ask.seconds, batch))
    agent.send_notif('b', b'end')
    process.join(5)
    return said


if __name__ == '__main__':
    common.main(measure)
