"""What a user sets for the backend, below `backend.transferd` of TransferQueue's configuration."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from .. import _native
from .._calls import to_bytes
from .._errors import Invalid


@dataclass
class Settings:
    """The settings. TransferQueue keeps them as a configuration of this class, so a process that attaches to it imports this package with them."""

    path: str | None = None
    """The socket of a sidecar that runs on each host. None: `transferd.ray` starts one on each node of the cluster, for this job."""
    arena: str = "1GiB"
    """The memory of each process for what it puts."""
    timeout: float = 30.0
    """How many seconds a put may wait for room, and a get for its values."""
    pickle: bool = False
    """Whether values that have no other form are pickled, and unpickled where they are got."""
    sidecar: dict[str, Any] = field(default_factory=dict)
    """Settings for the sidecars that are started, such as {"pinned_limit": "64GiB"}."""
    run: str = ""
    """Set by `tq.init`: this start of TransferQueue."""
    job: str = ""
    """Set by `tq.init`: the job of Ray whose sidecars they are."""

    @property
    def outlive(self) -> bool:
        """Whether what was put stays when the process ends that has put it: where the sidecars end with the job."""
        return self.path is None

    @classmethod
    def read(cls, config: Mapping[str, Any] | None) -> Settings:
        """The settings of a manager's configuration. Raises `Invalid` with the name of one that cannot be."""
        known = {setting.name for setting in dataclasses.fields(cls)}
        given = {name: value for name, value in dict(config or {}).items() if name != "client_name"}
        if unknown := sorted(given.keys() - known):
            raise Invalid(f"backend.transferd has no setting {unknown[0]!r}; there are {', '.join(sorted(known))}")
        found = cls(**given)
        to_bytes(found.arena, "arena")
        _native._check_seconds("timeout", found.timeout)
        return found
