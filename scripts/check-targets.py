#!/usr/bin/env python3
"""Fails where a program or a library has tests that nobody runs: its manifest says `test = false` or `doctest = false`, which spares the build of
an empty test program."""

import json
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# With the attributes of others: #[tokio::test], #[cfg(all(test, unix))].
TEST = re.compile(r'^\s*#\[(?:(?:\w+::)*test\b|cfg\([^\]\n]*\btest\b)', re.MULTILINE)
# Files of a program beside a library could not be told from the library's.
MODULE = re.compile(r'^\s*(?:pub(?:\([^)]*\))? )?mod \w+;', re.MULTILINE)
# A block that says nothing is Rust, and runs. Of a comment: what opens a block, and what closes it.
BLOCK = re.compile(r'^\s*//[/!] ?```([^\n]*)\n(?:\s*//[/!](?! ?```)[^\n]*\n)*\s*//[/!] ?```', re.MULTILINE)
NOT_RUN = {'text', 'ignore', 'toml', 'sh', 'console', 'json', 'python'}


def beside_library(root, others):
    return root.name == 'main.rs' and root.with_name('lib.rs') in others


def sources(target, others):
    """The files of a target: all beside its root, but the roots of the package's other targets. Of a program beside a library: its root."""
    root = Path(target['src_path'])
    if beside_library(root, others):
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
                if not target['test'] and beside_library(path, others) and MODULE.search(text):
                    wrong.append(f'{where}: has modules, whose tests nobody would run: {package["name"]} says `test = false` for {target["name"]}')
                if library and not target['doctest'] and any(block not in NOT_RUN for block in BLOCK.findall(text)):
                    wrong.append(f'{where}: has an example that would run, and {package["name"]} says `doctest = false` for {target["name"]}')
    print('\n'.join(sorted(wrong)) or 'programs and libraries that are not tested have no tests')
    return bool(wrong)


sys.exit(main())
