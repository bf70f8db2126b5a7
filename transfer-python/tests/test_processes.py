"""Fork, spawn and pickle."""

from __future__ import annotations

import copy
import json
import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import threading
import traceback

import numpy as np
import pyarrow as pa
import pytest
import transferd as td
from conftest import GIVE_UP, until


def in_child(what):
    """Runs it in a forked child, which ends without anything of its parent's; answers whether it went well."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            what()
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(code)
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status) == 0


# Promise: python-forks
def test_in_a_forked_child(c, sidecar):
    c.push("w", np.arange(1 << 16))
    tensor = c.fetch("w")
    view = tensor.numpy()
    buffer = c.empty(8)
    later = c.fetch_later("never")
    keep = [c.fetch("w"), np.from_dlpack(c.fetch("w")), c.empty(8)]
    counter = c.counter("n")

    def child():
        calls = [
            lambda: c.fetch("w"),
            lambda: c.push("k", b"1"),
            lambda: c.push("k", buffer),
            lambda: c.empty(1),
            lambda: c.fetch_later("w").result(),
            lambda: c.fetch_many(["w"]),
            lambda: counter.add(1),
            lambda: c.barrier("b", 1).wait(),
            lambda: c.take_back("w"),
            lambda: c.arena_free_bytes,
        ]
        for call in calls:
            with pytest.raises(td.Forked) as e:
                call()
            assert (e.value.code, e.value.can_retry) == ("forked", False)
        # Views stay readable, and dropping what was inherited does nothing.
        assert view[-1] == (1 << 16) - 1 and tensor.numpy()[1] == 1
        keep.clear()
        later.cancel()
        c.close()
        with td.connect(sidecar.path, arena="1MiB") as own:
            assert own.fetch("w").numpy()[-1] == (1 << 16) - 1
            own.push("from-child", b"1", outlive=True, takeover=True)

    before = sidecar.held()["leases"]
    assert in_child(child)
    until("the child's session is over", lambda: sidecar.counters()["sessions"] == 1)
    assert sidecar.held()["leases"] == before
    assert c.fetch("w").numpy()[5] == 5 and (keep[1][:3] == [0, 1, 2]).all()
    assert bytes(c.fetch("from-child")) == b"1"
    c.push("k", buffer)


# Promise: python-forks
def test_a_forked_child_leaves_the_fetches_into_buffers_of_its_parent_alone(c):
    buffers = [c.empty((256, 256), "float32") for _ in range(2)]
    views = [buffer.numpy() for buffer in buffers]
    calls = [
        c.fetch_later("into-one", into=buffers[0]),
        c._fetch_bundle_into("into-state", [("w", views[1].ctypes.data, "float32", (256, 256), None)], None, {"timeout": 60.0}),
    ]
    for call in calls:
        assert not call.done()

    assert in_child(calls.clear)
    c.push("into-one", np.full((256, 256), 1, "float32"))
    c.push_state("into-state", {"w": np.full((256, 256), 2, "float32")})
    for number, (call, view) in enumerate(zip(calls, views)):
        call.result(GIVE_UP)
        assert (view == number + 1).all() and not buffers[number].pushed


# Promise: python-forks
def test_a_fork_while_other_threads_call(c, sidecar):
    c.push("w", np.arange(1 << 16))
    stop = threading.Event()

    def busy():
        while not stop.is_set():
            with c.produce(f"busy-{threading.get_ident()}", 64) as b:
                b.numpy()[:] = 1
            c.fetch("w")

    threads = [threading.Thread(target=busy) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(20):
            inherited = [c.fetch("w"), c.empty(8), c.fetch_later("never")]

            def child(inherited=inherited):
                inherited.clear()
                with pytest.raises(td.Forked):
                    c.fetch("w")

            assert in_child(child)
    finally:
        stop.set()
        for thread in threads:
            thread.join(GIVE_UP)


# Promise: python-forks
def test_an_embedded_sidecar_in_a_forked_child():
    with td.embedded(arena="1MiB") as c:
        assert isinstance(c.path, str)
        c.push("w", b"hello")

        def child():
            with pytest.raises(td.Forked):
                c.fetch("w")
            with td.connect(c.path) as own:
                assert bytes(own.fetch("w")) == b"hello"
            with td.embedded(arena="1MiB") as another:
                assert another.path != c.path

        assert in_child(child)
        assert bytes(c.fetch("w")) == b"hello"


@pytest.mark.parametrize("fabric", ["tcp", "shm"])
def test_embedded_sidecars_of_two_processes_are_nodes_of_one_cluster(fabric):
    settings = {"listen": "127.0.0.1:0", "pool_bytes": "16MiB", "verbs": "off", "shm": "on" if fabric == "shm" else "off"}
    with td.embedded(arena="1MiB", sidecar={"node": "trainer-0", **settings}) as c:
        assert c.node == "trainer-0"
        directory = f"http://{td.embedded_address()}"
        other = """
import json, sys
import transferd as td

with td.embedded(arena="1MiB", sidecar=json.loads(sys.argv[1])) as c:
    w = c.fetch("w")
    assert bytes(w) == b"hello" and w.report.fabric == sys.argv[2], w.report
    c.push("answer", b"hello yourself")
    assert bytes(c.fetch("done")) == b"1"
"""
        c.push("w", b"hello")
        theirs = json.dumps({"node": "trainer-1", "directory": directory, **settings})
        child = subprocess.Popen([sys.executable, "-c", other, theirs, fabric])
        try:
            answer = c.fetch("answer", timeout=GIVE_UP)
            assert bytes(answer) == b"hello yourself" and answer.report.fabric == fabric, answer.report
            c.push("done", b"1")
            assert child.wait(GIVE_UP) == 0
            # It holds the sidecar.
            del answer
        finally:
            child.kill()
            child.wait()
    assert td.embedded_address() is None


def test_wrong_settings_of_an_embedded_sidecar_are_named():
    for settings, expected in [
        ({"node": "n", "listne": "127.0.0.1:0"}, 'the key "listne" is none that transferd knows; "listen" is one'),
        ({"node": "n", "listen": "here"}, 'listen = "here": an address is IP:PORT'),
        ({"node": "n", "socket": "/tmp/s"}, "socket is for the program transferd"),
        ({"node": "n", "huge_pages": "perhaps"}, 'huge_pages = "perhaps": it can be true, false'),
    ]:
        with pytest.raises(td.Error) as error:
            td.embedded(sidecar=settings)
        assert expected in str(error.value)
    with pytest.raises(ValueError, match='"node" is None'):
        td.embedded(sidecar={"node": None})
    with pytest.raises(td.Error, match='--listen 127.0.0.1:0 makes this process a node of a cluster: also give "node"'):
        td.embedded(sidecar={"listen": "127.0.0.1:0"})
    with td.embedded(sidecar={"pinned_limit": "1GiB"}, arena="1MiB") as c:
        assert c.node == "embedded"
        with pytest.raises(td.Error, match="of the configured 1073741824 are free|at most"):
            td.connect(c.path, arena="2GiB")
    with td.embedded(sidecar={"node": "n", "huge_pages": False, "pool_bytes": 1 << 20}):
        with pytest.raises(td.Error, match='its pool_bytes is "1048576", not "2097152"'):
            td.embedded(sidecar={"node": "n", "huge_pages": False, "pool_bytes": 2 << 20})


def worker(client, key, queue):
    with client:
        queue.put((client.fetch(key).numpy().sum(), client.name))
        # It stays when its worker is gone.
        client.push(f"{key}/done", b"1", outlive=True, takeover=True)


KILLED = """
import os, signal, sys, transferd as td
c = td.embedded(arena="1MiB")
if os.fork() == 0:
    print(c.path, flush=True)
    sys.stdin.read()
    os._exit(0)
os.kill(os.getpid(), signal.SIGKILL)
"""

NEXT = """
import transferd as td
with td.embedded(arena="1MiB") as c:
    print(c.path)
"""


# Promise: embedded-folders
def test_the_next_embedded_sidecar_removes_the_folder_of_a_killed_one(tmp_path):
    own = {**os.environ, "TMPDIR": str(tmp_path)}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "env": own}
    # Its forked child lives on, until its stdin ends.
    with subprocess.Popen([sys.executable, "-c", KILLED], **pipes) as killed:
        folder = os.path.dirname(killed.stdout.readline().strip())
        assert killed.wait(GIVE_UP) == -signal.SIGKILL
        assert os.path.dirname(folder) == str(tmp_path) and os.path.exists(folder)
        done = subprocess.run([sys.executable, "-c", NEXT], env=own, capture_output=True, text=True)
        assert (done.returncode, done.stderr) == (0, "")
        assert os.listdir(tmp_path) == []


# Promise: clients-as-arguments
@pytest.mark.parametrize("method", ["spawn", "forkserver", "fork"])
@pytest.mark.parametrize("embedded", [False, True])
def test_a_client_goes_to_another_process_as_its_arguments(sidecar, method, embedded):
    context = multiprocessing.get_context(method)
    with td.embedded(arena="1MiB") if embedded else td.connect(sidecar.path, arena="1MiB") as c:
        c.push("w", np.arange(10))
        queue = context.Queue()
        # A forked child inherits its arguments: it pickles by hand.
        given = pickle.loads(pickle.dumps(c)) if method == "fork" else c
        if method == "fork":
            given.close()
            process = context.Process(target=unpickled_worker, args=(pickle.dumps(c), "w", queue))
        else:
            process = context.Process(target=worker, args=(given, "w", queue))
        process.start()
        total, name = queue.get(timeout=GIVE_UP)
        process.join(GIVE_UP)
        assert process.exitcode == 0
        assert total == 45 and name != c.name
        assert c.fetch("w/done").version == 1


def unpickled_worker(pickled, key, queue):
    worker(pickle.loads(pickled), key, queue)


# Promise: clients-as-arguments
def test_what_pickles(sidecar):
    with td.connect(sidecar.path, name="me", arena="2MiB") as c:
        function, arguments = c.__reduce__()
        path, others = arguments[0]
        assert (path, others["name"], others["arena"]) == (sidecar.path, "me", "2MiB")
        with pytest.raises(td.Timeout) as e:
            c.fetch("none", timeout=0)
    error = pickle.loads(pickle.dumps(e.value))
    assert type(error) is td.Timeout
    assert (error.code, error.key, str(error)) == (e.value.code, "none", str(e.value))


def summed(queue, array, key, version, path):
    with td.connect(path, arena=0) as c:
        queue.put((float(array.sum()), float(c.fetch(key, exactly=version).numpy().sum())))


# Promise: pickles
def test_a_tensor_does_not_pickle_and_its_array_and_key_do(c, sidecar):
    buffer = c.empty(4)
    c.push("w", np.arange(10))
    c.push_state("s", {"w": np.arange(10)})
    c.push_table("t", pa.table({"n": [1]}))
    v, state, table = c.fetch("w"), c.fetch_state("s"), c.fetch_table("t")
    context = multiprocessing.get_context("spawn")
    for what, says in (
        (v, f"the tensor 'w' of version {v.version} .*: pass its key and version and fetch it there, or .* v.numpy()"),
        (state, f"the tensor 's' of version {state.version} .*: pass its key"),
        (table, "the table of version 1 .*: pass its key and version .* t.pyarrow()"),
        (buffer, "a buffer .*: push it and pass its key, or pass a copy, b.numpy()"),
    ):
        with pytest.raises(td.Invalid, match=says.replace("'", '"').replace("()", r"\(\)")):
            pickle.dumps(what)
        with pytest.raises(td.Invalid, match="cannot be pickled"):
            context.Process(target=print, args=(what,)).start()
    queue = context.Queue()
    process = context.Process(target=summed, args=(queue, v.numpy(), v.key, v.version, sidecar.path))
    process.start()
    assert queue.get(timeout=GIVE_UP) == (45, 45)
    process.join(GIVE_UP)
    assert process.exitcode == 0


# Promise: pickles
def test_what_never_changes_is_its_own_copy(c):
    c.push_state("s", {"w": np.arange(10)})
    state = c.fetch_state("s")
    for of in (copy.copy, copy.deepcopy):
        again = of(state)
        assert type(again) is td.State and again.version == state.version
        assert again["w"] is state["w"] and again.report is not None and again is not state
    with pytest.raises(td.Invalid, match="push it"):
        copy.deepcopy(c.empty(4))
