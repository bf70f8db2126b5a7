"""UCX, by its own ucx_perftest: tagged messages for latency, puts for throughput, as its manual does it."""

import os
import re
import subprocess
import time

import common

# Shared memory of both kinds; single-copy by the kernel (cma) where it is allowed. Or TCP alone.
TRANSPORTS = {'one-host': 'self,posix,sysv,cma', 'tcp': 'self,tcp'}


def measure(ask):
    if ask.what == 'handover':
        raise common.CannotError('a library of messages: nothing is handed over')
    test = {'one-way': 'tag_lat', 'throughput': 'tag_bw'}[ask.what]
    environment = dict(os.environ, UCX_TLS=TRANSPORTS[ask.place], UCX_NET_DEVICES='lo' if ask.place == 'tcp' else 'all', UCX_WARN_UNUSED_ENV_VARS='n')
    # About as many as take that long.
    count = int(max(8, ask.seconds / (20e-6 + ask.size / 2e9)))
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
