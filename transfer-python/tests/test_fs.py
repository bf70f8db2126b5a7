"""`transfer://`, the file system of fsspec."""

from __future__ import annotations

import multiprocessing
import pickle
import tempfile
from pathlib import Path

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import transferd as td
from conftest import Sidecar, until
from transferd.fs import TransferFileSystem


@pytest.fixture(scope="module")
def sidecar():
    """One for these tests alone, for files outlive the processes that wrote them."""
    with tempfile.TemporaryDirectory(prefix="transfer-python-") as name:
        sidecar = Sidecar(Path(name))
        yield sidecar
        sidecar.stop()


@pytest.fixture
def fs(sidecar):
    fs = mount(sidecar)
    yield fs
    if fs.ls(""):
        fs.rm("", recursive=True)
    unmount(fs)


def mount(sidecar):
    return fsspec.filesystem("transfer", socket=sidecar.path, skip_instance_cache=True)


def unmount(fs):
    for client in [fs._home, *fs._arenas]:
        client.close()


# Promise: fs-files, seen to fail
def test_files_are_written_read_listed_and_found(fs):
    fs.pipe("transfer://a/one", b"12345")
    with fs.open("a/b/two", "wb", block_size=4) as file:
        for _ in range(3):
            file.write(b"abc")
    assert fs.cat("a/b/two") == b"abcabcabc" and fs.cat_file("/a/one", 1, -1) == b"234" and fs.cat_file("a/one", -2) == b"45"
    assert fs.ls("a", detail=False) == ["a/b", "a/one"] and fs.ls("", detail=False) == ["a"] and fs.find("a") == ["a/b/two", "a/one"]
    assert fs.info("a/b")["type"] == "directory" and fs.info("a/one")["size"] == 5 and fs.isdir("a") and fs.isfile("a/one")
    assert fs.glob("a/**/t*") == ["a/b/two"] and fs.exists("a/one") and not fs.exists("a/on")
    with fs.open("a/one", "rt") as text:
        assert text.read() == "12345"
    with fs.open("a/b/two", "rb", block_size=2) as file:
        file.seek(4)
        assert file.read(3) == b"bca" and file.tell() == 7
    with fs.open("a/one", "ab") as file:
        file.write(b"678")
    assert fs.cat("a/one") == b"12345678"
    fs.touch("a/empty")
    assert fs.cat("a/empty") == b"" and fs.info("a/empty")["size"] == 0 and fs.created("a/one") <= fs.modified("a/empty")
    fs.makedirs("new/folder", exist_ok=True)


# Promise: fs-files
def test_files_are_moved_copied_and_removed_and_memory_comes_back(fs, sidecar):
    fs.pipe("first", b"1")
    fs.rm("first")
    before = sidecar.held()["blobs"]
    fs.pipe({"a/one": b"1" * 1000, "a/b/two": b"2" * 1000})
    fs.mv("a", "c")
    fs.cp_file("c/one", "one")
    assert fs.find("") == ["c/b/two", "c/one", "one"] and fs.cat("c/b/two") == b"2" * 1000
    fs.rm("c", recursive=True)
    assert fs.find("") == ["one"] and fs.cat("one") == b"1" * 1000
    fs.rename("one", "last")
    fs.pipe("last", b"another")
    assert fs.cat("last") == b"another" and fs.find("") == ["last"]
    fs.rm("last")
    assert fs.find("") == []
    until("nothing is left but the index", lambda: sidecar.held()["blobs"] == before)


# Promise: fs-errors
def test_errors_are_those_of_files(fs):
    fs.pipe("a/one", b"1")
    for call in (lambda: fs.cat("a/none"), lambda: fs.ls("none"), lambda: fs.rm("none"), lambda: fs.open("none", "rb"), lambda: fs.mv("none", "b")):
        with pytest.raises(FileNotFoundError, match="none"):
            call()
    with pytest.raises(FileExistsError, match="a/one"):
        fs.open("a/one", "xb")
    for call in (lambda: fs.open("a", "rb"), lambda: fs.rm("a"), lambda: fs.cat_file("a")):
        with pytest.raises(IsADirectoryError, match="transfer://a"):
            call()
    with pytest.raises(OSError, match="has files"):
        fs.rmdir("a")


# Promise: fs-versions, seen to fail
def test_a_reader_keeps_the_file_that_it_has_opened(fs):
    fs.pipe("one", b"first")
    file = fs.open("one", "rb", block_size=1, cache_type="none")
    assert file.read(1) == b"f"
    fs.pipe("two", b"second")
    fs.mv("two", "one")
    with pytest.raises(td.Error):
        # Its bytes are gone, and no others come in their place.
        file.read(1)
    assert fs.cat("one") == b"second"


# Promise: fs-processes, seen to fail
def test_files_of_other_processes_are_seen_and_removed(fs, sidecar):
    other = mount(sidecar)
    other.pipe({"a": b"theirs", "b": b"theirs"})
    fs.pipe("c", b"ours")
    assert fs.find("") == other.find("") == ["a", "b", "c"] and fs.cat("a") == b"theirs"
    fs.pipe("a", b"ours")
    assert other.cat("a") == b"ours"
    other.rm("a")
    fs.rm("b")
    assert fs.find("") == other.find("") == ["c"]
    other.pipe("d", b"stays")
    unmount(other)
    assert fs.cat("d") == b"stays"
    again = pickle.loads(pickle.dumps(fs))
    assert again.cat("c") == b"ours"
    fs.rm("d")
    assert not again.exists("d")


def write(path, number):
    fs = fsspec.filesystem("transfer", socket=path)
    fs.pipe(f"part/{number}", bytes([number]) * 100)


def sees(pipe):
    """What a process without a socket has, beside another one."""
    fs = fsspec.filesystem("transfer")
    fs.pipe("theirs", b"1")
    pipe.send(fs.find(""))
    pipe.recv()
    pipe.send(fs.find(""))


# Promise: fs-jobs
def test_without_a_socket_processes_do_not_meet():
    ours, theirs = (context := multiprocessing.get_context("spawn")).Pipe()
    child = context.Process(target=sees, args=(theirs,))
    child.start()
    fs = fsspec.filesystem("transfer", skip_instance_cache=True)
    fs.pipe("ours", b"1")
    assert ours.recv() == ["theirs"] and fs.find("") == ["ours"]
    ours.send("look again")
    assert ours.recv() == ["theirs"]
    child.join()
    unmount(fs)


# Promise: fs-processes
def test_processes_write_beside_each_other(fs, sidecar):
    context = multiprocessing.get_context("spawn")
    children = [context.Process(target=write, args=(sidecar.path, number)) for number in range(4)]
    for child in children:
        child.start()
    for child in children:
        child.join()
        assert child.exitcode == 0
    assert fs.cat(fs.find("part")) == {f"part/{n}": bytes([n]) * 100 for n in range(4)}


# Promise: fs-urls
def test_arrow_reads_and_writes_by_url(sidecar, fs):
    options = {"socket": sidecar.path}
    table = pa.table({"n": list(range(1000))})
    with fsspec.open("transfer://t/part.parquet", "wb", **options) as file:
        pq.write_table(table, file)
    assert pq.read_table("t/part.parquet", filesystem=fs) == table
    assert isinstance(fsspec.filesystem("transfer", **options), TransferFileSystem)


# Promise: fs-nodes, seen to fail
def test_a_range_of_a_file_of_another_node_moves_alone(folder):
    (folder / "a").mkdir()
    (folder / "b").mkdir()
    flags = ["--shm", "off", "--verbs", "off"]
    one = Sidecar(folder / "a", "--node", "a", "--directory", "embedded", "--listen", "127.0.0.1:0", *flags)
    address = next(word.split("=", 1)[1] for word in one.ready.split() if word.startswith("grpc="))
    two = Sidecar(folder / "b", "--node", "b", "--directory", f"http://{address}", "--listen", "127.0.0.1:0", *flags)
    try:
        near, far = mount(one), mount(two)
        near.pipe("large", bytes(range(256)) * 4096)
        far.pipe("own", b"here")
        assert near.find("") == far.find("") == ["large", "own"]
        assert far.cat_file("large", 1000, 1004) == bytes([232, 233, 234, 235])
        assert far._home.fetch(far.info("large")["data"], slice=slice(0, 64)).report.bytes == 64
        assert far.cat("large") == near.cat("large")
        # With its sidecar goes what it had, and its part of the index.
        unmount(far)
        two.kill()
        until("the directory knows it", lambda: near.find("") == ["large"])
        unmount(near)
    finally:
        two.stop()
        one.stop()
