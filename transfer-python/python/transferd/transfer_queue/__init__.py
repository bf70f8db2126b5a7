"""TransferQueue's samples in arenas of transferd: a storage backend for `transfer_queue.init`.

    import transfer_queue as tq
    import transferd.transfer_queue                          # registers the backend

    tq.init({"backend": {"storage_backend": "transferd"}})

The process that calls `tq.init` first imports this module; all others get it with TransferQueue's settings. It was written for TransferQueue 0.1.11.
docs/frameworks.md describes it.
"""

from ._client import TransferdClient
from ._manager import TransferdManager
from ._settings import Settings

__all__ = ["Settings", "TransferdClient", "TransferdManager"]
