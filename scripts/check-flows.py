#!/usr/bin/env python3
"""Proves that the calls between the files of the protocol's node go one way, but for small circles.

A flow (`transfer-core/src/protocol/node/flows.rs`) calls the flows below it: `memory!(self).release(blob)`. Within a flow, methods call
each other: `self.release(blob)`. Imports do not show such calls, because they are methods of one type. This finds the circles of files
that call each other, and counts the methods of `Node`, which only hands events to flows. `--graph` prints all calls between files.

It does not see calls of free functions, and those by a trait object (`op.words()`, in `kinds`, which only read).

It also proves that the modules of transfer-exchange import each other one way, without any circle.
"""

import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).parent.parent
NODE = ROOT / "transfer-core/src/protocol/node"
EXCHANGE = ROOT / "transfer-exchange/src"
# What tests alone call.
TESTS_ONLY = {"checks.rs"}
MAX_FILES_IN_A_CIRCLE = 5
MAX_METHODS_OF_NODE = 60

IMPL = re.compile(r"^impl(?:<'a>)? (?:\w+ for )?(\w+)(?:<'\w+>)? \{\n(.*?)^\}", re.S | re.M)
METHOD = re.compile(r"^    (?:pub(?:\([\w: ]+\))? )?(?:const )?fn (\w+)", re.M)
CALL = re.compile(r"\b(?:(\w+)!\([\w.]+\)|self)\s*\.(\w+)\(")
LENT = re.compile(r"\blet (?:mut )?\w+ = (\w+)!\([\w.]+\);")


def read_methods():
    """Returns the text of each method, and its file, by the names of its type and of itself."""
    texts, files = {}, {}
    for path in sorted(NODE.rglob("*.rs")):
        name = str(path.relative_to(NODE))
        code = re.sub(r"//.*", "", path.read_text())
        for impl in IMPL.finditer(code):
            begins = [*METHOD.finditer(impl[2])]
            ends = [m.start() for m in begins[1:]] + [len(impl[2])]
            for begin, end in zip(begins, ends):
                method = (impl[1], begin[1])
                texts[method], files[method] = impl[2][begin.start() : end], name
    return texts, files


def read_flows():
    """Returns the flow that each macro lends."""
    text = (NODE / "flows.rs").read_text()
    declared = re.findall(r"^    pub(?:\(super\))? (\w+), (\w+):$", text, re.M)
    if len(declared) != len(re.findall(r"^        changes \{", text, re.M)):
        sys.exit("flows.rs: a flow is declared in a way that this does not read")
    return {macro: flow for flow, macro in declared}


def calls_of(texts, files, flows):
    """Returns which file calls which, and by which methods."""
    calls = {}
    for (owner, name), text in texts.items():
        # What has a name could be called further down, where this does not see it. Only what is read may have one.
        for lent in LENT.findall(text):
            if lent != "state":
                sys.exit(f"{files[owner, name]}: {lent}! is lent to a name; call it where it is lent")
        for macro, callee in CALL.findall(text):
            if macro and macro not in flows:
                sys.exit(f"{files[owner, name]}: {macro}! is called like a flow and is none of flows.rs")
            called = (flows[macro] if macro else owner, callee)
            if called not in files:
                if macro:
                    sys.exit(f"{files[owner, name]}: {macro}!(self).{callee} is not found")
                continue
            if files[called] != files[owner, name]:
                calls.setdefault((files[owner, name], files[called]), set()).add(f"{name} -> {callee}")
    return calls


def circles(nodes, arrows):
    """Returns the strongly connected components of more than one node (Tarjan)."""
    index, low, stack, found = {}, {}, [], []

    def visit(node):
        index[node] = low[node] = len(index)
        stack.append(node)
        for other in arrows.get(node, ()):
            if other not in index:
                visit(other)
                low[node] = min(low[node], low[other])
            elif other in stack:
                low[node] = min(low[node], index[other])
        if low[node] == index[node]:
            circle = []
            while not circle or circle[-1] != node:
                circle.append(stack.pop())
            if len(circle) > 1:
                found.append(sorted(circle))

    for node in nodes:
        if node not in index:
            visit(node)
    return found


def imports_of(root):
    """Returns which module of a crate names which. Tests may name all."""
    arrows = {}
    for path in sorted(root.rglob("*.rs")):
        module = path.relative_to(root).parts[0].removesuffix(".rs")
        if module == "lib" or re.search(r"test", path.name):
            continue
        code = re.sub(r"//.*", "", path.read_text()).split("#[cfg(test)]")[0]
        named = set(re.findall(r"\bcrate::(\w+)", code))
        if (root / f"{path.stem}.rs") == path:
            named |= set(re.findall(r"\bsuper::(\w+)", code))
        arrows.setdefault(module, set()).update(named - {module})
    return arrows


def main():
    for path in NODE.parent.parent.rglob("*.rs"):
        if NODE not in path.parents and re.search(r"^impl Node\b", path.read_text(), re.M):
            sys.exit(f"{path}: methods of Node belong below {NODE.name}")
    texts, files = read_methods()
    calls = calls_of(texts, files, read_flows())
    if "--graph" in sys.argv:
        for (caller, called), by in sorted(calls.items()):
            print(f"{caller} -> {called}: {', '.join(sorted(by))}")
    arrows = {}
    for caller, called in calls:
        arrows.setdefault(caller, set()).add(called)
    found = circles(sorted(set(files.values())), arrows)
    methods = [name for (owner, name), file in files.items() if owner == "Node" and file not in TESTS_ONLY]
    bad = [circle for circle in found if len(circle) > MAX_FILES_IN_A_CIRCLE]
    for circle in bad:
        print(f"{len(circle)} files call each other in a circle, {MAX_FILES_IN_A_CIRCLE} may: {', '.join(circle)}", file=sys.stderr)
        for caller, called in sorted(calls):
            if caller in circle and called in circle:
                print(f"    {caller} -> {called}: {', '.join(sorted(calls[caller, called]))}", file=sys.stderr)
    if len(methods) > MAX_METHODS_OF_NODE:
        print(f"Node has {len(methods)} methods, {MAX_METHODS_OF_NODE} may be: {', '.join(sorted(methods))}", file=sys.stderr)
    imports = imports_of(EXCHANGE)
    circular = circles(sorted(imports), imports)
    for circle in circular:
        print(f"modules of {EXCHANGE.parent.name} import each other in a circle: {', '.join(circle)}", file=sys.stderr)
    if bad or circular or len(methods) > MAX_METHODS_OF_NODE:
        sys.exit(1)
    largest = max((len(circle) for circle in found), default=1)
    print(f"calls go one way: {len(texts)} methods in {len(set(files.values()))} files, at most {largest} in a circle, {len(methods)} of Node")
    print(f"imports of {EXCHANGE.parent.name} go one way: {len(imports)} modules")


main()
