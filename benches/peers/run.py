#!/usr/bin/env python3
"""Measures this project beside those that people use instead, in one interleaved run.

Installs the others into target/peers-venv (requirements.txt, by pip; about 900 MB) and UCX's perftest and headers (ucx-utils and
libucx-dev, by apt-get) where they are missing, and builds this project in release mode. A peer that cannot be installed is left out, and
the reason stands below the table. Each measurement is a fresh pair of processes; a round measures every peer once for each question, and
the table has the median over the rounds. Prints the table as Markdown, and what it goes through to the standard error.
"""

import argparse
import contextlib
import json
import os
import pathlib
import platform
import signal
import statistics
import subprocess
import sys
import time

import common
import install

PEERS = {
    'transfer': 'transfer_peer.py',
    'transfer, polling': 'transfer_peer.py',
    'embedded': 'transfer_peer.py',
    'embedded, polling': 'transfer_peer.py',
    'UCX': 'ucx_peer.py',
    'NIXL': 'nixl_peer.py',
    'Mooncake': 'mooncake_peer.py',
    'Gloo': 'gloo_peer.py',
    'Arrow Flight': 'flight_peer.py',
    'Ray': 'ray_peer.py',
    'iceoryx2': 'iceoryx_peer.py',
}
KIB, MIB = 1 << 10, 1 << 20
SIZES = (('64 KiB', 64 * KIB), ('1 MiB', MIB), ('16 MiB', 16 * MIB), ('256 MiB', 256 * MIB))
QUESTIONS = [
    ('hand-over of 64 MiB, one host', 'handover', 'one-host', 64 * MIB),
    ('4 KiB one way, one host', 'one-way', 'one-host', 4 * KIB),
    ('4 KiB one way, TCP', 'one-way', 'tcp', 4 * KIB),
    *((f'{name} stream, one host', 'throughput', 'one-host', size) for name, size in SIZES),
    *((f'{name} stream, TCP', 'throughput', 'tcp', size) for name, size in SIZES),
    *((f'{name} stream, one host, read', 'read', 'one-host', size) for name, size in SIZES),
    *((f'{name} stream, TCP, read', 'read', 'tcp', size) for name, size in SIZES),
]
LIMIT_SECONDS = 60


def prepare(peers, options):
    """Installs; answers the Python for each peer that can be measured, and for each other why not."""
    pythons, missing = {}, {}
    for peer in peers:
        try:
            if PEERS[peer] == 'transfer_peer.py':
                install.transfer(build=not options.no_build)
                pythons[peer] = sys.executable
            elif peer == 'UCX':
                install.ucx()
                pythons[peer] = sys.executable
                # The rows that need it say why it is missing.
                with contextlib.suppress(install.MissingError):
                    install.ucx_read()
            elif peer == 'Gloo':
                pythons[peer] = install.torch(options.torch)
            else:
                install.packages('common')
                install.packages(peer)
                pythons[peer] = install.VENV / 'bin/python'
        except install.MissingError as why:
            missing[peer] = str(why)
            print(f'peers: {peer} is not measured: {why}', file=sys.stderr)
        except subprocess.CalledProcessError as error:
            raise SystemExit(f'peers: this project cannot be built: cargo ended with {error.returncode}') from error
    return pythons, missing


def ask(peer, python, what, place, size, seconds):
    words = [python, install.HERE / PEERS[peer], what, place, str(size), str(seconds)]
    environment = dict(os.environ, TRANSFER_PROGRAMS=str(install.PROGRAMS), NIXL_LOG_LEVEL='ERROR', MC_LOG_LEVEL='ERROR', GLOG_minloglevel='3')
    environment['TRANSFER_PEER_POLL'] = 'busy' if 'polling' in peer else 'adaptive'
    if 'embedded' in peer:
        environment['TRANSFER_PEER_EMBEDDED'] = 'yes'
    # A group of its own: whatever it has started ends with it, also where it hangs.
    process = subprocess.Popen(words, cwd=install.HERE, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)
    try:
        said, errors = process.communicate(timeout=LIMIT_SECONDS)
    except subprocess.TimeoutExpired:
        return {'failed': f'no answer within {LIMIT_SECONDS} s'}
    finally:
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        process.wait()
    lines = [line for line in said.splitlines() if line.startswith('{')]
    # What was said counts, also of a library that does not survive its own end.
    if not lines:
        return {'failed': (errors.strip().splitlines() or [f'it ended with {process.returncode}, and said nothing'])[-1]}
    return json.loads(lines[-1])


def median(answers):
    good = values(answers)
    return statistics.median(good) if good else None


def values(answers):
    return [answer['value'] for answer in answers if 'value' in answer]


def digits(value):
    return f'{value:.0f}' if value >= 100 else f'{value:.3g}'


def cells(answers):
    """A row of the table: of what was measured, the best is bold."""
    medians = [median(each) for each in answers]
    units = {answer['unit'] for each in answers for answer in each if 'unit' in answer}
    found = [value for value in medians if value is not None]
    best = (min if units == {'us'} else max)(found) if found else None
    texts = []
    for value, each in zip(medians, answers):
        if value is None:
            texts.append('–' if not each or 'cannot' in each[0] else 'failed')
            continue
        unit = next(answer['unit'] for answer in each if 'value' in answer)
        scale, unit = (1000, 'ms') if unit == 'us' and value >= 10_000 else (1, unit.replace('us', 'µs'))
        text = f'{digits(value / scale)} {unit}'
        # The least and the most of all rounds.
        least, most = (digits(limit(values(each)) / scale) for limit in (min, max))
        texts.append((f'**{text}**' if value == best else text) + (f' ({least}–{most})' if least != most else ''))
    return texts


def table(questions, peers, seen):
    lines = ['| | ' + ' | '.join(peers) + ' |', '|---' * (len(peers) + 1) + '|']
    for title, *_ in questions:
        lines.append(f'| {title} | ' + ' | '.join(cells([seen[title, peer] for peer in peers])) + ' |')
    return '\n'.join(lines)


def below(seen, missing):
    """What the signs of the table mean."""
    by_reason = {}
    for (title, peer), answers in seen.items():
        for answer in answers:
            for key, sign in (('cannot', '–'), ('failed', 'failed')):
                if key in answer:
                    by_reason.setdefault((peer, f'{sign}: {answer[key]}'), None)
    return [*(f'{peer}, {reason}' for peer, reason in by_reason), *(f'{peer} was not measured: {why}' for peer, why in missing.items())]


def machine():
    cpu = next((line.split(':')[1].strip() for line in open('/proc/cpuinfo') if line.startswith('model name')), platform.machine())
    return f'{cpu}, {os.cpu_count()} cores, last-level cache {common.last_level_cache() >> 20} MiB, Linux {platform.release()}'


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--rounds', type=int, default=9, help='how often each is measured (default: 9)')
    parser.add_argument('--seconds', type=float, default=0.5, help='how long one measurement takes (default: 0.5)')
    parser.add_argument('--quick', action='store_true', help='one round of 0.1 s each: to see that it works')
    parser.add_argument('--json', type=pathlib.Path, help='every answer, to this file')
    parser.add_argument('--peers', nargs='+', default=list(PEERS), choices=list(PEERS), metavar='PEER', help=f'some of: {", ".join(PEERS)}')
    parser.add_argument('--rows', nargs='+', default=[''], metavar='TEXT', help='rows with one of these texts in their titles, such as "read"')
    parser.add_argument('--torch', metavar='PYTHON', help='a Python that has PyTorch, for Gloo (default: this one, or /usr/bin/python3)')
    parser.add_argument('--no-build', action='store_true', help='take the programs of this project as they are in target/release')
    options = parser.parse_args()
    if options.rounds < 1 or options.seconds <= 0:
        parser.error('--rounds is 1 or more, and --seconds is more than 0')
    if options.json and not options.json.resolve().parent.is_dir():
        parser.error(f'--json {options.json}: there is no such folder')
    options.questions = [question for question in QUESTIONS if any(text in question[0] for text in options.rows)]
    if not options.questions:
        parser.error(f'--rows {" ".join(options.rows)}: no row has that in its title; there are: {"; ".join(title for title, *_ in QUESTIONS)}')
    if options.quick:
        options.rounds, options.seconds = 1, 0.1
    return options


def main():
    options = arguments()
    pythons, missing = prepare(options.peers, options)
    peers = [peer for peer in options.peers if peer in pythons]
    seen = {(question[0], peer): [] for question in options.questions for peer in peers}
    began, load = time.monotonic(), os.getloadavg()[0]
    for number in range(options.rounds):
        for title, *question in options.questions:
            for peer in peers:
                if any('cannot' in answer for answer in seen[title, peer]):
                    continue
                answer = ask(peer, pythons[peer], *question, options.seconds)
                seen[title, peer].append(answer)
                print(f'round {number + 1}: {title}: {peer}: {answer}', file=sys.stderr, flush=True)
    load = f'load {load:.1f} before and {os.getloadavg()[0]:.1f} at the end'
    print(f'{machine()}; {load}; medians of {options.rounds} interleaved rounds of {options.seconds} s each; the best of a row is bold.\n')
    print(table(options.questions, peers, seen))
    print('\n' + '\n'.join(f'- {line}' for line in [*below(seen, missing), ', '.join(install.versions())]))
    print(f'peers: {time.monotonic() - began:.0f} s', file=sys.stderr)
    if options.json:
        answers = [{'question': title, 'peer': peer, 'answers': answers} for (title, peer), answers in seen.items()]
        about = {'machine': machine(), 'load': load, 'rounds': options.rounds, 'seconds': options.seconds}
        options.json.write_text(json.dumps({**about, 'versions': install.versions(), 'missing': missing, 'answers': answers}, indent=1) + '\n')


if __name__ == '__main__':
    main()
