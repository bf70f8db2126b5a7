"""Data sets of Ray Data, as blocks, and back."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from . import _found
from ._shuffle import Shuffled


def from_dataset(dataset: Any) -> list[Any]:
    """The blocks of a `ray.data.Dataset`, for `shuffle`: object references to tables of pyarrow. They are made if they are not there yet."""
    refs: list[Any] = dataset.to_arrow_refs()
    return refs


def to_dataset(shuffled: Shuffled) -> Any:
    """A `ray.data.Dataset` with a block for each partition, in the order of the partitions. It is a copy, so the partitions may be released."""
    _found.connected()
    import ray.data

    return ray.data.from_arrow_refs(shuffled.map(_whole))


def _whole(tables: Iterator[Any]) -> Any:
    import pyarrow

    found = list(tables)
    return pyarrow.concat_tables(found) if found else pyarrow.table({})
