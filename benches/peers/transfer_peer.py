"""This project: transferd, and two workers that are `transfer-bench actor`, told what to do as `transfer-bench` tells them.

On one host both workers have one sidecar, and a tensor is handed over by reference: there is no rate of bytes to tell. So the streams of one
host are between two sidecars, whose fabric of shared memory copies into memory of the other one, as the others do. For TCP each worker
has a sidecar of its own too. TRANSFER_PROGRAMS is the folder of the programs.
"""

import json
import os
import pathlib
import subprocess
import tempfile

import common

PROGRAMS = pathlib.Path(os.environ.get('TRANSFER_PROGRAMS', 'target/release'))
# How sidecars and workers wait: `adaptive`, as they are installed, or `busy`, as the others do that wait by polling.
POLL = os.environ.get('TRANSFER_PEER_POLL', 'adaptive')
# Whether each worker has its sidecar inside of its process.
EMBEDDED = 'TRANSFER_PEER_EMBEDDED' in os.environ
# Workers beside polling sidecars sleep, because four processes cannot poll on two cores. Others poll for as long as this.
SPIN = {'spin': {'secs': 1, 'nanos': 0}} if POLL == 'busy' and EMBEDDED else {}


class Sidecar:
    def __init__(self, folder, name, pool, *arguments):
        self.socket = str(folder / f'{name}.sock')
        words = [PROGRAMS / 'transferd', '--node', name, '--socket', self.socket, '--poll', POLL, '--verbs', 'off', *arguments]
        memory = ['--pinned-limit', '6GiB', '--pool-bytes', str(pool), '--lock', 'no']
        log = folder / f'{name}.log'
        with log.open('w') as stderr:
            self.process = subprocess.Popen([*words, *memory], stdout=subprocess.PIPE, stderr=stderr, text=True)
        self.line = self.process.stdout.readline()
        if 'ready' not in self.line:
            raise SystemExit(f'transferd did not start: {(log.read_text().strip().splitlines() or [""])[-1]}')

    def grpc(self):
        return 'http://' + next(word.partition('=')[2] for word in self.line.split() if word.startswith('grpc='))


class Actor:
    def __init__(self, name):
        self.name = name
        self.process = subprocess.Popen([PROGRAMS / 'transfer-bench', 'actor'], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def connect(self, sidecar, arena):
        self.ask('Connect', socket=sidecar.socket, name=self.name, arena_bytes=arena, **SPIN)
        return self

    def embed(self, arena, pool, **settings):
        """Starts its own sidecar; answers where that listens."""
        common_settings = {'poll': POLL, 'verbs': 'off', 'pinned_limit': '6GiB', 'pool_bytes': pool, 'lock': 'no', 'listen': '127.0.0.1:0'}
        pairs = [[key, str(value)] for key, value in {**common_settings, **settings}.items()]
        return 'http://' + self.ask('Embed', settings=pairs, name=self.name, arena_bytes=arena, **SPIN)['Listens']

    def tell(self, task, **fields):
        self.process.stdin.write(json.dumps({'Worker': {task: fields}}) + '\n')
        self.process.stdin.flush()

    def answer(self):
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit('transfer: a worker has ended')
        said = json.loads(line)
        if isinstance(said, dict) and 'Failed' in said:
            raise SystemExit(f'transfer: {said["Failed"]}')
        return said

    def ask(self, task, **fields):
        self.tell(task, **fields)
        return self.answer()


def measure(ask):
    with tempfile.TemporaryDirectory() as folder:
        return measure_in(ask, pathlib.Path(folder))


def measure_in(ask, folder):
    arena = max(64 << 20, (1 + ask.buffers() if ask.what == 'read' else 3) * ask.size)
    # Two slots for each key, each with its header; a pool that is full would take slots back all the time.
    pool = max(256 << 20, 2 * ask.under_way() * ask.size + (64 << 20))
    fabric = 'tcp' if ask.place == 'tcp' else 'shm'
    sender, receiver = Actor('sender'), Actor('receiver')
    started = [sender, receiver]
    try:
        if EMBEDDED:
            address = sender.embed(arena, pool, require=fabric, shm_dir=folder)
            receiver.embed(arena, pool, require=fabric, shm_dir=folder, directory=address)
        elif ask.place == 'tcp' or ask.what in ('throughput', 'read'):
            a = Sidecar(folder, 'a', pool, '--listen', '127.0.0.1:0', '--require', fabric)
            b = Sidecar(folder, 'b', pool, '--listen', '127.0.0.1:0', '--require', fabric, '--directory', a.grpc())
            started += [a, b, sender.connect(a, arena), receiver.connect(b, arena)]
        else:
            a = Sidecar(folder, 'a', pool)
            started += [a, sender.connect(a, arena), receiver.connect(a, arena)]
        if ask.what == 'throughput':
            return throughput(ask, sender)
        if ask.what == 'read':
            return read(ask, sender, receiver)
        if ask.what == 'one-way':
            return one_way(ask, sender, receiver)
        return hand_over(ask, folder, sender, receiver)
    finally:
        for each in started:
            each.process.kill()
            each.process.wait()


def throughput(ask, sender):
    streams = ask.under_way()
    fields = {'prefix': 'stream', 'len': ask.size, 'in_flight': streams, 'to': 'receiver'}
    times = sender.ask('Stream', count=2, above=0, **fields)['Times']['ns']
    each = max(1e-5, (times[1] - times[0]) / 1e9 / 2)
    count = max(2, int(ask.seconds / each))
    times = sender.ask('Stream', count=count, above=10, **fields)['Times']['ns']
    return common.gigabytes(count * streams * ask.size / ((times[1] - times[0]) / 1e9))


def read(ask, sender, receiver):
    def seconds(begin, end):
        fields = {'prefix': 'stream', 'len': ask.size, 'in_flight': ask.under_way(), 'ranges': ask.buffers()}
        fields['versions'] = {'start': begin, 'end': end}
        receiver.tell('ReadStream', to='sender', **fields)
        began = sender.ask('PushToReader', to='receiver', **fields)['Times']['ns'][0]
        return (receiver.answer()['Times']['ns'][0] - began) / 1e9

    # Two rotations warm up, which is at least two versions of each key: as many slots as it has.
    rounds = 2 * ask.buffers() // ask.under_way()
    count = max(2, int(ask.seconds * rounds / seconds(1, 1 + rounds)))
    return common.gigabytes(count * ask.under_way() * ask.size / seconds(1 + rounds, 1 + rounds + count))


def one_way(ask, sender, receiver):
    count = max(20, int(ask.seconds / 200e-6))
    fields = {'len': ask.size, 'versions': {'start': 1, 'end': count + 1}}
    away = ask.place == 'tcp' or EMBEDDED
    receiver.tell('PingPong', give='pong', take='ping', to='sender' if away else None, first=False, **fields)
    times = sender.ask('PingPong', give='ping', take='pong', to='receiver' if away else None, first=True, **fields)['Times']['ns']
    receiver.answer()
    samples = [(after - before) / 2e9 for before, after in zip(times, times[1:])]
    return common.microseconds(samples[len(samples) // 10:])


def hand_over(ask, folder, sender, receiver):
    sender.ask('Prefill', len=ask.size, tensors=3)
    count = max(20, int(ask.seconds / 200e-6))
    versions, turns = {'start': 1, 'end': count + 1}, str(folder / 'turns')
    sender.tell('Push', key='k', len=ask.size, versions=versions, pace={'interval_ns': 0, 'turns': turns}, to=None)
    receiver.tell('Fetch', key='k', versions=versions, turns=turns)
    before, after = sender.answer()['Times']['ns'], receiver.answer()['Times']['ns']
    samples = [(to - since) / 1e9 for since, to in zip(before, after)]
    return common.microseconds(samples[len(samples) // 10:])


if __name__ == '__main__':
    common.main(measure)
