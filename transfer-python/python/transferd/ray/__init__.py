"""Ray: tensors between actors, and sidecars on the nodes of its cluster.

    import ray
    import transferd.ray as tr

    ray.init()
    tr.init()                                    # in the driver: a sidecar on each node, until the job ends

    @ray.remote(enable_tensor_transport=True)
    class Trainer:
        @ray.method(tensor_transport="transferd")
        def weights(self):
            return torch.ones(4096, 4096)        # pushed; an actor that takes it fetches it

    c = tr.client()                              # also in tasks and actors: a td.Client, connected to the sidecar of the node

    with tr.shuffle(blocks, by="user", partitions=16) as shuffled:
        for table in shuffled.partition(3):      # a pyarrow.Table
            ...

Ray is imported where something of this package is called, and not before. docs/ray.md describes it.
"""

from ._by import Column, Hash, Random, Sort
from ._clients import client
from ._dataset import from_dataset, to_dataset
from ._found import RayUnusable
from ._init import init, shutdown
from ._shuffle import Shuffled, shuffle
from ._transports import register

__all__ = [
    "Column",
    "Hash",
    "Random",
    "RayUnusable",
    "Shuffled",
    "Sort",
    "client",
    "from_dataset",
    "init",
    "register",
    "shuffle",
    "shutdown",
    "to_dataset",
]
