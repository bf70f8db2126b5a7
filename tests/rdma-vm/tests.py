#!/usr/bin/env python3
"""Runs in the guest whatever needs an RDMA device: `make test-rdma` and `make soak-rdma`.

Three kinds of tests:
  device   every test of the workspace that is marked #[ignore = "needs an RDMA device: ..."]
  verbs    the end-to-end suites between nodes that run over tcp in `make test`, here over verbs (TRANSFER_TEST_FABRIC); some of them also
           with one key for all grants (`--isolation pool`), over two queue pairs
  hosts    two guests on a cable: two-hosts.sh

The short run (--short) leaves out of the second kind all but one module of each kind of flow (IN_SHORT_RUN): the conformance suite proves for each
fabric what all fabrics promise, and `make test` runs the same modules over tcp. Of the random operations of that suite it makes a quarter. CI makes
the short run where nothing that concerns verbs has changed since a commit that says, as a trailer of its message, that all of it has passed:
"Tested-rdma: all" (--short-if-tested). Else CI makes the whole run.

Everything is built on this machine, by the same command as in `make test`. All test programs that want as many devices run in one guest,
one after the other. When a mistake panics its kernel, the one that ran has failed, and a new guest goes on with the next one. Tests
with "two_devices" in their names get a guest with two devices. As many guests run at a time as there are processors (--lanes): a guest has
two of its own, and one of them plays the device. Three guests on two processors take about as long as two, and each of their tests longer.
"""

import argparse
import concurrent.futures
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
MARK = 'needs an RDMA device'
# Between two suites in the output of a guest. No program says this.
BEGINS, ENDS = '==> suite', '<== suite'
# What a suite may have left behind that took a device or its network away and failed: each begins with all of them.
MEND = """for ((i = 0; i < {devices}; i++)); do
    ip link set dummy$i up
    [ -e /sys/class/infiniband/rxe$i ] || {{ echo "rxe$i is gone, and is added again"; rdma link add rxe$i type rxe netdev dummy$i; }}
done"""
# The modules of the end-to-end tests that hold whatever carries, and which of their tests use no carrier.
OVER_VERBS = {
    'batches': (),
    'copy': ('limits_are', 'full_disk', 'without_a', 'a_folder_that', 'that_lies', 'with_certificates', 'another_tenant', 'over_rdma',
             'nothing_is', 'no_path', 'that_changes', 'killed'),
    'counters': ('of_one_node',),
    'deadlines': (),
    'deltas': ('sidecar_without_room',),
    'exchange': ('async_readers', 'attempt_of_many', 'dropped_attempt', 'errors_of', 'is_over_frees', 'one_of_two', 'order_of_a', 'read_where_they',
                 'writing_waits'),
    'exchange_disk': ('dropped_attempt', 'flipped_bits', 'folder_in_memory', 'full_disk', 'limit_of', 'more_rows', 'two_exchanges'),
    'exchange_merged': (),
    'full_pools': ('push_waits_for_room_in_a_full_arena',),
    'into_memory': ('embedded',),
    'into_memory_bundles': ('error_names',),
    'into_memory_views': (),
    'killed_workers': (),
    'lost_peers': (),
    'ping': ('slower_fabric',),
    'prepared': (),
    'reconnect': ('across_a_restart', 'in_a_row', 'long_running'),
    'round_trips': ('on_one_node',),
    'sharded': (),
    'sharded_into': (),
    'sharded_proof': ('last_commit',),
    'slices': ('on_one_host', 'does_not_fit'),
    'tenants': ('configured_tenant', 'sidecar_of_another_user'),
    'three_nodes': (),
    'versions': ('options_of', 'subscriber_finds', 'subscriber_goes'),
}
# Of these, those that run with one key for a whole landing pool, too: what grants are told apart by must not be their key.
OVER_ONE_KEY = ('round_trips',)
# The modules of these that the short run has. The flows: a push and a fetch between nodes, a link that ends, an exchange, files.
IN_SHORT_RUN = ('copy', 'exchange', 'lost_peers', 'round_trips')
# What the whole run proves. Where one of these has changed since it passed, it is due again.
CONCERNS_VERBS = ('transfer-verbs', 'transfer-fabric/src/verbs', 'transfer-fabric/src/conformance', 'transfer-core/src/fabric', 'tests/rdma-vm')
TRAILER = 'Tested-rdma'
PROGRAMS = ('transferd', 'transferctl', 'digits', 'transfer-test-worker', 'transfer-test-soak')


class Failed(Exception):
    """What went wrong, for people."""


def build():
    """Builds the workspace; returns its test programs and, by name, its programs."""
    command = [os.environ.get('CARGO', 'cargo'), 'build', '--workspace', '--all-targets']
    built = subprocess.run([*command, '--message-format', 'json-render-diagnostics'], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    if built.returncode:
        raise Failed(f'{" ".join(command)} failed')
    tests, programs = [], {}
    for line in built.stdout.splitlines():
        message = json.loads(line) if line.startswith('{') else {}
        if message.get('reason') != 'compiler-artifact' or not message['executable']:
            continue
        name, executable = message['target']['name'], Path(message['executable'])
        package = Path(message['manifest_path']).parent
        if message['profile']['test']:
            tests.append((package, name, executable))
        elif 'bin' in message['target']['kind']:
            programs[name] = executable
    return sorted(tests), programs


def marked(package):
    """Whether a package has tests that need a device. Other tests that are ignored would run here too, and must not."""
    reasons = set()
    for source in package.rglob('*.rs'):
        if 'target' not in source.relative_to(package).parts:
            # An attribute and no comment. The text may be the name of a macro's argument or constant, which says nothing.
            reasons.update(re.findall(r'^\s*#\[ignore(?: = "([^"]*)")?\]', source.read_text(), re.MULTILINE))
    others = [reason for reason in reasons if not reason.startswith(MARK)]
    mine = len(reasons) > len(others)
    if mine and others:
        raise Failed(f'{package.name} ignores tests for other reasons than "{MARK}: ...": {sorted(others)}')
    return mine


def names(executable, *arguments):
    """The names of a program's tests."""
    listed = subprocess.run([executable, '--list', '--format', 'terse', *arguments], stdout=subprocess.PIPE, text=True, check=True)
    return [line.removesuffix(': test') for line in listed.stdout.splitlines() if line.endswith(': test')]


class Suite:
    """A test program with those of its tests that run in a guest."""

    def __init__(self, title, package, executable, arguments, devices=1, environment=None):
        self.title, self.package, self.executable = title, package, executable
        self.arguments, self.devices, self.environment = arguments, devices, environment or {}
        ignored = [] if '--ignored' in arguments else names(executable, '--ignored')
        self.expected = [name for name in names(executable, *arguments) if name not in ignored]
        self.passed, self.failed, self.seconds = [], [], 0
        self.code = None

    def command(self, stage, limit):
        """What runs it, for a shell in the guest."""
        environment = {'TRANSFER_TEST_PROGRAMS': str(stage), 'CARGO_MANIFEST_DIR': str(self.package), **self.environment}
        arguments = [str(stage / self.executable.name), *self.arguments, '--test-threads', '1']
        words = ['timeout', '-k', '5', str(limit), 'env', *(f'{name}={value}' for name, value in environment.items()), *arguments]
        return f'cd {shlex.quote(str(self.package))} && {shlex.join(words)}'

    def ended(self, seen, code, seconds):
        """Takes what it has said. No code: the guest ended before it."""
        self.code, self.seconds = code, seconds
        # What a test prints may stand between its name and its end.
        ends = re.findall(r'^test (\S+)(?: - should panic)? \.\.\. (?:.*?)(ok|FAILED|ignored(?:, [^\n]*)?)$', seen, re.MULTILINE | re.DOTALL)
        self.passed = [name for name, end in ends if end == 'ok']
        self.failed = [name for name, end in ends if end == 'FAILED']

    def missing(self):
        return [name for name in self.expected if name not in self.passed and name not in self.failed]

    def trouble(self):
        """What is wrong with all of it, where something is."""
        if self.code is None:
            return 'the guest ended in the middle of it'
        if self.code == 124:
            return 'it took too long'
        # A program that fails without a test that fails has crashed.
        return f'it ended with {self.code}' if self.code and not self.failed else None


class TwoHosts:
    """Two guests, each with a sidecar."""

    title, expected, devices = 'two hosts', ['two-hosts.sh'], 0

    def __init__(self):
        self.passed, self.failed, self.seconds = [], [], 0

    def run(self, stage, limit, say):
        started = time.monotonic()
        script = [HERE / 'two-hosts.sh', stage, str(limit)]
        say.begin(self.title)
        ran = subprocess.Popen(script, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors='replace')
        with ran:
            for line in ran.stdout:
                say.line(line)
        (self.failed if ran.returncode else self.passed).append('two-hosts.sh')
        self.seconds = time.monotonic() - started
        say.end(self.title, self.seconds)

    def missing(self):
        return []

    def trouble(self):
        return None


class Say:
    """What the suites of one lane print: line by line where it is the only one, else all of a suite at its end."""

    one_at_a_time = threading.Lock()

    def __init__(self, alone):
        self.alone, self.kept = alone, []

    def line(self, text):
        if self.alone:
            print(text, end='', flush=True)
        else:
            self.kept.append(text)

    def begin(self, title):
        if not self.alone:
            print(f'==> {title} begins', flush=True)
        self.line(f'\n==> {title}\n')

    def end(self, title, seconds):
        with self.one_at_a_time:
            print(''.join(self.kept), end='', flush=True)
            print(f'==> {title} took {seconds:.0f} s', flush=True)
        self.kept = []


def guest(arguments, environment, limit, devices=1):
    """Runs a command in a guest: its lines, as they come. The last one is the exit code."""
    # Two processors: one of the kernel's threads plays the device while a test waits busily for it.
    options = ['--smp', '2', '--mem', '4096', '--devices', str(devices), '--timeout', str(limit)]
    started = subprocess.Popen([HERE / 'run.sh', *options, '--', *arguments], cwd=ROOT, env=environment,
                               stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, errors='replace')
    with started:
        yield from started.stdout
    yield started.returncode


def run_together(suites, stage, limit, say):
    """Runs suites in one guest, one after the other; in another one those behind a suite that has ended its guest."""
    while suites:
        mend = MEND.format(devices=suites[0].devices)
        script = []
        for i, suite in enumerate(suites):
            # A suite that took too long ends in the middle of a line.
            ran = f'({suite.command(stage, limit_of(suite, limit))}) 2>&1'
            script += [mend, f'echo "{BEGINS} {i}"; {ran}; printf "\\n%s\\n" "{ENDS} {i} $?"']
        at, seen, started = 0, [], time.monotonic()
        all_of_them = sum(limit_of(suite, limit) for suite in suites)
        for line in guest(['bash', '-c', '\n'.join(script)], dict(os.environ), all_of_them, suites[0].devices):
            if isinstance(line, int):
                code = line
            elif line.startswith(BEGINS):
                at, seen, started = int(line.split()[-1]), [], time.monotonic()
                say.begin(f'{suites[at].title}: {len(suites[at].expected)} tests')
            elif line.startswith(ENDS):
                suites[at].ended(''.join(seen), int(line.split()[-1]), time.monotonic() - started)
                say.end(suites[at].title, suites[at].seconds)
            else:
                seen.append(line)
                say.line(line)
        if suites[at].code is None:
            suites[at].ended(''.join(seen), None, time.monotonic() - started)
            say.line(f'    the guest ended with {code}\n')
            say.end(suites[at].title, suites[at].seconds)
        suites = suites[at + 1:]


def git(*words):
    """What git says about this checkout; None where it fails, and where there is no checkout."""
    said = subprocess.run(['git', *words], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    return None if said.returncode else said.stdout.strip()


def why_all():
    """Why the whole run is due, or None. What counts is what is committed: CI tests a clean clone."""
    tested = git('log', '--max-count=1', '--format=%h', f'--grep=^{TRAILER}: all$')
    if not tested:
        return f'no commit of this checkout says "{TRAILER}: all"'
    changed = git('diff', '--name-only', tested, '--', *CONCERNS_VERBS)
    if changed is None:
        return f'git does not say what has changed since {tested}'
    changed = changed.splitlines()
    return f'{changed[0]} has changed since {tested}, which says "{TRAILER}: all" ({len(changed)} such files)' if changed else None


def suites_of(tests, short):
    """All suites, or those of the short run.

    A package with marked tests has some to run, and so has a suite that runs over verbs, or somebody has renamed something.
    """
    suites = []
    environment = {'TRANSFER_CONFORMANCE_OPERATIONS': '1000'} if short else {}
    for package, name, executable in tests:
        title = f'{package.name} {name}'
        if marked(package):
            one = Suite(title, package, executable, ['--ignored', '--skip', 'two_devices'], environment=environment)
            two = Suite(f'{title}, two devices', package, executable, ['--ignored', 'two_devices'], devices=2, environment=environment)
            suites += [one, two]
    for package in {package for package, _, _ in tests if marked(package)}:
        if not any(suite.expected for suite in suites if suite.package == package):
            raise Failed(f'{package.name} marks tests with "{MARK}", and its programs list none')
    suites = [suite for suite in suites if suite.expected]
    end_to_end = next(test for package, name, test in tests if (package, name) == (ROOT / 'tests', 'e2e'))
    for name, skips in OVER_VERBS.items():
        all_of_it = [test for test in names(end_to_end) if test.startswith(f'{name}::')]
        for skip in skips:
            if not any(skip in test for test in all_of_it):
                raise Failed(f'there is no test {skip} in tests/tests/{name}.rs to leave out over verbs')
        mine = [test for test in all_of_it if not any(skip in test for skip in skips)]
        if not mine:
            raise Failed(f'there is no test in tests/tests/{name}.rs to run over verbs')
        if short and name not in IN_SHORT_RUN:
            continue
        ways = {'verbs': 'over verbs'}
        if name in OVER_ONE_KEY and not short:
            ways['verbs-pool'] = 'over verbs with one key'
        for fabric, how in ways.items():
            over = {'TRANSFER_TEST_FABRIC': fabric}
            suites.append(Suite(f'tests {name}, {how}', ROOT / 'tests', end_to_end, ['--exact', *mine], environment=over))
    return suites + [TwoHosts()]


def report(suites):
    """The table at the end. Whether all is well."""
    width = max(len(suite.title) for suite in suites)
    print(f'\n{"in the guest":{width}}  tests  passed  failed  no end  seconds')
    for suite in suites:
        counts = [len(suite.expected), len(suite.passed), len(suite.failed), len(suite.missing())]
        print(f'{suite.title:{width}}  {counts[0]:5}  {counts[1]:6}  {counts[2]:6}  {counts[3]:6}  {suite.seconds:7.0f}')
    bad = 0
    for suite in suites:
        if suite.trouble():
            print(f'{suite.title}: {suite.trouble()}')
            bad += 1
        for what, tests in (('FAILED', suite.failed), ('did not end', suite.missing())):
            for name in tests:
                print(f'{suite.title}: {name} {what}')
                bad += 1
    total = sum(len(suite.expected) for suite in suites)
    print(f'{total} tests, {bad} not well, {sum(suite.seconds for suite in suites):.0f} s')
    return bad == 0


def staged(programs, tests, folder):
    """Links to what runs: a build that goes on meanwhile does not change it, as far as cargo writes new files."""
    stage = Path(tempfile.mkdtemp(prefix='rdma-vm-', dir=folder))
    missing = [name for name in PROGRAMS if name not in programs]
    if missing:
        raise Failed(f'cargo has built no {", ".join(missing)}')
    for name, program in [(name, programs[name]) for name in PROGRAMS] + [(test.name, test) for test in tests]:
        try:
            os.link(program, stage / name)
        except OSError:
            shutil.copy(program, stage / name)
    return stage


def cost(suite):
    """About how many seconds a suite takes: end-to-end tests start processes, which is what takes long on an emulated processor."""
    return len(suite.expected) * (15 if suite.package == ROOT / 'tests' else 1.5)


def limit_of(suite, least):
    """How many seconds a suite may run. Beside other guests, and on a slow machine, up to four times what it takes alone."""
    return max(least, int(4 * cost(suite)))


def lanes(suites, many):
    """Who runs beside whom: for each lane its guests, and for each guest its suites. No devices: a suite that brings guests of its own."""
    several = sorted({suite.devices for suite in suites if suite.devices > 1})
    # Suites of one device go into any lane one by one; those of several share a guest, and so a lane.
    units = [[suite] for suite in suites if suite.devices == 1]
    units += [[suite for suite in suites if suite.devices == devices] for devices in several]
    shares = [{} for _ in range(many)]
    total = [0] * many
    # The largest first, each to the lane that has the least to do.
    for unit in sorted(units, key=lambda unit: -sum(map(cost, unit))):
        lane = total.index(min(total))
        total[lane] += sum(map(cost, unit))
        shares[lane].setdefault(unit[0].devices, []).extend(unit)
    return [list(share.values()) for share in shares if share]


def run(suites, stage, options):
    """Runs them all. What a thread fails with, this does."""
    shares = lanes(suites, options.lanes)
    alone = [suite for suite in suites if not suite.devices]

    def lane(share):
        say = Say(len(shares) == 1)
        for together in share:
            run_together(together, stage, options.timeout, say)

    with concurrent.futures.ThreadPoolExecutor(max(1, len(shares))) as pool:
        for ended in [pool.submit(lane, share) for share in shares]:
            ended.result()
    # These bring guests of their own.
    for suite in alone:
        suite.run(stage, options.timeout, Say(True))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('words', nargs='*', help='only suites that have one of these words in their titles')
    length = parser.add_mutually_exclusive_group()
    length.add_argument('--short', action='store_true', help='over verbs only one module of each kind of flow')
    length.add_argument('--short-if-tested', action='store_true', help=f'the same, unless what concerns verbs differs from a commit with the trailer "{TRAILER}: all"')
    parser.add_argument('--list', action='store_true', help='say what would run')
    parser.add_argument('--timeout', type=int, default=600, metavar='S', help='how long one suite may run at least; more where it has many tests (%(default)s s)')
    lanes_here = min(8, max(2, os.cpu_count() or 2))
    parser.add_argument('--lanes', type=int, default=lanes_here, metavar='N', choices=range(1, 9), help='how many guests at a time (%(default)s)')
    parser.add_argument('--soak', type=int, metavar='S', help='instead of tests: the soak, for so many seconds')
    parser.add_argument('--seed', type=int, help='the seed of the soak; any where nothing is said')
    options = parser.parse_args()
    short = options.short
    if options.short_if_tested:
        due = why_all()
        short = due is None
        print(f'rdma-vm: {"the short run" if short else f"the whole run: {due}"}', flush=True)
    subprocess.run([HERE / 'setup.sh'], check=True, stdin=subprocess.DEVNULL)
    tests, programs = build()
    suites = [] if options.soak else suites_of(tests, short)
    if options.words:
        suites = [suite for suite in suites if any(word in suite.title for word in options.words)]
    if options.list:
        for suite in suites:
            print(f'{suite.title}: {len(suite.expected)} tests')
            print(''.join(f'    {name}\n' for name in suite.expected), end='')
        return True
    if not suites and not options.soak:
        raise Failed(f'no suite is called {" or ".join(options.words)}; --list shows all')
    executables = {suite.executable for suite in suites if isinstance(suite, Suite)}
    stage = staged(programs, executables, programs['transferd'].parent.parent)
    try:
        if options.soak:
            soak = [stage / 'transfer-test-soak', '--fabric', 'verbs', '--seconds', str(options.soak)]
            soak += [] if options.seed is None else ['--seed', str(options.seed)]
            environment = {**os.environ, 'TRANSFER_TEST_PROGRAMS': str(stage)}
            # What it does last, it does until it is done: restarts and waiting for zero.
            passed = False
            for line in guest(soak, environment, options.soak + options.timeout):
                if isinstance(line, int):
                    print(f'    the guest ended with {line}', flush=True)
                    return passed and line == 0
                passed |= line.startswith('soak passed')
                print(line, end='', flush=True)
        run(suites, stage, options)
        return report(suites)
    finally:
        shutil.rmtree(stage, ignore_errors=True)


try:
    sys.exit(0 if main() else 1)
except Failed as error:
    sys.exit(f'rdma-vm: {error}')
except subprocess.CalledProcessError as error:
    # It has said why.
    sys.exit(f'rdma-vm: {error.cmd[0]} ended with {error.returncode}')
except KeyboardInterrupt:
    sys.exit(130)
