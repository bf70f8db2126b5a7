#!/usr/bin/env python3
"""transferctl perf beside perftest: the same bytes and flags, by turns in one guest, medians of nine.

    cargo build --release -p transfer-cli
    tests/rdma-vm/perf-beside.py

The guest is emulated, and other work on this machine changes its speed from minute to minute. So the two take turns, and only the ratio counts.
"""

import argparse
import json
import re
import shlex
import statistics
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
# What is measured: ours, perftest's, the flags of both, messages, perftest's column, our key.
RATE, TIME = (3, 'bw_average_mib_s'), (4, 't_typical_us')
CASES = [
    ('write bw', 'ib_write_bw', '-s 65536', 400, *RATE),
    ('write bw', 'ib_write_bw', '-s 1048576', 40, *RATE),
    ('send lat', 'ib_send_lat', '-e -s 64', 500, *TIME),
    ('send lat', 'ib_send_lat', '-e -s 4096', 500, *TIME),
    ('read bw', 'ib_read_bw', '-s 65536', 500, *RATE),
    ('send bw', 'ib_send_bw', '-s 65536', 500, *RATE),
    ('write lat', 'ib_write_lat', '-s 64', 500, *TIME),
    ('atomic lat', 'ib_atomic_lat', '', 500, *TIME),
]
TURN = r'''
turn() { # TITLE SERVER CLIENT
    eval "$2" >/tmp/server 2>&1 &
    # Until it listens.
    until ss -ltn | grep -q :18515; do sleep 0.05; done
    echo "==> $1"
    eval "$3" 2>&1
    wait
}
'''


def script(options, cases):
    """What runs in the guest."""
    lines, ctl = [TURN], shlex.quote(str(options.transferctl))
    for _ in range(options.rounds):
        for number in cases:
            ours, theirs, flags, messages, *_ = CASES[number]
            same = f'-d rxe0 -x 1 -n {messages} {flags}'
            lines.append(f"turn '{number} ours' '{ctl} perf {ours} {same}' '{ctl} perf {ours} 127.0.0.1 {same} --json'")
            lines.append(f"turn '{number} theirs' '{theirs} {same} -F' '{theirs} {same} -F 127.0.0.1'")
    return '\n'.join(lines)


def figure(number, who, text):
    """The figure in what a client has said."""
    column, key = CASES[number][4:]
    if who == 'ours':
        return json.loads(text[text.index('{'):])['results'][0][key]
    rows = [line.split() for line in text.splitlines() if re.match(r'\s*\d+\s+\d+\s+\d+\.\d+', line)]
    return float(rows[-1][column])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('words', nargs='*', help='only what begins like one of these: "write bw" "send lat"')
    parser.add_argument('--transferctl', type=Path, default=ROOT / 'target/release/transferctl', metavar='FILE')
    parser.add_argument('--rounds', type=int, default=9, metavar='N', help='turns of each (%(default)s)')
    options = parser.parse_args()
    options.transferctl = options.transferctl.resolve()
    cases = [number for number, case in enumerate(CASES)
             if not options.words or any(case[0].startswith(word) for word in options.words)]
    command = [HERE / 'run.sh', '--smp', '2', '--mem', '2048', '--timeout', '3000', '--', 'bash', '-c', script(options, cases)]
    ran = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, errors='replace', check=False)
    found = {}
    # What a turn prints stands behind its title.
    for part in ran.stdout.split('==> ')[1:]:
        head, _, text = part.partition('\n')
        number, who = head.split()
        try:
            found.setdefault((int(number), who), []).append(figure(int(number), who, text))
        except (ValueError, IndexError, KeyError):
            sys.exit(f'perf-beside: no figure in what {who} says:\n{text}')
    if ran.returncode:
        sys.exit(f'perf-beside: the guest ended with {ran.returncode}')
    print(f'medians of {options.rounds}, by turns in one guest\n')
    print('test                     unit       perf  perftest  perf/perftest')
    for number in cases:
        ours, _, flags, _, _, key = CASES[number]
        mine, other = (statistics.median(found[number, who]) for who in ('ours', 'theirs'))
        unit = 'MiB/s' if key == RATE[1] else 'µs'
        print(f'{ours + " " + flags:24} {unit:5} {mine:9.2f} {other:9.2f} {mine / other:14.3f}')


main()
