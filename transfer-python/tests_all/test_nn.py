"""td.nn.share_: a torch module whose parameters lie in the arena."""

from __future__ import annotations

import copy
import gc
import subprocess
import sys

import pytest
import torch
import transferd as td
from conftest import until


class Tied(torch.nn.Module):
    """Words in, words out, by one matrix; with buffers of several types."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.embed = torch.nn.Embedding(20, 6)
        self.norm = torch.nn.BatchNorm1d(6)
        self.out = torch.nn.Linear(6, 20, bias=False)
        self.out.weight = self.embed.weight
        self.turned = torch.nn.Parameter(torch.arange(12.0).reshape(3, 4).t() / 12)
        self.register_buffer("mask", torch.tensor([True, False, True, True, False, True]))
        self.register_buffer("nothing", torch.empty(0, 4))
        self.register_buffer("scale", torch.tensor(0.5, dtype=torch.float64))

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        return self.out(self.norm(self.embed(words)) * self.mask * self.scale.float()) * self.turned.mean()


def train(module: torch.nn.Module, optimizer: torch.optim.Optimizer, steps: int) -> None:
    words = torch.arange(20)
    for _ in range(steps):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(module(words), words).backward()
        optimizer.step()


def equal(ours, theirs) -> bool:
    return list(ours) == list(theirs) and all(torch.equal(torch.as_tensor(ours[name]), theirs[name]) for name in ours)


def kept(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    """A copy of the state dict."""
    return {name: value.clone() for name, value in module.state_dict().items()}


def lies_in(buffer: td.Buffer, value: torch.Tensor) -> bool:
    return value.numel() == 0 or buffer.torch().data_ptr() == value.data_ptr()


# Promise: shared-modules
def test_the_same_parameters_with_the_same_values_lie_in_the_arena(c):
    module = Tied()
    before, objects = kept(module), list(module.parameters()) + list(module.buffers())
    shared = td.nn.share_(c, module)
    assert equal(kept(module), before)
    assert all(a is b for a, b in zip(objects, list(module.parameters()) + list(module.buffers()), strict=True))
    assert list(shared.buffers) == list(before) and shared.module is module
    for name, value in module.state_dict().items():
        assert value.is_contiguous() and lies_in(shared.buffers[name], value), name
    assert all(parameter.requires_grad and parameter.is_leaf for parameter in module.parameters())
    # Tied entries take their memory once.
    total = sum(value.numel() * value.element_size() for name, value in before.items() if name != "out.weight")
    assert shared.nbytes == total
    assert repr(shared) == f"<Shared Tied of {len(before)} entries, {total} bytes>"
    with torch.no_grad():
        module.turned.fill_(9)
    assert (shared.buffers["turned"].numpy() == 9).all()


def momentum(parameters) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


# Promise: shared-modules
@pytest.mark.parametrize("make", [torch.optim.Adam, momentum])
def test_training_goes_on_as_if_nothing_had_happened(c, make):
    module, twin = Tied(), Tied()
    optimizer, other = make(module.parameters()), make(twin.parameters())
    train(module, optimizer, 3)
    train(twin, other, 3)
    gradient = module.turned.grad
    shared = td.nn.share_(c, module)
    assert module.turned.grad is gradient
    train(module, optimizer, 3)
    train(twin, other, 3)
    # Nearly: what was not contiguous is added up in another order now.
    ours, theirs = kept(module), kept(twin)
    assert all(torch.allclose(ours[name], theirs[name], rtol=1e-4, atol=1e-5) for name in ours)
    assert all(lies_in(shared.buffers[name], value) for name, value in module.state_dict().items())


# Promise: shared-modules
def test_tied_parameters_stay_tied(c):
    module = Tied()
    # These two are different objects, with the same memory.
    module.second = torch.nn.Parameter(module.turned.detach())
    shared = td.nn.share_(c, module)
    assert module.out.weight is module.embed.weight and module.second is not module.turned
    assert shared.buffers["out.weight"] is shared.buffers["embed.weight"]
    assert shared.buffers["second"] is shared.buffers["turned"]
    with torch.no_grad():
        module.turned.fill_(5)
        module.embed.weight.fill_(6)
    assert (module.second == 5).all() and (module.out.weight == 6).all()


class Marked(torch.nn.Parameter):
    pass


# Promise: shared-modules
def test_parameters_of_a_subclass_stay_tied(c, other):
    module, flat = torch.nn.Module(), torch.ones(8)
    module.emb, module.head = torch.nn.Embedding(4, 2), torch.nn.Linear(2, 4, bias=False)
    # One object, and two that have one memory.
    module.emb.weight = module.head.weight = Marked(torch.ones(4, 2))
    module.first, module.second = Marked(flat), Marked(flat)
    shared = td.nn.share_(c, module)
    assert type(module.first) is Marked and shared.nbytes == 2 * 32
    with torch.no_grad():
        module.first.fill_(5)
        module.emb.weight.fill_(6)
    assert module.second[0] == 5 and (module.head.weight == 6).all()
    shared.push("policy")
    state = other.fetch_state("policy")
    assert (state["second"].numpy() == 5).all() and (state["head.weight"].numpy() == 6).all()


# Promise: pushes-of-modules
def test_a_gated_push_copies_nothing_and_the_module_changes_after_its_readers(c, other):
    module = Tied()
    optimizer = torch.optim.Adam(module.parameters())
    shared = td.nn.share_(c, module)
    free = c.arena_free_bytes
    assert shared.mode == "take_back"
    for version in (1, 2, 3):
        shared.take_back()
        train(module, optimizer, 1)
        expected = kept(module)
        pushed = shared.push("policy", version=version)
        assert (pushed.version, pushed.report.copied) == (version, 0)
        state = other.fetch_state("policy", at_least=version)
        assert equal({name: tensor.torch() for name, tensor in state.items()}, expected)
        with pytest.raises(td.Timeout, match="published again"):
            shared.take_back(timeout=0.05)
        assert equal({name: tensor.torch() for name, tensor in state.items()}, expected)
        del state
    # Pushing it again takes the version back first.
    assert shared.push("policy").version == 4
    train(module, optimizer, 1)
    with pytest.raises(td.Invalid, match="was changed while version 4 of 'policy' was published"):
        shared.take_back()
    shared.push("policy")
    assert module.out.weight is module.embed.weight
    c.delete("policy")
    until("the version has ended", lambda: not c.gone and _gated(shared))
    train(module, optimizer, 1)
    assert c.arena_free_bytes == free


def _gated(shared) -> bool:
    try:
        shared.take_back(timeout=0.05)
    except td.Error:
        return False
    return True


# Promise: pushes-of-modules
def test_a_push_with_two_buffers_lets_the_module_change_at_once(c, other):
    module = Tied()
    optimizer = torch.optim.Adam(module.parameters())
    shared = td.nn.share_(c, module, mode="two_buffers")
    state = None
    for version in range(1, 6):
        train(module, optimizer, 1)
        expected = kept(module)
        if state is not None:
            with pytest.raises(td.Timeout):
                shared.push("policy", version=version, timeout=0.05)
        del state
        pushed = shared.push("policy", version=version)
        assert (pushed.version, pushed.report.copied) == (version, shared.nbytes)
        state = other.fetch_state("policy", at_least=version)
        with torch.no_grad():
            module.turned.add_(1)
        assert equal({name: tensor.torch() for name, tensor in state.items()}, expected)
        with torch.no_grad():
            module.turned.sub_(1)
        assert all(lies_in(shared.buffers[name], value) for name, value in module.state_dict().items())
    assert module.out.weight is module.embed.weight
    with pytest.raises(td.Invalid, match="keep cannot be given"):
        shared.push("policy", keep="deleted")


def test_a_mode_that_does_not_exist_is_refused(c):
    with pytest.raises(ValueError, match="mode is .*, not 'copy'"):
        td.nn.share_(c, Tied(), mode="copy")


# Promise: pushes-of-modules
def test_a_push_is_a_snapshot(c, other):
    module = Tied()
    optimizer = torch.optim.Adam(module.parameters())
    shared = td.nn.share_(c, module, mode="snapshot")
    published, states = [], []
    for version in (1, 2, 3):
        train(module, optimizer, 1)
        published.append(kept(module))
        pushed = shared.push("policy", version=version)
        # What is tied is copied once.
        assert (pushed.version, pushed.report.copied) == (version, shared.nbytes)
        states.append(other.fetch_state("policy", exactly=version))
    train(module, optimizer, 1)
    for version, (state, expected) in enumerate(zip(states, published), start=1):
        assert state.version == version and state.report.copied == 0
        assert equal({name: tensor.torch() for name, tensor in state.items()}, expected)
    replica = Tied()
    other.fetch_state("policy", into=replica.state_dict())
    assert equal(kept(replica), published[-1])
    with pytest.raises(td.Error, match="is at v3"):
        shared.push("policy", version=2)


def test_loading_a_state_dict_keeps_the_memory(c):
    module = Tied()
    shared = td.nn.share_(c, module)
    loaded = {name: torch.ones_like(value) for name, value in module.state_dict().items()}
    module.load_state_dict(loaded)
    shared.push("policy")
    assert equal({name: tensor.torch() for name, tensor in c.fetch_state("policy").items()}, loaded)


# Promise: pushes-of-modules
@pytest.mark.parametrize(
    "change, reason",
    [
        (lambda m: m.half(), "'turned' does not lie in the arena any more"),
        (lambda m: m.load_state_dict(kept(m), assign=True), "'turned' does not lie in the arena any more"),
        (lambda m: setattr(m, "turned", torch.nn.Parameter(torch.ones(2))), "'turned' does not lie in the arena"),
        (lambda m: m.register_buffer("new", torch.ones(1)), "'new' was added to"),
        (lambda m: delattr(m, "turned"), "'turned' was removed from"),
    ],
    ids=["half", "assign", "replaced", "added", "removed"],
)
def test_a_module_that_left_the_arena_is_not_pushed(c, change, reason):
    module = Tied()
    shared = td.nn.share_(c, module)
    change(module)
    with pytest.raises(td.Invalid, match=f"{reason}.* call share_ again"):
        shared.push("policy")
    td.nn.share_(c, module).push("policy")
    assert equal({name: tensor.torch() for name, tensor in c.fetch_state("policy").items()}, kept(module))


# Promise: modules-at-rest
def test_a_module_that_changes_no_more_is_published_by_reference(c, other):
    module = torch.nn.Linear(300, 100)
    shared = td.nn.share_(c, module)
    pushed = c.push_state("final", shared.buffers, aliases="allow", keep="deleted")
    state = other.fetch_state("final")
    assert (pushed.report.copied, state.report.copied) == (0, 0)
    assert equal({name: tensor.torch() for name, tensor in state.items()}, kept(module))
    with pytest.raises(td.Invalid, match="'weight' was published by reference"):
        shared.push("policy")


# Promise: modules-at-rest
def test_tied_entries_are_published_by_reference(c):
    module = Tied()
    shared = td.nn.share_(c, module)
    assert c.push_state("final", shared.buffers, aliases="allow", keep="deleted").report.copied == 0
    state = c.fetch_state("final")
    assert list(state) == list(module.state_dict()) and state["embed.weight"] is state["out.weight"]
    assert torch.equal(state["embed.weight"].torch(), module.out.weight)


FORK = """
import os, sys, torch, transferd as td
with td.connect(sys.argv[1], arena="1MiB") as c:
    module = torch.nn.Linear(3, 3)
    shared = td.nn.share_(c, module)
    child = os.fork()
    if child == 0:
        module.weight.data.fill_(7)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert (module.weight == 7).all()
"""


# Promise: modules-in-children
def test_a_forked_child_has_no_copy_of_the_parameters(sidecar):
    # In a process of its own: that of the tests has threads of jax, which does not like to be forked.
    done = subprocess.run([sys.executable, "-c", FORK, sidecar.path], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def overlapping() -> torch.nn.Module:
    flat, module = torch.zeros(10), torch.nn.Module()
    module.first, module.second = torch.nn.Parameter(flat[:6]), torch.nn.Parameter(flat[4:])
    return module


def overlapping_of_a_subclass() -> torch.nn.Module:
    flat, module = torch.zeros(8), torch.nn.Module()
    module.first, module.second = Marked(flat[:6]), Marked(flat[2:])
    return module


def with_buffer(value: torch.Tensor) -> torch.nn.Module:
    module = torch.nn.Linear(3, 3)
    module.register_buffer("wrong", value)
    return module


def places(module: torch.nn.Module) -> dict[str, int]:
    """Where the parameters lie that lie anywhere."""
    found = module.named_parameters()
    return {name: value.data_ptr() for name, value in found if not torch.nn.parameter.is_lazy(value)}


class WithExtra(torch.nn.Linear):
    def get_extra_state(self):
        return {"seen": 1}


class Computed(torch.nn.Linear):
    def __init__(self) -> None:
        super().__init__(3, 3)
        self.register_state_dict_post_hook(lambda module, state, prefix, _: state.update(made=torch.ones(1)))


class Kind(torch.Tensor):
    pass


# Promise: shared-modules
@pytest.mark.parametrize(
    "make, error, reason",
    [
        (overlapping, td.Invalid, "'first' and 'second' have a part of their memory in common"),
        (overlapping_of_a_subclass, td.Invalid, "'first' and 'second' have a part of their memory in common"),
        (lambda: torch.nn.Linear(3, 3, device="meta"), td.Invalid, "'weight' is on the device meta: .*cpu"),
        (lambda: torch.nn.LazyLinear(3), td.Invalid, "'weight' has no shape yet: run the module once"),
        (lambda: with_buffer(torch.empty(2, dtype=torch.complex32)), td.Invalid, "'wrong' cannot be moved: .*complex32"),
        (lambda: with_buffer(torch.eye(3).to_sparse()), td.Invalid, "'wrong' is a tensor of layout torch.sparse_coo"),
        (lambda: with_buffer(torch.ones(3).as_subclass(Kind)), td.Invalid, "'wrong' is a Kind"),
        (lambda: WithExtra(3, 3), td.Invalid, "'_extra_state' is a dict"),
        (Computed, td.Invalid, r"'made' is made by state_dict\(\)"),
        (lambda: with_buffer(torch.empty(80 << 20, dtype=torch.uint8)), td.ArenaFull, "arena"),
    ],
    ids=["overlap", "overlap of a subclass", "device", "lazy", "type", "sparse", "subclass", "extra", "computed", "room"],
)
def test_what_cannot_be_moved_is_refused_and_nothing_is_changed(c, make, error, reason):
    module, free = make(), c.arena_free_bytes
    before = places(module)
    with pytest.raises(error, match=reason):
        td.nn.share_(c, module)
    assert places(module) == before
    gc.collect()
    until("what was allocated came back", lambda: c.arena_free_bytes == free)


def test_arguments_that_cannot_be_say_why(c):
    with pytest.raises(TypeError, match="transferd.Client, and then a module, not a torch.nn.modules.linear.Linear"):
        td.nn.share_(torch.nn.Linear(1, 1), c)
    with pytest.raises(TypeError, match="torch.nn.Module, not a dict"):
        td.nn.share_(c, {})


# Promise: memory-of-modules
def test_the_module_keeps_its_memory_and_gives_it_back(c):
    free = c.arena_free_bytes
    module = Tied()
    shared = td.nn.share_(c, module)
    twin = copy.deepcopy(module)
    assert c.arena_free_bytes < free
    del shared
    gc.collect()
    train(module, torch.optim.Adam(module.parameters()), 2)
    assert c.arena_free_bytes < free
    del module
    gc.collect()
    until("the memory came back", lambda: c.arena_free_bytes == free)
    # A copy is memory of its own.
    train(twin, torch.optim.Adam(twin.parameters()), 1)


# Promise: memory-of-modules
def test_the_module_outlives_the_client_and_the_sidecar(sidecar):
    module = Tied()
    with td.connect(sidecar.path, arena="1MiB") as c:
        shared = td.nn.share_(c, module)
        before = kept(module)
    sidecar.kill()
    assert equal(kept(module), before)
    train(module, torch.optim.Adam(module.parameters()), 2)
    with pytest.raises(td.Error) as e:
        shared.push("policy")
    assert e.value.code == "closed"
