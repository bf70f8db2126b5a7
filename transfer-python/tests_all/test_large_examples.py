"""The recipes that need torch or jax."""

from __future__ import annotations

import pytest
from test_examples import recipes, run_recipe


@pytest.mark.parametrize("code", list(recipes(large=True)))
def test_a_recipe_with_torch_or_jax_does_what_it_says(sidecar, code):
    run_recipe(sidecar, code)
