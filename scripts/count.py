#!/usr/bin/env python3
"""Counts the instructions of a small message, step by step, and compares them with those on record (scripts/count.json).

Two workers with their sidecars inside of their processes send 4 KiB back and forth over TCP, each under callgrind, and sleep while they wait. Times of
microseconds differ from machine to machine and from run to run, instructions by some percent. A longer run less a shorter one leaves out how the
programs start and end. The kernel's instructions are not counted.

The numbers are for one message that is sent and one that is received: what a process does in a round. A step counts all that its function calls, so the
steps overlap. Fails where a step has grown by more than 10 %. Where it shrinks, or must grow, write the new numbers with --record.
"""

import argparse
import collections
import json
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
RECORD = pathlib.Path(__file__).with_suffix('.json')
BYTES = 4096
# The rounds of the shorter run, and how many more the longer one has.
SHORTER, MORE = 300, 1500
GROWTH = 1.1
ALL = 'all'
# The functions of the other steps.
STEPS = {
    'client: steps of pushes': r'PushCall as .*Call>::step$',
    'client: steps of fetches': r'FetchCall<T> as .*Call>::step$',
    'client: replies': r'session::reader::Reader::drain$',
    'engine: requests': r'engine::run::Run::take$',
    'engine: actions': r'engine::run::Run::work$',
    'engine: fabrics': r'SingleRail<F> as .*Fabric>::poll$',
    'engine: ends of turns': r'engine::turns::Turn as .*Drop>::drop$',
    'copies in memory': r'^__mem(cpy|move|set)_\w+$',
    'allocations': r'^(malloc|free|realloc|calloc)$',
}


class Failed(Exception):
    """What went wrong, for people."""


class Worker:
    """A process under callgrind that does tasks of transfer-bench."""

    def __init__(self, program, folder, name):
        self.name, self.counts, self.log = name, folder / f'{name}.counts', folder / f'{name}.log'
        words = ['valgrind', '--tool=callgrind', '--fair-sched=yes', f'--callgrind-out-file={self.counts}', program, 'actor']
        with self.log.open('w') as log:
            self.process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True)

    def tell(self, task, **fields):
        self.process.stdin.write(json.dumps({'Worker': {task: fields}}) + '\n')
        self.process.stdin.flush()

    def answer(self):
        line = self.process.stdout.readline()
        said = json.loads(line) if line else {'Failed': self.log.read_text()[-2000:]}
        if isinstance(said, dict) and 'Failed' in said:
            raise Failed(f'the worker {self.name!r} has failed: {said["Failed"]}')
        return said

    def embed(self, **settings):
        """Starts its sidecar. Returns the address at which that listens."""
        settings |= {'listen': '127.0.0.1:0', 'pool_bytes': '16MiB', 'require': 'tcp', 'poll': 'event', 'verbs': 'off', 'lock': 'no'}
        asleep = {'secs': 0, 'nanos': 0}
        self.tell('Embed', settings=list(settings.items()), name=self.name, arena_bytes=4 << 20, spin=asleep)
        return self.answer()['Listens']

    def end(self):
        """Ends it. Returns what callgrind has counted, for each function and all that it calls."""
        self.process.stdin.close()
        self.process.wait()
        return counted(self.counts)


def counted(file):
    """Reads a file of callgrind: the instructions of each function with all that it calls, and of the program."""
    names, below, function, called = {}, collections.Counter(), None, None

    def name(token):
        number, _, text = token.partition(' ')
        return names.setdefault(number, text)

    calls = False
    for line in file.read_text().splitlines():
        if line.startswith('fn='):
            function = name(line[3:])
        elif line.startswith('cfn='):
            called = name(line[4:])
        elif line.startswith('calls='):
            calls = True
        elif line.startswith('totals:'):
            below[ALL] = int(line.split()[1])
        elif re.match(r'[\d+*-]', line):
            # What a function does to itself is in its own lines already.
            if not calls or called != function:
                below[function] += int(line.split()[1])
            calls = False
    return below


def run(program, rounds):
    """The instructions of both workers, for so many rounds."""
    with tempfile.TemporaryDirectory() as folder:
        workers = [Worker(program, pathlib.Path(folder), name) for name in ('first', 'second')]
        try:
            first, second = workers
            second.embed(directory=f'http://{first.embed()}')
            both = {'len': BYTES, 'versions': {'start': 1, 'end': rounds + 1}}
            second.tell('PingPong', give='pong', take='ping', to='first', first=False, **both)
            first.tell('PingPong', give='ping', take='pong', to='second', first=True, **both)
            first.answer()
            second.answer()
            return sum((worker.end() for worker in workers), collections.Counter())
        finally:
            for worker in workers:
                worker.process.kill()
                worker.process.wait()


def steps(program):
    """The instructions of each step of a round."""
    shorter, longer = (run(program, rounds) for rounds in (SHORTER, SHORTER + MORE))

    def of(matches):
        functions = [name for name in longer if matches(name)]
        return round(sum(longer[name] - shorter[name] for name in functions) / (2 * MORE))

    found = {ALL: of(lambda name: name == ALL)}
    for step, pattern in STEPS.items():
        found[step] = of(re.compile(pattern).search)
        if found[step] <= 0:
            raise Failed(f'{step}: no function is called that matches {pattern!r}. Is it inlined, or has it another name?')
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition('\n')[0])
    parser.add_argument('--record', action='store_true', help=f'write the numbers to {RECORD.relative_to(ROOT)}')
    parser.add_argument('--program', default=ROOT / 'target/release/transfer-bench', metavar='FILE', help='transfer-bench, built as a release (%(default)s)')
    options = parser.parse_args()
    if not shutil.which('valgrind'):
        raise Failed('valgrind is missing: scripts/test-tools.sh installs it')
    known = json.loads(RECORD.read_text()) if RECORD.exists() else {}
    found = steps(options.program)
    grown = [step for step, count in found.items() if count > GROWTH * known.get(step, count)]
    print(f'{"instructions for one message sent and one received":52}  counted  on record')
    for step, count in found.items():
        print(f'{step:52}  {count:7}  {known.get(step, "none"):>9}{"  GROWN" if step in grown else ""}')
    if options.record:
        RECORD.write_text(json.dumps(found, indent=2) + '\n')
    elif grown:
        raise Failed(f'more than 10 % above what is on record: {", ".join(grown)}. If it has to be, --record writes the new numbers')


if __name__ == '__main__':
    try:
        main()
    except Failed as why:
        sys.exit(f'count: {why}')
