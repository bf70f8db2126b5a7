"""Staged states of modules of torch."""

from __future__ import annotations

import torch
import transferd as td


# Promise: staged-states
def test_a_model_gets_what_has_changed(c, other):
    follow = other.state_subscriber("policy")
    trainer, replica = torch.nn.Linear(16, 8), torch.nn.Linear(16, 8)
    c.push_state("policy", trainer.state_dict())
    staged = follow.stage().wait(20)
    assert staged.changed == ["weight", "bias"]
    assert staged.commit(replica.state_dict()).copied == 16 * 8 * 4 + 8 * 4
    with torch.no_grad():
        trainer.bias.fill_(5)
    c.push_state("policy", trainer.state_dict())
    staged = follow.stage().wait(20)
    # Its state dict has other objects for the same memory.
    assert staged.changed == ["bias"] and staged.commit(replica.state_dict()).copied == 8 * 4
    assert torch.equal(replica.bias, trainer.bias) and torch.equal(replica.weight, trainer.weight)
    for _ in range(20):
        # Memory that was freed is not the same, also where the next tensor lies at its address.
        fresh = {"weight": torch.zeros(8, 16)}
        assert staged.commit(fresh).copied == 16 * 8 * 4 and torch.equal(fresh["weight"], trainer.weight)
        del fresh


# Promise: staged-states
def test_a_model_gets_the_ranges_that_have_changed(c, other):
    chunk = 256 << 10
    follow = other.state_subscriber("large")
    trainer, replica = torch.nn.Linear(1024, 300, bias=False), torch.nn.Linear(1024, 300, bias=False)
    last = trainer.weight.nbytes
    assert last > 1 << 20
    for places, ranges in [((), [(0, last)]), ((0, 70_000), [(0, 2 * chunk)]), ((-1,), [(4 * chunk, last)])]:
        with torch.no_grad():
            for place in places:
                trainer.weight.view(-1)[place] = 7 + last + place
        c.push_state("large", trainer.state_dict())
        staged = follow.stage().wait(20)
        assert staged.changed_ranges == {"weight": ranges}
        assert staged.commit(replica.state_dict()).copied == sum(end - begin for begin, end in ranges)
        assert torch.equal(replica.weight, trainer.weight)
