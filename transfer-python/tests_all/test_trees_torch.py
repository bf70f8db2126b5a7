"""States of torch as they are: checkpoints of a model and its optimizer, and tied weights."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import transferd as td


class Tied(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.emb = torch.nn.Embedding(512, 64)
        self.head = torch.nn.Linear(64, 512, bias=False)
        self.head.weight = self.emb.weight


def trained(seed: int) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(seed)
    model = Tied()
    optimizer = torch.optim.AdamW(model.parameters(), lr=seed / 8)
    model.head(model.emb(torch.arange(7))).sum().backward()
    optimizer.step()
    return model, optimizer


# Promise: ties
def test_an_optimizer_s_state_comes_back(c, other):
    model, optimizer = trained(1)
    checkpoint = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": 3, "rng": torch.get_rng_state()}
    c.push_state("checkpoint", checkpoint)
    state = other.fetch_state("checkpoint")
    assert state["epoch"] == 3 and state["optimizer"]["param_groups"] == checkpoint["optimizer"]["param_groups"]
    assert torch.equal(state["rng"].torch(), checkpoint["rng"])
    # Into another one, which then takes the same step.
    again, optimizer_again = trained(2)
    into = {"model": again.state_dict(), "optimizer": optimizer_again.state_dict()}
    other.fetch_state("checkpoint", into=into)
    optimizer_again.load_state_dict(into["optimizer"])
    for of in (model, again):
        of.zero_grad()
        of.head(of.emb(torch.arange(3))).sum().backward()
    optimizer.step()
    optimizer_again.step()
    assert torch.equal(model.emb.weight, again.emb.weight)


TIES = {
    "a module's": (lambda: list(Tied().state_dict().values()), True),
    "a parameter and its data": (lambda: (lambda p: [p, p.data])(torch.nn.Parameter(torch.ones(512, 64))), True),
    "views that are the same": (lambda: (lambda x: [x[:], x.t().t()])(torch.ones(512, 64)), True),
    "transposed": (lambda: (lambda x: [x, x.t()])(torch.ones(64, 64)), False),
    "another type": (lambda: (lambda x: [x, x.view(torch.int32)])(torch.ones(512, 64)), False),
    "a conjugate": (lambda: (lambda x: [x, x.conj()])(torch.full((8,), 1 + 2j)), False),
    "negative": (lambda: (lambda x: [x, torch._neg_view(x)])(torch.ones(8)), False),
    "conjugates, which are made in turn": (lambda: [torch.full((8,), n + 2j).conj() for n in range(2)], False),
    "without memory": (lambda: [torch._efficientzerotensor((3,)), torch._efficientzerotensor((3,))], False),
    "halves": (lambda: (lambda x: [x[:4], x[4:]])(torch.ones(8)), False),
}


# Promise: ties
@pytest.mark.parametrize("which", TIES)
def test_tied_tensors_of_torch_are_pushed_once(c, other, which):
    make, tied = TIES[which]
    first, second = values = make()
    sizes = [value.numel() * value.element_size() for value in values]
    assert c.push_state("t", {"emb": first, "head": second}).report.copied == (sizes[0] if tied else sum(sizes))
    state = other.fetch_state("t")
    assert (state["emb"] is state["head"]) == tied
    for name, value in (("emb", first), ("head", second)):
        assert torch.equal(state[name].torch(), value.detach().resolve_conj().resolve_neg())
    with pytest.raises(td.Invalid, match="is not dense"):
        c.push_state("t", {"a": torch.eye(3).to_sparse(), "b": torch.eye(3).to_sparse()})


def test_a_fetched_tie_is_loaded_into_a_tied_module(c, other):
    model, _ = trained(1)
    c.push_state("t", model.state_dict())
    again, _ = trained(2)
    other.fetch_state("t", into=again.state_dict())
    assert again.emb.weight is again.head.weight and torch.equal(again.emb.weight, model.emb.weight)
    loaded = Tied()
    loaded.load_state_dict({name: tensor.torch() for name, tensor in other.fetch_state("t").items()})
    assert torch.equal(loaded.head.weight, model.emb.weight)
    assert np.shares_memory(*(tensor.numpy() for tensor in other.fetch_state("t").values()))


# Promise: states-into-states
def test_tensors_that_lie_in_each_other_are_no_targets(c):
    c.push_state("s", {"a": np.ones((2, 2), "f4"), "b": np.zeros((2, 2), "f4")})
    flat = torch.zeros(8)
    with pytest.raises(td.Invalid, match="cannot copy into 'a': the Tensor has elements that lie at one address, as expand.. and unfold.. make them"):
        c.fetch_state("s", into={"a": torch.zeros(3).unfold(0, 2, 1)})
    with pytest.raises(td.Invalid, match="'a' and 'b' have memory in common"):
        c.fetch_state("s", into={"a": flat[:4].view(2, 2), "b": flat[2:6].view(2, 2)})
    with pytest.raises(td.Invalid, match="'a' and 'b' have memory in common"):
        c.fetch_state("s", into={"a": flat[:4].view(2, 2), "b": flat.numpy()[:4].reshape(2, 2)})
    assert not flat.any()
    wide = torch.full((2, 4), 7.0)
    c.fetch_state("s", into={"a": wide[:, :2], "b": wide[:, 2:]})
    assert torch.equal(wide, torch.tensor([[1.0, 1, 0, 0]] * 2))


def test_a_tied_model_takes_what_was_shared_or_pushed_twice(c, other):
    model, _ = trained(1)
    shared = td.nn.share_(c, model)
    shared.push("t")
    again, _ = trained(2)
    other.fetch_state("t", into=again.state_dict())
    assert torch.equal(again.emb.weight, model.emb.weight)
