"""Train with other frameworks on ccl, without orch, by the examples of docs/reference/ccl.md.

ORCH_FRAMEWORKS_PYTHON is the Python of an environment with torch, the bindings and the frameworks.
CI does not run these tests, because the frameworks need several GB.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.bindings.conftest import PROGRAMS, clean_environment

PYTHON = os.environ.get("ORCH_FRAMEWORKS_PYTHON", "")
pytestmark = pytest.mark.skipif(not PYTHON, reason="needs ORCH_FRAMEWORKS_PYTHON: NO framework is tested on ccl")
SELF_LAUNCHING = ("with_lightning", "with_ray")  # they start their ranks themselves


@pytest.mark.parametrize(
    "program", ["plain", "with_accelerate", *SELF_LAUNCHING, *(f"with_deepspeed {stage}" for stage in (0, 1, 2, 3))]
)
def test_a_framework_trains_on_ccl(program: str, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory):
    name, *arguments = program.split()
    path = f"{Path(PYTHON).parent}:{os.environ['PATH']}"
    # In the user's folder, a build of DeepSpeed that was killed leaves a lock for which all later builds wait.
    compiled = tmp_path_factory.getbasetemp() / "compiled"
    env = clean_environment({"PATH": path, "TORCH_EXTENSIONS_DIR": str(compiled)})
    launcher = (
        [PYTHON]
        if name in SELF_LAUNCHING
        else [PYTHON, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", env["MASTER_PORT"]]
    )
    command = [*launcher, str(PROGRAMS / "frameworks" / f"{name}.py"), *arguments]
    result = subprocess.run(command, env=env, cwd=tmp_path, capture_output=True, text=True, timeout=580)
    assert result.returncode == 0, result.stdout + result.stderr
    assert (result.stdout + result.stderr).count("trained on ccl") >= 2
