"""Checkpoints of torch's DCP in the memory of the job: its planners, its modes, and ranks that are processes with gloo."""

from __future__ import annotations

import contextlib
import os

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.multiprocessing as mp
import transferd as td
from conftest import Sidecar
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, DefaultSavePlanner
from torch.distributed.checkpoint.planner import WriteItemType
from torch.distributed.checkpoint.state_dict import get_state_dict
from torch.distributed.checkpoint.state_dict_loader import _load_state_dict_from_keys
from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from transferd import checkpoint
from transferd.checkpoint import TransferReader, TransferWriter

pytestmark = pytest.mark.filterwarnings("ignore")


def new_state(fill=None):
    """Entries of all kinds; with `fill` the same with other values."""
    tensor = (lambda t: t) if fill is None else (lambda t: torch.full_like(t, fill))
    return {
        "w": tensor(torch.arange(24.0).reshape(4, 6)),
        "view": tensor(torch.arange(12, dtype=torch.int64).reshape(3, 4).t()),
        "nested": {"half": tensor(torch.randn(300, dtype=torch.bfloat16)), "list": [tensor(torch.tensor(3)), tensor(torch.empty(0, 3))]},
        "step": 7 if fill is None else 0,
        "words": ["a", "b"] if fill is None else ["", ""],
    }


def assert_equal(found, wanted):
    assert found["step"] == wanted["step"] and found["words"] == wanted["words"]
    pairs = [(found[name], wanted[name]) for name in ("w", "view")] + [(found["nested"]["half"], wanted["nested"]["half"])]
    pairs += list(zip(found["nested"]["list"], wanted["nested"]["list"]))
    for a, b in pairs:
        assert a.dtype == b.dtype and torch.equal(a, b)


@pytest.fixture
def writer():
    writer = TransferWriter()
    yield writer
    writer.close()


def load(state, name, **options):
    dcp.load(state, checkpoint_id=name, storage_reader=TransferReader(timeout=5.0), **options)
    return state


class Renaming(DefaultSavePlanner):
    def set_up_planner(self, state_dict, storage_meta=None, is_coordinator=False):
        super().set_up_planner({"foo_" + name: value for name, value in state_dict.items()}, storage_meta, is_coordinator)


class Halving(DefaultSavePlanner):
    def create_local_plan(self):
        plan = super().create_local_plan()
        for item in plan.items:
            if item.tensor_data is not None:
                item.tensor_data.properties.dtype = torch.float16
        return plan

    def resolve_data(self, write_item):
        item = super().resolve_data(write_item)
        return item if write_item.type == WriteItemType.BYTE_IO else item.to(torch.float16)


# Promise: dcp-planners
@pytest.mark.parametrize(
    "save, read",
    [
        (None, None),
        (DefaultSavePlanner(dedup_save_to_lowest_rank=True), DefaultLoadPlanner(allow_partial_load=True)),
        (DefaultSavePlanner(enable_plan_caching=True), None),
        (DefaultSavePlanner(flatten_state_dict=False, flatten_sharded_tensors=False), DefaultLoadPlanner(flatten_state_dict=False, flatten_sharded_tensors=False)),
    ],
)
def test_a_state_comes_back_with_each_planner(writer, save, read):
    for step in (1, 2):
        state = new_state()
        dcp.save(state, checkpoint_id=f"run/{step}", storage_writer=writer, planner=save)
        assert_equal(load(new_state(9), f"run/{step}", planner=read), state)


# Promise: dcp-planners
def test_planners_that_rename_and_cast_are_heard(writer):
    state = new_state()
    dcp.save(state, checkpoint_id="renamed", storage_writer=writer, planner=Renaming())
    assert torch.equal(load({"foo_w": torch.zeros(4, 6)}, "renamed")["foo_w"], state["w"])
    dcp.save({"w": state["w"]}, checkpoint_id="halved", storage_writer=writer, planner=Halving())
    found = load({"w": torch.zeros(4, 6, dtype=torch.float16)}, "halved")["w"]
    assert torch.equal(found, state["w"].half())
    dcp.save(state, checkpoint_id="keys", storage_writer=writer)
    found = _load_state_dict_from_keys("nested", storage_reader=TransferReader("keys"))["nested"]["half"]
    assert found.dtype == torch.bfloat16 and torch.equal(found, state["nested"]["half"])
    with pytest.raises(CheckpointException, match="Missing key"):
        load({"other": torch.zeros(2)}, "keys")


# Promise: dcp-async, seen to fail
@pytest.mark.parametrize("kind", list(AsyncCheckpointerType))
@pytest.mark.parametrize("stages", [True, False])
def test_an_async_save_has_what_the_state_was_when_it_was_called(kind, stages):
    with contextlib.ExitStack() as stack:
        if not dist.is_initialized():
            dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
            stack.callback(dist.destroy_process_group)
        os.environ.update(MASTER_ADDR="localhost", MASTER_PORT="0")
        writer = TransferWriter()
        stack.callback(writer.close)
        state, wanted = new_state(), None
        for step in (1, 2):
            wanted = {**new_state(), "nested": {"half": state["nested"]["half"].clone(), "list": [torch.tensor(3), torch.empty(0, 3)]}}
            stager = None if stages else dcp.staging.DefaultStager(dcp.staging.StagingOptions(False, False, False, False))
            done = dcp.async_save(state, checkpoint_id=f"run/{step}", storage_writer=writer, async_stager=stager, async_checkpointer_type=kind)
            state["w"].zero_()
            getattr(done, "upload_completion", done).result()
            assert_equal(load(new_state(9), f"run/{step}"), wanted)
            state["w"].copy_(wanted["w"])


# Promise: dcp-async, seen to fail
def test_what_was_staged_is_published_with_no_other_copy(writer, monkeypatch):
    copies = []
    monkeypatch.setattr(checkpoint, "staged", lambda client, tensor: copies.append(tensor.nbytes) or staged(client, tensor))
    staged = td._plug.staged
    state = {"w": torch.ones(1 << 20), "b": torch.ones(3)}
    dcp.async_save(state, checkpoint_id="run/1", storage_writer=writer).result()
    assert sorted(copies) == [12, 4 << 20]


# Promise: dcp-ends, seen to fail
def test_a_writer_keeps_its_newest_checkpoints_and_ends_the_others():
    writer = TransferWriter(keep=2)
    for step in range(1, 5):
        dcp.save({"w": torch.full((1 << 16,), float(step))}, checkpoint_id=f"run/{step}", storage_writer=writer)
    # It cannot know at the end of a save that the other ranks have ended theirs: the oldest goes when the next save begins.
    for step in (2, 3, 4):
        assert load({"w": torch.zeros(1 << 16)}, f"run/{step}")["w"].mean() == step
    with pytest.raises(CheckpointException, match="dcp/run/1/.metadata"):
        dcp.load({"w": torch.zeros(1 << 16)}, checkpoint_id="run/1", storage_reader=TransferReader(timeout=0.1))
    writer.delete("run/3")
    with pytest.raises(CheckpointException):
        dcp.load({"w": torch.zeros(1 << 16)}, checkpoint_id="run/3", storage_reader=TransferReader(timeout=0.1))
    assert load({"w": torch.zeros(1 << 16)}, "run/4")["w"].mean() == 4
    writer.close()
    with pytest.raises(CheckpointException):
        dcp.load({"w": torch.zeros(1 << 16)}, checkpoint_id="run/4", storage_reader=TransferReader(timeout=0.1))


class Failing(DefaultSavePlanner):
    def resolve_data(self, write_item):
        raise RuntimeError("this rank has failed")


# Promise: dcp-ends
def test_a_save_that_fails_leaves_the_checkpoints_before_it(writer):
    dcp.save({"w": torch.ones(8)}, checkpoint_id="run/1", storage_writer=writer)
    for _ in range(3):
        with pytest.raises(CheckpointException, match="this rank has failed"):
            dcp.save({"w": torch.ones(8)}, checkpoint_id="run/2", storage_writer=writer, planner=Failing())
    assert load({"w": torch.zeros(8)}, "run/1")["w"].sum() == 8
    dcp.save({"w": torch.full((8,), 2.0)}, checkpoint_id="run/1", storage_writer=writer)
    assert load({"w": torch.zeros(8)}, "run/1")["w"].sum() == 16


# Promise: dcp-errors, seen to fail
def test_a_version_that_has_ended_is_named(writer):
    dcp.save({"w": torch.ones(8)}, checkpoint_id="run/1", storage_writer=writer)
    reader = TransferReader("run/1", timeout=5.0)
    metadata = reader.read_metadata()
    (where,) = metadata.storage_data.values()
    client = writer._shelf.kept[-1].published[0][0]
    client.push_state(where.key, {"other": np.ones(1)})
    with pytest.raises(CheckpointException, match=f"VersionGone.*{where.key}|{where.key}.*version"):
        dcp.load({"w": torch.zeros(8)}, storage_reader=OldMetadata(reader, metadata))


class OldMetadata(TransferReader):
    """A reader that has read the metadata some time ago."""

    def __init__(self, reader, metadata):
        self.__dict__.update(reader.__dict__)
        self.metadata = metadata

    def read_metadata(self):
        return self.metadata


# Promise: dcp-errors
def test_what_cannot_be_a_checkpoint_is_refused(c, sidecar):
    for name in ("", "/", "transfer://", None):
        with pytest.raises((td.Invalid, CheckpointException), match="checkpoint_id"):
            dcp.save({"w": torch.ones(2)}, storage_writer=TransferWriter(name, c))
    for state in ({"format": 2}, {"format": 1, "entries": "{}", "stored": '[["w"]]', "planner": None}, {"x": np.ones(1)}):
        c.push_state("dcp/foreign/.metadata", state)
        with pytest.raises(td.Invalid, match="no metadata of a checkpoint"):
            TransferReader("foreign", c).read_metadata()


# Promise: dcp-slices, seen to fail
def test_only_the_slices_of_the_plan_move_between_nodes(folder, monkeypatch):
    (folder / "a").mkdir()
    (folder / "b").mkdir()
    flags = ["--shm", "off", "--verbs", "off", "--pool-bytes", "64MiB"]
    one = Sidecar(folder / "a", "--node", "a", "--directory", "embedded", "--listen", "127.0.0.1:0", *flags)
    address = next(word.split("=", 1)[1] for word in one.ready.split() if word.startswith("grpc="))
    two = Sidecar(folder / "b", "--node", "b", "--directory", f"http://{address}", "--listen", "127.0.0.1:0", *flags)
    try:
        with td.connect(one.path, arena=0) as near, td.connect(two.path, arena=0) as far:
            # More than the pool, so slices come in several fetches, and the whole in buckets.
            large = torch.arange(24 << 20, dtype=torch.int32).reshape(6, -1, 1024)
            writer = TransferWriter("run/1", near)
            dcp.save({"large": large}, storage_writer=writer)
            fetched = []
            fetch = td.Client.fetch_state

            def counted(self, *arguments, **options):
                state = fetch(self, *arguments, **options)
                fetched.append(state.report.bytes)
                return state

            monkeypatch.setattr(td.Client, "fetch_state", counted)
            assert torch.equal(dcp_load({"large": torch.zeros_like(large)}, far)["large"], large)
            fetched.clear()
            part = Slice(large.shape, (2, 100, 0), (3, 2000, 512))
            reader = TransferReader("run/1", far)
            fetched.clear()
            part.load(reader)
            assert torch.equal(part.tensor, large[2:5, 100:2100, :512])
            # The metadata, and the slice: its bytes, and a line that lies between.
            assert len(fetched) == 2 and 0 <= fetched[1] - part.tensor.nbytes <= 64 and part.commits == 1
            part = Slice(large.shape, (0, 0, 1), (6, 4096, 1020))
            part.load(reader)
            assert torch.equal(part.tensor, large[:, :, 1:1021]) and part.commits == 1
            writer.close()
    finally:
        two.stop()
        one.stop()


def dcp_load(state, client):
    dcp.load(state, checkpoint_id="run/1", storage_reader=TransferReader(client=client))
    return state


class Slice:
    """A load plan for one box of the only tensor of a checkpoint."""

    def __init__(self, shape, offsets, lengths):
        self.offsets, self.lengths, self.tensor = offsets, lengths, torch.zeros(lengths, dtype=torch.int32)
        self.commits = 0

    def load(self, reader):
        metadata = reader.read_metadata()
        reader.set_up_storage_reader(metadata, True)
        (index,) = metadata.storage_data
        zero = torch.Size([0, 0, 0])
        item = dcp.planner.ReadItem(
            dcp.planner.LoadItemType.TENSOR, index, zero, index, torch.Size(self.offsets), torch.Size(self.lengths)
        )
        reader.read_data(dcp.planner.LoadPlan([item]), self).wait()

    def resolve_tensor(self, item):
        return self.tensor

    def commit_tensor(self, item, tensor):
        self.commits += 1


def model_of(seed):
    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Linear(17, 33), torch.nn.Tanh(), torch.nn.Linear(33, 5))


def trained(seed, mesh):
    model = model_of(seed)
    for layer in model:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    adam = torch.optim.AdamW(model.parameters())
    model(torch.ones(4, 17)).square().mean().backward()
    adam.step()
    return model, adam


def full(state):
    return {name: value.full_tensor() if hasattr(value, "full_tensor") else value for name, value in state.items()}


def rank_of(rank, ranks, path, port, folder, saves):
    os.environ.update(MASTER_ADDR="localhost", MASTER_PORT=str(port))
    dist.init_process_group("gloo", rank=rank, world_size=ranks)
    mesh = init_device_mesh("cpu", (ranks,))
    model, adam = trained(1 if saves else 2, mesh)
    parameters, moments = get_state_dict(model, adam)
    state = {"model": parameters, "adam": moments}
    with td.connect(path, arena=0) as client:
        if saves:
            writer = TransferWriter("fsdp", client)
            dcp.save(state, storage_writer=writer)
            gathered = [full(parameters), *(full(entry) for entry in moments["state"].values())]
            if rank == 0:
                torch.save(gathered, f"{folder}/wanted")
            # The ranks keep the checkpoint until it was loaded.
            client.barrier("loaded", ranks + 1).wait(timeout=120)
        else:
            dcp.load(state, storage_reader=TransferReader("fsdp", client))
            gathered = [full(parameters), *(full(entry) for entry in moments["state"].values())]
            if rank == 0:
                torch.save(gathered, f"{folder}/found")
    dist.destroy_process_group()


# Promise: dcp-resharding, seen to fail
def test_a_state_of_fsdp_goes_from_four_ranks_to_two_bit_for_bit(sidecar, folder):
    def start(ranks, saves):
        port = dist.TCPStore("localhost", 0, is_master=True, wait_for_workers=False).port
        return mp.start_processes(rank_of, args=(ranks, sidecar.path, port, str(folder), saves), nprocs=ranks, join=False, start_method="spawn")

    savers = start(4, True)
    with td.connect(sidecar.path, arena=0) as client:
        # It waits for the save.
        loaders = start(2, False)
        while not loaders.join():
            pass
        client.barrier("loaded", 5).wait(timeout=120)
        while not savers.join():
            pass
    wanted, found = torch.load(folder / "wanted"), torch.load(folder / "found")
    assert len(wanted) == len(found) == 5
    for a, b in zip(wanted, found):
        assert a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)



def saves_and_waits(path, pipe):
    with contextlib.ExitStack() as stack:
        client = None if path is None else stack.enter_context(td.connect(path, arena=0))
        dcp.save({"w": torch.ones(8)}, checkpoint_id="child/1", storage_writer=TransferWriter(client=client))
        pipe.send("saved")
        pipe.recv()


@pytest.mark.parametrize("shares", [True, False])
# Promise: dcp-deaths
def test_a_checkpoint_ends_with_its_process_and_jobs_do_not_meet(sidecar, shares):
    context = mp.get_context("spawn")
    ours, theirs = context.Pipe()
    child = context.Process(target=saves_and_waits, args=(sidecar.path if shares else None, theirs))
    child.start()
    assert ours.recv() == "saved"

    def found(client):
        state = {"w": torch.zeros(8)}
        dcp.load(state, checkpoint_id="child/1", storage_reader=TransferReader(client=client, timeout=0.5))
        return state["w"].sum() == 8

    with td.connect(sidecar.path, arena=0) if shares else td.embedded(arena=0) as client:
        if shares:
            assert found(client)
            child.kill()
            child.join()
        # Without a sidecar that both have, the other process has one of its own.
        with pytest.raises(CheckpointException, match="child/1/.metadata"):
            found(client)
    child.kill()
    child.join()
