"""What the plugs for frameworks have in common: how one finds its sidecar, and the sessions that it opens there."""

from __future__ import annotations

import os
import uuid

from ._client import Client, connect, embedded
from ._errors import Invalid
from ._init import init


def home(client: Client | None, plug: str) -> Client:
    """A client of the sidecar that `plug` uses: `client`, if there is one; under torchrun a new one of the job's sidecar on this node, as by
    `init`; else a new one of the sidecar inside of this process, as by `embedded`. Neither of the new ones has an arena."""
    if client is not None:
        if client.path is None:
            raise Invalid("the sidecar of this client has ended")
        return client
    if os.environ.get("TORCHELASTIC_RUN_ID"):
        # The plain name of the rank may be that of another client of this process.
        return init(name=f"rank-{os.environ.get('RANK')}-{plug}-{unique()}", arena=0)
    return embedded(arena=0)


def unique() -> str:
    """A part of a name that nobody else has, on no host."""
    return uuid.uuid4().hex[:16]


def session(at: Client, arena: int) -> Client:
    """A new session with the sidecar of `at`, whose arena has so many bytes. It does not come back after a restart of the sidecar: what it has published
    is lost then, and its calls say so."""
    if at.path is None:
        raise Invalid("the sidecar of this client has ended")
    return connect(at.path, arena=arena, reconnect=False)
