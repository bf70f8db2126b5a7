"""Names: of a job's nodes, and of the folder where the processes of a node find its sidecar."""

from __future__ import annotations

from typing import NamedTuple

from .. import _folder
from .._folder import Folder
from . import _found

_STARTER = _folder.Starter(
    "transferd.ray.init()", "An actor of the same job and node has it: call transferd.ray.init() once, in the driver"
)

# The digits of a node's id that names have: 64 bits, by which nodes of different clusters on one host differ, too.
_DIGITS = 16


class Place(NamedTuple):
    """A node, as one job sees it. Every process of the job at this node finds the same one."""

    job: str
    node: str

    @property
    def name(self) -> str:
        """The name of the node's sidecar."""
        return name_of(self.node)

    @property
    def folder(self) -> Folder:
        """The folder of the node's sidecar, where this process runs at that node."""
        return Folder(f"ray-{self.node[:_DIGITS]}-{self.job}", _STARTER)


def name_of(node: str) -> str:
    """The name of the sidecar of the node with this id."""
    return f"node-{node[:_DIGITS]}"


def here() -> Place:
    """The place of this process."""
    context = _found.connected().get_runtime_context()
    return Place(context.get_job_id(), context.get_node_id())
