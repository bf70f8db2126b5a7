"""Modules of torch whose parameters lie in the arena. torch is imported where `share_` is called, and not before."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple, Unpack

from ._calls import PushOptions
from ._client import Client
from ._errors import Invalid
from ._native import Buffer, Pushed

__all__ = ["Shared", "share_"]


class Shared:
    """A module of torch whose parameters and buffers lie in the arena. `share_` makes one."""

    def __init__(
        self, client: Client, module: Any, buffers: Mapping[str, Buffer], addresses: Mapping[str, int]
    ) -> None:
        self._client, self._module = client, module
        self._buffers, self._addresses = dict(buffers), dict(addresses)

    @property
    def module(self) -> Any:
        """The module."""
        return self._module

    @property
    def buffers(self) -> Mapping[str, Buffer]:
        """The memory of each entry of the state dict, by its name. Tied entries have the same `Buffer`.

        The module sees it, so pushing one takes `aliases="allow"`, and nobody may change the module from then on.
        """
        return MappingProxyType(self._buffers)

    @property
    def nbytes(self) -> int:
        """How many bytes of the arena the module takes."""
        return sum(buffer.nbytes for buffer in {id(buffer): buffer for buffer in self._buffers.values()}.values())

    def push(self, key: str, **options: Unpack[PushOptions]) -> Pushed:
        """Publishes a snapshot of the state dict as one version, for `Client.fetch_state`.

        Every byte is copied once, inside of the arena, and `report.copied` counts it; a tied entry is copied for each
        of its names. So the arena needs room for the module, and for each version that is published or being read. No
        other thread may change the module meanwhile; when this returns it may change. The options are those of
        `Client.push`.

        Raises what `Client.push_state` raises, and `Invalid` where an entry has left the arena (by `module.to()`,
        `half()`, or `load_state_dict(assign=True)`), was added or removed, or was published by reference.
        """
        state = self._module.state_dict(keep_vars=True)
        self._check(state)
        return self._client.push_state(key, {name: value.detach() for name, value in state.items()}, **options)

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


def share_(client: Client, module: Any, *, timeout: float | None = 0.0) -> Shared:
    """Moves the parameters and buffers of a torch module into the arena of `client`, in place.

    What is moved are the entries of `module.state_dict()`. The parameters stay the same objects, with the same values
    and gradients: only their `data` is memory of the arena now. So an optimizer that has them goes on, and tied
    parameters stay tied. What was not contiguous lies row-major afterwards. The module keeps the memory, also when the
    client is closed. As with torch's own `share_memory_`, a forked child does not get a copy of the parameters: it sees
    the same memory.

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
    state = module.state_dict(keep_vars=True)
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
    return Shared(client, module, in_order, {name: view.data_ptr() for name, view in views.items()})


def _refuse(torch: Any, name: str, value: Any) -> None:
    """Raises where an entry of the state dict cannot be moved."""
    if not isinstance(value, torch.Tensor):
        raise Invalid(f"{name!r} is a {type(value).__name__}: share_ moves state dicts of tensors alone")
    if torch.nn.parameter.is_lazy(value):
        raise Invalid(f"{name!r} has no shape yet: run the module once before share_")
    if value.device.type != "cpu":
        raise Invalid(f"{name!r} is on the device {value.device}: move the module to the host's memory, with cpu()")
    if type(value.data) is not torch.Tensor or value.layout is not torch.strided:
        kind = type(value.data).__name__ if value.layout is torch.strided else f"tensor of layout {value.layout}"
        raise Invalid(f"{name!r} is a {kind}: share_ moves dense tensors alone")


def _allocated(client: Client, name: str, value: Any, timeout: float | None) -> Buffer:
    try:
        return client.empty(tuple(value.shape), value.dtype, timeout=timeout)
    except Invalid as error:
        raise Invalid(f"{name!r} cannot be moved: {error}") from None


class _Place(NamedTuple):
    """Where a tensor lies: the same for entries that are tied."""

    start: int
    end: int
    kind: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]


def _tied(state: Mapping[str, Any]) -> list[list[str]]:
    """The names of the state dict, those together that are the same memory.

    Raises where entries have only a part of their memory in common.
    """
    places: dict[_Place | str, list[str]] = {}
    for name, value in state.items():
        shape, strides, start = tuple(value.shape), tuple(value.stride()), value.data_ptr()
        last = sum((length - 1) * stride for length, stride in zip(shape, strides))
        kind = f"{value.dtype} {value.is_conj()} {value.is_neg()}"
        place = _Place(start, start + (last + 1) * value.element_size(), kind, shape, strides)
        places.setdefault(place if value.numel() else name, []).append(name)
    sized = sorted((place, names[0]) for place, names in places.items() if isinstance(place, _Place))
    end, before = 0, ""
    for place, name in sized:
        if place.start < end:
            raise Invalid(
                f"{before!r} and {name!r} have a part of their memory in common: share_ keeps those tied that are the"
                " same as a whole"
            )
        end, before = place.end, name
    return list(places.values())
