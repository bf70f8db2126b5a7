"""pandas and DCP's own fsspec writer on `transfer://`."""

from __future__ import annotations

import pandas as pd
import pytest
import torch
import torch.distributed.checkpoint as dcp
from test_fs import sidecar  # noqa: F401
from torch.distributed.checkpoint.fsspec_filesystem import FsspecReader, FsspecWriter


# Promise: fs-urls
def test_pandas_writes_and_reads_by_url(sidecar):  # noqa: F811
    frame = pd.DataFrame({"n": range(100), "name": [str(n) for n in range(100)]})
    options = {"socket": sidecar.path}
    frame.to_parquet("transfer://frames/one.parquet", storage_options=options)
    frame.to_csv("transfer://frames/one.csv", index=False, storage_options=options)
    for found in (pd.read_parquet("transfer://frames/one.parquet", storage_options=options), pd.read_csv("transfer://frames/one.csv", storage_options=options)):
        assert found["n"].tolist() == frame["n"].tolist()


# Promise: fs-urls
@pytest.mark.filterwarnings("ignore")
def test_dcps_fsspec_writer_saves_and_loads_by_url(sidecar):  # noqa: F811
    for value in (1.0, 2.0):
        state = {"w": torch.full((1000,), value), "step": int(value)}
        dcp.save(state, storage_writer=FsspecWriter("transfer://checkpoints/step", socket=sidecar.path))
        found = {"w": torch.zeros(1000), "step": 0}
        dcp.load(found, storage_reader=FsspecReader("transfer://checkpoints/step", socket=sidecar.path))
        assert torch.equal(found["w"], state["w"]) and found["step"] == state["step"]
