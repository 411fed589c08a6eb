"""Check that the accelerates of all stacks read our configuration files, and launch with them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from orchestrator import load
from orchestrator.planning import launchers
from tests.conftest import make_spec
from tests.local.conftest import download_wheels
from tests.support.plans import ONE_NODE, TWO_NODES
from tests.unit.planning.test_accelerate_file import FILE

VERSIONS = sorted({stack.requirements["accelerate"] for stack in load.all_stacks()})
# Loads each file and runs all of `accelerate launch` up to its command.
PRINT_COMMANDS = """
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


@pytest.fixture(scope="session", params=VERSIONS)
def accelerate(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return a folder to import this version from, without changing the stack."""
    return download_wheels(tmp_path_factory.mktemp("accelerate"), f"accelerate=={request.param}")


def test_config_file_is_read_by_the_accelerate_of_each_stack(accelerate: str, tmp_path: Path) -> None:
    version = launchers.Version(next(Path(accelerate).glob("*.whl")).name.split("-")[1])
    cases = [(nodes, user_config) for nodes in (ONE_NODE, TWO_NODES) for user_config in ({}, FILE)]
    paths = []
    for index, (nodes, user_config) in enumerate(cases):
        spec = make_spec(nodes, ppn=2, precision="bf16", accelerate=user_config)
        config = launchers.accelerate_config(spec, version, starts_mpirun=True)
        paths.append(tmp_path / f"{index}.yaml")
        paths[-1].write_text(launchers.as_yaml(config))
        assert yaml.safe_load(paths[-1].read_text()) == config
    process = subprocess.run(
        [sys.executable, "-c", PRINT_COMMANDS, *map(str, paths)],
        env={**os.environ, "PYTHONPATH": accelerate, "PATH": f"{Path(sys.executable).parent}:/bin"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert process.returncode == 0, process.stderr
    lines = [line for line in process.stdout.splitlines() if line.startswith("[")]
    for (nodes, _), line in zip(cases, lines, strict=True):
        imported_version, command, precision = json.loads(line)
        assert (imported_version, precision) == (str(version), "bf16")
        ranks = str(2 * len(nodes))
        assert command[:7] == ["mpirun", "-f", spec.hostfile, "-ppn", "2", "-n", ranks]
        assert command[-2:] == ["script.py", "--x"]
