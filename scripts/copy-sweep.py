#!/usr/bin/env python3
"""Measures transferctl copy by the length of its pieces, beside an rsync daemon, and draws the rates.

    scripts/copy-sweep.py --programs target/release --mib 256 --rounds 5 --out docs/images/copy-sweep.svg

Two sidecars on this machine, over tcp on loopback or, with --fabric verbs, over RDMA. Each round copies the file once with each length and once by
rsync (where there is one; --rsync names it), and the medians of all rounds are printed: time, and user and system time of both ends for each GB.
The files lie in --folder, which is best in memory: the disk is not what is measured.
"""

import argparse
import json
import os
import re
import resource
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

SIZES = '4KiB,16KiB,64KiB,256KiB,1MiB,4MiB,16MiB'


def size_of(text):
    for unit, factor in (('KiB', 1 << 10), ('MiB', 1 << 20)):
        if text.endswith(unit):
            return int(text.removesuffix(unit)) * factor
    raise argparse.ArgumentTypeError(f'{text} is no size: 64KiB or 1MiB is one')


def sizes_of(text):
    return [size_of(part) for part in text.split(',')]


def name(size):
    return f'{size >> 20} MiB' if size >= 1 << 20 else f'{size >> 10} KiB'


class Sidecar:
    """A transferd, until it is stopped."""

    def __init__(self, programs, folder, node, more):
        self.socket, self.admin = folder / f'{node}.sock', folder / f'{node}-admin.sock'
        command = [programs / 'transferd', '--node', node, '--socket', self.socket, '--admin-socket', self.admin]
        command += ['--listen', '127.0.0.1:0', '--shm', 'off', *more]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=open(folder / f'{node}.log', 'w'), text=True)
        ready = self.process.stdout.readline()
        found = re.search(r'grpc=(\S+)', ready)
        if not found:
            raise SystemExit(f'node {node} does not start: {(folder / f"{node}.log").read_text()}')
        self.address = found[1]

    def stop(self):
        self.process.terminate()
        self.process.wait()


class Daemon:
    """An rsync daemon. Its CPU time is known when it has ended, so each copy has one of its own."""

    def __init__(self, rsync, folder, into):
        with socket.socket() as free:
            free.bind(('127.0.0.1', 0))
            self.port = free.getsockname()[1]
        config = folder / 'rsyncd.conf'
        config.write_text(f'use chroot = no\nuid = {os.getuid()}\n[m]\npath = {into}\nread only = no\n')
        command = [rsync, '--daemon', '--no-detach', f'--port={self.port}', f'--config={config}', '--address=127.0.0.1']
        self.process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
        while True:
            with socket.socket() as probe:
                if probe.connect_ex(('127.0.0.1', self.port)) == 0:
                    break

    def end(self):
        self.process.send_signal(signal.SIGTERM)
        _, _, used = os.wait4(self.process.pid, 0)
        return used.ru_utime, used.ru_stime


def copied(options, a, b, file, size):
    """One copy: its time, and the CPU time of both ends."""
    environment = {**os.environ, 'TRANSFER_SOCKET': str(a.socket), 'TRANSFER_ADMIN': str(a.admin)}
    command = [options.programs / 'transferctl', 'copy', file, 'b:copy', '--overwrite', '--to-admin', b.admin, '--message-size', f'{size}', '--json']
    said = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True).stdout
    told = json.loads(said.splitlines()[0])
    assert told['fabric'] == options.fabric, told
    ends = [told['cpu'][end] for end in ('here', 'there')]
    return told['took_ns'] / 1e9, sum(end['user_ns'] for end in ends) / 1e9, sum(end['system_ns'] for end in ends) / 1e9


def by_rsync(options, folder, into, file):
    daemon = Daemon(options.rsync, folder, into)
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    began = os.times().elapsed
    target = f'rsync://127.0.0.1:{daemon.port}/m/rsynced'
    subprocess.run([options.rsync, '--whole-file', '--ignore-times', file, target], check=True)
    took = os.times().elapsed - began
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    user, system = daemon.end()
    return took, user + after.ru_utime - before.ru_utime, system + after.ru_stime - before.ru_stime


def picture(rates, rsync, what):
    """A chart of MiB/s over the length of a piece."""
    left, right, top, bottom, width, height = 70, 20, 40, 60, 640, 360
    most = max([*rates.values(), *([rsync] if rsync else [])]) * 1.1
    x = {size: left + (width - left - right) * i / max(len(rates) - 1, 1) for i, size in enumerate(rates)}

    def y(rate):
        return height - bottom - (height - top - bottom) * rate / most

    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="12">']
    parts.append(f'<rect width="{width}" height="{height}" fill="white"/><text x="{left}" y="20">{what}</text>')
    for step in range(5):
        rate = most * step / 4
        parts.append(f'<line x1="{left}" x2="{width - right}" y1="{y(rate):.1f}" y2="{y(rate):.1f}" stroke="#ddd"/>')
        parts.append(f'<text x="{left - 8}" y="{y(rate) + 4:.1f}" text-anchor="end">{rate:.0f}</text>')
    if rsync:
        parts.append(f'<line x1="{left}" x2="{width - right}" y1="{y(rsync):.1f}" y2="{y(rsync):.1f}" stroke="#b35900" stroke-dasharray="6 4"/>')
        parts.append(f'<text x="{width - right}" y="{y(rsync) - 6:.1f}" text-anchor="end" fill="#b35900">rsync daemon</text>')
    line = ' '.join(f'{x[size]:.1f},{y(rate):.1f}' for size, rate in rates.items())
    parts.append(f'<polyline points="{line}" fill="none" stroke="#1f5fa8" stroke-width="2"/>')
    for size, rate in rates.items():
        parts.append(f'<circle cx="{x[size]:.1f}" cy="{y(rate):.1f}" r="3" fill="#1f5fa8"/>')
        parts.append(f'<text x="{x[size]:.1f}" y="{height - bottom + 18}" text-anchor="middle">{name(size)}</text>')
    parts.append(f'<text x="{left}" y="{height - 18}">length of a piece (--message-size); MiB/s</text></svg>')
    return '\n'.join(parts) + '\n'


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--programs', type=Path, default=Path('target/release'))
    parser.add_argument('--mib', type=int, default=256)
    parser.add_argument('--rounds', type=int, default=5)
    parser.add_argument('--fabric', default='tcp', choices=['tcp', 'verbs'])
    parser.add_argument('--folder', default='/dev/shm')
    parser.add_argument('--rsync', default=shutil.which('rsync'))
    parser.add_argument('--sizes', type=sizes_of, default=SIZES, help='the lengths of pieces, in rising order')
    parser.add_argument('--out', type=Path)
    options = parser.parse_args()
    options.programs = options.programs.resolve()
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        folder = Path(folder)
        into, file = folder / 'into', folder / 'file'
        into.mkdir()
        with open(file, 'wb') as out:
            for _ in range(options.mib):
                out.write(os.urandom(1 << 20))
        fabric = ['--verbs', 'on', '--require', 'verbs'] if options.fabric == 'verbs' else ['--verbs', 'off']
        a = Sidecar(options.programs, folder, 'a', fabric)
        b = Sidecar(options.programs, folder, 'b', [*fabric, '--directory', f'http://{a.address}', '--copy-folder', into])
        runs = {size: [] for size in options.sizes}
        rsyncs = []
        try:
            copied(options, a, b, file, 1 << 20)
            for _ in range(options.rounds):
                for size in options.sizes:
                    runs[size].append(copied(options, a, b, file, size))
                if options.rsync:
                    rsyncs.append(by_rsync(options, folder, into, file))
        finally:
            b.stop()
            a.stop()
    gigabytes = options.mib * (1 << 20) / 1e9
    print(f'{options.mib} MiB over {options.fabric}, medians of {options.rounds}')
    print(f'{"":>14} {"MiB/s":>8} {"user s/GB":>10} {"system s/GB":>12}')
    rates, rsync = {}, None
    for what, measured in [*((size, runs[size]) for size in options.sizes), *([('rsync daemon', rsyncs)] if rsyncs else [])]:
        took, user, system = (statistics.median(run[i] for run in measured) for i in range(3))
        rate = options.mib / took
        if isinstance(what, int):
            rates[what], what = rate, name(what)
        else:
            rsync = rate
        print(f'{what:>14} {rate:>8.0f} {user / gigabytes:>10.2f} {system / gigabytes:>12.2f}')
    if options.out:
        title = f'transferctl copy, {options.mib} MiB over {options.fabric} on one machine'
        options.out.write_text(picture(rates, rsync, title))


sys.exit(main())
