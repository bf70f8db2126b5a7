"""Sorting by columns: bounds between the partitions, of a sample of the rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

# The rows of a sample, for each partition: the largest partition is then rarely twice as large as it should be.
_ROWS = 100


def sample(block: Any, columns: Sequence[str], rows: int) -> Any:
    """Rows of a block, evenly spaced, with these columns alone."""
    import pyarrow

    table = rows_of(block).select(list(columns))
    step = max(1, table.num_rows // max(1, rows))
    return table.take(pyarrow.array(range(step // 2, table.num_rows, step), pyarrow.int64()))


def bounds(samples: Sequence[Any], columns: Sequence[str], partitions: int) -> Any | None:
    """The rows at which partitions begin, in order: one fewer than there are partitions. None where there are no rows."""
    import pyarrow

    found = in_order(pyarrow.concat_tables(samples), columns)
    if found.num_rows == 0:
        return None
    places = [found.num_rows * number // partitions for number in range(1, partitions)]
    return found.take(pyarrow.array(places, pyarrow.int64()))


def rows_per_block(blocks: int, partitions: int) -> int:
    """How many rows a sample takes of each block."""
    return -(-_ROWS * partitions // max(1, blocks))


def in_order(table: Any, columns: Sequence[str]) -> Any:
    """The rows of a table in the order that an exchange compares by: null, then rising values, and NaN at the end."""
    import pyarrow
    from pyarrow import compute

    keys = []
    for name in columns:
        column = table.column(name)
        # pyarrow puts null at the end, and NaN, which belongs there.
        keys += [compute.is_valid(column), column]
    # Columns of a table may have the names of these.
    sorted_by = pyarrow.table(keys, names=[str(number) for number in range(len(keys))])
    return table.take(compute.sort_indices(sorted_by, sort_keys=[(name, "ascending") for name in sorted_by.column_names]))


def rows_of(block: Any) -> Any:
    """A table of pyarrow, of a block: a table, record batches, or a function that returns one."""
    import pyarrow

    found = block() if callable(block) else block
    return found if isinstance(found, pyarrow.Table) else pyarrow.table(found)
