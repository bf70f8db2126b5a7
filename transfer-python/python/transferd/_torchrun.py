"""What torchrun tells its processes, by environment variables: read and checked."""

from __future__ import annotations

import hashlib
import ipaddress
import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass

from ._errors import Invalid

_NEEDED = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT")
_TLS = ("TRANSFERD_TLS_CERT", "TRANSFERD_TLS_KEY", "TRANSFERD_TLS_CA")


@dataclass(frozen=True)
class Directory:
    """Where the sidecar of node-0 hosts the directory of a job with several nodes."""

    host: str
    """MASTER_ADDR, as it stands there: a name or an address."""
    address: str
    """Its IP address."""
    port: int
    port_of: str
    """Where the port comes from, in words."""
    tls: tuple[str, str, str] | None
    """The files of this node's certificate, its key and the authority."""

    @property
    def url(self) -> str:
        """As `transferd --directory` takes it."""
        return f"{'https' if self.tls else 'http'}://{with_port(self.host, self.port)}"

    @property
    def described(self) -> str:
        """Where it is and why, in a sentence."""
        return (
            f"The sidecar of node-0 hosts the directory at {self.url}: the host is MASTER_ADDR, the port is "
            f"{self.port_of}"
        )


@dataclass(frozen=True)
class Job:
    """A process of a job: which one it is, and where the job's first process is."""

    rank: int
    local_rank: int
    group_rank: int
    restart: int
    """How often the job was started again."""
    name: str
    """A part of a file's name that no other job on this host has."""
    directory: Directory | None
    """None: the job is on one node."""

    @property
    def node(self) -> str:
        """The name of this process's node."""
        return f"node-{self.group_rank}"


def with_port(host: str, port: int) -> str:
    """HOST:PORT, with an IPv6 address in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def read(environment: Mapping[str, str]) -> Job:
    """The process that this environment describes. Raises `Invalid` where a variable is missing or cannot be."""
    missing = [name for name in _NEEDED if not environment.get(name)]
    if missing:
        raise Invalid(
            f"td.init() needs the environment that torchrun sets, and this is missing: {', '.join(missing)}. Start the "
            f"program with torchrun. Without it, td.embedded() starts a sidecar for one process, and td.connect(path) "
            f"connects to a sidecar that runs"
        )
    world = _number(environment, "WORLD_SIZE", 1, None)
    local_world = _number(environment, "LOCAL_WORLD_SIZE", 1, world)
    master, port = environment["MASTER_ADDR"], _number(environment, "MASTER_PORT", 1, 65535)
    run = environment.get("TORCHELASTIC_RUN_ID") or "job"
    group = _number(environment, "GROUP_RANK", 0, None)
    # torchrun calls every job "none" that has no --rdzv-id: what tells them apart is where their first process is.
    digest = hashlib.sha256(f"{run}\0{master}\0{port}".encode()).hexdigest()[:8]
    return Job(
        rank=_number(environment, "RANK", 0, world - 1),
        local_rank=_number(environment, "LOCAL_RANK", 0, local_world - 1),
        group_rank=group,
        restart=_number(environment, "TORCHELASTIC_RESTART_COUNT", 0, None, absent=0),
        name=f"{re.sub(r'[^A-Za-z0-9_-]', '_', run)[:24]}-{digest}",
        directory=None if local_world == world else _directory(environment, master, port, f"node-{group}"),
    )


def _number(environment: Mapping[str, str], name: str, least: int, most: int | None, absent: int | None = None) -> int:
    text = environment.get(name)
    if not text and absent is not None:
        return absent
    right = f"a whole number of {least} or more" if most is None else f"a whole number from {least} to {most}"
    if not text or not re.fullmatch("[0-9]{1,9}", text):
        raise Invalid(f"{name}={text!r} has to be {right}")
    value = int(text)
    if value < least or (most is not None and value > most):
        raise Invalid(f"{name}={value} has to be {right}")
    return value


def _directory(environment: Mapping[str, str], master: str, master_port: int, node: str) -> Directory:
    # A Service of Kubernetes named `transferd` puts its address there, in every container: tcp://10.0.0.1:7471.
    if (given := environment.get("TRANSFERD_PORT")) and "://" not in given:
        port, port_of = _number(environment, "TRANSFERD_PORT", 1, 65535), "TRANSFERD_PORT"
        if port == master_port:
            raise Invalid(f"TRANSFERD_PORT={port} is torch's own port, MASTER_PORT: give the sidecar another one")
    else:
        port, port_of = master_port + 1, "MASTER_PORT + 1, or TRANSFERD_PORT where that is set"
        if port > 65535:
            raise Invalid(f"MASTER_PORT={master_port} is the last port, and the sidecar needs one: set TRANSFERD_PORT")
    try:
        found = socket.getaddrinfo(master, port, type=socket.SOCK_STREAM)
    except OSError as e:
        raise Invalid(f"MASTER_ADDR={master!r} has no IP address: {e}") from None
    address = str(found[0][4][0])
    files = [environment.get(name) for name in _TLS]
    lacking = [name for name, file in zip(_TLS, files, strict=True) if not file]
    tls = None
    if not lacking:
        # One value for all nodes: which of them a host becomes may be decided by torchrun.
        cert, key, ca = (str(file).replace("{node}", node) for file in files)
        tls = (cert, key, ca)
    elif len(lacking) < len(_TLS):
        raise Invalid(f"this is not set: {', '.join(lacking)}. {_certificates(master, node)}")
    elif not ipaddress.ip_address(address.split("%")[0]).is_loopback:
        raise Invalid(
            f"the job has several nodes and MASTER_ADDR={master} is not on loopback, so the sidecars need certificates, "
            f"and this is not set: {', '.join(lacking)}. {_certificates(master, node)}"
        )
    return Directory(master, address, port, port_of, tls)


def _certificates(master: str, node: str) -> str:
    other = "node-1" if node == "node-0" else node
    return (
        f"TRANSFERD_TLS_CERT, TRANSFERD_TLS_KEY and TRANSFERD_TLS_CA name the files of a node's certificate, of its "
        f"key and of the authority. This command makes them: transferctl certs --out certs --node node-0={master} "
        f"--node {other}"
    )
