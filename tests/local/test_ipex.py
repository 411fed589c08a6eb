"""IPEX in BF16, in the environment of an old stack: ORCH_IPEX_PYTHON names its interpreter.

`orch stacks requirements intel-2.8 --backend gloo` says what has to be in it.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from tests.local.runs import expect_exit

SCRIPT = Path(__file__).parents[1] / "scripts" / "with_ipex.py"
PYTHON = os.environ.get("ORCH_IPEX_PYTHON")

pytestmark = pytest.mark.skipif(not PYTHON, reason="needs ORCH_IPEX_PYTHON: IPEX is NOT tested")


def run(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(PYTHON), str(SCRIPT), *words],
        capture_output=True,
        text=True,
        timeout=600,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )


@pytest.mark.parametrize("optimizer", ["AdamW", "SGD"])  # IPEX fuses that one, past torch's hooks
def test_a_model_that_was_moved_after_ipex_is_told(optimizer: str) -> None:
    process = expect_exit(run(optimizer, "cpu:0"), 1)
    assert "RankError: training does not change the weights that the model uses: 2 of 2 layers" in (process.stderr)
    assert "ACCELERATE_TORCH_DEVICE=cpu" in process.stderr


@pytest.mark.parametrize("optimizer", ["AdamW", "SGD"])
def test_a_model_that_stays_where_it_is_is_left_alone(optimizer: str) -> None:
    process = expect_exit(run(optimizer, "cpu"))
    assert "warning: " not in process.stderr
    assert "orch: " not in process.stderr
    losses = json.loads(process.stdout.splitlines()[-1].removeprefix("LOSSES "))
    assert losses[-1] < losses[0]
