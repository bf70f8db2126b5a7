"""Modules of torch whose parameters lie in the arena. torch is imported where `share_` is called, and not before."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Literal, NamedTuple, Unpack

from . import _calls, _torch, _tree
from ._calls import PushOptions, wait
from ._client import Client
from ._errors import Invalid
from ._native import Buffer, Pushed

__all__ = ["Shared", "share_"]


Mode = Literal["take_back", "two_buffers", "snapshot"]


class Shared:
    """A module of torch whose parameters and buffers lie in the arena. `share_` makes one."""

    def __init__(
        self, client: Client, module: Any, buffers: Mapping[str, Buffer], addresses: Mapping[str, int], mode: Mode
    ) -> None:
        self._client, self._module, self._mode = client, module, mode
        self._buffers, self._addresses = dict(buffers), dict(addresses)
        self._published: _Published | None = None

    @property
    def module(self) -> Any:
        """The module."""
        return self._module

    @property
    def mode(self) -> Mode:
        """How `push` publishes: "take_back", "two_buffers" or "snapshot"."""
        return self._mode

    @property
    def buffers(self) -> Mapping[str, Buffer]:
        """The memory of each entry of the state dict, by its name. Tied entries have the same `Buffer`.

        The module sees it, so pushing one takes `aliases="allow"`, and nobody may change the module from then on.
        """
        return MappingProxyType(self._buffers)

    @property
    def nbytes(self) -> int:
        """How many bytes of the arena the module takes; in the mode "two_buffers" it takes them twice after a push."""
        return sum(buffer.nbytes for buffer in _once(self._buffers))

    def push(self, key: str, **options: Unpack[PushOptions]) -> Pushed:
        """Publishes the state dict as one version, for `Client.fetch_state`. The options are those of `Client.push`.

        | mode | copies | the module may change | memory |
        |---|---|---|---|
        | "take_back" | nothing | after `take_back()`, which waits for the readers of the version | the module's |
        | "two_buffers" | each byte once | at once; the push waits for the readers of the version before | twice the module's |
        | "snapshot" | each byte once | at once | the module's, and each version that is published or read |

        In the modes "take_back" and "two_buffers" a reader must drop its version before it fetches the next one. Otherwise it
        waits for the next push, and the trainer for the reader, until one of them reaches its deadline.

        In the mode "take_back" a push calls `take_back()` first where the last version was not taken back. In the mode
        "two_buffers" the module moves to the other set of buffers, and `keep` cannot be given.

        Raises what `Client.push_state` raises, `Timeout` where readers take longer than `timeout`, and `Invalid` where an
        entry has left the arena (by `module.to()`, `half()`, or `load_state_dict(assign=True)`), was added or removed, or
        was published by reference. No other thread may change the module during a push.
        """
        timeout = options.get("timeout", 30.0)
        if self._mode == "take_back":
            self.take_back(timeout=timeout)
        state = self._module.state_dict(keep_vars=True)
        self._check(state)
        if self._mode == "snapshot":
            return self._client.push_state(key, {name: value.detach() for name, value in state.items()}, **options)
        if self._mode == "take_back":
            return self._push_held(key, state, 0, options)
        if "keep" in options:
            raise Invalid('keep cannot be given with mode="two_buffers": a version stays until its turn comes again')
        spare = self._spare(timeout)
        pushed = self._push_held(key, state, self.nbytes, {**options, "keep": "deleted"})
        self._move_to(spare, state)
        return pushed

    def take_back(self, *, timeout: float | None = 30.0) -> None:
        """Waits until the version that was published last has no readers, and takes it back: the module may change.

        Fetches wait for the next push from then on. It does nothing where no version is published, and in the other
        modes. Raises `Timeout` where the readers take longer, and the version stays published. Raises `Invalid` where
        the module was changed while the version was published: its readers may have seen the change.
        """
        if self._mode != "take_back" or (published := self._published) is None:
            return
        state = self._module.state_dict(keep_vars=True)
        changed = [name for name, counter in published.counters.items() if _counter(state.get(name)) != counter]
        self._take_back(published, timeout)
        if changed:
            raise Invalid(
                f"{changed[0]!r} was changed while version {published.version} of {published.key!r} was published, and"
                " its readers may have seen that: call take_back() before the module changes"
            )

    def _push_held(self, key: str, state: Mapping[str, Any], copied: int, options: PushOptions) -> Pushed:
        buffers = _once(self._buffers)
        places = {id(buffer): at for at, buffer in enumerate(buffers)}
        named = [(name, places[id(buffer)]) for name, buffer in self._buffers.items()]
        counters = {name: _counter(value) for name, value in state.items()}
        pushed = wait(_calls.one(self._client._push_held(key, named, buffers, copied, dict(options))))
        self._published = _Published(key, pushed.version, buffers, dict(self._buffers), counters)
        return pushed

    def _take_back(self, published: _Published, timeout: float | None) -> None:
        wait(_calls.one(self._client._regain(published.key, published.version, published.buffers, timeout)))
        self._published = None

    def _spare(self, timeout: float | None) -> dict[str, Buffer]:
        """The set of buffers that the module does not use, once no version of it is read."""
        if (published := self._published) is not None:
            self._take_back(published, timeout)
            return published.named
        made: dict[int, Buffer] = {}
        for name, buffer in self._buffers.items():
            if id(buffer) not in made:
                made[id(buffer)] = self._client.empty(buffer.shape, buffer.dtype, timeout=timeout)
        return {name: made[id(buffer)] for name, buffer in self._buffers.items()}

    def _move_to(self, buffers: dict[str, Buffer], state: Mapping[str, Any]) -> None:
        """Copies the module into these buffers, and makes them its memory."""
        import torch

        views: dict[int, Any] = {}
        for name, value in state.items():
            buffer = buffers[name]
            if id(buffer) not in views:
                views[id(buffer)] = buffer.torch()
                with torch.no_grad():
                    views[id(buffer)].copy_(value)
        for name, value in state.items():
            value.data = views[id(buffers[name])]
        self._buffers = buffers
        self._addresses = {name: views[id(buffer)].data_ptr() for name, buffer in buffers.items()}

    def _check(self, state: Mapping[str, Any]) -> None:
        """Fails where the module is not any more what `share_` has moved."""
        if different := sorted(state.keys() ^ self._buffers.keys()):
            what = "was added to" if different[0] in state else "was removed from"
            raise Invalid(f"{different[0]!r} {what} the module's state dict after share_: call share_ again")
        for name, buffer in self._buffers.items():
            if buffer.pushed:
                raise Invalid(f"{name!r} was published by reference, and must not change any more: call share_ again")
            if state[name].data_ptr() != self._addresses[name]:
                raise Invalid(
                    f"{name!r} does not lie in the arena any more: it was replaced after share_, by to(), half() or"
                    " load_state_dict(assign=True) for instance: call share_ again"
                )

    def __repr__(self) -> str:
        return f"<Shared {type(self._module).__name__} of {len(self._buffers)} entries, {self.nbytes} bytes>"


class _Published(NamedTuple):
    """The version that is published, and its memory."""

    key: str
    version: int
    buffers: list[Buffer]
    named: dict[str, Buffer]
    counters: dict[str, int]


def _once(buffers: Mapping[str, Buffer]) -> list[Buffer]:
    """The buffers, tied ones once."""
    return list({id(buffer): buffer for buffer in buffers.values()}.values())


def _counter(value: Any) -> int:
    """Torch's count of the changes of a tensor; 0 for tensors of inference mode, which have none."""
    return -1 if value is None else 0 if value.is_inference() else int(value._version)


def share_(client: Client, module: Any, *, mode: Mode = "take_back", timeout: float | None = 0.0) -> Shared:
    """Moves the parameters and buffers of a torch module into the arena of `client`, in place.

    What is moved are the entries of `module.state_dict()`. The parameters stay the same objects, with the same values
    and gradients: only their `data` is memory of the arena now. So an optimizer that has them goes on, and tied
    parameters stay tied. What was not contiguous lies row-major afterwards. The module keeps the memory, also when the
    client is closed. As with torch's own `share_memory_`, a forked child does not get a copy of the parameters: it sees
    the same memory.

    `mode` says how `Shared.push` publishes. "take_back", the default, copies nothing: call `Shared.take_back` before the module
    changes, which waits for the readers of the version. With "two_buffers" the module changes at once, for twice the
    memory and one copy. With "snapshot" each version is a copy.

    Where there is no room, it waits up to `timeout` seconds. Raises `ArenaFull`, and `Invalid` where an entry cannot be
    moved: one that is no tensor, is on a device, is sparse, has an element type that `Client.empty` does not know, or
    has only a part of its memory in common with another entry. The module is unchanged then.
    """
    import torch

    if not isinstance(client, Client):
        found = f"{type(client).__module__}.{type(client).__qualname__}"
        raise TypeError(f"share_ takes a transferd.Client, and then a module, not a {found}")
    if not isinstance(module, torch.nn.Module):
        raise TypeError(f"share_ moves a torch.nn.Module, not a {type(module).__name__}")
    if mode not in ("take_back", "two_buffers", "snapshot"):
        raise ValueError(f'mode is "take_back", "two_buffers" or "snapshot", not {mode!r}')
    state = module.state_dict(keep_vars=True)
    _tree.check_names("the module's state dict", state)
    own = {id(value) for value in (*module.parameters(), *module.buffers())}
    for name, value in state.items():
        _refuse(torch, name, value)
        if id(value) not in own:
            raise Invalid(f"{name!r} is made by state_dict(): share_ moves a module's own parameters and buffers alone")
    buffers, views = {}, {}
    for names in _tied(state):
        first = state[names[0]]
        buffer = _allocated(client, names[0], first, timeout)
        view = buffer.torch()
        with torch.no_grad():
            view.copy_(first)
        for name in names:
            buffers[name], views[name] = buffer, view
    # Nothing fails from here on.
    for name, value in state.items():
        value.data = views[name]
    in_order = {name: buffers[name] for name in state}
    return Shared(client, module, in_order, {name: view.data_ptr() for name, view in views.items()}, mode)


def _refuse(torch: Any, name: str, value: Any) -> None:
    """Raises where an entry of the state dict cannot be moved."""
    if not isinstance(value, torch.Tensor):
        raise Invalid(f"{name!r} is a {type(value).__name__}: share_ moves state dicts of tensors alone")
    if torch.nn.parameter.is_lazy(value):
        raise Invalid(f"{name!r} has no shape yet: run the module once before share_")
    if torch._C._functorch.is_functorch_wrapped_tensor(value):
        # Such a tensor does not let anybody see its data.
        _check(name, value)
    if value.device.type != "cpu":
        raise Invalid(f"{name!r} is on the device {value.device}: move the module to the host's memory, with cpu()")
    if type(value.data) is not torch.Tensor or value.layout is not torch.strided:
        kind = type(value.data).__name__ if value.layout is torch.strided else f"tensor of layout {value.layout}"
        raise Invalid(f"{name!r} is a {kind}: share_ moves dense tensors alone")
    _check(name, value.data)


def _check(name: str, value: Any) -> None:
    try:
        _torch.check(value)
    except Invalid as error:
        raise Invalid(f"{name!r} cannot be moved: {error}") from None


def _allocated(client: Client, name: str, value: Any, timeout: float | None) -> Buffer:
    try:
        dtype, shape = _torch.description(value)
        return client.empty(shape, dtype, timeout=timeout)
    except Invalid as error:
        raise Invalid(f"{name!r} cannot be moved: {error}") from None


def _tied(state: Mapping[str, Any]) -> list[list[str]]:
    """The names of the state dict, those together that are the same memory.

    Raises where entries have only a part of their memory in common.
    """
    places: dict[_torch.Place | str, list[str]] = {}
    for name, value in state.items():
        # Of a parameter of a subclass too, the data is a tensor of torch's own class.
        places.setdefault(_torch.place(value.data) or name, []).append(name)
    sized = sorted((place, names[0]) for place, names in places.items() if isinstance(place, _torch.Place))
    end, before = 0, ""
    for place, name in sized:
        if place.start < end:
            raise Invalid(
                f"{before!r} and {name!r} have a part of their memory in common: share_ keeps those tied that are the"
                " same as a whole"
            )
        end, before = place.end, name
    return list(places.values())
