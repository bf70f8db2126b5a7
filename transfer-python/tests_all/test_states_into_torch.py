"""States that land in modules of torch."""

from __future__ import annotations

import pytest
import torch
import transferd as td
import transferd.nn
from test_into import nodes  # noqa: F401


def model() -> torch.nn.Module:
    torch.manual_seed(3)
    return torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.Linear(256, 4))


# Promise: python-into
def test_a_state_lands_in_a_module_whose_parameters_lie_in_the_arena(nodes) -> None:  # noqa: F811
    giver, taker, _ = nodes
    trainer, rollout = model(), model()
    with torch.no_grad():
        for parameter in rollout.parameters():
            parameter.zero_()
    shared = transferd.nn.share_(taker, rollout)
    giver.push_state("policy", trainer.state_dict())
    weight = rollout[0].weight
    before, at = weight._version, weight.data_ptr()
    got = taker.fetch_state("policy", into=rollout.state_dict(keep_vars=True))
    assert got.landings["0.weight"] == "in place" and "64 KiB" in got.landings["1.weight"]
    assert all(torch.equal(a, b) for a, b in zip(trainer.parameters(), rollout.parameters()))
    # An optimizer and autograd go on with the same parameters, and hear of the change.
    assert weight is rollout[0].weight and weight.data_ptr() == at and weight._version > before
    # Nothing keeps the module from being published.
    shared.push("again")
    shared.take_back()
    del got
    # While it is published it is not written.
    shared.push("again")
    with pytest.raises(td.Invalid, match="pushed already"):
        taker.fetch_state("policy", into=shared.buffers)


# Promise: python-registered
def test_torch_does_not_resize_what_is_registered() -> None:
    with td.embedded(arena="1MiB", name="registers") as c:
        for dtype in (torch.float32, torch.bfloat16):
            w = torch.zeros(64, 64, dtype=dtype)
            c.register(w)
            for resize in (lambda w=w: w.resize_(128, 128), lambda w=w: w.untyped_storage().resize_(1 << 16)):
                with pytest.raises(RuntimeError, match="not resizable"):
                    resize()
            c.unregister(w)
