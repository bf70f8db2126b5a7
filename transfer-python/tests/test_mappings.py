"""What happens where a process runs out of mappings."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from pathlib import Path

import numpy as np
from test_views import consume, dispose


# Promise: python-mappings
def test_private_mappings_run_out_and_what_is_exported_then_is_copied(c):
    limit = int(Path("/proc/sys/vm/max_map_count").read_text()) // 2
    c.push("k", np.arange(1 << 14, dtype="float32"))
    tensor = c.fetch("k")
    kept = []
    while tensor.exports_copied == 0:
        kept.append(consume(tensor))
        assert len(kept) <= limit + 1
    assert ctypes.string_at(kept[-1].tensor.data, tensor.nbytes) == tensor.numpy().tobytes()
    for managed in kept:
        dispose(managed)
    # Everything is mapped again.
    copied = tensor.exports_copied
    dispose(consume(tensor))
    assert tensor.exports_copied == copied


NO_MAPPINGS = """
import mmap, sys
sys.path.insert(0, {tests!r})
import numpy as np, transferd as td
from test_views import consume, dispose
c = td.connect({path!r}, arena="4MiB")
c.push("k", np.ones(1 << 18))
tensor, kept = c.fetch("k"), []
try:
    while True:
        # Of two kinds, so that the kernel does not join them.
        kept.append(mmap.mmap(-1, 4096, prot=mmap.PROT_READ | (mmap.PROT_WRITE if len(kept) % 2 else 0)))
except OSError:
    pass
del kept[-8:]
exported = []
try:
    for _ in range(50):
        exported.append(consume(tensor))
except (MemoryError, BufferError) as error:
    print(type(error).__name__)
del kept[:]
for managed in exported:
    dispose(managed)
dispose(consume(tensor))
assert (np.from_dlpack(tensor) == 1).all()
print("works again")
"""


# Promise: python-mappings
def test_a_process_without_mappings_gets_an_error_and_works_again(sidecar):
    script = NO_MAPPINGS.format(tests=str(Path(__file__).parent), path=sidecar.path)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert (done.returncode, done.stdout.splitlines()[-1:]) == (0, ["works again"]), done.stderr
