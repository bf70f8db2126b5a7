#!/usr/bin/env python3
"""Fails where a dependency is declared and nothing uses it: of a package, or of the workspace. And where the Python package's wheel and the
programs are built with different features of a crate that both have: its functions would have other names in the wheel, and the profile that
scripts/pgo.sh makes of the programs would not be found for them. And where a package beside transfer-features has not the features that it has in the
workspace: `make check` would build again what other builds have."""

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

# What scripts/pgo.sh builds, and what scripts/wheel.sh does.
PROGRAMS = re.findall(r'--package ([\w-]+)', (ROOT / 'scripts/pgo.sh').read_text())
WHEEL = 'transfer-python'
# What gives a build of some packages the features of all. Nothing is built of it.
FEATURES = 'transfer-features'


def manifests():
    listed = subprocess.run(['git', 'ls-files', '*Cargo.toml'], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
    return [ROOT / line for line in listed.stdout.splitlines() if (ROOT / line).exists()]


def declared(manifest):
    """The names of a manifest's dependencies, as its sources write them."""
    tables = [manifest, *manifest.get('target', {}).values()]
    return {name for table in tables for kind in KINDS for name in table.get(kind, {})}


def built_for(*packages, edges='normal,build'):
    """What crates are built for these packages, each with its sets of features. No packages: for all of the workspace."""
    words = ['cargo', 'tree', '--locked', '--edges', edges, '--prefix', 'none', '--format', '{p}|{f}']
    words += [] if packages else ['--workspace']
    for package in packages:
        words += ['--package', package]
    listed = subprocess.run(words, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
    found = {}
    for line in listed.stdout.splitlines():
        # What was listed before ends with a sign.
        crate, _, with_features = line.removesuffix(' (*)').partition('|')
        found.setdefault(crate, set()).add(with_features)
    return found


def main():
    wrong, used, packages = [], set(), []
    workspace = {}
    for path in manifests():
        manifest = tomllib.loads(path.read_text())
        workspace |= manifest.get('workspace', {}).get('dependencies', {})
        if 'package' not in manifest or manifest['package']['name'] == FEATURES:
            continue
        packages.append(manifest['package']['name'])
        sources = '\n'.join(source.read_text() for source in path.parent.rglob('*.rs') if 'target' not in source.relative_to(path.parent).parts)
        features = str(manifest.get('features', {}))
        for name in sorted(declared(manifest)):
            used.add(name)
            word = name.replace('-', '_')
            if not re.search(rf'\b{word}\b', sources) and name not in features and name not in UNNAMED:
                wrong.append(f'{path.relative_to(ROOT)}: nothing uses {name}')
    wrong += [f'Cargo.toml: no package uses {name}' for name in sorted(set(workspace) - used)]
    programs, wheel = built_for(*PROGRAMS), built_for(WHEEL)
    wrong += [
        f'{crate}: the wheel is built with the features {sorted(wheel[crate])}, and the programs with {sorted(programs[crate])}'
        for crate in sorted(programs.keys() & wheel.keys())
        if programs[crate] != wheel[crate]
    ]
    of_all, all_edges = built_for(edges='normal,build,dev'), 'normal,build,dev'
    missing = {}
    for package in packages:
        for crate, features in built_for(package, FEATURES, edges=all_edges).items():
            if not features <= of_all.get(crate, set()):
                missing.setdefault(f'{crate}: with {FEATURES} it has the features {sorted(features)}, and in the workspace {sorted(of_all[crate])}', package)
    wrong += [f'{line}: for {package}' for line, package in sorted(missing.items())]
    for line in wrong:
        print(line, file=sys.stderr)
    if wrong:
        return 1
    print(f'{len(used)} dependencies are declared, and used; {len(programs.keys() & wheel.keys())} crates are the same for programs and wheel')
    return 0


sys.exit(main())
