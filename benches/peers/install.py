"""Gets what is compared: each peer by itself, so that one that cannot be had here keeps no other from being measured."""

import os
import pathlib
import shutil
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
# Ignored by git, like everything that is built.
TARGET = pathlib.Path(os.environ.get('CARGO_TARGET_DIR', ROOT / 'target')).resolve()
VENV = TARGET / 'peers-venv'
# Those of this project. Others than these are not built here.
PROGRAMS = pathlib.Path(os.environ.get('TRANSFER_PROGRAMS', TARGET / 'release')).resolve()


class MissingError(Exception):
    """Something could not be installed, and why."""


def run(words, **options):
    """Runs it; where it fails, the error has the last line that it said."""
    try:
        done = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **options)
    except OSError as error:
        raise MissingError(f'cannot run {words[0]}: {error.strerror}') from error
    if done.returncode:
        lines = [line for line in done.stdout.strip().splitlines() if line.strip()] or ['it said nothing']
        raise MissingError(f'{pathlib.Path(words[0]).name} ended with {done.returncode}: {lines[-1]}')


def groups():
    """The lines of requirements.txt: for each peer, its packages, and whether theirs come with them."""
    found, peer, alone = {}, None, False
    for line in (HERE / 'requirements.txt').read_text().splitlines():
        if line.startswith('# for '):
            peer, _, how = line.removeprefix('# for ').partition(':')
            alone = 'without their dependencies' in how
            found[peer] = (alone, [])
        elif line and not line.startswith('#'):
            found[peer][1].append(line)
    return found


def venv():
    if not (VENV / 'bin/python').exists():
        print(f'peers: making {VENV}', file=sys.stderr)
        run([sys.executable, '-m', 'venv', VENV])


def packages(peer):
    """The peer's packages of Python. Nothing is done where these very lines have been installed before."""
    alone, lines = groups()[peer]
    mark, wanted = VENV / f'{peer}.installed', '\n'.join(lines)
    if mark.exists() and mark.read_text() == wanted:
        return
    venv()
    print(f'peers: installing {", ".join(lines)}', file=sys.stderr)
    run([VENV / 'bin/pip', 'install', '--quiet', '--disable-pip-version-check', *(['--no-deps'] if alone else []), *lines])
    mark.write_text(wanted)


def ucx():
    if not shutil.which('ucx_perftest'):
        print('peers: installing ucx-utils with apt-get', file=sys.stderr)
        run(['apt-get', 'install', '-y', '-qq', '--no-install-recommends', 'ucx-utils'])


def ucx_read():
    """Compiles ucx_read.c, against the headers of libucx-dev; answers the program."""
    source, program = HERE / 'ucx_read.c', TARGET / 'ucx_read'
    if program.exists() and program.stat().st_mtime >= source.stat().st_mtime:
        return program
    if not pathlib.Path('/usr/include/ucp/api/ucp.h').exists():
        print('peers: installing libucx-dev with apt-get', file=sys.stderr)
        run(['apt-get', 'install', '-y', '-qq', '--no-install-recommends', 'libucx-dev'])
    TARGET.mkdir(parents=True, exist_ok=True)
    run(['cc', '-O3', '-Wall', '-Wextra', '-o', program, source, '-lucp', '-lucs'])
    return program


def torch(named):
    """A Python that has PyTorch. It is not installed for this: it is larger than all others together."""
    for python in [named] if named else [sys.executable, '/usr/bin/python3']:
        path = shutil.which(python)
        if path and not subprocess.run([path, '-c', 'import torch.distributed'], capture_output=True).returncode:
            # Its peer runs in another folder.
            return os.path.abspath(path)
    raise MissingError(f'PyTorch is not installed for {named or "this Python"}: `--torch PYTHON` names one that has it')


def transfer(build):
    """This project, in release mode, or what TRANSFER_PROGRAMS names."""
    if build and 'TRANSFER_PROGRAMS' not in os.environ:
        words = ['cargo', 'build', '--release', '--package', 'transfer-server', '--package', 'transfer-bench', '--bins']
        subprocess.run(words, cwd=ROOT, check=True)
    for program in ('transferd', 'transfer-bench'):
        if not (PROGRAMS / program).exists():
            raise MissingError(f'there is no {PROGRAMS / program}')


def versions():
    """Of what was measured."""
    listed = subprocess.run([VENV / 'bin/pip', 'list', '--format=freeze'], capture_output=True, text=True) if VENV.exists() else None
    wanted = {line.partition('==')[0] for _, lines in groups().values() for line in lines}
    found = [line for line in (listed.stdout.splitlines() if listed else []) if line.partition('==')[0] in wanted]
    if shutil.which('ucx_info'):
        said = subprocess.run(['ucx_info', '-v'], capture_output=True, text=True).stdout
        found += [f'ucx=={line.split()[-1]}' for line in said.splitlines() if 'Library version' in line][:1]
    commit = subprocess.run(['git', 'describe', '--always', '--dirty'], cwd=ROOT, capture_output=True, text=True).stdout.strip()
    return sorted([*found, f'transfer=={commit or "unknown"}'])
