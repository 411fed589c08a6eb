"""Check the package besides collectives: compatible names, setvars.sh, builds, and import errors."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

import pytest
from oneccl_bindings_for_pytorch._environment import defaults

BINDINGS = Path(__file__).parents[2] / "bindings"
SETVARS = Path(find_spec("oneccl_bindings_for_pytorch").origin).parent / "env/setvars.sh"


def run(*command: str | Path, timeout: float = 60, **options: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout, **options)


@pytest.fixture
def sources(tmp_path: Path) -> Path:
    return shutil.copytree(BINDINGS, tmp_path / "bindings", ignore=shutil.ignore_patterns("build"))


def test_names_and_version():
    code = (
        "import torch, oneccl_bindings_for_pytorch as o;"
        "assert 'ccl' in torch.distributed.Backend.backend_list;"
        "assert o.__version__.startswith(torch.__version__.split('+')[0] + '+orch.');"
        "print(o.__version__, o.oneccl_version)"
    )
    result = run(sys.executable, "-c", code)
    assert result.returncode == 0, result.stderr
    assert result.stdout.split()[0] == version("oneccl_bind_pt")


@pytest.mark.parametrize(
    ("torch_version", "message"),
    [
        ("2.14.0", "but torch 2.14 is installed. Install both from one stack: `orch setup`"),
        ("2.7.1+cpu", "but torch 2.7 is installed. Install both from one stack: `orch setup`"),
    ],
    ids=["newer", "older"],
)
def test_another_torch_is_rejected_with_a_hint(tmp_path, torch_version, message):
    info = tmp_path / f"torch-{torch_version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: torch\nVersion: {torch_version}\n")
    env = os.environ | {"PYTHONPATH": str(tmp_path)}
    result = run(sys.executable, "-c", "import oneccl_bindings_for_pytorch", env=env)
    assert result.returncode == 1
    error = result.stderr.strip().splitlines()[-1]
    assert error.startswith("ImportError: oneccl_bind_pt was built for torch ")
    assert message in error


@pytest.mark.parametrize("shell", ["sh", "bash"])
def test_setvars_is_safe_to_source(tmp_path, shell):
    bin_folder = tmp_path / "venv" / "bin"
    bin_folder.mkdir(parents=True)
    (bin_folder / "mpiexec.hydra").touch(mode=0o755)
    script = (
        'set -eu; set -- one "two words"; . "$SETVARS"; once=$PATH; . "$SETVARS"; '
        '[ "$PATH" = "$once" ]; [ $# -eq 2 ]; [ "$2" = "two words" ]; command -v mpiexec.hydra'
    )
    env = {"PATH": "/usr/bin:/bin", "SETVARS": str(SETVARS)}
    result = run(shell, "-c", script, env=env | {"VIRTUAL_ENV": str(tmp_path / "venv")})
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip() == str(bin_folder / "mpiexec.hydra")
    result = run(shell, "-c", 'set -eu; . "$SETVARS"; . "$SETVARS"; echo "$PATH"', env=env)
    assert (result.returncode, result.stdout.strip()) == (0, "/usr/bin:/bin")


def test_a_missing_compiler_is_reported(sources, tmp_path):
    result = run(sys.executable, "setup.py", "bdist_wheel", cwd=sources, env={"PATH": str(tmp_path)})
    assert result.returncode == 1
    assert "`apt install g++`" in result.stderr


def test_pip_builds_for_the_installed_torch_without_downloading_one():
    """Check the metadata that pip builds; a dry run compiles nothing."""
    pip = [sys.executable, "-m", "pip", "install", "--dry-run", "--no-deps", "--ignore-installed"]
    result = run(*pip, BINDINGS, timeout=300)
    assert result.returncode == 0, result.stdout + result.stderr
    assert f"Would install oneccl_bind_pt-{version('torch').split('+')[0]}+orch." in result.stdout
    assert "Collecting torch" not in result.stdout


def test_a_build_without_torch_reports_what_to_install(sources, tmp_path):
    (tmp_path / "setuptools").symlink_to(Path(find_spec("setuptools").origin).parent)
    code = (
        f"import sys; sys.path[:] = [{str(tmp_path)!r}, *(p for p in sys.path if 'site-packages' not in p)]; "
        "sys.argv = ['setup.py', 'egg_info']; import runpy; runpy.run_path('setup.py')"
    )
    result = run(sys.executable, "-c", code, cwd=sources)
    assert result.returncode == 1
    assert "torch is not installed in this environment" in result.stderr
    assert "--no-build-isolation" in result.stderr


def test_defaults_under_hydra_and_under_torchrun():
    assert defaults({"PMI_RANK": "0"}) == {
        "CCL_ALLREDUCE": "direct:0-33554432;ring:33554433-max",
        "CCL_ALLTOALLV": "scatter",
        "CCL_RS_CHUNK_COUNT": "4",
        "CCL_ATL_MPI_BF16": "0",
        "CCL_ATL_TRANSPORT": "mpi",
        "CCL_WORKER_OFFLOAD": "0",
        "DDP_DISABLE_COMM_MEM": "0",
    }
    assert defaults({"LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}) == {
        "CCL_ATL_TRANSPORT": "ofi",
        "CCL_WORKER_OFFLOAD": "0",
        "FI_PROVIDER": "tcp",
        "CCL_ATL_OFI_MAX_RETRY_COUNT": "100",
        "CCL_PROCESS_LAUNCHER": "none",
        "CCL_LOCAL_RANK": "1",
        "CCL_LOCAL_SIZE": "2",
        "DDP_DISABLE_COMM_MEM": "0",
    }


def test_variables_of_the_user_take_precedence():
    env = {"PMI_RANK": "0", "CCL_ATL_TRANSPORT": "ofi", "FI_PROVIDER": "verbs", "CCL_WORKER_AFFINITY": "7,15"}
    env |= {"CCL_ATL_OFI_MAX_RETRY_COUNT": "7"}
    assert defaults(env | {"DDP_DISABLE_COMM_MEM": "1"}) == {"CCL_WORKER_OFFLOAD": "1"}
    assert "DDP_DISABLE_COMM_MEM" not in defaults(env | {"ORCH_CCL_SHARED_MEMORY": "0"})
