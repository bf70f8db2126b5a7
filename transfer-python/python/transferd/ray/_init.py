"""`init`: a sidecar on each node of a Ray cluster, for one job."""

from __future__ import annotations

import contextlib
import logging
import re
import socket
import threading
from typing import Any

from .. import _child, _native
from .._calls import to_bytes
from .._errors import Error, Invalid
from .._torchrun import with_port
from . import _clients, _found
from ._certificates import Authority
from ._places import Place, here, name_of
from ._sidecar import NodeSidecar, Plan, Settings
from ._transports import register

# How often the driver looks for nodes that have joined or left, in seconds.
_LOOK_EVERY = 1.0

# What the sidecars of a job are told by `init` itself.
_OWN = {
    "admin_socket",
    "config",
    "directory",
    "listen",
    "node",
    "replace",
    "socket",
    "socket_mode",
    "tls_ca",
    "tls_cert",
    "tls_key",
}

_log = logging.getLogger("transferd.ray")

_lock = threading.Lock()
_job: _Job | None = None


def init(*, arena: int | str = "256MiB", sidecar: Settings | None = None, timeout: float | None = 60.0) -> None:
    """Starts a sidecar on each node of the cluster, for the job of this driver.

    Call it once in the driver, after `ray.init()`. The driver, and tasks and actors of the job, call `client()`. Each sidecar belongs to an actor of this
    job and ends with it; a node that joins later gets one within seconds. The sidecar of the head node hosts the directory. The sidecars
    identify each other by certificates of an authority that is made here, for this job alone.

    `arena` is the memory of each process that calls `client()`, see `connect`. `sidecar` has settings for all sidecars, by the keys of
    `transferd`'s configuration file: `{"pinned_limit": "64GiB"}`. They have to be ready within `timeout` seconds; None is for ever.

    The tensor transports are registered, too, see `register`. Raises `Invalid` where a setting cannot be, `SidecarGone` with the end of
    the log where a sidecar does not start, and `RayUnusable`. Another call in the same job does nothing.
    """
    global _job
    settings = dict(sidecar or {})
    _check(settings)
    to_bytes(arena, "arena")
    seconds = _native._seconds("timeout", timeout)
    place = here()
    register()
    with _lock:
        if _job is None or _job.place != place:
            if _job is not None:
                _job.end()
            _job = _Job(place, arena, settings, seconds)
            try:
                _job.start()
            except BaseException:
                job, _job = _job, None
                job.end()
                raise
            for name in (_clients.looks(), _clients.attempts()):
                _clients.reader(timeout=seconds).counter(name, timeout=seconds)


def shutdown() -> None:
    """Ends the sidecars of this driver's job, and with them all that was published. Ray does so at the end of the job."""
    global _job
    with _lock:
        job, _job = _job, None
        if job is not None:
            job.end()


def _check(settings: dict[str, Any]) -> None:
    for key, value in settings.items():
        if not re.fullmatch("[a-z][a-z0-9_]*", key):
            raise Invalid(f"sidecar: {key!r} is no key of transferd's configuration, such as 'pinned_limit'")
        if key in _OWN:
            raise Invalid(f"sidecar: {key!r} is chosen by transferd.ray.init() for each node: leave it out")
        if not isinstance(value, (str, int, float)):
            raise Invalid(f"sidecar: {key!r} is {value!r}: it has to be a text, a number, or True or False")


class _Job:
    """The sidecars of a job, as its driver sees them."""

    def __init__(self, place: Place, arena: int | str, settings: Settings, timeout: float) -> None:
        self.place, self._arena, self._settings, self._timeout = place, arena, settings, timeout
        self._ray = _found.connected()
        self._authority = Authority()
        self._actors: dict[str, Any] = {}
        self._directory: str | None = None
        self._head = place
        self._ended = threading.Event()

    def start(self) -> None:
        """Starts a sidecar on each node, the head's first, and watches for other nodes."""
        nodes = self._nodes()
        head = next((node for node, (_, is_head) in nodes.items() if is_head), None)
        if head is None:
            raise _child.not_started("the cluster has no head node: ray.nodes() shows none with node:__internal_head__")
        self._head = Place(self.place.job, head)
        address = nodes[head][0]
        port = self._ray.get(self._on(head, _free_port).remote(address), timeout=self._timeout)
        self._begin(head, address, port)
        self._wait([head])
        self._directory = f"https://{with_port(address, port)}"
        others = [node for node in nodes if node != head]
        for node in others:
            self._begin(node, nodes[node][0])
        self._wait(others)
        threading.Thread(target=self._watch, name="transferd-ray-nodes", daemon=True).start()

    def end(self) -> None:
        """Ends all sidecars."""
        self._ended.set()
        _clients.forget()
        for actor in self._actors.values():
            with contextlib.suppress(Exception):
                # Ray may have ended the job.
                self._ray.kill(actor)
        self._actors.clear()

    def _nodes(self) -> dict[str, tuple[str, bool]]:
        """The address of each node that lives, and whether it is the head."""
        return {
            node["NodeID"]: (node["NodeManagerAddress"], "node:__internal_head__" in node["Resources"])
            for node in self._ray.nodes()
            if node["Alive"]
        }

    def _on(self, node: str, what: Any, **options: Any) -> Any:
        """A task or an actor class of Ray that runs at this node and nowhere else."""
        strategy = self._ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(node, soft=False)
        return self._ray.remote(what).options(num_cpus=0, scheduling_strategy=strategy, **options)

    def _begin(self, node: str, address: str, port: int = 0) -> None:
        place = Place(self.place.job, node)
        certificate = self._authority.sign(place.name, address)
        plan = Plan(
            place, self._head, address, port, self._directory, certificate, self._settings, self._arena, self._timeout
        )
        # It belongs to this driver: Ray ends it with the job.
        actor = self._on(node, NodeSidecar, max_restarts=-1, max_task_retries=-1)
        self._actors[node] = actor.remote(plan)

    def _wait(self, nodes: list[str]) -> None:
        """Waits until the sidecars of these nodes are ready."""
        for node in nodes:
            try:
                self._ray.get(self._actors[node].socket.remote(), timeout=2 * self._timeout)
            except self._ray.exceptions.RayError as error:
                self._ray.kill(self._actors.pop(node))
                cause = getattr(error, "cause", None)
                if isinstance(cause, Error):
                    raise cause from None
                raise _child.not_started(f"the sidecar of {name_of(node)} was not started: {error}") from None

    def _watch(self) -> None:
        """Gives each node that joins a sidecar, and forgets those that have left."""
        while not self._ended.wait(_LOOK_EVERY):
            try:
                nodes = self._nodes()
                for node in self._actors.keys() - nodes.keys():
                    self._ray.kill(self._actors.pop(node))
                joined = [node for node in nodes if node not in self._actors]
                for node in joined:
                    self._begin(node, nodes[node][0])
                self._wait(joined)
            except Exception as error:
                if self._ended.is_set() or not self._ray.is_initialized():
                    return
                _log.error("a node that has joined has no sidecar, or not yet: %s", error)


def _free_port(address: str) -> int:
    """A port that is free at this node. The sidecar of the head node has the same one again after a restart."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.bind((address, 0))
        port: int = probe.getsockname()[1]
    return port
