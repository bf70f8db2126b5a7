#!/usr/bin/env python3
"""Fails where a program or a library has tests that nobody runs: its manifest says `test = false` or `doctest = false`, which spares the build of
an empty test program."""

import json
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TEST = re.compile(r'^\s*#\[(?:test|cfg\(test\))\]', re.MULTILINE)
# A block that says nothing is Rust, and runs. Of a comment: what opens a block, and what closes it.
BLOCK = re.compile(r'^\s*//[/!] ?```([^\n]*)\n(?:\s*//[/!](?! ?```)[^\n]*\n)*\s*//[/!] ?```', re.MULTILINE)
NOT_RUN = {'text', 'ignore', 'toml', 'sh', 'console', 'json', 'python'}


def sources(target, others):
    """The files of a target: all beside its root, but the roots of the package's other targets."""
    root = Path(target['src_path'])
    if root.name == 'main.rs' and any(other.name == 'lib.rs' for other in others):
        return [root]
    return [path for path in root.parent.rglob('*.rs') if path not in others]


def main():
    told = subprocess.run(['cargo', 'metadata', '--locked', '--no-deps', '--format-version', '1'], cwd=ROOT, stdout=subprocess.PIPE, check=True)
    wrong = []
    for package in json.loads(told.stdout)['packages']:
        for target in package['targets']:
            library = bool({'lib', 'cdylib'} & set(target['kind']))
            if not library and target['kind'] != ['bin']:
                continue
            others = {Path(other['src_path']) for other in package['targets'] if other is not target}
            for path in sources(target, others):
                text, where = path.read_text(), path.relative_to(ROOT)
                if not target['test'] and TEST.search(text):
                    wrong.append(f'{where}: has tests, and {package["name"]} says `test = false` for {target["name"]}')
                if library and not target['doctest'] and any(block not in NOT_RUN for block in BLOCK.findall(text)):
                    wrong.append(f'{where}: has an example that would run, and {package["name"]} says `doctest = false` for {target["name"]}')
    print('\n'.join(sorted(wrong)) or 'programs and libraries that are not tested have no tests')
    return bool(wrong)


sys.exit(main())
