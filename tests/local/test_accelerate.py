"""The configuration files, read by the accelerates of the stacks, and real launches both ways."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import yaml

from orchestrator import load
from orchestrator.launchers import accelerate_config
from tests.conftest import make_job
from tests.local.runs import Orch
from tests.unit.planning.test_accelerate_file import FILE
from tests.unit.planning.test_launchers import ONE, TWO

VERSIONS = sorted({stack.requirements["accelerate"] for stack in load.all_stacks()})
# Loads each file and goes through all that `accelerate launch` does up to its command.
CHECK = """
import json, os, sys
from accelerate.commands.launch import launch_command_parser, _validate_launch_command
from accelerate.utils.launch import prepare_simple_launcher_cmd_env
import accelerate
for path in sys.argv[1:]:
    args = launch_command_parser().parse_args(["--config_file", path, "script.py", "--x"])
    args, _, _ = _validate_launch_command(args)
    command, environment = prepare_simple_launcher_cmd_env(args)
    print(json.dumps([accelerate.__version__, command, environment["ACCELERATE_MIXED_PRECISION"]]))
"""
SCRIPT = """
import os
from accelerate import Accelerator
accelerator = Accelerator()
print("IT", accelerator.num_processes, accelerator.mixed_precision, accelerator.device.type)
"""


@pytest.fixture(scope="session", params=VERSIONS)
def accelerate(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Where this version is importable from; no other package is touched."""
    folder = tmp_path_factory.mktemp("accelerate")
    options = ["--quiet", "--no-deps", "--dest", str(folder)]
    wanted = f"accelerate=={request.param}"
    subprocess.run([sys.executable, "-m", "pip", "download", *options, wanted], check=True)
    with zipfile.ZipFile(next(folder.glob("*.whl"))) as wheel:
        wheel.extractall(folder)
    return str(folder)


def test_the_file_is_read_by_the_version_of_the_stack(accelerate: str, tmp_path: Path) -> None:
    version = accelerate_config.Version(next(Path(accelerate).glob("*.whl")).name.split("-")[1])
    cases = [(nodes, users) for nodes in (ONE, TWO) for users in ({}, FILE)]
    paths = []
    for index, (nodes, users) in enumerate(cases):
        job = make_job(nodes, ppn=2, precision="bf16", accelerate=users)
        config = accelerate_config.config(job, version, starts_mpirun=True)
        paths.append(tmp_path / f"{index}.yaml")
        paths[-1].write_text(accelerate_config.as_yaml(config))
        assert yaml.safe_load(paths[-1].read_text()) == config
    process = subprocess.run(
        [sys.executable, "-c", CHECK, *map(str, paths)],
        env={**os.environ, "PYTHONPATH": accelerate, "PATH": f"{Path(sys.executable).parent}:/bin"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert process.returncode == 0, process.stderr
    lines = [line for line in process.stdout.splitlines() if line.startswith("[")]
    for (nodes, _), line in zip(cases, lines, strict=True):
        found, command, precision = json.loads(line)
        assert (found, precision) == (str(version), "bf16")
        ranks = str(2 * len(nodes))
        assert command[:7] == ["mpirun", "-f", job.hostfile, "-ppn", "2", "-n", ranks]
        assert command[-2:] == ["script.py", "--x"]


@pytest.mark.parametrize("launcher", ["accelerate", "mpirun-accelerate"])
@pytest.mark.parametrize("ranks", [1, 2])
def test_the_scripts_accelerator_has_what_was_asked_for(orch: Orch, tmp_path: Path, launcher: str, ranks: int) -> None:
    (tmp_path / "s.py").write_text(SCRIPT)
    (tmp_path / "f.yaml").write_text(yaml.safe_dump({"use_cpu": True, "mixed_precision": "bf16"}))
    process = orch(
        "train",
        "s.py",
        "--launcher",
        launcher,
        "--ppn",
        str(ranks),
        "--allow-slow-bf16",
        "--accelerate-config",
        "f.yaml",
    )
    assert process.returncode == 0, process.stdout + process.stderr
    assert "accelerate config: honoured: mixed_precision bf16, use_cpu True" in process.stderr
    (run,) = (tmp_path / "runs").iterdir()
    assert f"IT {ranks} bf16 cpu" in (run / "ranks" / "rank-0.log").read_text()
