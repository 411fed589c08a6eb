"""Check the package besides collectives: compatible names, setvars.sh, builds, and import errors."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

from oneccl_bindings_for_pytorch._environment import defaults

BINDINGS = Path(__file__).parents[2] / "bindings"
SETVARS = Path(find_spec("oneccl_bindings_for_pytorch").origin).parent / "env/setvars.sh"


def run(*command: str | Path, timeout: float = 60, **options: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout, **options)


def test_another_torch_is_rejected_with_a_hint(tmp_path):
    info = tmp_path / "torch-2.7.1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: torch\nVersion: 2.7.1+cpu\n")
    env = os.environ | {"PYTHONPATH": str(tmp_path)}
    result = run(sys.executable, "-c", "import oneccl_bindings_for_pytorch", env=env)
    assert result.returncode == 1
    error = result.stderr.strip().splitlines()[-1]
    assert error.startswith("ImportError: oneccl_bind_pt was built for torch ")
    assert "but torch 2.7 is installed. Install both from one stack: `orch setup`" in error


def test_setvars_is_safe_to_source(tmp_path):
    bin_folder = tmp_path / "venv" / "bin"
    bin_folder.mkdir(parents=True)
    (bin_folder / "mpiexec.hydra").touch(mode=0o755)
    script = (
        'set -eu; set -- one "two words"; . "$SETVARS"; once=$PATH; . "$SETVARS"; '
        '[ "$PATH" = "$once" ]; [ $# -eq 2 ]; [ "$2" = "two words" ]; command -v mpiexec.hydra'
    )
    env = {"PATH": "/usr/bin:/bin", "SETVARS": str(SETVARS)}
    result = run("sh", "-c", script, env=env | {"VIRTUAL_ENV": str(tmp_path / "venv")})
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip() == str(bin_folder / "mpiexec.hydra")
    result = run("sh", "-c", 'set -eu; . "$SETVARS"; . "$SETVARS"; echo "$PATH"', env=env)
    assert (result.returncode, result.stdout.strip()) == (0, "/usr/bin:/bin")


def test_pip_builds_for_the_installed_torch_without_downloading_one():
    """Check the metadata that pip builds; a dry run compiles nothing."""
    pip = [sys.executable, "-m", "pip", "install", "--dry-run", "--no-deps", "--ignore-installed"]
    result = run(*pip, BINDINGS, timeout=300)
    assert result.returncode == 0, result.stdout + result.stderr
    assert f"Would install oneccl_bind_pt-{version('torch').split('+')[0]}+orch." in result.stdout
    assert "Collecting torch" not in result.stdout


def test_variables_of_the_user_take_precedence():
    env = {"PMI_RANK": "0", "CCL_ATL_TRANSPORT": "ofi", "FI_PROVIDER": "verbs", "CCL_WORKER_AFFINITY": "7,15"}
    env |= {"CCL_ATL_OFI_MAX_RETRY_COUNT": "7"}
    assert defaults(env | {"DDP_DISABLE_COMM_MEM": "1"}) == {"CCL_WORKER_OFFLOAD": "1"}
    assert "DDP_DISABLE_COMM_MEM" not in defaults(env | {"ORCH_CCL_SHARED_MEMORY": "0"})
