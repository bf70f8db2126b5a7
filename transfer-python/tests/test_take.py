"""Rows of tensors, by their indices."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import numpy as np
import pytest
import transferd as td
from conftest import Sidecar, start_two
from test_tensors import DTYPES, values


@pytest.fixture(scope="module")
def nodes(tmp_path_factory) -> Iterator[tuple[td.Client, td.Client, str]]:
    """Clients at two nodes, between which bytes go over TCP, and the path of the second."""
    a, b = start_two(tmp_path_factory, "--shm", "off")
    with td.connect(a.path, arena="64MiB") as giver, td.connect(b.path) as taker:
        yield giver, taker, b.path
    b.stop()
    a.stop()


# Promise: python-rows
@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_are_those_of_numpy(nodes, dtype: str) -> None:
    giver, taker, _ = nodes
    w = values(dtype, (50, 3, 8))
    giver.push(f"rows/{dtype}", w)
    for indices in ([7], [49, 0, 0, 7, 8], range(50), [], np.array([3, 1], "uint8"), np.arange(49, -1, -2)):
        listed = [int(index) for index in indices]
        for client in (giver, taker):
            found = client.take(f"rows/{dtype}", indices)
            assert (found.shape, found.dtype) == ((len(listed), 3, 8), dtype)
            assert found.numpy().tobytes() == w[listed].tobytes()
            assert client is taker or found.report.copied == found.nbytes


# Promise: python-rows
def test_a_hundred_thousand_rows(nodes) -> None:
    giver, taker, path = nodes
    w = np.arange(300_000 * 4, dtype="float32").reshape(-1, 4)
    giver.push("many", w)
    indices = np.random.default_rng(4).integers(0, len(w), 100_000)
    for client in (giver, taker):
        assert np.array_equal(client.take("many", indices).numpy(), w[indices])

    async def run() -> None:
        async with td.aio.connect(path) as c:
            some, few = await asyncio.gather(c.take("many", indices[:3000]), c.take("many", [1], exactly=1))
            assert np.array_equal(some.numpy(), w[indices[:3000]]) and np.array_equal(few.numpy(), w[1:2])

    asyncio.run(run())


# Promise: python-rows
def test_what_is_no_row_is_refused(nodes) -> None:
    giver, taker, _ = nodes
    giver.push("few", np.zeros((3, 4), "float32"))
    for client in (giver, taker):
        for index in (3, -1, -(2**63)):
            with pytest.raises(td.Invalid, match=rf"slice \[{index}\] does not fit shape \[3, 4\]: index {index} is no row, 0 to 2 would fit"):
                client.take("few", [0, index])
        for wrong in (3, "01", [0.5], [True], np.array([0.0]), np.array([[0]]), np.array([True, False, True]), [2**63], np.array([2**63], "uint64"), None):
            with pytest.raises(td.Invalid, match="indices are whole numbers from"):
                client.take("few", wrong)
        with pytest.raises(td.Timeout):
            client.take("nobody", [0], timeout=0.05)
        with pytest.raises(td.VersionGone):
            giver.push("gone", np.zeros(2)), giver.push("gone", np.zeros(2))
            client.take("gone", [0], exactly=giver.fetch("gone").version - 1)
