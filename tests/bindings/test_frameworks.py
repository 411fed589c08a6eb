"""Others' frameworks on ccl, without orch: docs/reference/ccl.md's lines, each with 2 ranks.

ORCH_FRAMEWORKS_PYTHON is the Python of an environment with torch, our bindings for it, and the
frameworks: they are GBs, so there is none of them in CI.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.bindings.conftest import PROGRAMS, clean_environment

PYTHON = os.environ.get("ORCH_FRAMEWORKS_PYTHON", "")
pytestmark = pytest.mark.skipif(not PYTHON, reason="needs ORCH_FRAMEWORKS_PYTHON: ccl below NO framework is tested")
ALONE = ("with_lightning", "with_ray")  # they start their ranks themselves


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """DeepSpeed's operators. A build that was killed leaves a lock in the user's own folder, for
    which all later ones wait."""
    return tmp_path_factory.mktemp("compiled")


@pytest.mark.parametrize(
    "program", ["plain", "with_accelerate", *ALONE, *(f"with_deepspeed {stage}" for stage in (0, 1, 2, 3))]
)
def test_it_trains_on_ccl(program: str, tmp_path: Path, compiled: Path):
    name, *arguments = program.split()
    path = f"{Path(PYTHON).parent}:{os.environ['PATH']}"
    env = clean_environment({"PATH": path, "TORCH_EXTENSIONS_DIR": str(compiled)})
    launcher = (
        [PYTHON]
        if name in ALONE
        else [PYTHON, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", env["MASTER_PORT"]]
    )
    asked = [*launcher, str(PROGRAMS / "frameworks" / f"{name}.py"), *arguments]
    done = subprocess.run(asked, env=env, cwd=tmp_path, capture_output=True, text=True, timeout=580)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (done.stdout + done.stderr).count("trained on ccl") >= 2
