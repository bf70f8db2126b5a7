"""Slices as torch sees them."""

from __future__ import annotations

import numpy as np
import torch


# Promise: python-slice-views
def test_torch_sees_the_strides_of_a_slice(c, other):
    whole = torch.arange(512 * 512.0).reshape(512, 512)
    c.push_state("s", {"w": whole, "small": whole[:4, :4].contiguous()})
    state = other.fetch_state("s", slices={"w": np.s_[::2, 128:], "small": np.s_[1:, ::2]})
    found = state["w"].torch()
    assert found.stride() == (1024, 1) and torch.equal(found, whole[::2, 128:]) and state["w"].exports_copied == 0
    assert torch.equal(state["small"].torch(), whole[1:4, :4:2]) and state["small"].exports_copied > 0
    # A write is seen by nobody else.
    found.fill_(-1)
    assert torch.equal(other.fetch_state("s")["w"].torch(), whole)
    into = {"w": torch.zeros(256, 384), "small": torch.zeros(2, 3).t()}
    state.copy_into(into)
    assert torch.equal(into["w"], whole[::2, 128:]) and torch.equal(into["small"], whole[1:4, :4:2])
    pairs = torch.arange(24, dtype=torch.uint8).reshape(3, 8)
    c.push("pairs", pairs.view(torch.float4_e2m1fn_x2))
    part = other.fetch("pairs", slice=np.s_[1:, 4:10])
    assert torch.equal(part.torch().view(torch.uint8), pairs[1:, 2:5])
