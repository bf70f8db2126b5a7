"""Registers the tensor transports at Ray."""

from __future__ import annotations

import importlib

from . import _found

# The names of the transports. Ray writes them in capitals.
TENSORS, TABLES = "TRANSFERD", "TRANSFERD_ARROW"


def register() -> None:
    """Registers the tensor transports of Ray Direct Transport in this process: "transferd" for tensors of torch, in the host's memory or on GPUs, and
    "transferd_arrow" for tables of pyarrow; those whose library is installed.

    `init` does it, too. Call this first where an actor class is defined with `@ray.method(tensor_transport="transferd")`: Ray looks for
    the name at once. Another call does nothing. Raises `RayUnusable` where this version of Ray has no such interface.
    """
    registry = _found.registry()
    from . import _direct

    for name, library, manager, devices in (
        (TENSORS, "torch", _direct.Tensors, ["cpu", "cuda"]),
        (TABLES, "pyarrow", _direct.Tables, ["cpu"]),
    ):
        if name in registry.transport_manager_info:
            continue
        try:
            found = importlib.import_module(library)
        except ImportError:
            continue
        data_type = found.Tensor if name == TENSORS else found.Table
        registry.register_tensor_transport(name, devices, manager, data_type)
