"""Fetches of states into the caller's arrays: which tensors land there, and what is checked before the first is written."""

from __future__ import annotations

import asyncio
import pickle

import numpy as np
import pytest
import transferd as td
from test_into import move, nodes  # noqa: F401
from test_tensors import address
from transferd import _calls, _landing

SHORT = "copied: it landed beside, since it has less than 64 KiB"
FOREIGN = "copied: it landed beside, since its array is no part of a Buffer"


def state(version: int, step: int) -> dict:
    rows = np.full((256, 256), version, "float32")
    return {"model": {"w": rows, "v": rows + 1, "b": np.full(8, version, "float32")}, "step": step, "plain": rows + 2}


def zeros(client: td.Client) -> dict:
    w, v = (client.empty((256, 256), "float32") for _ in range(2))
    for buffer in (w, v):
        buffer.numpy()[:] = 0
    return {"model": {"w": w, "v": v.numpy(), "b": np.zeros(8, "float32")}, "step": 0, "plain": np.zeros((256, 256), "float32")}


def arrays(into: dict) -> list:
    return [np.asarray(value) for value in (*into["model"].values(), into["plain"])]


# Promise: python-into
def test_a_state_lands_in_the_buffers_of_its_reader(nodes) -> None:  # noqa: F811
    giver, taker, _ = nodes
    into = zeros(taker)
    for version in (1, 2, 3):
        giver.push_state("state", state(version, 10 * version), version=version)
        got = taker.fetch_state("state", into=into, at_least=version)
        assert got.version == version and into["step"] == 10 * version == got["step"]
        assert got.landings == {"model/w": "in place", "model/v": "in place", "model/b": SHORT, "plain": FOREIGN}
        w, v, b, plain = arrays(into)
        assert (w == version).all() and (v == version + 1).all() and (b == version).all() and (plain == version + 2).all()
        assert got["model"]["w"] is into["model"]["w"] and got["model"]["v"] is into["model"]["v"] and not into["model"]["w"].pushed
        # Beside what the sockets copy, up to 64 KiB of each range through the buffer of the stream: the short tensor, and the array that is no buffer.
        further = b.nbytes + plain.nbytes
        sockets = 2 * got.report.bytes
        assert sockets + further <= got.report.copied <= sockets + further + (192 << 10), got.report
    for options in ({"staged": True}, {"exactly": 3}):
        got = taker.fetch_state("state", into=into, **options)
        assert (got.landings["model/w"] == "in place") == ("exactly" in options)
    here = zeros(giver)
    got = giver.fetch_state("state", into=here)
    assert "this host" in got.landings["model/w"] and (here["model"]["w"].numpy() == 3).all()


# Promise: python-into
def test_a_state_lands_in_an_event_loop(nodes) -> None:  # noqa: F811
    giver, _, path = nodes
    giver.push_state("async", state(7, 1))

    async def run() -> None:
        async with await td.aio.connect(path, arena="8MiB") as client:
            w = await client.empty((256, 256), "float32")
            got = await client.fetch_state("async", into={"model": {"w": w}})
            assert got.landings == {"model/w": "in place"} and (w.numpy() == 7).all()

    asyncio.run(run())


# Promise: python-into, seen to fail
@pytest.mark.parametrize("wrong", ["shape", "name", "value", "kind"])
def test_nothing_lands_unless_all_of_the_state_fits(nodes, wrong: str) -> None:  # noqa: F811
    giver, taker, _ = nodes
    giver.push_state("fits", {**state(4, 4), "pair": (1, 2)})
    into = {**zeros(taker), "pair": (1, 2)}
    if wrong == "shape":
        into["model"]["b"] = np.zeros(9, "float32")
    elif wrong == "name":
        into["other"] = np.zeros(1)
    elif wrong == "value":
        into["pair"] = (1, 3)
    else:
        into["plain"] = [np.zeros((256, 256), "float32")]
    with pytest.raises((td.Invalid, KeyError)):
        taker.fetch_state("fits", into=into)
    assert not any(np.asarray(array).any() for array in into["model"].values()) and into["step"] == 0
    assert not into["model"]["w"].pushed


# Promise: python-into
def test_tied_entries_land_once(nodes) -> None:  # noqa: F811
    giver, taker, _ = nodes
    w = np.full((256, 256), 5, "float32")
    giver.push_state("tied", {"a": w, "b": w})
    buffer = taker.empty((256, 256), "float32")
    got = taker.fetch_state("tied", into={"a": buffer, "b": buffer})
    assert got.landings == {"a": "in place", "b": "in place"} and (buffer.numpy() == 5).all()
    apart = [taker.empty((256, 256), "float32") for _ in range(2)]
    got = taker.fetch_state("tied", into={"a": apart[0], "b": apart[1]})
    assert all((buffer.numpy() == 5).all() for buffer in apart) and "in place" not in got.landings.values()


# Promise: python-into
def test_a_fetch_of_a_state_that_is_given_up_leaves_its_buffers_writable(nodes) -> None:  # noqa: F811
    _, taker, _ = nodes
    buffers = [taker.empty((256, 256), "float32") for _ in range(2)]
    at = [(name, address(buffer.numpy()), "float32", (256, 256), None) for name, buffer in zip("ab", buffers)]
    call = taker._fetch_bundle_into("nobody", at, None, {"timeout": 60.0})
    assert all(buffer.pushed for buffer in buffers)
    with pytest.raises(td.Error, match="pushed already, or fetched into"):
        taker._fetch_bundle_into("nobody", at, None, {"timeout": 60.0})
    del call
    assert not any(buffer.pushed for buffer in buffers)
    with pytest.raises(td.Timeout):
        taker.fetch_state("nobody", into={"a": buffers[0]}, timeout=0.05)
    assert not any(buffer.pushed for buffer in buffers)


# Promise: states-into-arrays, seen to fail
def test_another_push_under_one_number_is_never_mixed_with_the_first(nodes, monkeypatch) -> None:  # noqa: F811
    giver, taker, _ = nodes
    rows = np.ones((256, 256), "float32")
    same = {"w": rows * 2, "b": rows[0] * 2, "step": 2}
    pushes = {
        "same": (same, None),
        "other value": ({**same, "step": "two"}, None),
        # Of the same length, so it has landed when this is found.
        "other name": ({"v": rows * 2, "b": rows[0] * 2, "step": 2}, td.DestinationTorn),
        "other shape beside": ({**same, "b": rows[0, 1:]}, td.DestinationTorn),
        "other tree": ({"b": rows[0] * 2, "w": {"w": rows * 2}, "step": 2}, td.Invalid),
        "other shape": ({**same, "w": rows[1:]}, td.Invalid),
    }
    for key, (second, error) in pushes.items():
        giver.push_state(key, {"w": rows, "b": rows[0], "step": 1}, version=7)
        into = {"w": taker.empty((256, 256), "float32"), "b": np.zeros(256, "float32"), "step": 0}
        into["w"].numpy()[:] = 0
        with td.connect(giver.path, arena="8MiB") as restarted:
            chosen = _landing._places

            def places(*arguments, key=key, second=second, restarted=restarted, chosen=chosen):
                found = chosen(*arguments)
                restarted.push_state(key, second, version=7, takeover=True)
                return found

            with monkeypatch.context() as patch:
                patch.setattr(_landing, "_places", places)
                if error is None:
                    got = taker.fetch_state(key, into=into)
                    assert got["step"] == into["step"] == second["step"] and got["w"] is into["w"]
                    assert (into["w"].numpy() == 2).all() and (into["b"] == 2).all() and got.version == 7
                else:
                    with pytest.raises(error) as raised:
                        taker.fetch_state(key, into=into)
                    assert into["w"].numpy().any() == (error is td.DestinationTorn), raised.value
                    assert getattr(raised.value, "tensors", ["w"]) == ["w"] and "w" in str(raised.value)
        assert not into["w"].pushed


# Promise: python-into-views, seen to fail
def test_a_state_lands_in_views_of_buffers(nodes) -> None:  # noqa: F811
    giver, taker, _ = nodes
    q, k, v = (np.full((256, 256), number, "float32") + np.arange(256, dtype="float32") for number in (1000, 2000, 3000))
    wide = np.arange(4 * 32768, dtype="float32").reshape(4, 32768)
    giver.push_state("fused", {"q": q, "k": k, "v": v, "wide": wide, "t": q.T.copy(), "b": q[0]})
    # One buffer of bytes, as a flat parameter is, and columns of another one.
    flat = taker.empty(3 * q.nbytes, "uint8")
    parts = flat.numpy().view("float32").reshape(3, 256, 256)
    columns = taker.empty((4, 65536), "float32").numpy()
    columns[:] = -1
    turned = taker.empty((256, 256), "float32").numpy()
    into = {"q": parts[2], "k": parts[0], "v": parts[1], "wide": columns[:, 100:32868], "t": turned.T, "b": np.zeros(256, "float32")}
    got = taker.fetch_state("fused", into=into)
    in_place = dict.fromkeys(["q", "k", "v", "wide"], "in place")
    # Its elements do not rise.
    assert got.landings == {**in_place, "t": FOREIGN, "b": SHORT}
    assert (parts == np.stack([k, v, q])).all() and (columns[:, 100:32868] == wide).all() and (turned == q).all()
    assert (columns[:, :100] == -1).all() and (columns[:, 32868:] == -1).all() and got["q"] is into["q"] and not flat.pushed
    further = turned.nbytes + 1024
    assert 2 * got.report.bytes + further <= got.report.copied <= 2 * got.report.bytes + further + (1 << 20)
    # In the order of the state, short ones are parts of a run.
    layers = {name: np.full((64, 64), number, "float32") for number, name in enumerate("abcdef")}
    giver.push_state("layers", layers)
    flat = taker.empty((6, 64, 64), "float32").numpy()
    got = taker.fetch_state("layers", into=dict(zip("abcdef", flat)))
    assert got.landings == dict.fromkeys("abcdef", "in place") and all((flat[number] == number).all() for number in range(6))
    # Rows of 1 KiB are too short for a landing of their own.
    narrow = taker.empty((256, 300), "float32").numpy()
    got = taker.fetch_state("fused", into={"q": narrow[:, 44:], "k": parts[0]})
    assert (narrow[:, 44:] == q).all() and "64 KiB" in got.landings["q"] and got.landings["k"] == "in place"
    # Slices: only they move.
    half = taker.empty((128, 256), "float32").numpy()
    got = taker.fetch_state("fused", slices={"q": np.s_[128:], "wide": np.s_[1:3, 0:32768]}, into={"q": half, "wide": columns[:2, :32768]})
    assert got.landings == {"q": "in place", "wide": "in place"} and got.report.bytes < half.nbytes + 2 * wide[0].nbytes + 4096
    assert (half == q[128:]).all() and (columns[:2, :32768] == wide[1:3]).all() and got["q"] is half
    for slices, array in [({"q": np.s_[127:]}, half), ({"x": np.s_[128:]}, half), ({"q": np.s_[128:, 0:1000]}, half)]:
        half[:] = 7
        with pytest.raises((td.Invalid, ValueError, KeyError)):
            taker.fetch_state("fused", slices=slices, into=dict.fromkeys(slices, array))
        assert (half == 7).all()
    with pytest.raises(td.Invalid):
        taker.fetch_state("fused", into={"q": parts[0], "k": parts[0]})


# Promise: python-into-views, seen to fail
def test_a_sharded_state_lands_in_views_of_buffers(nodes) -> None:  # noqa: F811
    giver, taker, _ = nodes
    whole = np.arange(512 * 1024, dtype="float32").reshape(512, 1024)
    for rank in range(2):
        rows = whole[256 * rank : 256 * (rank + 1)]
        giver.push_state("shards", {"w": td.Shard(rows, whole.shape, (256 * rank, 0))}, version=1, rank=rank, world_size=2)
    into = {"w": taker.empty((512, 1024), "float32")}
    got = taker.fetch_state("shards", into=into)
    assert got.landings == {"w": "in place"} and (into["w"].numpy() == whole).all() and got["w"] is into["w"] and got.version == 1
    # The tables of both ranks come along.
    assert got.report.bytes == whole.nbytes and got.report.copied <= 2 * whole.nbytes + (256 << 10), got.report
    half = taker.empty((2, 512, 512), "float32").numpy()
    got = taker.fetch_state("shards", slices={"w": np.s_[:, 512:]}, into={"w": half[1]})
    assert got.landings == {"w": "in place"} and (half[1] == whole[:, 512:]).all()
    plain = np.zeros((512, 512), "float32")
    got = taker.fetch_state("shards", slices={"w": np.s_[:, :512]}, into={"w": plain})
    assert (plain == whole[:, :512]).all() and "in place" not in got.landings.values()
    with pytest.raises((td.Invalid, ValueError)):
        taker.fetch_state("shards", into={"w": half[0]})


def sharded(version: int, rows: np.ndarray) -> list[dict]:
    """What two ranks push: a matrix in halves, an optimizer of each, and numbers that both have."""
    half = len(rows) // 2
    shard = lambda rank: td.Shard(rows[half * rank : half * (rank + 1)] + version, rows.shape, (half * rank, 0))  # noqa: E731
    return [
        {"model": {"w": shard(rank)}, "plain": rows + version, "optimizer": {f"of{rank}": np.full(3, version)}, "step": 10 * version}
        for rank in range(2)
    ]


# Promise: python-into, seen to fail
def test_a_sharded_state_is_whole_wherever_it_lands(nodes) -> None:  # noqa: F811
    """What `into` names lands there, in place or copied, and the rest of the state is returned beside it."""
    giver, taker, _ = nodes
    rows = np.arange(256 * 256, dtype="float32").reshape(256, 256)

    def names(state: dict) -> list:
        return [list(state), list(state["model"]), sorted(state["optimizer"])]

    for version in (1, 2):
        for rank, state in enumerate(sharded(version, rows)):
            giver.push_state("rest", state, version=version, rank=rank, world_size=2)
        all_of_it = [["model", "plain", "optimizer", "step"], ["w"], ["of0", "of1"]]
        own, other, here = (client.empty((256, 256), "float32") for client in (taker, taker, giver))
        foreign = np.zeros((256, 256), "float32")
        for reader, array in ((taker, own), (taker, foreign), (giver, here)):
            got = reader.fetch_state("rest", into={"model": {"w": array}}, at_least=version)
            assert names(got) == all_of_it and (got["step"], got.version) == (10 * version, version)
            assert list(got.landings) == ["model/w"] and ("in place" in got.landings.values()) == (array is own)
            assert (np.asarray(array) == rows + version).all() and (got["plain"].numpy() == rows + version).all()
            assert got["optimizer"]["of1"].numpy().tolist() == [version] * 3
            assert got.report.bytes >= 2 * rows.nbytes + 6 * 8
        # With an array that is none of a buffer, and what is no tensor, in one state.
        into = {"model": {"w": own}, "plain": foreign, "optimizer": {"of1": np.zeros(3, "int64")}, "step": 0}
        got = taker.fetch_state("rest", into=into)
        assert got.landings == {"model/w": "in place", "plain": FOREIGN, "optimizer/of1": SHORT} and into["step"] == 10 * version
        assert (foreign == rows + version).all() and into["optimizer"]["of1"].tolist() == [version] * 3 and names(got) == all_of_it
    # Nothing is written unless all of it fits, and names are those of the tree on every path.
    own.numpy()[:] = 7
    for wrong in ({"model": {"w": own}, "step": "text", "plain": foreign[1:]}, {"model/w": own}, {"model": {"w": own, "v": other}}):
        with pytest.raises((td.Invalid, KeyError)):
            taker.fetch_state("rest", into=wrong)
        assert (own.numpy() == 7).all() and not own.pushed
    with pytest.raises(td.VersionGone):
        taker.fetch_state("rest", into={"model": {"w": own}}, exactly=1)


# Promise: python-into, seen to fail
def test_a_sharded_state_that_is_replaced_meanwhile_is_of_one_version(nodes, monkeypatch) -> None:  # noqa: F811
    giver, taker, _ = nodes
    rows = np.ones((256, 256), "float32")
    chosen, pushed = _landing._places, [1]

    def push() -> None:
        for rank, state in enumerate(sharded(pushed[0], rows)):
            giver.push_state("replaced", state, version=pushed[0], rank=rank, world_size=2)
        pushed[0] += 1

    def places(*arguments):
        found = chosen(*arguments)
        # Two versions end the one that is being fetched.
        if pushed[0] < 6:
            push(), push()
        return found

    push()
    own = taker.empty((256, 256), "float32")
    with monkeypatch.context() as patch:
        patch.setattr(_landing, "_places", places)
        got = taker.fetch_state("replaced", into={"model": {"w": own}})
    assert got.version > 1 and (own.numpy() == 1 + got.version).all() and got["step"] == 10 * got.version
    assert (got["plain"].numpy() == 1 + got.version).all() and got["optimizer"]["of0"].numpy().tolist() == [got.version] * 3


# Promise: python-into, seen to fail
@pytest.mark.parametrize("kind", ["state", "slices", "sharded", "sharded slices"])
def test_an_array_that_moves_while_its_state_comes_is_an_error(nodes, monkeypatch, kind: str) -> None:  # noqa: F811
    giver, taker, _ = nodes
    rows = np.ones((256, 256), "float32")
    if "sharded" in kind:
        giver.push_state(f"moved {kind}", {"w": td.Shard(rows, rows.shape, (0, 0)), "v": rows}, version=1, rank=0, world_size=1)
    else:
        giver.push_state(f"moved {kind}", {"w": rows, "v": rows})
    buffer = taker.empty((256, 256), "float32")
    array, chosen, made = buffer.numpy(), _landing._target, []
    array[:] = 0

    def target(name, place, *described):
        made.append(chosen(name, place, *described))
        # That it is a sharded one is found out by a request.
        if len(made) == (2 if kind == "sharded slices" else 1):
            move(place)
        return made[-1]

    slices = {"w": np.s_[:]} if "slices" in kind else None
    with monkeypatch.context() as patch:
        patch.setattr(_landing, "_target", target)
        # Of a sharded state the rest is fetched first, and it is looked at again before the first array is written.
        with pytest.raises(td.Invalid if kind == "sharded" else td.DestinationTorn, match="memory of the array for 'w' is another one") as raised:
            taker.fetch_state(f"moved {kind}", into={"w": array}, slices=slices)
    assert getattr(raised.value, "tensors", ["w"]) == ["w"] and not array.any() and not buffer.pushed
    assert (buffer.numpy() == (0 if kind == "sharded" else 1)).all()


class Refusing(dict):
    def __setitem__(self, key: object, value: object) -> None:
        raise RuntimeError("it takes nothing")


# Promise: states-into-arrays, seen to fail
def test_a_dict_that_refuses_a_value_when_tensors_have_landed_leaves_the_state_torn(nodes) -> None:  # noqa: F811
    giver, taker, _ = nodes
    giver.push_state("refused", {"w": np.ones((256, 256), "float32"), "of": {"step": 1}})
    into = {"w": taker.empty((256, 256), "float32"), "of": Refusing(step=0)}
    with pytest.raises(td.DestinationTorn, match="it takes nothing") as raised:
        taker.fetch_state("refused", into=into)
    assert isinstance(raised.value.__cause__, RuntimeError) and raised.value.key == "refused"
    again = pickle.loads(pickle.dumps(raised.value))
    assert raised.value.tensors == again.tensors == ["w"] and (into["w"].numpy() == 1).all() and not into["w"].pushed


# Promise: states-into-arrays, seen to fail
def test_arrays_of_the_other_byte_order_are_copied(nodes) -> None:  # noqa: F811
    giver, taker, _ = nodes
    giver.push_state("order", {"w": np.full((256, 256), 3, "float32")})
    array = taker.empty((256, 256), "float32").numpy().view(np.dtype("float32").newbyteorder())
    got = taker.fetch_state("order", into={"w": array})
    assert (array == 3).all() and "copied" in got.landings["w"]


class Raw:
    """A tensor of a manifest."""

    def __init__(self, raw: bytes) -> None:
        self.raw = raw

    def _raw(self) -> bytes:
        return self.raw


class Asked:
    """A client that notes what it is asked for."""

    def __init__(self) -> None:
        self.timeouts: list = []

    def _fetch_bundle(self, key: str, parts: object, options: dict, base: object = None) -> str:
        self.timeouts.append(options.get("timeout"))
        return "bundle"


def gone() -> td.VersionGone:
    return td.VersionGone("gone", "version_gone", True, "peer", "k")


# Promise: python-into, seen to fail
def test_a_sharded_state_is_not_asked_for_anew_where_it_is_the_same(monkeypatch) -> None:
    """A rank that is gone is waited for once, and a key that has another kind of state by now is no sharded one."""
    monkeypatch.setattr(_landing._native, "_sharded_layout", lambda *_: "layout")
    monkeypatch.setattr(_landing, "_may_land", lambda _: True)
    manifest = {_landing._sharded.MANIFEST: Raw(b"1"), _landing._sharded.LAYOUTS: Raw(b"2")}
    restarted = {**manifest, _landing._sharded.MANIFEST: Raw(b"4")}
    for found, version, again in ((manifest, 1, False), ({"w": Raw(b"3")}, 2, False), (manifest, 2, True), (restarted, 1, True)):
        call = _landing.land_sharded(Asked(), "k", {}, 1, list(manifest.values()), lambda exactly=None: {})
        assert next(call) == "layout" and call.throw(gone()) == "bundle"
        if again:
            assert call.send((found, version, None)) == "layout"
        else:
            with pytest.raises(td.VersionGone):
                call.send((found, version, None))


# Promise: python-into, seen to fail
def test_all_requests_for_a_state_have_one_deadline(monkeypatch) -> None:
    now = [100.0]
    monkeypatch.setattr(_landing.time, "monotonic", lambda: now[0])
    client = Asked()
    call = _calls.fetch_state(client, "k", None, ["w"], None, None, False, {"timeout": 10.0})
    next(call)
    for _ in range(2):
        now[0] += 4
        call.throw(td.Invalid("none of this name", "invalid", False, "caller", "k"))
    assert client.timeouts == [10.0, 6.0, 2.0]
    call.close()
    with pytest.raises(td.Invalid, match="timeout is seconds"):
        next(_calls.fetch_state(client, "k", None, None, None, None, False, {"timeout": "1"}))
