"""Ray, as it is installed here: looked for where it is used, and refused where it lacks what is needed."""

from __future__ import annotations

import importlib
from typing import Any

from .._errors import Error

# The version of Ray that this package was written and is tested with.
TESTED = "2.60.0"

_INTERFACE = "ray.experimental.rdt.tensor_transport_manager"
_REGISTRY = "ray.experimental.rdt.util"

# What a transport has to implement, as far as this package knows.
_KNOWN = {
    "abort_transport",
    "actor_has_tensor_transport",
    "can_abort_transport",
    "extract_tensor_transport_metadata",
    "garbage_collect",
    "get_communicator_metadata",
    "is_one_sided",
    "recv_multiple_tensors",
    "send_multiple_tensors",
    "tensor_transport_backend",
}

# What it overrides or calls beside these.
_USED = ("fetch_multiple_tensors", "wait_fetch_complete")


class RayUnusable(Error, ImportError):
    """Ray is not installed, or its version lacks what `transferd.ray` needs; the text says which version would be right."""


def _unusable(text: str) -> RayUnusable:
    return RayUnusable(f"{text}. Install it: pip install 'ray=={TESTED}'", "ray_unusable", False, "operator")


def ray() -> Any:
    """The module `ray`. Raises `RayUnusable` where it is not installed."""
    try:
        return importlib.import_module("ray")
    except ImportError as error:
        raise _unusable(f"transferd.ray needs Ray {TESTED} or later, and it cannot be imported: {error}") from None


def connected() -> Any:
    """The module `ray`, in a process of a job. Raises `Error` where it is in none."""
    found = ray()
    if not found.is_initialized():
        raise Error("this process is in no job of Ray: call ray.init() first", "not_initialized")
    return found


def registry() -> Any:
    """The module of Ray with `register_tensor_transport`. Raises `RayUnusable` where its interface is not the one that is implemented here."""
    version = getattr(ray(), "__version__", "unknown")
    right = f"transferd.ray implements that of Ray {TESTED}"
    try:
        manager = importlib.import_module(_INTERFACE).TensorTransportManager
        found = importlib.import_module(_REGISTRY)
        found.register_tensor_transport, found.transport_manager_info  # noqa: B018
    except (ImportError, AttributeError) as error:
        raise _unusable(f"Ray {version} has no interface for tensor transports ({error}): {right}") from None
    unknown = sorted(set(manager.__abstractmethods__) - _KNOWN)
    missing = sorted(name for name in (*_KNOWN, *_USED) if not hasattr(manager, name))
    if unknown or missing:
        what = f"asks a transport for {', '.join(unknown)}" if unknown else f"has no {', '.join(missing)}"
        raise _unusable(f"Ray {version} has another interface for tensor transports: it {what}, and {right}")
    return found
