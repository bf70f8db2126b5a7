"""Threads that share clients, tensors, buffers and calls, with the interpreter's lock or without: free-threaded Python runs them at once."""

from __future__ import annotations

import gc
import threading

import numpy as np
import pytest
import transferd as td
from conftest import GIVE_UP, until

THREADS = 8


def at_once(work):
    """Runs `work(n)` on each of 8 threads, which begin together. Raises what the first of them raised."""
    start, errors = threading.Barrier(THREADS), []

    def run(n):
        try:
            start.wait(GIVE_UP)
            work(n)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(n,)) for n in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(3 * GIVE_UP)
        assert not thread.is_alive(), "a thread hangs"
    if errors:
        raise errors[0]


# Promise: python-threads
def test_threads_push_fetch_and_view_with_one_client(sidecar, c):
    before, free = sidecar.held(), c.arena_free_bytes

    def work(n):
        for i in range(1, 101):
            with c.produce(f"own-{n}", 32, "int64", version=i) as buffer:
                buffer.numpy()[:] = n * 1000 + i
            c.push_state(f"state-{n}", {"a": np.full(4, i), "b": np.full(3, n)}, version=i)
            # A neighbour may be behind or ahead, and every version of it is whole.
            tensor = c.fetch(f"own-{(n + 1) % THREADS}", timeout=GIVE_UP)
            view, capsule = tensor.numpy(), np.from_dlpack(tensor)
            assert (view == view[0]).all() and (capsule == view).all() and view[0] // 1000 == (n + 1) % THREADS
            state = c.fetch_state(f"state-{(n + 3) % THREADS}", timeout=GIVE_UP)
            assert state["a"].numpy()[0] == state.version and state["b"].numpy().tolist() == [(n + 3) % THREADS] * 3
            later = c.fetch_later(f"own-{n}", exactly=i)
            assert later.result(GIVE_UP).version == i
            repr(tensor), repr(view), c.counter("calls").add(1)

    at_once(work)
    assert c.counter("calls").get() == THREADS * 100
    for n in range(THREADS):
        c.delete(f"own-{n}")
        c.delete(f"state-{n}")
    gc.collect()
    until("the arena is as before", lambda: c.arena_free_bytes == free)
    until("the sidecar holds nothing", lambda: sidecar.held()["leases"] == before["leases"])


# Promise: python-threads
def test_threads_share_one_tensor_and_its_views(c):
    c.push("w", np.arange(1 << 16, dtype="float32"))
    tensor, expected = c.fetch("w"), np.arange(1 << 16, dtype="float32")

    def work(_):
        for _ in range(50):
            views = [tensor.numpy(), np.asarray(memoryview(tensor)), np.from_dlpack(tensor), np.asarray(tensor)]
            assert all((view == expected).all() for view in views)
            tensor.__dlpack__(), tensor.version, tensor.shape, tensor.report.copied, repr(tensor)

    at_once(work)
    assert tensor.exports_copied == 0


# Promise: python-threads
def test_one_thread_takes_a_buffer_and_the_others_hear_of_it(c):
    for version in range(1, 51):
        buffer = c.empty(1 << 10)
        taken, refused = [], []

        def work(n, buffer=buffer, version=version, taken=taken, refused=refused):
            try:
                view = buffer.numpy()
                del view
                taken.append(c.push("w", buffer, version=version).version)
            except td.Error as error:
                # Another thread has pushed it, or has a view of it.
                refused.append(error.code)

        at_once(work)
        assert len(taken) + len(refused) == THREADS and len(taken) <= 1
        assert set(refused) <= {"pushed", "still_exported"} and buffer.pushed == bool(taken)


# Promise: shared-calls
def test_threads_wait_for_one_call_and_one_gives_it_up(c):
    for _ in range(20):
        later, ends = c.fetch_later("never", timeout=GIVE_UP), []

        def work(n, later=later, ends=ends):
            if n == 0:
                until("it is given up", lambda: later.cancel() or later.done())
            with pytest.raises(td.Error) as e:
                later.result(GIVE_UP)
            ends.append(e.value.code)

        at_once(work)
        assert ends == ["cancelled"] * THREADS


def test_threads_close_a_client_that_others_use(sidecar):
    for _ in range(10):
        client = td.connect(sidecar.path, arena="4MiB")
        client.push("k", b"1")

        def work(n, client=client):
            try:
                for _ in range(20):
                    assert bytes(client.fetch("k", timeout=GIVE_UP)) == b"1"
                    client.closed, client.gone, client.arena_free_bytes
                    if n == 0:
                        client.close()
            except td.Error as error:
                # Its keys end with the session, which may be before the call.
                assert error.code in ("closed", "sidecar_gone", "unknown_key", "version_gone"), error

        at_once(work)
        assert client.closed


# Promise: python-threads
def test_a_waiting_thread_frees_what_another_thread_drops(c):
    # In free-threaded Python the thread that made an object frees it, also where that thread waits for the memory.
    kept = [c.empty(1 << 20, "uint8") for _ in range(63)]
    threading.Timer(0.05, kept.clear).start()
    assert c.empty(8 << 20, "uint8", timeout=GIVE_UP).nbytes == 8 << 20
