#!/usr/bin/env python3
"""Fails where a dependency is declared and nothing uses it: of a package, or of the workspace."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
KINDS = ('dependencies', 'dev-dependencies', 'build-dependencies')
# What sources name otherwise, or not at all, and why.
UNNAMED = {
    'rustls-webpki': 'its library is called webpki',
    'tonic-prost': 'the generated code of the gRPC contracts names it',
}


def manifests():
    listed = subprocess.run(['git', 'ls-files', '*Cargo.toml'], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
    return [ROOT / line for line in listed.stdout.splitlines() if (ROOT / line).exists()]


def declared(manifest):
    """The names of a manifest's dependencies, as its sources write them."""
    tables = [manifest, *manifest.get('target', {}).values()]
    return {name for table in tables for kind in KINDS for name in table.get(kind, {})}


def main():
    unused, used = [], set()
    workspace = {}
    for path in manifests():
        manifest = tomllib.loads(path.read_text())
        workspace |= manifest.get('workspace', {}).get('dependencies', {})
        if 'package' not in manifest:
            continue
        sources = '\n'.join(source.read_text() for source in path.parent.rglob('*.rs') if 'target' not in source.relative_to(path.parent).parts)
        features = str(manifest.get('features', {}))
        for name in sorted(declared(manifest)):
            used.add(name)
            word = name.replace('-', '_')
            if not re.search(rf'\b{word}\b', sources) and name not in features and name not in UNNAMED:
                unused.append(f'{path.relative_to(ROOT)}: nothing uses {name}')
    unused += [f'Cargo.toml: no package uses {name}' for name in sorted(set(workspace) - used)]
    for line in unused:
        print(line, file=sys.stderr)
    if unused:
        return 1
    print(f'{len(used)} dependencies are declared, and used')
    return 0


sys.exit(main())
