"""Check the package besides collectives: compatible names, setvars.sh, builds, and import errors."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

PACKAGE = Path(
    subprocess.run(
        [sys.executable, "-c", "from oneccl_bindings_for_pytorch import cwd; print(cwd)"],
        check=True,
        capture_output=True,
        text=True,
    ).stdout.strip()
)


def python(code: str, path: Path | None = None) -> subprocess.CompletedProcess:
    env = os.environ | ({"PYTHONPATH": str(path)} if path else {})
    return subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, text=True, check=False, timeout=60
    )


def test_names_and_version():
    code = (
        "import torch, oneccl_bindings_for_pytorch as o;"
        "assert 'ccl' in torch.distributed.Backend.backend_list;"
        "assert o.__version__.startswith(torch.__version__.split('+')[0] + '+orch.');"
        "print(o.__version__, o.oneccl_version)"
    )
    result = python(code)
    assert result.returncode == 0, result.stderr
    assert result.stdout.split()[0] == version("oneccl_bind_pt")


@pytest.mark.parametrize(
    ("torch_version", "message"),
    [
        ("2.14.0", "but torch 2.14 is installed. Install both from one stack: `orch setup`"),
        ("2.7.1+cpu", "but torch 2.7 is installed. Install both from one stack: `orch setup`"),
    ],
)
def test_another_torch_is_rejected_with_a_hint(tmp_path, torch_version, message):
    info = tmp_path / f"torch-{torch_version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: torch\nVersion: {torch_version}\n")
    result = python("import oneccl_bindings_for_pytorch", tmp_path)
    assert result.returncode == 1
    last = result.stderr.strip().splitlines()[-1]
    assert last.startswith("ImportError: oneccl_bind_pt was built for torch ")
    assert message in last


@pytest.mark.parametrize("shell", ["sh", "bash"])
def test_setvars_is_safe_to_source(tmp_path, shell):
    bin_folder = tmp_path / "venv" / "bin"
    bin_folder.mkdir(parents=True)
    (bin_folder / "mpiexec.hydra").touch(mode=0o755)
    script = (
        'set -eu; set -- one "two words"; . "$SETVARS"; once=$PATH; . "$SETVARS"; '
        '[ "$PATH" = "$once" ]; [ $# -eq 2 ]; [ "$2" = "two words" ]; command -v mpiexec.hydra'
    )
    env = {
        "PATH": "/usr/bin:/bin",
        "VIRTUAL_ENV": str(tmp_path / "venv"),
        "SETVARS": str(PACKAGE / "env" / "setvars.sh"),
    }
    result = subprocess.run([shell, "-c", script], env=env, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip() == str(bin_folder / "mpiexec.hydra")
    del env["VIRTUAL_ENV"]
    plain = 'set -eu; . "$SETVARS"; . "$SETVARS"; echo "$PATH"'
    result = subprocess.run([shell, "-c", plain], env=env, capture_output=True, text=True, check=False)
    assert (result.returncode, result.stdout.strip()) == (0, "/usr/bin:/bin")


def test_a_missing_compiler_is_reported(tmp_path):
    source = Path(__file__).parents[2] / "bindings"
    copied = shutil.copytree(source, tmp_path / "bindings", ignore=shutil.ignore_patterns("build"))
    result = subprocess.run(
        [sys.executable, "setup.py", "bdist_wheel"],
        cwd=copied,
        env={"PATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 1
    assert "`apt install g++`" in result.stderr


def test_pip_builds_for_the_installed_torch_without_downloading_one():
    """Check the metadata that pip builds; a dry run compiles nothing."""
    source = Path(__file__).parents[2] / "bindings"
    pip = [sys.executable, "-m", "pip", "install", "--dry-run", "--no-deps"]
    command = [*pip, "--ignore-installed", str(source)]
    result = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert result.returncode == 0, result.stdout + result.stderr
    assert f"Would install oneccl_bind_pt-{version('torch').split('+')[0]}+orch." in result.stdout
    assert "Collecting torch" not in result.stdout


def test_a_build_without_torch_reports_what_to_install(tmp_path):
    code = (
        "import sys; sys.path[:] = [p for p in sys.path if 'site-packages' not in p]; "
        "sys.argv = ['setup.py', 'egg_info']; import runpy; runpy.run_path('setup.py')"
    )
    copied = shutil.copytree(
        Path(__file__).parents[2] / "bindings", tmp_path / "bindings", ignore=shutil.ignore_patterns("build")
    )
    setuptools = Path(
        subprocess.check_output(
            [sys.executable, "-c", "import setuptools; print(setuptools.__path__[0])"], text=True
        ).strip()
    )
    (tmp_path / "setuptools").symlink_to(setuptools)
    result = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(tmp_path)!r}); {code}"],
        cwd=copied,
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 1
    assert "torch is not installed in this environment" in result.stderr
    assert "--no-build-isolation" in result.stderr


def environment_defaults(env: dict[str, str]) -> dict[str, str]:
    from oneccl_bindings_for_pytorch._environment import defaults

    return defaults(env)


def test_defaults_under_hydra_and_under_torchrun():
    assert environment_defaults({"PMI_RANK": "0"}) == {
        "CCL_ALLREDUCE": "direct:0-33554432;ring:33554433-max",
        "CCL_ALLTOALLV": "scatter",
        "CCL_RS_CHUNK_COUNT": "4",
        "CCL_ATL_MPI_BF16": "0",
        "CCL_ATL_TRANSPORT": "mpi",
        "CCL_WORKER_OFFLOAD": "0",
        "DDP_DISABLE_COMM_MEM": "0",
    }
    assert environment_defaults({"LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}) == {
        "CCL_ATL_TRANSPORT": "ofi",
        "CCL_WORKER_OFFLOAD": "0",
        "FI_PROVIDER": "tcp",
        "CCL_PROCESS_LAUNCHER": "none",
        "CCL_LOCAL_RANK": "1",
        "CCL_LOCAL_SIZE": "2",
        "DDP_DISABLE_COMM_MEM": "0",
    }


def test_variables_of_the_user_take_precedence():
    env = {"PMI_RANK": "0", "CCL_ATL_TRANSPORT": "ofi", "FI_PROVIDER": "verbs", "CCL_WORKER_AFFINITY": "7,15"}
    assert environment_defaults(env | {"DDP_DISABLE_COMM_MEM": "1"}) == {"CCL_WORKER_OFFLOAD": "1"}
    without = environment_defaults(env | {"ORCH_CCL_SHARED_MEMORY": "0"})
    assert "DDP_DISABLE_COMM_MEM" not in without
