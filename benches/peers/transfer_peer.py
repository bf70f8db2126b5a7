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
# How sidecars wait: `adaptive`, as they are installed, or `busy`, as those of the others do that wait by polling.
POLL = os.environ.get('TRANSFER_PEER_POLL', 'adaptive')


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
    def __init__(self, sidecar, name, arena):
        self.process = subprocess.Popen([PROGRAMS / 'transfer-bench', 'actor'], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.ask('Connect', socket=sidecar.socket, name=name, arena_bytes=arena)

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
    arena = max(64 << 20, 3 * ask.size)
    # Two slots for each key, each with its header; a pool that is full would take slots back all the time.
    pool = max(1 << 30, 2 * ask.under_way() * ask.size + (64 << 20))
    if ask.place == 'tcp' or ask.what == 'throughput':
        fabric = ['--require', 'tcp' if ask.place == 'tcp' else 'shm']
        a = Sidecar(folder, 'a', pool, '--listen', '127.0.0.1:0', *fabric)
        b = Sidecar(folder, 'b', pool, '--listen', '127.0.0.1:0', '--directory', a.grpc(), *fabric)
    else:
        a = b = Sidecar(folder, 'a', pool)
    started = [a, b]
    try:
        sender, receiver = Actor(a, 'sender', arena), Actor(b, 'receiver', 1 << 20)
        started += [sender, receiver]
        if ask.what == 'throughput':
            return throughput(ask, sender)
        return latency(ask, folder, sender, receiver)
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


def latency(ask, folder, sender, receiver):
    if ask.size > 1 << 20:
        sender.ask('Prefill', len=ask.size, tensors=3)
    count = max(20, int(ask.seconds / 200e-6))
    versions, turns = {'start': 1, 'end': count + 1}, str(folder / 'turns')
    to = 'receiver' if ask.place == 'tcp' else None
    pace = {'interval_ns': 0, 'turns': turns}
    sender.tell('Push', key='k', len=ask.size, versions=versions, pace=pace, to=to)
    receiver.tell('Fetch', key='k', versions=versions, turns=turns)
    before, after = sender.answer()['Times']['ns'], receiver.answer()['Times']['ns']
    samples = [(to - since) / 1e9 for since, to in zip(before, after)]
    return common.microseconds(samples[len(samples) // 10:])


if __name__ == '__main__':
    common.main(measure)
