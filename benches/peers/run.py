#!/usr/bin/env python3
"""Measures this project beside those that people use instead, in one interleaved run: run.py [--rounds N] [--seconds S] [--json FILE].

Installs the others into target/peers-venv (requirements.txt, by pip; about 800 MB) and UCX's perftest (ucx-utils, by apt-get) where they are
missing, and builds this project in release mode. Each measurement is a fresh pair of processes; a round measures every peer once
for each question, and the table has the median over the rounds. Prints the table as Markdown.
"""

import argparse
import json
import os
import pathlib
import platform
import shutil
import statistics
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
TARGET = pathlib.Path(os.environ.get('CARGO_TARGET_DIR', ROOT / 'target'))
VENV = TARGET / 'peers-venv'

PEERS = {
    'transfer': 'transfer_peer.py',
    'UCX': 'ucx_peer.py',
    'NIXL': 'nixl_peer.py',
    'Mooncake': 'mooncake_peer.py',
    'Arrow Flight': 'flight_peer.py',
    'Ray': 'ray_peer.py',
    'iceoryx2': 'iceoryx_peer.py',
}
KIB, MIB = 1 << 10, 1 << 20
QUESTIONS = [
    ('hand-over of 64 MiB, one host', 'handover', 'one-host', 64 * MIB),
    ('4 KiB one way, one host', 'one-way', 'one-host', 4 * KIB),
    ('4 KiB one way, TCP', 'one-way', 'tcp', 4 * KIB),
    *((f'{name} stream, one host', 'throughput', 'one-host', size) for name, size in (('64 KiB', 64 * KIB), ('16 MiB', 16 * MIB), ('256 MiB', 256 * MIB))),
    *((f'{name} stream, TCP', 'throughput', 'tcp', size) for name, size in (('64 KiB', 64 * KIB), ('1 MiB', MIB), ('16 MiB', 16 * MIB), ('256 MiB', 256 * MIB))),
]


def install():
    wanted = (HERE / 'requirements.txt').read_text()
    if not (VENV / 'installed').exists() or (VENV / 'installed').read_text() != wanted:
        print(f'peers: installing what is compared into {VENV}', file=sys.stderr)
        subprocess.run([sys.executable, '-m', 'venv', '--clear', VENV], check=True)
        pip = [VENV / 'bin/pip', 'install', '--quiet', '--disable-pip-version-check']
        lines = [line for line in wanted.splitlines() if line and not line.startswith('#')]
        # NIXL asks for PyTorch, which it does not need for memory of the host.
        alone = [line for line in lines if line.startswith(('nixl', 'mooncake'))]
        subprocess.run([*pip, '--no-deps', *alone], check=True)
        subprocess.run([*pip, *(line for line in lines if line not in alone)], check=True)
        (VENV / 'installed').write_text(wanted)
    if not shutil.which('ucx_perftest'):
        print('peers: installing ucx-utils with apt-get', file=sys.stderr)
        subprocess.run(['apt-get', 'install', '-y', '-qq', '--no-install-recommends', 'ucx-utils'], check=True, stdout=sys.stderr)
    build = ['cargo', 'build', '--release', '--package', 'transfer-server', '--package', 'transfer-cli', '--bins']
    subprocess.run(build, cwd=ROOT, check=True)


def ask(peer, what, place, size, seconds):
    words = [VENV / 'bin/python', HERE / PEERS[peer], what, place, str(size), str(seconds)]
    environment = dict(os.environ, TRANSFER_PROGRAMS=str(TARGET / 'release'), NIXL_LOG_LEVEL='ERROR', MC_LOG_LEVEL='ERROR', GLOG_minloglevel='3')
    try:
        ran = subprocess.run(words, cwd=HERE, env=environment, capture_output=True, text=True, timeout=120)
    except subprocess.TimeoutExpired:
        return {'failed': 'no answer within 120 s'}
    lines = [line for line in ran.stdout.splitlines() if line.startswith('{')]
    if ran.returncode or not lines:
        return {'failed': (ran.stderr.strip().splitlines() or ['it said nothing'])[-1]}
    return json.loads(lines[-1])


def cell(answers):
    good = [answer['value'] for answer in answers if 'value' in answer]
    if good:
        unit = next(answer['unit'] for answer in answers if 'value' in answer)
        return f'{statistics.median(good):.3g} {unit}'
    return '-' if 'cannot' in answers[0] else 'failed'


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--rounds', type=int, default=5)
    parser.add_argument('--seconds', type=float, default=1.0, help='how long one measurement takes')
    parser.add_argument('--json', type=pathlib.Path, help='every answer, to this file')
    parser.add_argument('--peers', nargs='*', default=list(PEERS), choices=list(PEERS))
    options = parser.parse_args()
    install()
    seen = {(question[0], peer): [] for question in QUESTIONS for peer in options.peers}
    for number in range(options.rounds):
        for title, *question in QUESTIONS:
            for peer in options.peers:
                answer = ask(peer, *question, options.seconds)
                seen[title, peer].append(answer)
                print(f'round {number + 1}: {title}: {peer}: {answer}', file=sys.stderr, flush=True)
    cpu = next((line.split(':')[1].strip() for line in open('/proc/cpuinfo') if line.startswith('model name')), platform.machine())
    print(f'{cpu}, {os.cpu_count()} cores, Linux {platform.release()}; medians of {options.rounds} interleaved rounds of {options.seconds} s\n')
    print('| | ' + ' | '.join(options.peers) + ' |')
    print('|---' * (len(options.peers) + 1) + '|')
    for title, *_ in QUESTIONS:
        print(f'| {title} | ' + ' | '.join(cell(seen[title, peer]) for peer in options.peers) + ' |')
    reasons = sorted({(peer, answer['cannot']) for (_, peer), answers in seen.items() for answer in answers if 'cannot' in answer})
    print('\n' + '\n'.join(f'- {peer}: "-" where {why}' for peer, why in reasons))
    if options.json:
        options.json.write_text(json.dumps([{'question': title, 'peer': peer, 'answers': answers} for (title, peer), answers in seen.items()], indent=1))


if __name__ == '__main__':
    main()
