"""The end-to-end tests that TransferQueue's wheel brings, with this backend."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import sys
from typing import Any

import transferd.transfer_queue  # noqa: F401

SETTINGS = {"controller": {"polling_mode": True}, "backend": {"storage_backend": "transferd", "transferd": {"arena": "64MiB"}}}

# Their tests choose a backend by this, and start a cluster of their own by that, also where another one runs on this host.
os.environ.update({"TQ_TEST_BACKEND": "transferd", "RAY_ADDRESS": "local"})


def theirs(name: str) -> dict[str, Any]:
    """What such a module has, but for the tests of another backend on GPUs."""
    path = importlib.metadata.distribution("TransferQueue").locate_file(f"tests/e2e/{name}.py")
    spec = importlib.util.spec_from_file_location(f"transfer_queue_{name}", str(path))
    assert spec is not None and spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.BACKEND_CONFIGS["transferd"] = SETTINGS
    return {name: of for name, of in vars(module).items() if not name.startswith(("__", "test_gdr_"))}
