"""Moves tensors between the processes of a distributed training job, with no copy on one host.

    import transferd as td

    c = td.connect("/run/transfer/worker.sock", name="trainer-0", arena="4GiB")   # or td.init(), td.embedded()
    w = c.empty((4096, 4096), "bfloat16")        # td.Buffer: memory of the arena, writable
    w.torch().normal_()                          # DLPack, no copy
    c.push("layer0/w", w, version=1)             # takes w, by reference
    v = c.fetch("layer0/w", at_least=1)          # td.Tensor: read-only, also at another node
    v.numpy(), v.torch(), v.report.copied
    c.push_state("policy", {"w": x, "b": y}, version=1)        # many tensors, one version
    c.fetch_state("policy", at_least=1)["w"].numpy()

`init` is for the processes that torchrun starts, `embedded` for one process with its children, `connect` for a sidecar that runs.

What is published never changes. A fetched tensor and all its views keep its memory. Every wait has a deadline, 30 s where nothing is said, lets go
of the interpreter's lock, and ends with Ctrl-C. In a forked child an inherited client raises `Forked`: connect anew there.

`transferd.aio` has the same for asyncio, `transferd.nn` moves the parameters of a torch module into the arena, `transferd.data` has a data set of torch
over an exchange and a `collate_fn` whose batches are shared, `transferd.ray` is for jobs of Ray, and docs/frameworks.md has the plugs for other frameworks.
docs/python.md has recipes.
"""

from . import aio, nn
from ._calls import FetchOptions, PushOptions, StateOptions
from ._client import (
    Barrier,
    BatchReader,
    BatchWriter,
    Client,
    Counter,
    Producing,
    TwoBuffers,
    TwoStateBuffers,
    connect,
    embedded,
    embedded_address,
)
from ._errors import (
    ArenaFull,
    Committed,
    DestinationTorn,
    Error,
    ExchangeOver,
    Forked,
    Invalid,
    KeyOwned,
    Lost,
    NoDevice,
    NoDigest,
    PeerLost,
    PermissionDenied,
    RequireUnmet,
    SidecarGone,
    StillExported,
    Timeout,
    VersionGone,
    WrongDigest,
)
from ._exchange import Exchange, ExchangeReader, ExchangeTask
from ._init import init
from ._native import Buffer, FetchedInto, Pending, Pushed, PushedDelta, Report, Round, Table, Tensor, __version__
from ._pinned import Pinned
from ._sharded import Shard
from ._staged import Staged, StateSubscriber
from ._state import Landed, State
from ._versions import Publisher, PublisherOptions, Subscriber

__all__ = [
    "ArenaFull",
    "Barrier",
    "BatchReader",
    "BatchWriter",
    "Buffer",
    "Client",
    "Committed",
    "Counter",
    "DestinationTorn",
    "Error",
    "Exchange",
    "ExchangeOver",
    "ExchangeReader",
    "ExchangeTask",
    "FetchOptions",
    "FetchedInto",
    "Forked",
    "Invalid",
    "KeyOwned",
    "Landed",
    "Lost",
    "NoDevice",
    "NoDigest",
    "Pending",
    "PeerLost",
    "PermissionDenied",
    "Pinned",
    "Producing",
    "Publisher",
    "PublisherOptions",
    "PushOptions",
    "Pushed",
    "PushedDelta",
    "Report",
    "RequireUnmet",
    "Round",
    "Shard",
    "SidecarGone",
    "State",
    "StateOptions",
    "StillExported",
    "Subscriber",
    "Table",
    "Tensor",
    "Timeout",
    "TwoBuffers",
    "TwoStateBuffers",
    "VersionGone",
    "WrongDigest",
    "__version__",
    "aio",
    "connect",
    "embedded",
    "embedded_address",
    "init",
    "nn",
]
