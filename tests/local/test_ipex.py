"""Train in BF16 with IPEX, in the environment of an old stack whose interpreter ORCH_IPEX_PYTHON names.

`orch stacks requirements intel-2.8 --backend gloo` lists the packages of that environment.
"""

from __future__ import annotations

import json
import os
import subprocess

import pytest

from tests.local.runs import SCRIPTS, expect_exit

PYTHON = os.environ.get("ORCH_IPEX_PYTHON")

pytestmark = pytest.mark.skipif(not PYTHON, reason="needs ORCH_IPEX_PYTHON: IPEX is NOT tested")


def train(optimizer: str, device: str, code: int) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [str(PYTHON), str(SCRIPTS / "with_ipex.py"), optimizer, device]
    return expect_exit(subprocess.run(command, capture_output=True, text=True, timeout=600, env=environment), code)


@pytest.mark.parametrize("optimizer", ["AdamW", "SGD"])  # IPEX replaces SGD's step, which bypasses torch's hooks
def test_model_that_is_moved_after_ipex_ends_the_training(optimizer: str) -> None:
    process = train(optimizer, "cpu:0", code=1)
    assert "RankError: training does not change the weights that the model uses: 2 of 2 layers" in process.stderr
    assert "ACCELERATE_TORCH_DEVICE=cpu" in process.stderr


@pytest.mark.parametrize("optimizer", ["AdamW", "SGD"])
def test_model_that_stays_on_its_device_causes_no_message(optimizer: str) -> None:
    process = train(optimizer, "cpu", code=0)
    assert "warning: " not in process.stderr
    assert "orch: " not in process.stderr
    losses = json.loads(process.stdout.splitlines()[-1].removeprefix("LOSSES "))
    assert losses[-1] < losses[0]
