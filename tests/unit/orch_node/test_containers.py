"""The commands that nodes give their engine, and what they make of its answers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from orch_node.agent import containers, env_file
from orch_node.agent.env_file import EnvFileError
from orch_node.protocol.container import ContainerSpec, render
from orch_node.protocol.layout import Placement
from orch_node.rank import container

from orchestrator.paths import TRAIN
from tests.conftest import HOSTILE

SPEC = ContainerSpec(
    image="orch:current",
    start="rank",
    python="python3",
    preload=(),
    processes={"node0": 2},
    options=("--network", "host"),
)
PLACE = Placement(
    rank=1, node="node0", local_rank=1, local_world_size=2, cpus=(2, 3), worker_cpus=(4,), threads=2, env={}
)


def test_a_container_has_the_cores_the_user_and_the_labels_of_its_run() -> None:
    found = containers.run_options(Path("/runs/r"), SPEC, node="node0", cpus=[0, 1])
    assert found == [
        *("run", "--pull", "never"),
        *("--label", "orch.run=r", "--label", "orch.folder=/runs/r", "--label", "orch.node=node0"),
        *("--user", f"{os.getuid()}:{os.getgid()}", "--cpuset-cpus", "0,1", "--network", "host"),
    ]


def test_a_rank_is_started_without_a_secret_in_its_arguments(tmp_path: Path) -> None:
    containers.id_file(tmp_path, "node0").write_text("0123")
    found = containers.exec_command(tmp_path, SPEC, node="node0", rank=1)
    assert found == [
        *("docker", "exec", "--interactive", "--env", f"ORCH_RUN_DIR={tmp_path}"),
        *("--env", "RANK=1", "0123", "python3", "-u", str(TRAIN / "node.py"), "contained-rank", str(tmp_path)),
    ]


def test_an_entrypoint_gets_its_words_as_they_are_and_only_names_of_variables() -> None:
    words = list(HOSTILE)
    found = containers.entry_command(Path("/runs/r"), SPEC, PLACE, ["A", "B"], words)
    assert found[-len(words) :] == words
    assert found[found.index("--cpuset-cpus") + 1] == "2,3,4"
    rest = found[found.index("--rm") : -len(words)]
    assert rest == ["--rm", "--env", "A", "--env", "B", "orch:current"]


def test_a_file_of_variables_is_read_as_docker_reads_it(tmp_path: Path) -> None:
    (tmp_path / "own env").write_bytes(b"\xef\xbb\xbf# a comment\n\n  TOKEN=a b=c # no comment\r\nEMPTY=\nHERE\nGONE\n")
    found = env_file.read(tmp_path / "own env", {"HERE": "of the node"})
    assert found == {"TOKEN": "a b=c # no comment", "EMPTY": "", "HERE": "of the node"}


@pytest.mark.parametrize("line", [b"a b=secret", b"=secret", b"x;id=secret", b"\xff=secret"])
def test_what_is_no_variable_is_refused_without_its_value(tmp_path: Path, line: bytes) -> None:
    (tmp_path / "env").write_bytes(b"A=1\n" + line)
    with pytest.raises(EnvFileError, match=r"line 2 is not NAME=VALUE|not UTF-8") as refused:
        env_file.read(tmp_path / "env", {})
    assert "secret" not in str(refused.value)
    with pytest.raises(EnvFileError, match="No such file"):
        env_file.read(tmp_path / "no", {})


def test_secrets_of_an_entrypoint_go_through_its_standard_input(hostile: str) -> None:
    """By a shell's own words: nothing of them is an argument, and the words stay what they are."""
    secrets = {"TOKEN": hostile, "KEY": f"{hostile}\n"}
    show = (
        "import json, os, sys; print(json.dumps([os.environ['TOKEN'], os.environ['KEY'], "
        "sys.argv[1:], sys.stdin.read()]))"
    )
    own = [sys.executable, "-c", show]
    found = containers.entry_command(Path("/runs/r"), SPEC, PLACE, ["A"], list(HOSTILE), through_shell=own)
    assert found[found.index("--rm") :][:7] == [
        *("--rm", "--env", "A", "--interactive", "--entrypoint", "/bin/sh", "orch:current")
    ]
    inside = ["/bin/sh", *found[found.index("orch:current") + 1 :]]
    done = subprocess.run(inside, input=containers.as_exports(secrets), capture_output=True, check=True)
    assert json.loads(done.stdout) == [hostile, f"{hostile}\n", list(HOSTILE), ""]


@pytest.mark.parametrize(("code", "means"), [(0, 0), (1, 1), (125, 125), (137, -9), (143, -15), (134, -6), (255, 255)])
def test_an_exit_code_of_the_engine_that_stands_for_a_signal(code: int, means: int) -> None:
    assert container.exit_code_or_signal(code) == means


def test_a_rank_gets_nothing_of_the_node_s_environment_but_the_launcher_s_words() -> None:
    there = {"PATH": "/node", "PMI_FD": "9", "ACCELERATE_USE_CPU": "true", "ORCH_ATTEMPT": "2"}
    found = container.launcher_variables(there)
    assert found == {"ACCELERATE_USE_CPU": "true", "ORCH_ATTEMPT": "2"}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("docker: Error response from daemon: No such image: x:y.\n", "`docker pull` there."),
        ("docker: x\n\nRun 'docker run --help' for more information", "docker: x"),
        ("permission denied while trying to connect to the Docker daemon socket", "group docker"),
    ],
)
def test_what_the_engine_says_is_told_with_the_cure(text: str, words: str) -> None:
    found = containers.explain_error(text.strip())
    assert found.endswith(words) or words in found
    assert "--help" not in found


def test_a_run_without_the_file_has_no_container(tmp_path: Path) -> None:
    assert containers.read_spec(tmp_path) is None
    assert containers.remove_all(tmp_path) == ([], []), "no engine is asked"
    (tmp_path / "container.json").write_text(render(SPEC))
    assert containers.read_spec(tmp_path) == SPEC
