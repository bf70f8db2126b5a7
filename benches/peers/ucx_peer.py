"""UCX, by its own ucx_perftest: tagged messages for latency, puts for throughput, as its manual does it. It has no test whose receiver reads
the bytes: for that ucx_read.c sends tagged messages."""

import os
import re
import subprocess
import time

import common
import install

# Shared memory of both kinds; single-copy by the kernel (cma) where it is allowed. Or TCP alone.
TRANSPORTS = {'one-host': 'self,posix,sysv,cma', 'tcp': 'self,tcp'}


def environment_of(ask):
    return dict(os.environ, UCX_TLS=TRANSPORTS[ask.place], UCX_NET_DEVICES='lo' if ask.place == 'tcp' else 'all', UCX_WARN_UNUSED_ENV_VARS='n')


def count_of(ask):
    """About as many messages as take that long."""
    return int(max(8, ask.seconds / (20e-6 + ask.size / 2e9)))


def read(ask):
    try:
        program = install.ucx_read()
    except install.MissingError as why:
        raise common.CannotError(f'its test of streams that are read is missing: {why}') from why
    count = count_of(ask)
    words = [str(word) for word in (ask.size, ask.buffers(), ask.under_way(), count)]
    pipes = {'stdin': subprocess.PIPE, 'stdout': subprocess.PIPE, 'text': True, 'env': environment_of(ask)}
    both = [subprocess.Popen([program, role, *words], **pipes) for role in ('send', 'receive')]
    try:
        addresses = [process.stdout.readline() for process in both]
        for process, address in zip(both, reversed(addresses)):
            process.stdin.write(address)
            process.stdin.flush()
        return common.gigabytes(count * ask.size / float(both[0].stdout.readline()))
    finally:
        for process in both:
            process.kill()


def measure(ask):
    if ask.what == 'handover':
        raise common.CannotError('a library of messages: nothing is handed over')
    if ask.what == 'read':
        return read(ask)
    test = {'one-way': 'tag_lat', 'throughput': 'tag_bw'}[ask.what]
    environment, count = environment_of(ask), count_of(ask)
    port = str(common.free_port())
    words = ['ucx_perftest', '-p', port, '-t', test, '-s', str(ask.size), '-n', str(count), '-w', str(max(2, count // 10))]
    if test == 'tag_bw':
        # Its own number is 32.
        words += ['-O', str(ask.under_way())]
    server = subprocess.Popen(words[:3], env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        for _ in range(50):
            client = subprocess.run([words[0], '127.0.0.1', *words[1:]], env=environment, capture_output=True, text=True, timeout=120)
            if 'Connection refused' not in client.stdout + client.stderr:
                break
            time.sleep(0.1)
    finally:
        server.kill()
    found = re.findall(r'^Final:\s+(\d+)\s+([\d.]+)\s+([\d.]+)\s+([\d.]+)\s+([\d.]+)', client.stdout, re.MULTILINE)
    if not found:
        raise SystemExit(f'ucx_perftest says nothing: {client.stdout}{client.stderr}')
    iterations, typical, _, _, megabytes = found[-1]
    if test == 'tag_lat':
        return {'value': float(typical), 'unit': 'us', 'samples': int(iterations)}
    return common.gigabytes(float(megabytes) * 2**20)


if __name__ == '__main__':
    common.main(measure)
