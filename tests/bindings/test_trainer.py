"""transformers' Trainer on ccl, through initialising before it does."""

from __future__ import annotations

from importlib.util import find_spec

import pytest


@pytest.mark.skipif(find_spec("transformers") is None, reason="transformers is not in this environment")
def test_trainer_uses_the_group_that_is_there(launch, tmp_path):
    outcome = launch("trainer.py", str(tmp_path / "out"), timeout=120)
    assert outcome.code == 0, outcome.text
    assert outcome.text.count("trained on ccl") == 2
